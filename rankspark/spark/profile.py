"""First contact with a log: what is in it, and what an evaluation would do to it. Writes nothing.

Spark does all the counting; some hundred rows reach the driver whatever the log holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from rankspark.config import Config
from rankspark.errors import InputError
from rankspark.spark import (
    aggregate,
    check,
    judge,
    label,
    lists,
    pipeline,
    quality,
    read,
    session,
)
from rankspark.spark.audit import once
from rankspark.spark.check import Finding

#: Positions that are listed one by one.
_SHOWN_POSITIONS = 50
_SUSPICIOUS = 10
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class Position:
    """The rows at one logged position.

    Attributes:
        position: as logged.
        n_rows: how many.
        judged: the share whose relevance is known; None where it is not in the impressions.
        relevant: the share with a relevance above 0; None likewise.
    """

    position: int
    n_rows: int
    judged: float | None = None
    relevant: float | None = None


@dataclass
class Profile:
    """What a log holds on a date.

        >>> found = rankspark.spark.profile.profile(spark, job, date(2024, 3, 10))
        >>> found.n_rows, found.n_queries
        (5, 2)

    Attributes:
        day: the date that was looked at: the one asked for, or the last in the log; None where the
            log has no dates.
        n_rows: impressions of the date.
        n_rows_of_other_dates: rows with another date.
        n_rows_without_date: rows whose date is null or not readable, which no run ever sees.
        dates: the first and the last date of the log.
        n_queries: lists.
        position_base: from which number positions seem to count; None where neither 0 nor 1 is
            where lists begin, or no ranker uses positions.
        lengths: quantiles of the lists' lengths, by percent.
        positions: the first 50 logged positions that have rows.
        empty_positions: those up to the 50th, or the last used, that have none.
        n_queries_no_relevant: lists without a relevant item.
        longest: the longest lists, as JSON.
        variants: queries by experiment and variant, the largest 50.
        findings: what would be rejected, repaired or flagged.
        advice: what to change in the configuration, in words.
    """

    day: date | None
    n_rows: int = 0
    n_rows_of_other_dates: int = 0
    n_rows_without_date: int = 0
    dates: tuple[date, date] | None = None
    n_queries: int = 0
    position_base: int | None = None
    lengths: dict[str, int] = field(default_factory=dict)
    positions: list[Position] = field(default_factory=list)
    empty_positions: list[int] = field(default_factory=list)
    n_queries_no_relevant: int = 0
    longest: list[str] = field(default_factory=list)
    variants: list[tuple[str, str, int]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """All of it, as JSON takes it."""
        content = asdict(self)
        content["day"] = None if self.day is None else str(self.day)
        content["dates"] = None if self.dates is None else [str(day) for day in self.dates]
        return content


def profile(spark: SparkSession, config: Config, day: date | None = None) -> Profile:
    """Look at a date of a log as an evaluation would, and write nothing.

    Args:
        spark: the session; its options are restored afterwards.
        config: the configuration.
        day: the date; default: the last one in the log.

    Raises:
        InputError: the source is absent, empty, or a column does not resolve.
    """
    with session.options(spark, timezone=config.input.timezone, **lists.handed(config)):
        source = read.source(spark, config.input)
        found = _dates(source, config, day)
        rows = read.canonical(source, config, found.day)
        found.n_rows, found.findings = check.census(rows, config)
        if found.n_rows == 0 and rows.isEmpty():
            raise InputError(
                expected=f"impressions in {config.input.path or config.input.table}",
                found=f"none of {found.day}",
                action="name a date that the log has, or check input.where and input.columns.date",
            )
        if config.uses_position:
            _positions(rows, found, config)
        quality.refuse_many_experiments(rows, config)
        # Any one measure will do: the scorer counts beside it. A gain might overflow.
        content = config.model_dump(by_alias=True)
        content["evaluate"]["measures"] = ("mrr",)
        lean = Config.model_validate(content)
        origins = lists.Origins(
            judge.judgments(spark, lean), label.labels(spark, lean, found.day or date.min)
        )
        with _kept(pipeline.per_query(check.mark(rows, lean), lean, origins)) as queries:
            _lists(queries, found, lean)
    _advise(found, config)
    found.findings.sort(key=lambda finding: (finding.kind, finding.reason))
    return found


def _dates(source: DataFrame, config: Config, day: date | None) -> Profile:
    sql = config.input.columns.date
    if sql is None:
        return Profile(None)
    kind = read.resolve(source, {"date": sql})["date"]
    if isinstance(kind, T.StringType):
        sql = f"try_cast(({sql}) as date)"
    rows = source.groupBy(F.expr(sql).alias("day")).agg(F.count(F.lit(1)).alias("n"))
    first, last, n_all, n_none, n_asked = rows.agg(
        F.min("day"),
        F.max("day"),
        F.coalesce(F.sum("n"), F.lit(0)),
        F.coalesce(F.sum(F.expr("if(day is null, n, 0)")), F.lit(0)),
        F.coalesce(F.sum(F.expr(f"if(day = DATE'{day}', n, 0)" if day else "0")), F.lit(0)),
    ).collect()[0]
    if last is None:
        raise InputError(
            expected=f"input.columns.date = {config.input.columns.date!r} to be a date",
            found=f"{n_all} rows, none with a date",
            action="correct input.columns.date",
        )
    if day is None:
        day = last
        n_asked = rows.where(F.col("day") == F.lit(last)).agg(F.sum("n")).collect()[0][0]
    return Profile(
        day,
        n_rows_of_other_dates=n_all - n_none - n_asked,
        n_rows_without_date=n_none,
        dates=(first, last),
    )


def _positions(rows: DataFrame, found: Profile, config: Config) -> None:
    if config.input.items is not None:
        rows = rows.select(F.inline("items"))
    graded = config.input.columns.relevance is not None
    relevance = "relevance" if graded else "cast(null as double)"
    known = f"{relevance} is not null and not isnan({relevance})"
    # What lies beyond is one group on either side, so few groups whatever the log holds.
    place = f"int(floor(greatest(least(position, {_SHOWN_POSITIONS + 1}), -1)))"
    counted = (
        rows.where("position is not null and not isnan(position)")
        .groupBy(F.expr(place).alias("place"))
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.count_if(F.expr(known)).alias("judged"),
            F.count_if(F.expr(f"{known} and {relevance} > 0")).alias("relevant"),
        )
        .collect()
    )
    at = {row["place"]: row for row in counted}
    found.positions = [
        Position(
            place,
            row["n"],
            row["judged"] / row["n"] if graded else None,
            row["relevant"] / row["n"] if graded else None,
        )
        for place, row in sorted(at.items())
        if 0 <= place <= _SHOWN_POSITIONS
    ]
    n_first = [at[place]["n"] if place in at else 0 for place in (0, 1)]
    if max(n_first) > 0:
        # A few rows at 0 are a fault; a list that begins there has about as many as at 1.
        found.position_base = 0 if 2 * n_first[0] >= n_first[1] else 1
    used = {place for place in at if place >= 0}
    base = config.input.position_base if found.position_base is None else found.position_base
    last = min(max(used, default=0), _SHOWN_POSITIONS)
    found.empty_positions = [place for place in range(base, last + 1) if place not in used]


def _lists(queries: DataFrame, found: Profile, config: Config) -> None:
    longest = config.limits.max_list_length
    lone = once(queries, config).withColumn(
        "n_rows", F.expr("n_items + n_duplicates + n_conflicts + n_placeholders")
    )
    columns = {
        "duplicate": "n_duplicates",
        "conflicting_duplicate": "n_conflicts",
        "position_repeated": "n_repeated",
        "position_gap": "n_gaps",
    }
    row = lone.agg(
        F.count(F.lit(1)).alias("n_queries"),
        F.expr(f"percentile(n_items, array{_QUANTILES})").alias("lengths"),
        F.count_if(F.expr("n_relevant = 0")).alias("no_relevant"),
        F.count_if(F.expr(f"n_items > {longest}")).alias("n_long"),
        F.expr(f"coalesce(sum(if(n_items > {longest}, n_items, 0)), 0)").alias("long_rows"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in columns.values()),
        *(F.count_if(F.col(name) > 0).alias(f"{name}_queries") for name in columns.values()),
    ).collect()[0]
    found.n_queries, found.n_queries_no_relevant = row["n_queries"], row["no_relevant"]
    if row["lengths"] is not None:
        found.lengths = {
            f"{100 * share:.0f}%": round(length)
            for share, length in zip(_QUANTILES, row["lengths"], strict=True)
        }
    example = F.to_json(F.struct("experiment", "variant", "query_id", "n_items"))
    found.longest = [
        one[0]
        for one in lone.orderBy(F.desc("n_items"), "query_id")
        .limit(_SUSPICIOUS)
        .select(example)
        .collect()
    ]
    for reason, name in columns.items():
        if row[name]:
            kind = "flagged" if reason == "position_gap" else "repaired"
            n_queries = row[f"{name}_queries"]
            found.findings.append(Finding(reason, kind, row[name], n_queries=n_queries))
    if row["n_long"]:
        long = Finding("list_too_long", "rejected", row["long_rows"], n_queries=row["n_long"])
        found.findings.append(long)
    found.findings += _repeated(lone, config)
    sizes = lone.groupBy("experiment", "variant").agg(F.count(F.lit(1)).alias("n"))
    largest = sizes.orderBy(F.desc("n"), "experiment", "variant").limit(_SHOWN_POSITIONS)
    found.variants = [(one[0], one[1], one[2]) for one in largest.collect()]
    variants: dict[str, list[str]] = {}
    for experiment, variant, _ in found.variants:
        variants.setdefault(experiment, []).append(variant)
    assigned = aggregate.assignments(aggregate.unit_sums(queries, config, slices=()), config)
    found.findings += quality.look(queries, assigned, config, variants)


def _repeated(lone: DataFrame, config: Config) -> list[Finding]:
    """Queries with several lists, which disagree about a unit or slice or were logged twice."""
    key = ["query_id"]
    if config.input.columns.assignments is None:
        key = ["experiment", "variant", "query_id"]
    several = (
        lone.groupBy(*key)
        .agg(
            F.count(F.lit(1)).alias("n_lists"),
            F.max("n_experiments").alias("expected"),
            F.sum("n_rows").alias("n_rows"),
        )
        .where("n_lists != expected")
    )
    n_queries, n_rows = several.agg(F.count(F.lit(1)), F.sum("n_rows")).collect()[0]
    if not n_queries:
        return []
    first = several.orderBy(*key).limit(check.MAX_EXAMPLES)
    examples = [row[0] for row in first.select(F.to_json(F.struct(*key, "n_lists"))).collect()]
    # Which of the two it is needs their values, which only an evaluation has.
    found = Finding("query_has_several_lists", "flagged", n_rows, examples, n_queries=n_queries)
    return [found]


def _advise(found: Profile, config: Config) -> None:
    base = config.input.position_base
    if config.uses_position and found.position_base not in (None, base):
        found.advice.append(
            f"positions seem to count from {found.position_base}:"
            f" set input.position_base = {found.position_base}"
        )
    if config.uses_position and found.position_base is None:
        found.advice.append("no list begins at position 0 or 1: look at input.columns.position")
    if found.n_queries and found.n_queries_no_relevant == found.n_queries:
        found.advice.append("no query has a relevant item: look at where relevance comes from")
    if found.lengths and found.lengths["99%"] <= 1:
        found.advice.append(
            "nearly every list has one item: query_id seems to be the id of a row, not of a list"
        )
    if found.n_rows_without_date:
        found.advice.append(
            f"{found.n_rows_without_date:,} rows have no readable date and belong to no run:"
            " look at input.columns.date"
        )
    rejected = sum(one.n_rows for one in found.findings if one.kind == "rejected")
    level = config.quality.rejected.level(rejected / found.n_rows) if found.n_rows else None
    if level == "fail":
        found.advice.append(
            f"{rejected / found.n_rows:.0%} of the rows would be rejected, and the date would not"
            " be published (quality.rejected)"
        )


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """A frame that is computed once; it has a row a query."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()

"""Whether a date is fit to be published: gates on what it holds and on how it differs from others.

A gate says what moved, from what to what. Of those that fail one error is made, and nothing is
published; the others stand in the result, in the table `runs` and on the terminal.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Config, Definition, Gate
from rankspark.errors import QualityError
from rankspark.spark import check
from rankspark.spark.audit import Population, once
from rankspark.spark.check import Finding
from rankspark.spark.sinks import Folders, Lake
from rankspark.stats import sample_ratio

#: Changes smaller than this are none, however steady the days before were.
_STEP = 0.05
#: The same of a mean near 0.
_SMALLEST = 0.001
#: Makes a median absolute deviation a standard deviation, were the days normal.
_MAD = 1.4826
#: The level at which a split is called another than was configured (Fabijan et al., KDD 2019).
_ALPHA = 0.001
#: Messages of one gate that are written out.
_SHOWN = 5


@dataclass(frozen=True)
class Alarm:
    """A gate that a date does not pass.

    Attributes:
        gate: the key in `[quality]`.
        level: `warn` or `fail`.
        message: what moved, from what to what.
    """

    gate: str
    level: str
    message: str


@dataclass
class History:
    """Published days before a date, the last first.

    Attributes:
        days: which.
        counts: by name of a column of `runs`, its value on each day.
        means: by experiment, variant, ranker, measure and definition, the mean of each day.
        variants: experiments and variants of the last day.
    """

    days: list[str] = field(default_factory=list)
    counts: dict[str, list[int]] = field(default_factory=dict)
    means: dict[tuple[str, ...], list[float]] = field(default_factory=dict)
    variants: set[tuple[str, str]] = field(default_factory=set)


@dataclass(frozen=True)
class Day:
    """What is to be published.

    Attributes:
        counts: as in the table `runs`.
        population: the lists.
        metrics: the rows of `metrics`.
        n_units: distinct units by experiment and variant, of experiments with a split.
        n_rows_unjudged: rows of queries without a judgment, which are left out by design.
    """

    counts: Mapping[str, int]
    population: Population
    metrics: Sequence[Mapping[str, Any]]
    n_units: Mapping[tuple[str, str], int] = field(default_factory=dict)
    n_rows_unjudged: int = 0

    @property
    def overall(self) -> list[Mapping[str, Any]]:
        """The rows of `metrics` that cover every query."""
        return [row for row in self.metrics if row["slice_name"] == tables.OVERALL[0]]


def alarms(day: Day, history: History, config: Config) -> list[Alarm]:
    """The gates that a date does not pass, those that fail first."""
    found = [
        *_shares(day, config),
        *_totals(day, history, config),
        *_few(_means(day, history, config)),
        *_few(_missing_variants(day, history, config)),
        *_few(_sample_ratios(day, config)),
    ]
    return sorted(found, key=lambda alarm: alarm.level)


def refuse(found: Sequence[Alarm], day: date) -> None:
    """Raise a QualityError where a gate fails."""
    failed = [alarm for alarm in found if alarm.level == "fail"]
    if failed:
        gates = ", ".join(dict.fromkeys(f"quality.{alarm.gate}" for alarm in failed))
        raise QualityError(
            expected=f"{day} to pass its quality gates",
            found="; ".join(alarm.message for alarm in failed),
            action=f"nothing was published: correct the log, or change {gates}",
        )


def _shares(day: Day, config: Config) -> Iterator[Alarm]:
    quality, counts, kept = config.quality, day.counts, day.population
    overall = {(row["experiment"], row["variant"]): row for row in day.overall}.values()
    n_queries = sum(row["n_queries"] for row in overall)
    unjudged = quality.unjudged
    if unjudged is None:
        unjudged = Gate() if config.judgments is not None else Gate(warn=0.5)
    n_read = counts["n_rows_read"] - day.n_rows_unjudged
    n_rejected = counts["n_rows_rejected"] - day.n_rows_unjudged
    n_repeated, n_unjudged = counts["n_rows_duplicate"], kept.n_items - kept.n_judged
    n_none = sum(row["n_no_relevant"] for row in overall)
    shares: list[tuple[str, Gate, str, int, int]] = [
        ("rejected", quality.rejected, "rejected rows", n_rejected, n_read),
        ("duplicates", quality.duplicates, "duplicate rows", n_repeated, n_read),
        ("unjudged", unjudged, "items of unknown relevance", n_unjudged, kept.n_items),
        ("no_relevant", quality.no_relevant, "queries without a relevant item", n_none, n_queries),
    ]
    for name, gate, what, part, whole in shares:
        level = gate.level(part / whole) if whole else None
        if level is not None:
            limit = gate.fail if level == "fail" else gate.warn
            yield Alarm(
                name,
                level,
                f"{part:,} of {whole:,} are {what}, {part / whole:.1%} (limit {limit:.4g})",
            )


def _totals(day: Day, history: History, config: Config) -> Iterator[Alarm]:
    for name, gate, column in (
        ("rows", config.quality.rows, "n_rows_read"),
        ("queries", config.quality.queries, "n_queries"),
    ):
        past = history.counts.get(column, [])
        if len(past) < config.quality.min_history or min(past) <= 0:
            continue
        # Of the logarithm, so that a tenth is as far away as ten times.
        usual, scale = _robust([math.log(n) for n in past])
        now = day.counts[column]
        level = gate.level(abs(math.log(now) - usual) / max(scale, _STEP))
        if level is not None:
            moved = "fell" if math.log(now) < usual else "rose"
            median = statistics.median(past)
            yield Alarm(
                name,
                level,
                f"{name} {moved} from {median:,.0f} (median of {_span(history)}) to {now:,}",
            )


def _means(day: Day, history: History, config: Config) -> Iterator[Alarm]:
    gate = config.quality.means
    for row in day.overall:
        past = history.means.get(_series(row), [])
        if gate.is_off or len(past) < config.quality.min_history or row["mean"] is None:
            continue
        usual, scale = _robust(past)
        # What the day's own sample leaves open is no movement.
        scale = max(scale, _STEP * abs(usual), row["std_error"] or 0.0, _SMALLEST)
        level = gate.level(abs(row["mean"] - usual) / scale)
        if level is not None:
            moved = "fell" if row["mean"] < usual else "rose"
            yield Alarm(
                "means",
                level,
                f"{row['measure']} of {row['experiment']}/{row['variant']} under {row['ranker']}"
                f" {moved} from {usual:.4f} (median of {_span(history)}) to {row['mean']:.4f}",
            )


def _missing_variants(day: Day, history: History, config: Config) -> Iterator[Alarm]:
    level = config.quality.missing_variant
    if level == "off":
        return
    present = {(row["experiment"], row["variant"]) for row in day.overall}
    for experiment, variant in sorted(history.variants - present):
        still = "which has others" if any(experiment == e for e, _ in present) else "all of which"
        yield Alarm(
            "missing_variant",
            level,
            f"variant {variant} of experiment {experiment}, {still}, was there on"
            f" {history.days[0]} and is gone",
        )


def _sample_ratios(day: Day, config: Config) -> Iterator[Alarm]:
    level = config.quality.sample_ratio
    if level == "off":
        return
    present = {row["experiment"] for row in day.overall}
    for experiment, weights in sorted(config.quality.split.items()):
        if experiment not in present:
            continue
        # A variant without a unit is the worst split; one without a weight is not part of the test.
        found = {name: day.n_units.get((experiment, name), 0) for name in sorted(weights)}
        p = sample_ratio(list(found.values()), [weights[name] for name in found]).p
        if p is not None and p < _ALPHA:
            total, whole = sum(found.values()), sum(weights.values())
            parts = ", ".join(
                f"{name} {n:,} of {total * weights[name] / whole:,.0f} expected"
                for name, n in found.items()
            )
            yield Alarm(
                "sample_ratio",
                level,
                f"units of experiment {experiment} are not split as configured: {parts}"
                f" (p = {p:.2g})",
            )


def _few(found: Iterator[Alarm]) -> list[Alarm]:
    """The first alarms of a gate, and how many more there are."""
    every = list(found)
    kept = every[:_SHOWN]
    if len(every) > _SHOWN:
        last = kept[-1]
        more = f"{last.message}; and {len(every) - _SHOWN} more like it"
        level = "fail" if any(alarm.level == "fail" for alarm in every) else last.level
        kept[-1] = Alarm(last.gate, level, more)
    return kept


def _robust(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the median absolute deviation as a standard deviation."""
    middle = statistics.median(values)
    return middle, _MAD * statistics.median(abs(value - middle) for value in values)


def _span(history: History) -> str:
    return f"{len(history.days)} days, {history.days[-1]} to {history.days[0]}"


def _series(row: Mapping[str, Any]) -> tuple[str, ...]:
    # Another definition is another series: its mean may lie elsewhere for good reasons.
    names = ("experiment", "variant", "ranker", "measure", "definition_id")
    return tuple(row[name] for name in names)


def history(sink: Folders | Lake, config: Config, day: date) -> History:
    """The published days before a date, as far as the gates look back.

    Args:
        sink: the dataset's tables.
        config: the configuration.
        day: the date itself, which is left out where it is published already.
    """
    days = sink.days_before(tables.METRICS.name, day, config.quality.history_days)
    if not days:
        return History()
    found = History(days)
    names = ["date", "finished_at", "status", "n_rows_read", "n_queries"]
    runs = [row for row in sink.rows(tables.RUNS.name, days, names) if row["status"] == "published"]
    # A date may have been run several times; the newest run is the one in force.
    in_force = {row["date"]: row for row in sorted(runs, key=lambda row: row["finished_at"])}
    for column in ("n_rows_read", "n_queries"):
        found.counts[column] = [in_force[name][column] for name in days if name in in_force]
    keys = ["date", "experiment", "variant", "ranker", "measure", "definition_id", "mean"]
    for row in sink.rows(tables.METRICS.name, days, [*keys, "slice_name"]):
        if row["slice_name"] != tables.OVERALL[0]:
            continue
        if row["mean"] is not None:
            found.means.setdefault(_series(row), []).append(row["mean"])
        if row["date"] == days[0]:
            found.variants.add((row["experiment"], row["variant"]))
    return found


def refuse_many_experiments(rows: DataFrame, config: Definition) -> None:
    """Refuse a date of so many experiments that one of them is meant, before anything is written.

    Each would be a folder in two tables. Reads one column, and no more of it than says so.

    Args:
        rows: canonical rows.
        config: the configuration.

    Raises:
        QualityError: more than `limits.max_experiments`.
    """
    limit = config.limits.max_experiments
    if config.input.columns.assignments is None:
        names = rows.select("experiment")
    else:
        names = rows.select(F.explode("assignments.key").alias("experiment"))
    # One more than are allowed, so that the driver never sees a million names.
    several = names.where("experiment is not null").distinct().limit(limit + 1)
    names_found = F.sort_array(F.collect_list("experiment"))
    n_found, examples = several.agg(F.count(F.lit(1)), F.slice(names_found, 1, 3)).collect()[0]
    if n_found > limit:
        raise QualityError(
            expected=f"at most {limit:,} experiments on a date",
            found=f"more, such as {', '.join(map(repr, examples))}",
            action="correct input.columns.experiment, which seems to name something else, or raise"
            " limits.max_experiments",
        )


def units(queries: DataFrame, config: Config) -> dict[tuple[str, str], int]:
    """Distinct units by experiment and variant, of the experiments that have a split."""
    split = config.quality.split
    if not split or config.quality.sample_ratio == "off" or config.input.columns.unit_id is None:
        return {}
    concerned = once(queries, config).where(F.col("experiment").isin(list(split)))
    rows = concerned.groupBy("experiment", "variant").agg(F.count_distinct("unit_id")).collect()
    return {(row[0], row[1]): row[2] for row in rows}


def look(
    queries: DataFrame,
    assigned: DataFrame,
    config: Config,
    variants: Mapping[str, Sequence[str]],
    *,
    crossed: bool = True,
) -> list[Finding]:
    """What is odd about the names, units and variants of queries that are scored all the same.

    Args:
        queries: `query_metrics`, settled.
        assigned: `assignment`.
        config: the configuration.
        variants: those of each experiment.
        crossed: whether a query may be in two variants of one experiment.
    """
    rows = F.expr("n_items + n_duplicates + n_conflicts + n_placeholders")
    # Judged queries that nobody showed have no rows, and nobody to show them to.
    shown = once(queries, config).withColumn("n_rows", rows).where("n_rows > 0")
    found: list[Finding] = []
    if config.quality.sentinels != "keep":
        texts = config.quality.sentinel_texts
        odd = {
            "experiment": [name for name in variants if name in texts],
            "variant": sorted({v for names in variants.values() for v in names if v in texts}),
        }
        for name, values in odd.items():
            if values:
                found += _flagged(shown.where(F.col(name).isin(values)), f"sentinel_{name}", [name])
    if config.input.columns.unit_id is not None:
        found += _of_units(shown, assigned, config)
    if crossed and config.input.format != "trec" and any(len(v) > 1 for v in variants.values()):
        # In a TREC run, where variants are systems, every topic is in all of them.
        found += _crossed(shown, "query_id", "query_in_two_variants")
    return found


def _of_units(shown: DataFrame, assigned: DataFrame, config: Config) -> list[Finding]:
    sentinel = check.sentinel("unit_id", config)
    if config.quality.sentinels == "keep":
        sentinel = "false"
    # One pass says whether anything is odd at all; only then are examples looked for.
    n_missing, n_sentinel, n_crossed = (
        assigned.selectExpr("n_variants", "if(unit like 'u%', substring(unit, 2), null) AS unit_id")
        .agg(
            F.count_if(F.expr("unit_id is null")),
            F.count_if(F.expr(sentinel)),
            F.count_if(F.expr("unit_id is not null and n_variants > 1")),
        )
        .collect()[0]
    )
    found = []
    if n_missing:
        found += _flagged(shown.where("unit_id is null"), "unit_missing", ["query_id"])
    if n_sentinel:
        found += _flagged(shown.where(sentinel), "sentinel_unit_id", ["unit_id"])
    if n_crossed:
        found += _crossed(shown.where("unit_id is not null"), "unit_id", "unit_in_two_variants")
    return found


def _by(shown: DataFrame, name: str) -> DataFrame:
    """What is known of each value of a column: first = last where it is in one variant only."""
    # As numbers: to find the least of a text, the engine sorts all rows.
    variant = F.xxhash64("variant")
    return shown.groupBy("experiment", name).agg(
        F.min(variant).alias("first"),
        F.max(variant).alias("last"),
        F.sum("n_rows").alias("n_rows"),
        F.count(F.lit(1)).alias("n_queries"),
    )


def _crossed(shown: DataFrame, name: str, reason: str) -> list[Finding]:
    crossed = _by(shown, name).where("first != last")
    key = "n_units" if name == "unit_id" else "n_queries"
    whole = crossed.agg(
        F.count(F.lit(1)), F.coalesce(F.sum("n_rows"), F.lit(0)), F.sum("n_queries")
    ).collect()[0]
    if not whole[0]:
        return []
    few = crossed.select("experiment", name).orderBy("experiment", name).limit(check.MAX_EXAMPLES)
    seen = F.array(F.min("variant"), F.max("variant")).alias("variants")
    named = shown.join(few, ["experiment", name]).groupBy("experiment", name).agg(seen)
    example = F.to_json(F.struct("experiment", name, "variants"))
    rows = named.orderBy("experiment", name).select(example).collect()
    counts = {"n_queries": whole[2]} | {key: whole[0]}
    return [Finding(reason, "flagged", whole[1], [row[0] for row in rows], **counts)]


def _flagged(concerned: DataFrame, reason: str, names: Sequence[str]) -> list[Finding]:
    n_queries, n_rows = concerned.agg(
        F.count(F.lit(1)), F.coalesce(F.sum("n_rows"), F.lit(0))
    ).collect()[0]
    if not n_queries:
        return []
    distinct = concerned.select(*names).distinct().orderBy(*names).limit(check.MAX_EXAMPLES)
    examples = [row[0] for row in distinct.select(F.to_json(F.struct(*names))).collect()]
    return [Finding(reason, "flagged", n_rows, examples, n_queries=n_queries)]

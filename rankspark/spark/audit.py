"""Nothing is lost: every row read is scored, rejected or a duplicate, and the tables agree.

Works on what stands in the staged files, before anything is published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date

from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Config, Definition
from rankspark.errors import InputError, NoRowsError, PublishError
from rankspark.spark import check, lists
from rankspark.spark.check import Finding
from rankspark.spark.publish import Staging


@dataclass(frozen=True)
class Population:
    """Input rows by what became of them, and the lists they made; each list counts once."""

    n_queries: int = 0
    n_items: int = 0
    n_duplicates: int = 0
    n_conflicts: int = 0
    n_placeholders: int = 0
    n_judged: int = 0
    n_repeated: int = 0
    n_gaps: int = 0

    @property
    def n_rows(self) -> int:
        """Input rows of these lists."""
        return self.n_items + self.n_duplicates + self.n_conflicts + self.n_placeholders


@dataclass(frozen=True)
class Settled:
    """`query_metrics` without repeated queries, as staged.

    Attributes:
        queries: the table.
        population: what it holds.
        findings: what was found.
        crossed: whether a query may be in two variants of one experiment.
    """

    queries: DataFrame
    population: Population
    findings: list[Finding]
    crossed: bool


@dataclass(frozen=True)
class Account:
    """What became of the rows of a date: the counts of `runs`, the findings of `rejects`."""

    counts: dict[str, int]
    findings: list[Finding]


#: The counts of a run, as in `runs`.
COUNTED = (
    "n_rows_read",
    "n_rows_scored",
    "n_rows_rejected",
    "n_rows_duplicate",
    "n_rows_placeholder",
    "n_queries",
)
_COUNTS = (
    "n_items",
    "n_duplicates",
    "n_conflicts",
    "n_placeholders",
    "n_judged",
    "n_repeated",
    "n_gaps",
)


def population(queries: DataFrame, config: Definition) -> Population:
    """Count the lists of `query_metrics` and their rows, once each.

    A list stands there under every ranker and in each of its experiments; as it then stands
    n_experiments times, the sums divide without a remainder.
    """
    sums = (
        once(queries, config)
        .groupBy("n_experiments")
        .agg(F.count(F.lit(1)).alias("n_queries"), *(F.sum(name).alias(name) for name in _COUNTS))
        .collect()
    )
    totals = dict.fromkeys(("n_queries", *_COUNTS), 0)
    for row in sums:
        for name in totals:
            totals[name] += row[name] // row["n_experiments"]
    return Population(**totals)


def once(queries: DataFrame, config: Definition) -> DataFrame:
    """The rows of one ranker; of one by position, if any, since it alone looks at positions."""
    rankers = sorted(config.parsed_rankers, key=lambda ranker: not ranker.by_position)
    return queries.where(F.col("ranker") == rankers[0].name)


def _by_query(queries: DataFrame, config: Definition, key: Sequence[str]) -> DataFrame:
    """How often each query stands there, how often it should, and its rows; of one ranker."""
    # As a number: to find the least of a text, the engine sorts all rows.
    variant = F.xxhash64("variant")
    return (
        once(queries, config)
        .groupBy(*key)
        .agg(
            (F.min(variant) != F.max(variant)).alias("crossed"),
            F.count(F.lit(1)).alias("times"),
            F.max("n_experiments").alias("expected"),
            F.max("n_items").alias("longest"),
            *(F.sum(name).alias(name) for name in _COUNTS),
        )
    )


def _is_too_long(config: Definition) -> str:
    """SQL over the rows of :func:`_by_query`."""
    return f"longest > {config.limits.max_list_length}"


def _query_key(config: Definition) -> list[str]:
    # With assignments one request may be in several experiments, but it is one list.
    lone = config.input.columns.assignments is None
    return ["experiment", "variant", "query_id"] if lone else ["query_id"]


def settle(
    queries: DataFrame,
    staged: Staging,
    config: Config,
    regroup: Callable[[DataFrame], DataFrame] | None = None,
) -> Settled:
    """Leave no query twice, none in pieces and none that is too long.

    A query stands twice where its rows disagree about its unit or a slice, or where a nested log
    holds it in two rows: the same list logged again counts once, one that differs is rejected.
    Where rows were taken as they stood in the log, it may have been cut in pieces. All that is
    rare, so the table is written again only then.

    Args:
        queries: `query_metrics` as staged, with a row without values for a list that is too long.
        staged: where.
        config: the configuration.
        regroup: makes the rows of `query_metrics` anew for a frame of query ids, from all rows of
            the log; None where they were made so.
    """
    sums = [F.coalesce(F.sum(F.expr(f"{name} div expected")), F.lit(0)) for name in _COUNTS]

    def seen(by_query: DataFrame) -> Row:
        return by_query.agg(
            F.count_if("crossed"),
            F.count_if(F.expr("times != expected")),
            F.count_if(F.expr(_is_too_long(config))),
            F.count(F.lit(1)),
            *sums,
        ).collect()[0]

    key = _query_key(config)
    # A query is seldom in two variants. If none is, its rows are those of one list.
    by_query = _by_query(queries, config, [name for name in key if name != "variant"])
    n_crossed, n_torn, n_long, *counts = seen(by_query)
    if n_crossed and "variant" in key:
        by_query = _by_query(queries, config, key)
        _, n_torn, n_long, *counts = seen(by_query)
    crossed = n_crossed > 0
    if not n_torn and not n_long:
        return Settled(queries, Population(*counts), [], crossed)
    if n_torn and regroup is not None:
        torn = by_query.where("times != expected").select("query_id").distinct()
        table = config.query_metrics
        again = staged.write(regroup(torn), table, name=f"{table.name}_regrouped")
        whole = queries.join(torn, "query_id", "left_anti").unionByName(again)
        return settle(staged.rewrite(whole, table), staged, config)
    findings = too_long(queries, config)
    long = _by_query(queries, config, key).where(_is_too_long(config))
    queries = queries.join(long, key, "left_anti")
    before = population(queries, config)
    unique = queries.dropDuplicates()
    differing = _by_query(unique, config, key).where("times != expected")
    rejected = population(queries.join(differing, key, "left_semi"), config)
    examples = _longest(differing)
    settled = staged.rewrite(unique.join(differing, key, "left_anti"), config.query_metrics)
    kept = population(settled, config)
    twice = before.n_rows - kept.n_rows - rejected.n_rows
    findings += [
        Finding("query_contradicts_itself", "rejected", rejected.n_rows, examples),
        Finding("query_logged_twice", "repaired", twice),
    ]
    found = [finding for finding in findings if finding.n_rows]
    return Settled(settled, kept, found, crossed)


def too_long(scored: DataFrame, config: Definition) -> list[Finding]:
    """Those lists of all that were scored that are longer than `limits.max_list_length`."""
    long = _by_query(scored, config, _query_key(config)).where(_is_too_long(config))
    rows = F.expr("(n_items + n_duplicates + n_conflicts + n_placeholders) div expected")
    n_rows = long.agg(F.coalesce(F.sum(rows), F.lit(0))).collect()[0][0]
    return [Finding("list_too_long", "rejected", n_rows, _longest(long))] if n_rows else []


def _longest(by_query: DataFrame) -> list[str]:
    example = F.to_json(F.struct("query_id", "n_items"))
    longest = by_query.orderBy(F.desc("n_items"), "query_id").limit(check.MAX_EXAMPLES)
    return [row[0] for row in longest.select(example).collect()]


def account(
    observation: Observation,
    rows: DataFrame,
    marked: DataFrame,
    settled: Settled,
    origins: lists.Origins,
    config: Config,
    day: date,
) -> Account:
    """Find out what became of every row of the date.

    What the scoring pass observed is taken where it shows that nothing was rejected and all adds
    up. Otherwise (and where the engine dropped the observation, or counted a retried task twice)
    the rows are counted once more, exactly and by reason.

    Raises:
        InputError: no row of that date, or none that can be scored.
        PublishError: the rows do not add up.
    """
    queries, kept, repeated = settled.queries, settled.population, settled.findings
    findings = list(repeated)
    accounted = kept.n_rows + sum(finding.n_rows for finding in findings)
    # The engine drops an observation together with a plan that it finds to be empty.
    observed = observation.get if kept.n_queries else {}
    clean = observed.get("n_rejected") == 0 and observed.get("n_rows") == accounted
    if clean and not check.always_counts(config):
        total = accounted
    else:
        total, rejected = check.census(rows, config)
        findings += rejected
        accounted += sum(finding.n_rows for finding in rejected if finding.kind == "rejected")
    if total == 0 and kept.n_queries == 0:
        raise NoRowsError(
            expected=f"impressions of {day} in {config.input.path or config.input.table}",
            found="no row of that date",
            action="check that the day's log has arrived, input.where and input.columns.date;"
            " to publish it as empty, give --allow-empty",
        )
    if accounted != total and origins.judged is not None:
        left_out = lists.without_judgment(marked, config, origins.judged)
        accounted += sum(finding.n_rows for finding in left_out)
        findings += left_out
    if accounted != total:
        raise PublishError(
            expected=f"every one of {total} rows of {day} to be scored, rejected or a duplicate",
            found=f"{accounted}",
            action="the input changed while it was read: run the date again; else report a bug",
        )
    if kept.n_queries == 0:
        reasons = ", ".join(f"{finding.reason} {finding.n_rows}" for finding in findings)
        raise InputError(
            expected=f"at least one query of {day} that can be scored",
            found=f"{total} rows, all rejected: {reasons}",
            action="correct input.columns for what the log holds",
        )
    again = sum(finding.n_rows for finding in repeated if finding.kind == "repaired")
    counts = {
        "n_rows_read": total,
        "n_rows_scored": kept.n_items,
        "n_rows_rejected": total - kept.n_rows - again,
        "n_rows_duplicate": kept.n_duplicates + kept.n_conflicts + again,
        "n_rows_placeholder": kept.n_placeholders,
        "n_queries": kept.n_queries,
    }
    for kind, reason, column in _SEEN_BY_THE_SCORER:
        n_rows = getattr(kept, column)
        if n_rows:
            found = _in_queries(once(queries, config), column)
            findings.append(replace(found, kind=kind, reason=reason, n_rows=n_rows))
    unscored = queries.groupBy("ranker").agg(F.sum("n_unscored").alias("n")).where("n > 0")
    if any(not ranker.by_position for ranker in config.parsed_rankers):
        findings += [Finding(f"no_score_of_{name}", "flagged", n) for name, n in unscored.collect()]
    if origins.judged is not None:
        findings += origins.judged.findings()
    if origins.labelled is not None:
        findings += origins.labelled.findings(queries)
    return Account(counts, sorted(findings, key=lambda finding: (finding.kind, finding.reason)))


_SEEN_BY_THE_SCORER = (
    ("repaired", "duplicate", "n_duplicates"),
    ("repaired", "conflicting_duplicate", "n_conflicts"),
    # The rule for taken positions is the next free rank, so these lists are not as logged.
    ("repaired", "position_repeated", "n_repeated"),
    ("flagged", "position_gap", "n_gaps"),
)


def _in_queries(queries: DataFrame, column: str) -> Finding:
    """Of a count of `query_metrics`, the queries that have it."""
    concerned = queries.where(F.col(column) > 0).select("query_id", column).distinct()
    example = F.to_json(F.struct("query_id", column))
    rows = concerned.orderBy("query_id").limit(check.MAX_EXAMPLES).select(example).collect()
    few = len(rows) < check.MAX_EXAMPLES
    n_queries = len(rows) if few else concerned.count()
    return Finding("", "", 0, [row[0] for row in rows], n_queries=n_queries)


def totals(queries: DataFrame, config: Config) -> list[Row]:
    """What `query_metrics` adds up to by experiment, variant and ranker.

    Of more groups than `limits.max_groups` only some, so that the driver can hold them: such a date
    is refused.

    Returns:
        `n` rows, `nulls` with a null key, and the sum of each measure in billionths.
    """
    nulls = F.count_if(_any_null(["experiment", *config.query_metrics.key])).alias("nulls")
    nano = [
        F.sum(F.round(F.col(m.column_name) * tables.NANO).cast("bigint")).alias(str(m))
        for m in config.measures
    ]
    return (
        queries.groupBy("experiment", "variant", "ranker")
        .agg(F.count(F.lit(1)).alias("n"), nulls, *nano)
        .limit(config.limits.max_groups + 1)
        .collect()
    )


def audit(groups: Sequence[Row], staged: Staging, accounted: Account, config: Config) -> None:
    """Hold what was staged against each other, read back from the files.

    The sums of `metrics` are those of the staged `unit_day`, over units and slices; the totals were
    taken over the queries directly. That queries are unique was seen when their rows were accounted
    for.

    Args:
        groups: as of :func:`totals`.
        staged: the tables.
        accounted: what became of the rows.
        config: the configuration.

    Raises:
        PublishError: a key is null or not unique, a row is missing, or sums disagree.
    """
    written = staged.read_rows(tables.METRICS)
    key = ("experiment", *tables.METRICS.key)
    found = {tuple(row[name] for name in key): row for row in written}
    _same("distinct keys of metrics", len(found), len(written))
    for group in groups:
        _same("rows of query_metrics with a null key", group["nulls"], 0)
        for measure in config.measures:
            names = (*group[:3], *tables.OVERALL, str(measure))
            row = found.get(names)
            ours = row and (row["n_queries"], row["sum_nano"])
            _same(f"metrics of {names}", ours, (group["n"], group[str(measure)] or 0))
    overall = sum(row["slice_name"] == tables.OVERALL[0] for row in written)
    _same("overall rows of metrics", overall, len(groups) * len(config.measures))
    # Every query has one value of each slice, so those add up to the whole.
    sliced: dict[tuple[str, ...], list[int]] = {}
    for row in written:
        names = (*(row[name] for name in key[:4]), row["measure"])
        sums = sliced.setdefault(names, [0, 0, 0])
        for i, name in enumerate(("n_queries", "n_scored", "sum_nano")):
            sums[i] += row[name]
    for names, sums in sliced.items():
        whole = found[(*names[:3], *tables.OVERALL, names[4])]
        wanted = [whole["n_queries"], whole["n_scored"], whole["sum_nano"]]
        _same(f"the values of slice {names[3]} of {names}", sums, wanted)
    rejects = {
        (row["kind"], row["reason"]): row["n_rows"] for row in staged.read_rows(tables.REJECTS)
    }
    counted = {(finding.kind, finding.reason): finding.n_rows for finding in accounted.findings}
    _same("rejects", rejects, counted)


def _any_null(columns: list[str]) -> Column:
    null = F.lit(False)
    for column in columns:
        null = null | F.col(column).isNull()
    return null


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise PublishError(
            expected=f"{what}: {expected}",
            found=f"{found} in the staged files",
            action="nothing was published; run the date again; if it happens twice, report it",
        )

"""Nothing is lost: every row read is scored, rejected or a duplicate, and the tables agree.

Works on what stands in the staged files, before anything is published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Config
from rankspark.errors import InputError, PublishError
from rankspark.spark import check, lists
from rankspark.spark.aggregate import GROUP
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

    @property
    def n_rows(self) -> int:
        """Input rows of these lists."""
        return self.n_items + self.n_duplicates + self.n_conflicts + self.n_placeholders


@dataclass(frozen=True)
class Account:
    """What became of the rows of a date: the counts of `runs`, the findings of `rejects`."""

    counts: dict[str, int]
    findings: list[Finding]


def population(queries: DataFrame, config: Config) -> Population:
    """Count the lists of `query_metrics` and their rows, once each.

    A list stands there under every ranker and in each of its experiments; as it then stands
    n_experiments times, the sums divide without a remainder.
    """
    names = ("n_items", "n_duplicates", "n_conflicts", "n_placeholders")
    sums = (
        queries.where(F.col("ranker") == config.parsed_rankers[0].name)
        .groupBy("n_experiments")
        .agg(F.count(F.lit(1)).alias("n_queries"), *(F.sum(name).alias(name) for name in names))
        .collect()
    )
    totals = dict.fromkeys(("n_queries", *names), 0)
    for row in sums:
        for name in totals:
            totals[name] += row[name] // row["n_experiments"]
    return Population(**totals)


def settle_repeated(
    queries: DataFrame, staged: Staging, config: Config
) -> tuple[DataFrame, list[Finding]]:
    """Leave no query twice: the same list logged again counts once, one that differs is rejected.

    A query stands twice where its rows disagree about its unit or a slice, or where a nested log
    holds it in two rows. That is rare, so the table is written again only then.

    Returns:
        the table as it is now staged; what was found.
    """
    table = config.query_metrics
    key = ["ranker", "query_id"]
    if config.input.columns.assignments is None:
        key = ["experiment", "variant", *key]

    def repeated(frame: DataFrame) -> DataFrame:
        times = frame.groupBy(*key).agg(
            F.count(F.lit(1)).alias("times"), F.max("n_experiments").alias("expected")
        )
        return times.where("times != expected").select(*key)

    if not repeated(queries).limit(1).collect():
        return queries, []
    before = population(queries, config)
    unique = queries.dropDuplicates()
    differing = repeated(unique)
    rejected = population(queries.join(differing, key, "left_semi"), config)
    examples = (
        differing.select("query_id")
        .distinct()
        .orderBy("query_id")
        .limit(check.MAX_EXAMPLES)
        .collect()
    )
    settled = staged.rewrite(unique.join(differing, key, "left_anti"), table)
    findings = []
    again = before.n_rows - population(settled, config).n_rows - rejected.n_rows
    if again:
        findings.append(Finding("query_logged_twice", "repaired", again))
    if rejected.n_rows:
        ids = [f'{{"query_id":"{row[0]}"}}' for row in examples]
        findings.append(Finding("query_contradicts_itself", "rejected", rejected.n_rows, ids))
    return settled, findings


def account(
    observation: Observation,
    rows: DataFrame,
    marked: DataFrame,
    queries: DataFrame,
    repeated: list[Finding],
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
    kept = population(queries, config)
    findings = list(repeated)
    accounted = kept.n_rows + sum(finding.n_rows for finding in findings)
    # The engine drops an observation together with a plan that it finds to be empty.
    observed = observation.get if kept.n_queries else {}
    clean = observed.get("n_rejected") == 0 and observed.get("n_rows") == accounted
    if clean and config.evaluate.negative == "reject":
        total = accounted
    else:
        total, rejected = check.census(rows, config)
        findings += rejected
        accounted += sum(finding.n_rows for finding in rejected if finding.kind == "rejected")
    if total == 0 and kept.n_queries == 0:
        raise InputError(
            expected=f"impressions of {day} in {config.input.path or config.input.table}",
            found="no row of that date",
            action="check that the day's log has arrived, input.where and input.columns.date",
        )
    if accounted != total:
        long = lists.too_long(marked, config)
        accounted += long.n_rows
        findings += [long] if long.n_rows else []
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
    for reason, column in (("duplicate", "n_duplicates"), ("conflicting_duplicate", "n_conflicts")):
        n_rows = getattr(kept, column)
        if n_rows:
            findings.append(replace(_examples(queries, reason, column), n_rows=n_rows))
    return Account(counts, sorted(findings, key=lambda finding: (finding.kind, finding.reason)))


def _examples(queries: DataFrame, reason: str, column: str) -> Finding:
    concerned = queries.where(F.col(column) > 0).select("query_id", column).distinct()
    example = F.to_json(F.struct("query_id", column))
    rows = concerned.orderBy("query_id").limit(check.MAX_EXAMPLES).select(example).collect()
    return Finding(reason, "repaired", 0, [row[0] for row in rows])


def audit(
    queries: DataFrame,
    metrics: DataFrame,
    rejects: DataFrame,
    computed: list[dict[str, Any]],
    accounted: Account,
    config: Config,
) -> None:
    """Read the staged tables back and hold them against each other.

    Raises:
        PublishError: a key is null or not unique, a row is missing, or sums disagree.
    """
    keys = [F.count_if(_any_null(["experiment", *config.query_metrics.key])).alias("nulls")]
    nano = [
        F.sum(F.round(F.col(m.column_name) * tables.NANO).cast("bigint")).alias(str(m))
        for m in config.measures
    ]
    totals = {
        (row["experiment"], row["variant"], row["ranker"]): row
        for row in queries.groupBy("experiment", "variant", "ranker")
        .agg(F.count(F.lit(1)).alias("n"), *keys, *nano)
        .collect()
    }
    written = metrics.select(*GROUP, "measure", "n_queries", "sum_nano").collect()
    found = {tuple(row[:6]): (row["n_queries"], row["sum_nano"]) for row in written}
    expected = {
        (*(row[name] for name in GROUP), row["measure"]): (row["n_queries"], row["sum_nano"])
        for row in computed
    }
    _same("rows of metrics as computed", len(written), len(found))
    _same("metrics as computed", found == expected, True)
    for (experiment, variant, ranker), row in totals.items():
        _same("query_metrics rows with a null key", row["nulls"], 0)
        for measure in config.measures:
            group = (experiment, variant, ranker, *tables.OVERALL, str(measure))
            _same(f"metrics of {group}", found.get(group), (row["n"], row[str(measure)] or 0))
    overall = sum(key[3:5] == tables.OVERALL for key in found)
    _same("variants and rankers in metrics", overall, len(totals) * len(config.measures))
    counted = rejects.agg(F.count(F.lit(1)), F.coalesce(F.sum("n_rows"), F.lit(0))).collect()[0]
    findings = accounted.findings
    _same("rejects", tuple(counted), (len(findings), sum(finding.n_rows for finding in findings)))


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

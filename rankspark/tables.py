"""The published tables: columns, types, comments, partition keys, versions.

This file is the contract with everybody who reads a table. Columns are only ever added, nullable
and at the end; a change of one that exists is a new schema version and a migration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SCHEMA_VERSION = 1

#: The value of a measure is kept as an integer of this many parts of one, so sums are exact.
NANO = 1_000_000_000

OVERALL = ("overall", "(all)")
"""`slice_name` and `slice_value` of the rows of `metrics` that cover every query."""

NULL_SLICE = "(null)"
"""`slice_value` of the queries whose slice column is null."""


@dataclass(frozen=True)
class Column:
    """A column of a published table.

    Attributes:
        name: the column's name.
        type: a Spark SQL type, as in DDL.
        comment: what it means, with its unit.
    """

    name: str
    type: str
    comment: str


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        name: the folder below the output's root.
        comment: what a row is.
        columns: all columns but the partition keys, in order. Those of measures and slices, which
            depend on the configuration, are put in by :func:`query_metrics`.
        partition_by: the partition keys, outermost first; always strings.
        key: the columns which, with the partition keys, are unique.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    partition_by: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of all columns but the partition keys, in order."""
        return tuple(column.name for column in self.columns)


PARTITION_COMMENTS = {
    "date": "the day the impressions were shown, YYYY-MM-DD",
    "experiment": "the experiment's name, as logged",
}

_DATASET = Column("dataset", "STRING", "name of the configuration, which owns the table's root")
_AUDIT = (
    Column("run_id", "STRING", "the run that wrote the row; joins to runs"),
    Column("computed_at", "TIMESTAMP", "when that run began, UTC"),
)

_QUERY_HEAD = (
    _DATASET,
    Column("variant", "STRING", "the variant that served the query"),
    Column("ranker", "STRING", "the ordering of the items that is scored"),
    Column("query_id", "STRING", "one result list as it was shown: a request"),
    Column("unit_id", "STRING", "what was randomised, usually the user; null where not logged"),
    Column("query_key", "STRING", "what repeats across requests, such as the query's text"),
)
_QUERY_COUNTS = (
    Column("n_items", "INT", "items scored, after duplicates were dropped"),
    Column("n_judged", "INT", "items whose relevance is known"),
    Column("n_relevant", "INT", "items that count as relevant"),
    Column("n_duplicates", "INT", "rows dropped because the same row stood there already"),
    Column("n_conflicts", "INT", "rows merged into another row of the same item"),
    Column("n_placeholders", "INT", "rows that only say that the query returned nothing"),
    Column("n_experiments", "INT", "experiments that this one list counts in"),
    Column("n_events_unmatched", "INT", "events of the query that follow no impression in time"),
    Column("n_unscored", "INT", "items that the ranker gave no score, which come last"),
    Column("n_repeated", "INT", "items whose position another item of the list has taken"),
    Column("n_gaps", "INT", "items right behind positions that no item of the list has"),
)


def query_metrics(slices: Sequence[str], measures: Sequence[str]) -> Table:
    """The table of queries for a configuration.

    Args:
        slices: the slice columns' names.
        measures: the measures' column names, such as `ndcg_at_10`.
    """
    return Table(
        name="query_metrics",
        comment="one query under one ranker",
        columns=(
            *_QUERY_HEAD,
            *(Column(name, "STRING", f"slice {name} of the query") for name in slices),
            *_QUERY_COUNTS,
            *(Column(name, "DOUBLE", f"measure {name}; null = undefined") for name in measures),
            *_AUDIT,
        ),
        partition_by=("date", "experiment"),
        key=("variant", "ranker", "query_id"),
    )


METRICS = Table(
    name="metrics",
    comment="one measure of one variant and ranker, over all queries or a slice of them",
    columns=(
        _DATASET,
        Column("variant", "STRING", "the variant that served the queries"),
        Column("ranker", "STRING", "the ordering of the items that is scored"),
        Column("slice_name", "STRING", f"the slice column, or {OVERALL[0]}"),
        Column("slice_value", "STRING", f"its value, {NULL_SLICE} for null, or {OVERALL[1]}"),
        Column("measure", "STRING", "the measure's text form, such as ndcg@10"),
        Column("definition_id", "STRING", "hash of all that defines the measure's value"),
        Column("n_queries", "BIGINT", "queries, whether or not the measure is defined for them"),
        Column("n_scored", "BIGINT", "queries with a value: the denominator of mean"),
        Column("n_no_relevant", "BIGINT", "queries without a relevant item"),
        Column("n_units", "BIGINT", "distinct units with a scored query"),
        Column("mean", "DOUBLE", "sum of the values over n_scored; null without a scored query"),
        Column(
            "std_error", "DOUBLE", "of mean, clustered by unit (delta method); null below 2 units"
        ),
        Column("ci_low", "DOUBLE", "95% interval of mean, Student t over units"),
        Column("ci_high", "DOUBLE", "95% interval of mean, Student t over units"),
        Column("sum_nano", "BIGINT", "sum over units of x = sum of round(value * 1e9)"),
        Column("sum_xx", "DECIMAL(38,0)", "sum over units of x * x"),
        Column(
            "sum_xn", "DECIMAL(38,0)", "sum over units of x * n, n = scored queries of the unit"
        ),
        Column("sum_nn", "DECIMAL(38,0)", "sum over units of n * n"),
        *_AUDIT,
    ),
    partition_by=("date", "experiment"),
    key=("variant", "ranker", "slice_name", "slice_value", "measure"),
)

REJECTS = Table(
    name="rejects",
    comment="input rows that were rejected, repaired or flagged, by reason",
    columns=(
        _DATASET,
        Column("reason", "STRING", "what was found"),
        Column(
            "kind", "STRING", "rejected: not scored; repaired: scored all the same; flagged: look"
        ),
        Column("n_rows", "BIGINT", "input rows concerned"),
        Column("share", "DOUBLE", "n_rows over all input rows of the date"),
        Column("examples", "ARRAY<STRING>", "at most 100 of them, as JSON"),
        *_AUDIT,
        Column("n_queries", "BIGINT", "queries concerned; null where only rows were counted"),
        Column("n_units", "BIGINT", "units concerned; null where they were not counted"),
    ),
    partition_by=("date",),
    key=("kind", "reason"),
)

RUNS = Table(
    name="runs",
    comment="one run of one date that published, one file each; the newest is in force",
    columns=(
        _DATASET,
        Column("run_id", "STRING", "identifies the run"),
        Column("status", "STRING", "published"),
        Column("started_at", "TIMESTAMP", "UTC"),
        Column("finished_at", "TIMESTAMP", "UTC"),
        Column("rankspark_version", "STRING", "version of the code"),
        Column("spark_version", "STRING", "version of the engine"),
        Column("config_hash", "STRING", "hash of the resolved configuration"),
        Column("config", "STRING", "the resolved configuration, as JSON"),
        Column("n_rows_read", "BIGINT", "input rows of the date"),
        Column("n_rows_scored", "BIGINT", "rows that became items of a scored list"),
        Column("n_rows_rejected", "BIGINT", "rows that were not scored"),
        Column("n_rows_duplicate", "BIGINT", "rows dropped or merged as duplicates"),
        Column("n_rows_placeholder", "BIGINT", "rows of queries that returned nothing"),
        Column("n_queries", "BIGINT", "lists scored, once each"),
        Column("experiments", "ARRAY<STRING>", "experiments published"),
        Column("replaced", "ARRAY<STRING>", "partitions that stood there before, table/partition"),
        Column("seconds", "MAP<STRING, DOUBLE>", "wall time of each stage"),
        Column("warnings", "ARRAY<STRING>", "quality gates that gave a warning, in words"),
    ),
    partition_by=("date",),
    key=("run_id",),
)

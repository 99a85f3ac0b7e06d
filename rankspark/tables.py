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
        Column("is_final", "BOOLEAN", "whether the date was over for output.settles_after by then"),
    ),
    partition_by=("date", "experiment"),
    key=("variant", "ranker", "slice_name", "slice_value", "measure"),
)

FIRST_RANKS = 10
"""Ranks of the first relevant item that `unit_day` counts one by one."""

UNIT_DAY = Table(
    name="unit_day",
    comment="one measure of one unit on one day, by variant, ranker and slice; sums add over days",
    columns=(
        _DATASET,
        Column("variant", "STRING", "the variant that served the queries"),
        Column("ranker", "STRING", "the ordering of the items that is scored"),
        Column("slice_name", "STRING", f"the slice column, or {OVERALL[0]}"),
        Column("slice_value", "STRING", f"its value, {NULL_SLICE} for null, or {OVERALL[1]}"),
        Column("measure", "STRING", "the measure's text form, such as ndcg@10"),
        Column("unit", "STRING", "u and unit_id; q and query_id where no unit was logged"),
        Column("n_queries", "BIGINT", "queries, whether or not the measure is defined for them"),
        Column("n_no_relevant", "BIGINT", "queries without a relevant item"),
        Column("n", "BIGINT", "queries with a value"),
        Column("s_nano", "BIGINT", "sum of round(value * 1e9)"),
        Column("s2_nano", "DECIMAL(38,0)", "sum of the squares of round(value * 1e9)"),
        Column(
            "first_ranks",
            "ARRAY<BIGINT>",
            f"of mrr, queries whose first relevant item has rank 1, ... {FIRST_RANKS}; else null",
        ),
        *_AUDIT,
    ),
    partition_by=("date", "experiment"),
    key=("variant", "ranker", "slice_name", "slice_value", "measure", "unit"),
)

ASSIGNMENT = Table(
    name="assignment",
    comment="one unit on one day: the variants that it saw",
    columns=(
        _DATASET,
        Column("unit", "STRING", "as in unit_day"),
        Column("variant", "STRING", "the variant seen; of several the first by name"),
        Column("n_variants", "BIGINT", "distinct variants seen that day"),
        *_AUDIT,
    ),
    partition_by=("date", "experiment"),
    key=("unit",),
)

PAIRED_COUNTS = Table(
    name="paired_counts",
    comment="two rankers on the same queries, query by query; sums add over days",
    columns=(
        _DATASET,
        Column("ranker_a", "STRING", "the first ranker by name"),
        Column("ranker_b", "STRING", "the other"),
        Column("slice_name", "STRING", f"the slice column, or {OVERALL[0]}"),
        Column("slice_value", "STRING", f"its value, {NULL_SLICE} for null, or {OVERALL[1]}"),
        Column("measure", "STRING", "the measure's text form, such as ndcg@10"),
        Column("wins", "BIGINT", "queries on which ranker_b is higher by a billionth or more"),
        Column("ties", "BIGINT", "queries on which both are equal to a billionth"),
        Column("losses", "BIGINT", "queries on which ranker_a is higher"),
        Column("sum_dd", "DECIMAL(38,0)", "sum of squared differences, in billionths squared"),
        *_AUDIT,
    ),
    partition_by=("date", "experiment"),
    key=("ranker_a", "ranker_b", "slice_name", "slice_value", "measure"),
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
    comment="one run of one date, one file each; the newest that published is in force",
    columns=(
        _DATASET,
        Column("run_id", "STRING", "identifies the run"),
        Column("status", "STRING", "published or failed"),
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
        Column("error", "STRING", "what failed, in one line; null where nothing did"),
        Column("exit_code", "INT", "0, or that of the error"),
        Column("fingerprint", "STRING", "hash of the input's files; null where not asked for"),
        Column("warnings", "ARRAY<STRING>", "quality gates that gave a warning, in words"),
    ),
    partition_by=("date",),
    key=("run_id",),
)

COMPARISONS = Table(
    name="comparisons",
    comment="one treatment against its control: what was found and how far to trust it",
    columns=(
        _DATASET,
        *_AUDIT,
        Column("config_hash", "STRING", "hash of the resolved configuration"),
        Column("definition_id", "STRING", "hash of all that defines the measure's value"),
        Column("date_from", "STRING", "first date, YYYY-MM-DD"),
        Column("date_to", "STRING", "last date, included"),
        Column("design", "STRING", "ab: two groups of units; paired: two rankers, same queries"),
        Column("unit", "STRING", "what varies independently: unit_id, query_id or both"),
        Column("ranker", "STRING", "of ab, the ordering that is scored; null where rankers differ"),
        Column("measure", "STRING", "the measure's text form"),
        Column("role", "STRING", "primary, secondary or guardrail"),
        Column("control", "STRING", "the variant or ranker compared with"),
        Column("treatment", "STRING", "the variant or ranker compared"),
        Column("slice_name", "STRING", f"the slice column, or {OVERALL[0]}"),
        Column("slice_value", "STRING", f"its value, {NULL_SLICE} for null, or {OVERALL[1]}"),
        Column("estimand", "STRING", "ratio: each query counts once; per_unit: each unit does"),
        Column("n_units_c", "BIGINT", "distinct units of the control, mixed ones left out"),
        Column("n_queries_c", "BIGINT", "queries of the control with a value: sum of n"),
        Column("sum_x_c", "BIGINT", "control: sum over units of x, in billionths"),
        Column("sum_xx_c", "DECIMAL(38,0)", "control: sum over units of x * x"),
        Column("sum_xn_c", "DECIMAL(38,0)", "control: sum over units of x * n"),
        Column("sum_nn_c", "DECIMAL(38,0)", "control: sum over units of n * n"),
        Column("sum_s2_c", "DECIMAL(38,0)", "control: sum over queries of value * value"),
        Column("n_units_t", "BIGINT", "distinct units of the treatment, mixed ones left out"),
        Column("n_queries_t", "BIGINT", "queries of the treatment with a value: sum of n"),
        Column("sum_x_t", "BIGINT", "treatment: sum over units of x, in billionths"),
        Column("sum_xx_t", "DECIMAL(38,0)", "treatment: sum over units of x * x"),
        Column("sum_xn_t", "DECIMAL(38,0)", "treatment: sum over units of x * n"),
        Column("sum_nn_t", "DECIMAL(38,0)", "treatment: sum over units of n * n"),
        Column("sum_s2_t", "DECIMAL(38,0)", "treatment: sum over queries of value * value"),
        Column("sum_d", "BIGINT", "paired: sum over units of d = x of the treatment less control"),
        Column("sum_dd", "DECIMAL(38,0)", "paired: sum over units of d * d"),
        Column("sum_dn", "DECIMAL(38,0)", "paired: sum over units of d * n"),
        Column("sum_d2", "DECIMAL(38,0)", "paired: sum over queries of squared differences"),
        Column("pre_a_c", "BIGINT", "control: sum over units of a, a and b before the start"),
        Column("pre_b_c", "BIGINT", "control: sum over units of b, a and b before the start"),
        Column(
            "pre_aa_c",
            "DECIMAL(38,0)",
            "control: sum over units of a * a, a and b before the start",
        ),
        Column(
            "pre_ab_c",
            "DECIMAL(38,0)",
            "control: sum over units of a * b, a and b before the start",
        ),
        Column(
            "pre_bb_c",
            "DECIMAL(38,0)",
            "control: sum over units of b * b, a and b before the start",
        ),
        Column(
            "pre_xa_c",
            "DECIMAL(38,0)",
            "control: sum over units of x * a, a and b before the start",
        ),
        Column(
            "pre_xb_c",
            "DECIMAL(38,0)",
            "control: sum over units of x * b, a and b before the start",
        ),
        Column(
            "pre_na_c",
            "DECIMAL(38,0)",
            "control: sum over units of n * a, a and b before the start",
        ),
        Column(
            "pre_nb_c",
            "DECIMAL(38,0)",
            "control: sum over units of n * b, a and b before the start",
        ),
        Column("pre_a_t", "BIGINT", "treatment: sum over units of a, a and b before the start"),
        Column("pre_b_t", "BIGINT", "treatment: sum over units of b, a and b before the start"),
        Column(
            "pre_aa_t",
            "DECIMAL(38,0)",
            "treatment: sum over units of a * a, a and b before the start",
        ),
        Column(
            "pre_ab_t",
            "DECIMAL(38,0)",
            "treatment: sum over units of a * b, a and b before the start",
        ),
        Column(
            "pre_bb_t",
            "DECIMAL(38,0)",
            "treatment: sum over units of b * b, a and b before the start",
        ),
        Column(
            "pre_xa_t",
            "DECIMAL(38,0)",
            "treatment: sum over units of x * a, a and b before the start",
        ),
        Column(
            "pre_xb_t",
            "DECIMAL(38,0)",
            "treatment: sum over units of x * b, a and b before the start",
        ),
        Column(
            "pre_na_t",
            "DECIMAL(38,0)",
            "treatment: sum over units of n * a, a and b before the start",
        ),
        Column(
            "pre_nb_t",
            "DECIMAL(38,0)",
            "treatment: sum over units of n * b, a and b before the start",
        ),
        Column("mean_c", "DOUBLE", "the control's mean, adjusted where theta is given"),
        Column("mean_t", "DOUBLE", "the treatment's mean, adjusted where theta is given"),
        Column("effect", "DOUBLE", "mean_t - mean_c"),
        Column("se", "DOUBLE", "its standard error, units clustered; null: see status"),
        Column("se_method", "STRING", "delta or jackknife"),
        Column("df", "DOUBLE", "degrees of freedom of the t-test"),
        Column("t", "DOUBLE", "effect / se"),
        Column("p", "DOUBLE", "two-sided"),
        Column("ci_low", "DOUBLE", "interval of effect at alpha"),
        Column("ci_high", "DOUBLE", "interval of effect at alpha"),
        Column("lift", "DOUBLE", "mean_t / mean_c - 1; null where the control may be 0"),
        Column("lift_ci_low", "DOUBLE", "Fieller's interval: excludes 0 exactly when p < alpha"),
        Column("lift_ci_high", "DOUBLE", "Fieller's interval"),
        Column("p_adj", "DOUBLE", "p, adjusted for its family"),
        Column("adjust_method", "STRING", "holm, benjamini_hochberg or none"),
        Column("family_size", "BIGINT", "tests of the family that could be computed"),
        Column("ci_adj_low", "DOUBLE", "interval that excludes 0 exactly when p_adj < alpha"),
        Column("ci_adj_high", "DOUBLE", "interval that excludes 0 exactly when p_adj < alpha"),
        Column("seq_p", "DOUBLE", "always-valid p: may be looked at every day"),
        Column("seq_ci_low", "DOUBLE", "confidence sequence of effect"),
        Column("seq_ci_high", "DOUBLE", "confidence sequence of effect"),
        Column("n_planned", "BIGINT", "units for which the sequence is tightest"),
        Column("theta", "DOUBLE", "CUPED's slope; null where nothing was adjusted"),
        Column("variance_reduction", "DOUBLE", "share of the variance that CUPED removed"),
        Column("ni_margin", "DOUBLE", "margin of non-inferiority, a share of the control's mean"),
        Column("ni_p", "DOUBLE", "one-sided p that the treatment is not worse by the margin"),
        Column("wins", "BIGINT", "paired: queries on which the treatment is higher"),
        Column("ties", "BIGINT", "paired: queries on which both are equal"),
        Column("losses", "BIGINT", "paired: queries on which the control is higher"),
        Column("effect_size", "DOUBLE", "effect in standard deviations of a single query"),
        Column("design_effect", "DOUBLE", "queries / design_effect is what they are worth"),
        Column("mde", "DOUBLE", "the effect that this test finds with 80% power"),
        Column("mde_ratio", "DOUBLE", "|effect| / mde"),
        Column("srm_p", "DOUBLE", "chi-square of distinct units against the split"),
        Column("n_mixed", "BIGINT", "units seen in two variants, which are left out"),
        Column("share_mixed", "DOUBLE", "n_mixed over all distinct units"),
        Column("n_unpaired", "BIGINT", "paired: units left out, their queries are not the same"),
        Column("queries_per_unit_p", "DOUBLE", "that units of both issue as many queries"),
        Column("pre_period_p", "DOUBLE", "of the same comparison before the start"),
        Column("max_unit_share", "DOUBLE", "largest share of a variant's queries by one unit"),
        Column("n_looks", "BIGINT", "distinct ends of the range looked at so far, with this one"),
        Column("days_present", "BIGINT", "days of the range with queries of the experiment"),
        Column("alpha", "DOUBLE", "one minus the level of the intervals"),
        Column("status", "STRING", "ok, or why results are null"),
        Column("flags", "ARRAY<STRING>", "reasons to doubt the result"),
        Column("decision", "STRING", "better, worse, no_worse, inconclusive or invalid"),
    ),
    partition_by=("experiment",),
    key=("run_id", "design", "control", "treatment", "slice_name", "slice_value", "measure"),
)

#: The tables whose columns do not depend on the configuration.
FIXED = (METRICS, UNIT_DAY, ASSIGNMENT, PAIRED_COUNTS, REJECTS, COMPARISONS, RUNS)


def ddl(table: Table, name: str | None = None, using: str = "parquet", rest: str = "") -> str:
    """A CREATE TABLE statement of Spark SQL, with comments and properties.

    Args:
        table: the table.
        name: its name in the catalog; default: its own.
        using: the format.
        rest: further clauses, such as a LOCATION.
    """
    keys = [Column(key, "STRING", PARTITION_COMMENTS[key]) for key in table.partition_by]
    columns = ",\n".join(f"  {column_ddl(c)}" for c in (*table.columns, *keys))
    properties = ", ".join(f"{_quoted(k)} = {_quoted(v)}" for k, v in PROPERTIES.items())
    return (
        f"CREATE TABLE IF NOT EXISTS {name or table.name} (\n{columns}\n)\nUSING {using}\n"
        f"PARTITIONED BY ({', '.join(table.partition_by)})\n"
        + (f"{rest}\n" if rest else "")
        + f"COMMENT {_quoted(table.comment)}\nTBLPROPERTIES ({properties})"
    )


def column_ddl(column: Column) -> str:
    """A column in a statement of Spark SQL."""
    return f"`{column.name}` {column.type} COMMENT {_quoted(column.comment)}"


def markdown(table: Table) -> str:
    """A table of the columns."""
    keys = [Column(key, "STRING", PARTITION_COMMENTS[key]) for key in table.partition_by]
    rows = [f"| {c.name} | {c.type} | {c.comment} |" for c in (*table.columns, *keys)]
    head = f"### {table.name}: {table.comment}\n\nPartitioned by {', '.join(table.partition_by)}."
    return "\n".join([head, "", "| column | type | meaning |", "|---|---|---|", *rows])


PROPERTIES = {"rankspark.schema_version": str(SCHEMA_VERSION), "owner_tool": "rankspark"}


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

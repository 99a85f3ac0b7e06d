"""Canonical rows -> clean rows, and a count of the others by reason.

A row is rejected for the first reason that holds. The reasons are one SQL expression. Items of
nested rows are only kept or left out on their way (:mod:`rankspark.spark.nested`); where any was
left out, all are made flat rows and counted by the same expression, and a difference is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from rankspark.config import Definition

MAX_EXAMPLES = 100
# One example is kept of each bucket; ten times as many, so that few rows seldom share one.
_BUCKETS = 10 * MAX_EXAMPLES
_MAX_POSITION = 2**31 - 1
# What a partition's folder name cannot carry back: null, blank and this all read as null.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
# A folder name holds 255 bytes, and a byte may become three when it is escaped.
_MAX_EXPERIMENT_BYTES = 80


@dataclass
class Finding:
    """Rows of one date with one thing wrong.

    Attributes:
        reason: what was found.
        kind: `rejected` (not scored), `repaired` (scored after a repair) or `flagged` (scored as it
            is, but somebody should look).
        n_rows: how many.
        examples: up to 100 of them, as JSON.
        n_queries: how many queries they belong to, where that was counted.
        n_units: the same of units.
    """

    reason: str
    kind: str
    n_rows: int
    examples: list[str] = field(default_factory=list)
    n_queries: int | None = None
    n_units: int | None = None


def row_reason(config: Definition) -> str:
    """SQL: why the keys of a row are unusable, or null."""
    if config.input.columns.assignments is None:
        keys = [(_unstorable("experiment"), "bad_experiment"), (blank("variant"), "bad_variant")]
    else:
        pair = f"{_unstorable('pair.key')} or {blank('pair.value')}"
        keys = [
            ("assignments is null or size(assignments) = 0", "no_assignment"),
            (f"exists(assignments, pair -> {pair})", "bad_assignment"),
        ]
    lines = [("malformed is not null", "malformed_line")] * (config.input.format == "trec")
    conditions = [*lines, *keys, (blank("query_id"), "bad_query_id")]
    if config.quality.sentinels == "reject":
        conditions.append((sentinel("query_id", config), "sentinel_query_id"))
    return _first_of(conditions)


def item_columns(config: Definition) -> list[str]:
    """The columns of an item, as it is read and as it is scored."""
    columns = ["item_id"]
    if config.labels is not None:
        columns.append("time")
    if config.input.columns.relevance is not None:
        columns.append("relevance")
    if config.uses_position:
        columns.append("position")
    return columns + [f"score_{r.name}" for r in config.parsed_rankers if not r.by_position]


def largest_position(config: Definition) -> int:
    """The largest logged position that counts; the scorer's counts from 1 must hold it."""
    return min(config.limits.max_position, _MAX_POSITION + config.input.position_base - 1)


def item_reason(config: Definition) -> str:
    """SQL: why an item is unusable, or null."""
    conditions = [(blank("item_id"), "bad_item_id")]
    if config.quality.sentinels == "reject":
        conditions.append((sentinel("item_id", config), "sentinel_item_id"))
    if config.uses_position:
        base = config.input.position_base
        conditions += [
            ("position is null or isnan(position)", "position_missing"),
            # Unlike floor, rint takes what no bigint holds, under ANSI too.
            ("position != rint(position)", "position_not_whole"),
            (f"position < {base}", "position_below_base"),
            (f"position > {largest_position(config)}", "position_too_large"),
        ]
    if config.labels is not None:
        conditions.append(("time is null", "time_missing"))
    if config.input.columns.relevance is not None:
        conditions += [
            ("isnan(relevance)", "relevance_not_a_number"),
            ("abs(relevance) = double('Infinity')", "relevance_infinite"),
        ]
        if config.evaluate.negative_grades == "reject":
            conditions.append(("relevance < 0", "relevance_negative"))
    return _first_of(conditions)


def grade(config: Definition, relevance: str) -> str:
    """SQL: the grade that is scored, where negative ones are not rejected."""
    repair = {
        "zero": f"greatest({relevance}, 0D)",
        "unjudged": f"if({relevance} < 0, null, {relevance})",
    }
    return repair.get(config.evaluate.negative_grades, relevance)


def _lone_item_reason(config: Definition) -> str:
    """SQL: why the item of a row is unusable, where a row holds one item."""
    if config.input.items is not None:
        return item_reason(config)
    # A flat row without an item only says that its query returned nothing.
    position = " and position is null" if config.uses_position else ""
    graded = config.input.columns.relevance is not None
    relevance = " and coalesce(relevance, 0) = 0" if graded else ""
    placeholder = f"item_id is null{position}{relevance}"
    return f"case when not ({placeholder}) then {item_reason(config)} end"


def item_members(config: Definition) -> list[str]:
    """SQL: the item as the scorer takes it: item_id, position from 1, relevance, scores."""
    repaired = {
        "relevance": grade(config, "relevance"),
        # The check has bounded it, so that the cast is exact under ANSI too.
        "position": f"cast(position as int) - {config.input.position_base - 1}",
    }
    return [f"{repaired.get(name, name)} as {name}" for name in item_columns(config)]


def mark(rows: DataFrame, config: Definition) -> DataFrame:
    """Add `reason` to flat rows, null where the row is good; nested rows stay as they are."""
    if config.input.items is not None:
        return rows
    reason = f"coalesce({row_reason(config)}, {_lone_item_reason(config)})"
    return rows.withColumn("reason", F.expr(reason))


def always_counts(config: Definition) -> bool:
    """Whether rows that are not rejected may have something wrong that has to be counted."""
    graded = config.input.columns.relevance is not None
    repairs_grades = graded and config.evaluate.negative_grades != "reject"
    return repairs_grades or config.quality.sentinels == "flag"


def _lesser_reasons(config: Definition) -> list[tuple[str, str, str]]:
    """What may be wrong with a row that is scored: condition, kind and reason."""
    found = []
    if config.quality.sentinels == "flag":
        found += [
            (sentinel(name, config), "flagged", f"sentinel_{name}")
            for name in ("query_id", "item_id")
        ]
    if config.input.columns.relevance is not None and config.evaluate.negative_grades != "reject":
        found.append(("relevance < 0", "repaired", "relevance_negative"))
    return found


def row_counts(config: Definition) -> list[Column]:
    """What to observe of marked rows: n_rows, impressions in both shapes, and n_rejected.

    Of nested rows n_rejected has the items of rejected rows only.
    """
    if config.input.items is None:
        rows, rejected = F.count(F.lit(1)), F.count("reason")
    else:
        # A rejected item needs no count: it is missing from n_rows later on.
        size = "coalesce(array_size(item_id), 0)"
        lost = f"case when {row_reason(config)} is not null then {size} else 0 end"
        rows = F.coalesce(F.sum(F.expr(size)), F.lit(0))
        rejected = F.coalesce(F.sum(F.expr(lost)), F.lit(0))
    return [rows.alias("n_rows"), rejected.alias("n_rejected")]


def census(rows: DataFrame, config: Definition) -> tuple[int, list[Finding]]:
    """Count the rows of a date and what is wrong with them, exactly, in one pass.

    Memory is bounded whatever the log holds: one example is kept of each hash bucket.

    Returns:
        all rows; the findings, rejected rows by reason and repaired ones.
    """
    if config.input.items is not None:
        rows = _flattened(rows, config)
    reason = f"coalesce({row_reason(config)}, {_lone_item_reason(config)})"
    # A row may be odd in several ways that do not keep it from being scored: it counts in each.
    lesser = [
        f"case when {condition} then struct('{kind}' as kind, '{name}' as reason) end"
        for condition, kind, name in _lesser_reasons(config)
    ]
    nothing = "struct('' as kind, cast(null as string) as reason)"
    others = f"array_compact(array({', '.join([nothing, *lesser])}))"
    rejected = "array(struct('rejected' as kind, reason))"
    found = (
        rows.withColumn("reason", F.expr(reason))
        .withColumn("found", F.expr(f"explode(if(reason is not null, {rejected}, {others}))"))
        .withColumn("kind", F.col("found.kind"))
        .withColumn("reason", F.col("found.reason"))
        .withColumn("example", _example(rows, F.col("reason").isNotNull()))
        .groupBy("kind", "reason", F.pmod(F.xxhash64("example"), F.lit(_BUCKETS)).alias("bucket"))
        .agg(F.count(F.lit(1)).alias("n_rows"), F.min("example").alias("example"))
        .collect()
    )
    total = sum(row["n_rows"] for row in found if row["kind"] in ("", "rejected"))
    findings: dict[tuple[str, str], Finding] = {}
    for row in sorted(found, key=lambda row: row["example"] or ""):
        if row["reason"] is not None:
            kind, reason = row["kind"], row["reason"]
            finding = findings.setdefault((kind, reason), Finding(reason, kind, 0))
            finding.n_rows += row["n_rows"]
            finding.examples += [row["example"]] * (len(finding.examples) < MAX_EXAMPLES)
    return total, [findings[key] for key in sorted(findings)]


def _flattened(rows: DataFrame, config: Definition) -> DataFrame:
    """A row an item of nested rows, typed as flat ones."""
    known = {*item_columns(config)} | ({"time"} if config.input.columns.time else set())
    items = [name for name in rows.columns if name in known]
    keys = [name for name in rows.columns if name not in items]
    flat = rows.select(*keys, F.expr(f"inline(arrays_zip({', '.join(items)}))"))
    for name in items:
        if isinstance(flat.schema[name].dataType, T.NumericType) and name != "time":
            whole = name == "position" and isinstance(flat.schema[name].dataType, T.IntegralType)
            flat = flat.withColumn(name, F.col(name).cast("bigint" if whole else "double"))
    return flat


def _example(rows: DataFrame, wanted: Column) -> Column:
    # Null fields are what an example is about, so they are written out.
    text = F.to_json(F.struct(*rows.columns), {"ignoreNullFields": "false"})
    return F.when(wanted, text)


def blank(column: str) -> str:
    """SQL: whether a text column is null or has no character but spaces."""
    # Only text that begins with a space, or is empty, needs to be trimmed to be known.
    return f"{column} is null or ({column} < '!' and trim({column}) = '')"


def sentinel(column: str, config: Definition) -> str:
    """SQL: whether an id is text that stands for null."""
    texts = config.quality.sentinel_texts
    longest = max((len(text.encode()) for text in texts), default=0)
    # Most ids are too long to be one, and their length is known without a look at them.
    return f"(octet_length({column}) <= {longest} and {column} in ({_quoted(texts)}))"


def _quoted(texts: tuple[str, ...]) -> str:
    escaped = (text.replace("\\", "\\\\").replace("'", "\\'") for text in texts)
    return ", ".join(f"'{text}'" for text in escaped) or "null"


def _unstorable(column: str) -> str:
    too_long = f"octet_length({column}) > {_MAX_EXPERIMENT_BYTES}"
    return f"{blank(column)} or {column} = '{_HIVE_NULL}' or {too_long}"


def _first_of(conditions: list[tuple[str, str]]) -> str:
    cases = " ".join(f"when {condition} then '{reason}'" for condition, reason in conditions)
    return f"(case {cases} end)"

"""Clean rows -> ranked lists' raw material: one row a query, with its items in an array.

Flat rows are shuffled once, by query, and grouped where they land. The item is packed into a struct
before the shuffle, so that grouping copies one value an item. Nested rows are not shuffled at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rankspark.config import Definition
from rankspark.spark import check
from rankspark.spark.judge import Judged
from rankspark.spark.label import Labelled


@dataclass(frozen=True)
class Origins:
    """Where relevance comes from, if not from the impressions: judgments, or events."""

    judged: Judged | None = None
    labelled: Labelled | None = None


def query_columns(config: Definition) -> list[str]:
    """The columns that name a query."""
    if config.input.columns.assignments is None:
        return ["experiment", "variant", "query_id"]
    return ["assignments", "query_id"]


def attribute_columns(config: Definition) -> list[str]:
    """What is known of a query beyond its name; the same in all its rows."""
    return ["unit_id", "query_key", *config.evaluate.slice_columns]


def lists(rows: DataFrame, config: Definition) -> DataFrame:
    """Group canonical rows into lists; rows and items with a reason against them are left out.

    Args:
        rows: canonical rows; flat ones with `reason`.
        config: the configuration.

    Returns:
        One row a query: its name, its attributes, `items` (an array of structs as of
        :func:`rankspark.spark.check.item_struct`, never null) and `n_placeholders`.
    """
    names = [*query_columns(config), *attribute_columns(config)]
    if config.input.items is not None:
        good = f"filter(items, item -> {check.item_reason(config, 'item.')} is null)"
        packed = f"transform({good}, item -> {check.item_struct(config, 'item.')})"
        return rows.where(f"{check.row_reason(config)} is null").select(
            *names,
            F.expr(f"coalesce({packed}, array())").alias("items"),
            F.lit(0).alias("n_placeholders"),
        )
    item = F.expr(f"case when item_id is not null then {check.item_struct(config)} end")
    return (
        rows.where("reason is null")
        .select(*names, item.alias("item"))
        # By query_id alone: the grouping below is satisfied with it, whereas a literal experiment
        # among the keys would be folded away and the rows shuffled again.
        .repartition("query_id")
        .groupBy(*names)
        .agg(F.collect_list("item").alias("items"), F.count(F.lit(1)).alias("n_rows"))
        .select(*names, "items", F.expr("cast(n_rows - size(items) as int) as n_placeholders"))
    )


def items_type(config: Definition) -> str:
    """The SQL type of `items` where relevance comes from judgments."""
    members = ["item_id: string"]
    if config.uses_position:
        members.append("position: int")
    scores = [r for r in config.parsed_rankers if not r.by_position]
    members += [f"score_{ranker.name}: double" for ranker in scores]
    return f"array<struct<{', '.join(members)}>>"


def scorable(grouped: DataFrame, config: Definition, origins: Origins) -> DataFrame:
    """The lists within `limits.max_list_length`, with their judgments or events where given."""
    short = grouped.where(F.size("items") <= config.limits.max_list_length)
    if origins.labelled is not None:
        return short.join(origins.labelled.by_query, "query_id", "left")
    judged = origins.judged
    return short if judged is None else short.join(judged.pools, judged.key)


def left_out(rows: DataFrame, config: Definition, origins: Origins) -> list[check.Finding]:
    """Count the rows of the lists that :func:`scorable` leaves out, without building the lists."""
    names = [*query_columns(config), *attribute_columns(config)]
    judged = origins.judged
    if config.input.items is None:
        counted = (
            rows.where("reason is null")
            .groupBy(*names)
            .agg(F.count("item_id").alias("n_items"), F.count(F.lit(1)).alias("n_rows"))
        )
    else:
        size = F.size("items")
        counted = lists(rows, config).select(*names, size.alias("n_items"), size.alias("n_rows"))
    reason = f"case when n_items > {config.limits.max_list_length} then 'list_too_long'"
    if judged is None:
        counted = counted.withColumn("reason", F.expr(f"{reason} end"))
    else:
        known = judged.pools.select(judged.key, F.lit(1).alias("known"))
        counted = counted.join(known, judged.key, "left").withColumn(
            "reason", F.expr(f"{reason} when known is null then 'query_not_judged' end")
        )
    lost = counted.where("reason is not null")
    findings = []
    for reason, n_rows in lost.groupBy("reason").agg(F.sum("n_rows")).orderBy("reason").collect():
        example = F.to_json(F.struct("query_id", "n_items"))
        longest = lost.where(F.col("reason") == reason).orderBy(F.desc("n_items"), "query_id")
        examples = longest.limit(check.MAX_EXAMPLES).select(example).collect()
        findings.append(check.Finding(reason, "rejected", n_rows, [row[0] for row in examples]))
    return findings

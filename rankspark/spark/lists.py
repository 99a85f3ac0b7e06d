"""Clean rows -> ranked lists' raw material: one row a query, with its items in an array.

Flat rows are shuffled once, by query, and grouped where they land. The item is packed into a struct
before the shuffle, so that grouping copies one value an item. Nested rows are not shuffled at all.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from rankspark.config import Definition
from rankspark.spark import check


def query_columns(config: Definition) -> list[str]:
    """The columns that name a query."""
    if config.input.columns.assignments is None:
        return ["experiment", "variant", "query_id"]
    return ["assignments", "query_id"]


def attribute_columns(config: Definition) -> list[str]:
    """What is known of a query beyond its name; the same in all its rows."""
    return ["unit_id", "query_key", *config.evaluate.slices]


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


def short_enough(grouped: DataFrame, config: Definition) -> DataFrame:
    """The lists within `limits.max_list_length`."""
    return grouped.where(F.size("items") <= config.limits.max_list_length)


def too_long(rows: DataFrame, config: Definition) -> check.Finding:
    """Count the rows of the lists beyond `limits.max_list_length`, without building the lists."""
    names = [*query_columns(config), *attribute_columns(config)]
    if config.input.items is None:
        counted = rows.where("reason is null and item_id is not null").groupBy(*names).count()
    else:
        counted = lists(rows, config).select(*names, F.size("items").alias("count"))
    long = counted.where(F.col("count") > config.limits.max_list_length)
    total = long.agg(F.coalesce(F.sum("count"), F.lit(0))).first()
    example = F.to_json(F.struct("query_id", F.col("count").alias("n_items")))
    examples = (
        long.orderBy(F.desc("count"), "query_id")
        .limit(check.MAX_EXAMPLES)
        .select(example)
        .collect()
    )
    return check.Finding(
        "list_too_long", "rejected", total[0] if total else 0, [row[0] for row in examples]
    )

"""Judgments: relevance known beyond what was shown, joined to lists, never to impressions.

All judgments of a query are one array. It is joined once a list; the scorer finds the shown items
in it, and takes the ideal and the number of relevant items from all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rankspark.config import Config, Definition, Judgments
from rankspark.spark import check, read
from rankspark.spark.check import Finding

_SECTION = "judgments.columns"


@dataclass(frozen=True)
class Judged:
    """The judgments of a definition.

    Attributes:
        rows: key, item_id, relevance, position in the given order, `reason` against bad ones.
        key: the column of the lists that they are joined on.
    """

    rows: DataFrame
    key: str

    @property
    def pools(self) -> DataFrame:
        """One row a key: `judged`, an array of structs of item_id and relevance.

        An item judged twice has the larger grade. The array is in the order of `order`, then of
        item_id.
        """
        items = (
            self.rows.where("reason is null")
            .groupBy(self.key, "item_id")
            .agg(F.min("order").alias("order"), F.max("relevance").alias("relevance"))
        )
        ordered = F.sort_array(F.collect_list(F.struct("order", "item_id", "relevance")))
        pool = F.transform(
            ordered,
            lambda item: F.struct(
                item["item_id"].alias("item_id"), item["relevance"].alias("relevance")
            ),
        )
        return items.groupBy(self.key).agg(pool.alias("judged"))

    def findings(self) -> list[Finding]:
        """What was wrong with the judgments, by reason; their rows are not impressions."""
        example = F.to_json(F.struct(self.key, "item_id", "relevance"))
        bad = self.rows.where("reason is not null").withColumn(
            "example", F.coalesce("text", example)
        )
        repeated = (
            self.rows.where("reason is null")
            .groupBy(self.key, "item_id")
            .agg(
                F.count_distinct("relevance").alias("grades"), F.max("relevance").alias("relevance")
            )
            .where("grades > 1")
            .select(F.lit("judgment_with_another_grade").alias("reason"), example.alias("example"))
        )
        found = (
            bad.select("reason", "example")
            .union(repeated)
            .groupBy("reason")
            .agg(
                F.count(F.lit(1)),
                F.slice(F.sort_array(F.collect_set("example")), 1, check.MAX_EXAMPLES),
            )
            .collect()
        )
        return [Finding(reason, "flagged", n, list(texts)) for reason, n, texts in found]


def judgments(spark: SparkSession, config: Config) -> Judged | None:
    """The judgments that a configuration names, checked; None where it names none.

    Raises:
        InputError: the source is absent, or a column does not resolve or has a wrong type.
    """
    given = config.judgments
    if given is None:
        return None
    return judged(read.source(spark, given, "judgments"), given, config)


def judged(frame: DataFrame, given: Judgments, config: Definition) -> Judged:
    """Judgments from a DataFrame."""
    columns = given.columns
    key = given.key
    named = {
        key: str(columns.query_id or columns.query_key),
        "item_id": columns.item_id,
        "relevance": columns.relevance,
    }
    types = read.resolve(frame, named, prefix=_SECTION)
    read.resolve(frame, {"order": columns.order or "0"}, prefix=_SECTION)
    selected = [
        F.expr(read.typed(name, sql, types[name], _SECTION)).alias(name)
        for name, sql in named.items()
    ]
    text = "malformed" if given.format == "trec" else "cast(null as string)"
    rows = frame.select(
        *selected, F.expr(columns.order or "0").alias("order"), F.expr(text).alias("text")
    )
    # In a list of judgments a null is no judgment; negative ones are, as those of shown items.
    reason = f"""case when text is not null then 'judgment_malformed'
        when {check.blank(key)} then 'judgment_without_query'
        when {check.blank("item_id")} then 'judgment_without_item'
        when relevance is null or isnan(relevance) then 'judgment_not_a_number'
        when abs(relevance) = double('Infinity') then 'judgment_infinite'
        {
        "when relevance < 0 then 'judgment_negative'"
        * (config.evaluate.negative_grades == "reject")
    } end"""
    marked = rows.withColumn("reason", F.expr(reason))
    return Judged(marked.withColumn("relevance", F.expr(check.grade(config, "relevance"))), key)

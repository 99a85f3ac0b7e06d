"""Labels: events such as clicks and orders, joined to lists, never to impressions.

All events of a query are one array, so that an item with many events does not multiply its
impressions. The scorer attributes them: see :func:`rankspark.measures.ranking.attribute`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rankspark.config import Config
from rankspark.spark import check, read
from rankspark.spark.check import Finding

_SECTION = "labels.columns"


@dataclass(frozen=True)
class Labelled:
    """The events that may belong to the impressions of a date.

    Attributes:
        rows: query_id, item_id, time in microseconds, relevance, `reason` against bad ones.
        of_the_day: SQL over `time`: whether an event is of the date itself.
    """

    rows: DataFrame
    of_the_day: str

    @property
    def by_query(self) -> DataFrame:
        """One row a query: `events`, an array of structs of item_id, time and relevance."""
        event = F.struct("item_id", "time", "relevance")
        good = self.rows.where("reason is null")
        return good.groupBy("query_id").agg(F.collect_list(event).alias("events"))

    def findings(self, queries: DataFrame) -> list[Finding]:
        """Bad events by reason, and events without an impression.

        Of events whose query was not shown on the date those of the date itself count: later
        ones may belong to impressions of later dates.

        Args:
            queries: `query_metrics` of the date.
        """
        shown = queries.select("query_id").distinct()
        orphans = self.rows.where(f"reason is null and {self.of_the_day}").join(
            shown, "query_id", "left_anti"
        )
        orphans = orphans.withColumn("reason", F.lit("event_without_impression"))
        example = F.to_json(F.struct("query_id", "item_id", "relevance"))
        texts = F.slice(F.sort_array(F.collect_set("example")), 1, check.MAX_EXAMPLES)
        found = (
            self.rows.where("reason is not null")
            .unionByName(orphans)
            .select("reason", example.alias("example"))
            .groupBy("reason")
            .agg(F.count(F.lit(1)), texts)
            .collect()
        )
        findings = {row[0]: Finding(row[0], "flagged", row[1], list(row[2])) for row in found}
        unmatched = queries.groupBy("query_id").agg(F.max("n_events_unmatched").alias("n"))
        late = unmatched.agg(F.coalesce(F.sum("n"), F.lit(0))).collect()[0][0]
        if late:
            lone = Finding("event_without_impression", "flagged", 0)
            findings.setdefault(lone.reason, lone).n_rows += late
        return list(findings.values())


def labels(spark: SparkSession, config: Config, day: date) -> Labelled | None:
    """The events that a configuration names, checked; None where it names none.

    Raises:
        InputError: the source is absent, or a column does not resolve or has a wrong type.
    """
    given = config.labels
    if given is None:
        return None
    frame = read.source(spark, given, "labels")
    named = given.columns.model_dump()
    types = read.resolve(frame, named, prefix=_SECTION)
    rows = frame.select(
        *(
            F.expr(read.typed(name, sql, types[name], _SECTION)).alias(name)
            for name, sql in named.items()
        )
    )
    start = f"unix_micros(timestamp'{day} 00:00:00')"
    end = f"unix_micros(timestamp'{day} 00:00:00' + interval 1 day)"
    window = f"time < {end} + {given.seconds * 1_000_000}L"
    reason = f"""case when time is null then 'event_without_time'
        when {check.blank("query_id")} then 'event_without_query'
        when {check.blank("item_id")} then 'event_without_item'
        when relevance is null or isnan(relevance) or abs(relevance) = double('Infinity')
            or relevance < 0 then 'event_without_relevance' end"""
    rows = rows.where(f"time is null or (time >= {start} and {window})")
    return Labelled(rows.withColumn("reason", F.expr(reason)), f"time < {end}")

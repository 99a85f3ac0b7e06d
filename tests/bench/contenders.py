"""The contenders of speed.py: rankspark, what it costs to move its rows, and other ways to do it.

Each reads the log from Parquet and returns the means of mrr and ndcg@10 by variant. Only rankspark
also checks every row, removes duplicates and orders ties; the others trust the log, which speed.py
writes so that this makes no difference to the numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from rankspark import config, tables
from rankspark.spark import aggregate, check, lists, pipeline, read

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

#: By variant and measure.
Means = dict[tuple[str, str], float]
#: None from those that compute no measure.
Contender = Callable[[], Means | None]

VARIANTS = ("control", "treatment")
SLICES = ("country", "device", "segment")
TWO = ("mrr", "ndcg@10")
TWELVE = (
    "mrr", "mrr@10", "ndcg@5", "ndcg@10", "ndcg_exp@10", "map", "recall@5", "recall@10",
    "precision@5", "precision@10", "hit@1", "hit@10",
)  # fmt: skip
#: NDCG of relevance 0 or 1, the only one that MLlib computes from Python.
BINARY = "binary ndcg@10"
THREE = {"logged": "position", "model": "score desc", "upward": "score"}

#: The rows up to which a contender is fast enough, or small enough, to take part; others always do.
MAX_ROWS = {
    "apply_in_pandas": 300_000,
    "grouped_agg": 300_000,
    "mllib": 3_000_000,
    "ranx": 3_000_000,
    "pytrec_eval": 3_000_000,
}


@dataclass(frozen=True)
class Log:
    """Where the log is, and whether it has a row a query with `items` instead of a row an item."""

    folder: Path
    nested: bool
    day: date

    @property
    def files(self) -> str:
        """A pattern of its files."""
        return str(self.folder / "*.parquet")


def contenders(spark: SparkSession, log: Log, output: Path) -> dict[str, Contender]:
    """All of them by name, in the order of their turns.

    Args:
        spark: the session of those that run on Spark.
        log: what they read.
        output: an empty folder for those that write tables.
    """

    def scorer(
        measures: Sequence[str] = TWO,
        rankers: Mapping[str, str] | None = None,
        slices: Sequence[str] = (),
    ) -> Contender:
        return lambda: scored(configuration(log, output, measures, rankers, slices), spark, log)

    return {
        "scan": lambda: consume(seven_columns(spark, log)),
        "floor": lambda: consume(seven_columns(spark, log).repartition("query_id")),
        "rankspark": scorer(),
        "duckdb": lambda: duckdb(log, output),
        "polars": lambda: polars(log),
        "window": lambda: window(spark, log),
        "apply_in_pandas": lambda: apply_in_pandas(spark, log),
        "grouped_agg": lambda: grouped_agg(spark, log),
        "mllib": lambda: mllib(spark, log),
        "ranx": lambda: ranx(log),
        "pytrec_eval": lambda: pytrec_eval(log),
        "measures12": scorer(TWELVE),
        "rankers3": scorer(rankers=THREE),
        "slices3": scorer(slices=SLICES),
        "job": lambda: job(spark, log, output / "job"),
        "job_slices3": lambda: job(spark, log, output / "job_slices3", SLICES),
    }


def configuration(
    log: Log,
    output: Path,
    measures: Sequence[str] = TWO,
    rankers: Mapping[str, str] | None = None,
    slices: Sequence[str] = (),
    relevance: str = "relevance",
) -> config.Config:
    """The job, per user."""
    shape = {"items": {"column": "items"}} if log.nested else {}
    return config.from_dict(
        {
            "name": "speed",
            "input": {
                "path": str(log.folder),
                **shape,
                "columns": {
                    "date": "day",
                    "experiment": "'speed'",
                    "variant": "variant",
                    "query_id": "query_id",
                    "unit_id": "user_id",
                    "item_id": "item_id",
                    "position": "position",
                    "relevance": relevance,
                },
            },
            "evaluate": {"measures": list(measures), "slices": list(slices)},
            "rankers": dict(rankers or {"logged": "position"}),
            "output": {"path": str(output)},
        }
    )


def scored(definition: config.Config, spark: SparkSession, log: Log) -> Means:
    """Rankspark up to the scores of every query, averaged, by slice too.

    Returns the means over all slices; of several rankers, the logged one's.
    """
    rows = read.read(spark, definition, log.day)
    marked = check.mark(rows, definition)
    together = not log.nested and lists.stand_together(marked)
    queries = pipeline.per_query(marked, definition, together=together)
    columns = [measure.column_name for measure in definition.measures]
    sliced = queries.select("*", aggregate.exploded_slices(definition.evaluate.slices))
    found = sliced.groupBy("variant", "ranker", "slice").agg(*(F.avg(c).alias(c) for c in columns))
    return {
        (row["variant"], str(measure)): row[column]
        for row in found.collect()
        if row["ranker"] == "logged" and tuple(row["slice"]) == tables.OVERALL
        for measure, column in zip(definition.measures, columns, strict=True)
    }


def reference(spark: SparkSession, log: Log, output: Path, names: Container[str]) -> Means:
    """The means that the contenders of these names must give."""
    means = scored(configuration(log, output), spark, log)
    if "mllib" in names:
        binary = configuration(log, output, relevance="cast(relevance > 0 as int)")
        found = scored(binary, spark, log)
        means |= {(variant, BINARY): found[variant, "ndcg@10"] for variant in VARIANTS}
    return means


def job(spark: SparkSession, log: Log, output: Path, slices: Sequence[str] = ()) -> Means:
    """The whole of `rankspark evaluate`: all tables written, audited, published."""
    definition = configuration(log, output, slices=slices)
    (result,) = pipeline.evaluate(spark, definition, [log.day])
    if result.error is not None:
        raise RuntimeError(result.error)
    return {
        (row["variant"], row["measure"]): row["mean"]
        for row in result.metrics
        if row["slice_name"] == tables.OVERALL[0]
    }


def consume(frame: DataFrame) -> None:
    """Compute every column of every row and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def seven_columns(spark: SparkSession, log: Log) -> DataFrame:
    """What rankspark needs of the log, in the shape in which it stands there."""
    prefix = "items." if log.nested else ""
    return spark.read.parquet(str(log.folder)).select(
        "day",
        "variant",
        "query_id",
        "user_id",
        *(f"{prefix}{name}" for name in ("item_id", "position", "relevance")),
    )


def flat(spark: SparkSession, log: Log) -> DataFrame:
    """A row an item, with what the other ways on Spark need."""
    frame = spark.read.parquet(str(log.folder))
    if log.nested:
        frame = frame.selectExpr("variant", "query_id", "inline(items)")
    return frame.select("variant", "query_id", "item_id", "position", "relevance")


def averaged(queries: DataFrame) -> Means:
    """The means of a DataFrame of variant, mrr and ndcg."""
    found = queries.groupBy("variant").agg(F.avg("mrr"), F.avg("ndcg")).collect()
    return by_variant((variant, mrr, ndcg) for variant, mrr, ndcg in found)


def by_variant(rows: Iterable[tuple[str, float, float]]) -> Means:
    """The means from rows of variant, mrr and ndcg@10."""
    return {
        (variant, measure): value
        for variant, *values in rows
        for measure, value in zip(TWO, values, strict=True)
    }


def window(spark: SparkSession, log: Log) -> Means:
    """Spark SQL alone: the ideal order by a window function."""
    best = Window.partitionBy("variant", "query_id").orderBy(F.desc("relevance"))

    def gain_by(rank: str) -> Column:
        discounted = F.col("relevance") / F.log2(F.col(rank) + 1)
        return F.sum(F.when(F.col(rank) <= 10, discounted))

    first = F.min(F.when(F.col("relevance") > 0, F.col("position")))
    gain, ideal = gain_by("position"), gain_by("best")
    return averaged(
        flat(spark, log)
        .withColumn("best", F.row_number().over(best))
        .groupBy("variant", "query_id")
        .agg(
            F.coalesce(1 / first, F.lit(0.0)).alias("mrr"),
            F.when(ideal > 0, gain / ideal).otherwise(0.0).alias("ndcg"),
        )
    )


def reciprocal_rank(position: NDArray[np.int32], relevance: NDArray[np.int32]) -> float:
    """Of one query."""
    found = position[relevance > 0]
    return 1.0 / float(found.min()) if len(found) else 0.0


def ndcg_at_10(position: NDArray[np.int32], relevance: NDArray[np.int32]) -> float:
    """Of one query."""
    shown = position <= 10
    gain = (relevance[shown] / np.log2(position[shown] + 1)).sum()
    best = np.sort(relevance)[::-1][:10]
    ideal = (best / np.log2(np.arange(2, len(best) + 2))).sum()
    return float(gain / ideal) if ideal > 0 else 0.0


def apply_in_pandas(spark: SparkSession, log: Log) -> Means:
    """A pandas function called once a query, numpy inside."""

    def one(rows: pd.DataFrame) -> pd.DataFrame:
        position, relevance = rows["position"].to_numpy(), rows["relevance"].to_numpy()
        return pd.DataFrame(
            {
                "variant": [rows["variant"].iloc[0]],
                "mrr": [reciprocal_rank(position, relevance)],
                "ndcg": [ndcg_at_10(position, relevance)],
            }
        )

    grouped = flat(spark, log).drop("item_id").groupBy("variant", "query_id")
    return averaged(grouped.applyInPandas(one, "variant string, mrr double, ndcg double"))


def grouped_agg(spark: SparkSession, log: Log) -> Means:
    """A pandas aggregate function a measure, numpy inside."""

    def mrr(position: pd.Series, relevance: pd.Series) -> float:
        return reciprocal_rank(position.to_numpy(), relevance.to_numpy())

    def ndcg(position: pd.Series, relevance: pd.Series) -> float:
        return ndcg_at_10(position.to_numpy(), relevance.to_numpy())

    def aggregate(function: Callable[[pd.Series, pd.Series], float]) -> Column:
        # pyspark's overloads would have the arguments be Any.
        udf: Callable[..., Column] = pandas_udf(function, "double")  # type: ignore[call-overload]
        return udf("position", "relevance").alias(function.__name__)

    return averaged(
        flat(spark, log).groupBy("variant", "query_id").agg(aggregate(mrr), aggregate(ndcg))
    )


def mllib(spark: SparkSession, log: Log) -> Means:
    """RankingMetrics: no mrr, and NDCG of binary relevance, from an RDD and a variant at a time.

    Its documentation has grades as a third member; PySpark 4.3 gives the same value with them.
    """
    from pyspark.mllib.evaluation import RankingMetrics

    lists = (
        flat(spark, log)
        .groupBy("variant", "query_id")
        .agg(
            F.expr("array_sort(collect_list(struct(position, item_id)))").alias("shown"),
            F.expr("collect_list(case when relevance > 0 then item_id end)").alias("relevant"),
        )
        .selectExpr("variant", "shown.item_id as shown", "relevant")
    )
    # Not persisted: that would fix the number of partitions at 200, mostly empty ones here.
    return {
        (variant, BINARY): RankingMetrics(
            lists.where(F.col("variant") == variant).drop("variant").rdd.map(tuple)
        ).ndcgAt(10)
        for variant in VARIANTS
    }


def duckdb(log: Log, folder: Path) -> Means:
    """DuckDB with as many threads as there are cores; may spill into the folder."""
    import duckdb as engine

    source = f"read_parquet('{log.files}')"
    if log.nested:
        source = f"(select variant, query_id, unnest(items, recursive := true) from {source})"
    query = f"""
        with ranked as (
            select
                variant, query_id, position, relevance,
                row_number() over (
                    partition by variant, query_id order by relevance desc
                ) as best
            from {source}
        ),
        queries as (
            select
                variant,
                1.0 / min(position) filter (relevance > 0) as mrr,
                sum(relevance / log2(position + 1)) filter (position <= 10) as gain,
                sum(relevance / log2(best + 1)) filter (best <= 10) as ideal
            from ranked
            group by variant, query_id
        )
        select
            variant,
            avg(coalesce(mrr, 0)),
            avg(case when ideal > 0 then coalesce(gain, 0) / ideal else 0 end)
        from queries
        group by variant
    """
    settings: dict[str, str | bool | int | float | list[str]] = {
        "threads": os.cpu_count() or 1,
        "temp_directory": str(folder / "duckdb"),
    }
    with engine.connect(config=settings) as connection:
        return by_variant(connection.execute(query).fetchall())


def polars(log: Log) -> Means:
    """Polars, lazily and in its streaming engine; it takes all cores."""
    import polars as pl

    rows = pl.scan_parquet(log.files)
    if log.nested:
        rows = rows.select("variant", "query_id", "items").explode("items").unnest("items")
    position, relevance = pl.col("position"), pl.col("relevance")

    def gain_at(rank: pl.Expr, grades: pl.Expr) -> pl.Expr:
        return (grades / (rank + 1).log(2)).filter(rank <= 10).sum()

    queries = rows.group_by("variant", "query_id").agg(
        (1 / position.filter(relevance > 0).min()).fill_null(0.0).alias("mrr"),
        gain_at(position, relevance).alias("gain"),
        gain_at(pl.int_range(1, pl.len() + 1), relevance.sort(descending=True)).alias("ideal"),
    )
    ndcg = pl.when(pl.col("ideal") > 0).then(pl.col("gain") / pl.col("ideal")).otherwise(0.0)
    means = queries.group_by("variant").agg(pl.col("mrr").mean(), ndcg.mean().alias("ndcg"))
    return by_variant(means.collect(engine="streaming").rows())


def ranx(log: Log) -> Means:
    """Ranx, from a DataFrame a variant."""
    from ranx import Qrels, Run, evaluate  # type: ignore[import-untyped]

    def means(rows: pd.DataFrame) -> tuple[float, float]:
        names = {"q_id_col": "query_id", "doc_id_col": "item_id"}
        qrels = Qrels.from_df(rows, **names, score_col="relevance")
        run = Run.from_df(rows, **names, score_col="score")
        found = evaluate(qrels, run, list(TWO))
        return float(found["mrr"]), float(found["ndcg@10"])

    rows = in_memory(log)
    # It takes no other types.
    rows = rows.assign(
        score=-rows["position"].astype(float), relevance=rows["relevance"].astype(int)
    )
    return by_variant((v, *means(rows[rows["variant"] == v])) for v in VARIANTS)


def pytrec_eval(log: Log) -> Means:
    """The C code of trec_eval, from a dict of dicts a variant."""
    import pytrec_eval as engine

    def means(rows: pd.DataFrame) -> tuple[float, float]:
        judged: dict[str, dict[str, int]] = {}
        run: dict[str, dict[str, float]] = {}
        columns = ("query_id", "item_id", "position", "relevance")
        for query, item, position, grade in zip(
            *(rows[name].tolist() for name in columns), strict=True
        ):
            judged.setdefault(query, {})[item] = grade
            run.setdefault(query, {})[item] = -float(position)
        found = engine.RelevanceEvaluator(judged, {"recip_rank", "ndcg_cut.10"}).evaluate(run)
        return (
            float(np.mean([values["recip_rank"] for values in found.values()])),
            float(np.mean([values["ndcg_cut_10"] for values in found.values()])),
        )

    rows = in_memory(log)
    return by_variant((v, *means(rows[rows["variant"] == v])) for v in VARIANTS)


def in_memory(log: Log) -> pd.DataFrame:
    """A row an item, for those that take no files."""
    if not log.nested:
        columns = ["variant", "query_id", "item_id", "position", "relevance"]
        return pd.DataFrame(pq.read_table(log.folder, columns=columns).to_pandas())
    table = pq.read_table(log.folder, columns=["variant", "query_id", "items"]).combine_chunks()
    items = table["items"].combine_chunks()
    parents = table.select(["variant", "query_id"]).take(pc.list_parent_indices(items))
    members = pa.Table.from_struct_array(items.flatten())
    return pd.DataFrame(parents.to_pandas()).join(members.to_pandas())

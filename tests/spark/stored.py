"""Tables as `evaluate` would have stored them, from per-query values, in a few Spark jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Config
from rankspark.spark import aggregate, publish

#: No date or name has it.
_MARK = "@@"


def store(spark: SparkSession, config: Config, queries: pd.DataFrame) -> None:
    """Write metrics, unit_day, assignment and paired_counts of all dates.

    Args:
        queries: date, experiment, variant, ranker, query_id, unit_id, the slices' columns and one
            column a measure.
    """
    measures = [measure.column_name for measure in config.measures]
    defaults = {"ranker": "logged", "unit_id": None} | dict.fromkeys(config.evaluate.slice_columns)
    given = queries.assign(**{k: v for k, v in defaults.items() if k not in queries})
    names = ["variant", "ranker", "query_id", "unit_id", *config.evaluate.slice_columns]
    frame = spark.createDataFrame(
        [
            (
                f"{row['date']}{_MARK}{row['experiment']}",
                *(row[name] for name in names),
                *(float(row[measure]) for measure in measures),
            )
            for row in given.to_dict("records")
        ],
        ", ".join(
            [
                "experiment STRING",
                *(f"`{name}` STRING" for name in names),
                *(f"`{name}` DOUBLE" for name in measures),
            ]
        ),
    ).withColumn("n_relevant", F.lit(1))
    root = config.output.path
    units = aggregate.unit_sums(frame, config)
    written = _written(units, f"{root}/unit_day", tables.UNIT_DAY)
    _written(aggregate.assignments(written, config), f"{root}/assignment", tables.ASSIGNMENT)
    paired = aggregate.paired_counts(frame, config)
    if paired is not None:
        _written(paired, f"{root}/paired_counts", tables.PAIRED_COUNTS)
    rows = aggregate.metrics_rows(aggregate.moments(written).collect(), config)
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        day, experiment = row.pop("experiment").split(_MARK)
        parts.setdefault((day, experiment), []).append(row)
    kinds = {c.name: publish._ARROW_TYPES[c.type] for c in tables.METRICS.columns}
    for (day, experiment), members in parts.items():
        folder = Path(f"{root}/metrics/date={day}/experiment={experiment}")
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_pylist(members, pa.schema(list(kinds.items())))
        pq.write_table(table, folder / f"part-{len(list(folder.iterdir()))}.parquet")


def _written(frame: DataFrame, path: str, table: tables.Table) -> DataFrame:
    """Append to the table; gives the rows of this frame with the marked experiment."""
    kept = frame.cache()
    have = set(kept.columns)
    columns = [
        (F.col(c.name) if c.name in have else F.lit(None)).cast(c.type).alias(c.name)
        for c in table.columns
    ]
    day, name = (F.split("experiment", _MARK)[i] for i in (0, 1))
    keys = [day.alias("date"), name.alias("experiment")]
    writer = kept.select(*columns, *keys).coalesce(1).write.mode("append")
    writer.partitionBy("date", "experiment").parquet(path)
    return kept

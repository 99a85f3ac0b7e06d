"""Small logs and configurations: a good row, and what differs from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from rankspark import config

ROW = {
    "date": "2024-03-10",
    "experiment": "e1",
    "variant": "A",
    "query_id": "q1",
    "item_id": "i1",
    "position": 1,
    "relevance": 0.0,
    "unit_id": "u1",
    "country": "fr",
}
SCHEMA = (
    "date STRING, experiment STRING, variant STRING, query_id STRING, item_id STRING, "
    "position INT, relevance DOUBLE, unit_id STRING, country STRING"
)

Rows = Sequence[Mapping[str, Any]]


def items(query_id: str, *relevances: float | None, **common: Any) -> list[dict[str, Any]]:
    """The rows of one query: items i1, i2 ... at positions 1, 2 ..."""
    return [
        {
            "query_id": query_id,
            "item_id": f"i{n}",
            "position": n,
            "relevance": None if relevance is None else float(relevance),
        }
        | common
        for n, relevance in enumerate(relevances, start=1)
    ]


@pytest.fixture
def write_log(spark: SparkSession, tmp_path: Path) -> Callable[..., str]:
    def write(rows: Rows, kind: str = "parquet", name: str = "log") -> str:
        path = str(tmp_path / name)
        data = [tuple((ROW | dict(row)).values()) for row in rows]
        frame = spark.createDataFrame(data, SCHEMA)
        writer = frame.write.mode("overwrite").format(kind)
        (writer.option("header", True) if kind == "csv" else writer).save(path)
        return path

    return write


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., config.Config]:
    def make(path: str | None, **changes: Any) -> config.Config:
        content: dict[str, Any] = {
            "name": "test",
            "input": {
                "path": path,
                "columns": {name: name for name in ROW if name != "country"},
            },
            "evaluate": {"measures": ["mrr", "ndcg@10"]},
            "output": {"path": str(tmp_path / "out")},
            # Logs made to be hostile have more wrong in them than any gate lets pass.
            "quality": {"rejected": "off", "no_relevant": "off", "rows": "off", "queries": "off"},
        }
        for dotted, value in changes.items():
            *parents, last = dotted.split("__")
            table = content
            for parent in parents:
                table = table.setdefault(parent, {})
            if value is None:
                table.pop(last, None)
            else:
                table[last] = value
        return config.from_dict(content)

    return make

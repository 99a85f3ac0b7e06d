"""Logs that nobody would write by hand: the job never crashes, and every row is accounted for."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rankspark import config
from rankspark.spark import pipeline
from tests.tables import read

DAY = dt.date(2024, 3, 10)
IDS = st.one_of(
    st.none(),
    st.sampled_from(
        ["a", "b", "c", "", "  ", "null", "-1", "NaN", "a/b", "é", "e\u0301", "😀", "\x00"]
    ),
    st.text(st.characters(codec="utf-8"), max_size=5),
)
QUERIES = st.one_of(st.sampled_from(["q1", "q2", "q3"]), IDS)
POSITIONS = st.one_of(
    st.none(),
    st.integers(-2, 12),
    st.sampled_from([2**31 - 1, 2**31, 2**62, -(2**63), 2**63 - 1, 1_700_000_000]),
)
GRADES = st.one_of(
    st.none(),
    st.integers(0, 4).map(float),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324, 1e-300, 1e300, -1.0, 0.5]),
)
#: The same as text, as a CSV has it, and things that are no number.
TEXTS = st.one_of(
    st.none(),
    st.integers(-2, 12).map(str),
    st.sampled_from(
        ["1.0", "2.5", " 3 ", "1e3", "NaN", "Infinity", "-0", "three", "", "0x1", "1e999"]
    ),
    st.decimals(-5, 20, places=3).map(str),
)
DECIMALS = st.one_of(st.none(), st.decimals(Decimal("-99"), Decimal("99"), places=2))
KINDS = {
    "numbers": ("BIGINT", POSITIONS, "DOUBLE", GRADES),
    "text": ("STRING", TEXTS, "STRING", TEXTS),
    "decimals": ("DECIMAL(10,2)", DECIMALS, "DECIMAL(10,2)", DECIMALS),
}


def logs(kind: str):
    _, position, _, relevance = KINDS[kind]
    row = st.tuples(
        IDS, st.sampled_from(["A", "B", None, ""]), QUERIES, IDS, position, relevance, IDS
    )
    return st.lists(st.lists(row, max_size=12), min_size=12, max_size=20)


@pytest.mark.parametrize(
    ("kind", "ansi"),
    [("numbers", "true"), ("text", "true"), ("decimals", "false"), ("text", "false")],
)
def test_whatever_a_log_holds_its_rows_add_up_and_nothing_published_is_nan(
    spark, tmp_path: Path, kind: str, ansi: str
) -> None:
    position, _, relevance, _ = KINDS[kind]
    schema = (
        "experiment STRING, variant STRING, query_id STRING, item_id STRING,"
        f" position {position}, relevance {relevance}, unit_id STRING"
    )

    # Many logs a job, since a job costs seconds: each is an experiment, beside a good query.
    @settings(
        max_examples=2, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(logs(kind))
    def check(made) -> None:
        folder = tmp_path / uuid.uuid4().hex
        good = (relevance == "STRING" and ("1", "1")) or (1, 1.0)
        if kind == "decimals":
            good = (Decimal(1), Decimal(1))
        rows = [("e", "A", "good", "a", *good, "u")]
        for number, log in enumerate(made):
            # Half of the logs have a sound name; of the others it is part of the fuzz.
            rows += [(f"e{number}" if number % 2 else row[0], *row[1:]) for row in log]
        spark.createDataFrame(rows, schema).write.parquet(str(folder / "log"))
        names = ["experiment", "variant", "query_id", "item_id", "position", "relevance", "unit_id"]
        columns = {name: name for name in names}
        job = config.from_dict(
            {
                "name": "fuzz",
                "input": {
                    "path": str(folder / "log"),
                    "columns": columns | {"date": f"DATE'{DAY}'"},
                },
                "evaluate": {"measures": ["mrr", "ndcg@3", "recall@2", "map"], "negative": "zero"},
                "output": {"path": str(folder / "out")},
                "quality": {"rejected": "off", "no_relevant": "off"},
            }
        )
        (result,) = pipeline.evaluate(spark, job, [DAY])
        assert result.error is None
        counts = result.counts
        assert counts["n_rows_read"] == len(rows)
        assert counts["n_rows_read"] == sum(
            counts[f"n_rows_{fate}"] for fate in ("scored", "rejected", "duplicate", "placeholder")
        )
        for name in ("query_metrics", "metrics"):
            table = read(folder / "out", name)
            if name == "query_metrics":
                assert len(table) == counts["n_queries"]
                assert table.n_items.sum() == counts["n_rows_scored"]
                for measure in ("mrr", "ndcg_at_3", "recall_at_2", "map"):
                    assert table[measure].between(0, 1 + 1e-12).all()
            else:
                # Pandas shows null as NaN, so the files are asked.
                assert not nan_in(folder / "out" / name)

    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        check()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


def nan_in(folder: Path) -> bool:
    found = False
    for row in ds.dataset(folder, format="parquet").to_table().to_pylist():
        found |= any(isinstance(value, float) and math.isnan(value) for value in row.values())
    return found

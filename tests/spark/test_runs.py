"""Rows through blocks and runs give the lists that a dictionary gives."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankspark.spark import blocks, lists, runs
from rankspark.spark.blocks import Layout, Pack, Unpack
from rankspark.spark.names import join_names, split_names
from rankspark.spark.runs import Chain, Runs

SCHEMA = pa.schema(
    [
        ("names", pa.string()),
        ("item_id", pa.string()),
        ("relevance", pa.float64()),
        ("position", pa.int32()),
        ("query_hash", pa.int64()),
    ]
)
KINDS = {pa.string(): "string", pa.float64(): "double", pa.int32(): "int", pa.int64(): "bigint"}
LAYOUT = Layout(tuple((field.name, KINDS[field.type]) for field in SCHEMA))
NAMES, ITEMS = ("query_id", "unit_id"), ("item_id", "relevance", "position")

QUERIES, UNITS = ["a", "b", "c", "", "ä\0ö\1e"], [None, "", "\1n", "u1"]

row = st.fixed_dictionaries(
    {
        "query_id": st.sampled_from(QUERIES),
        "unit_id": st.sampled_from(UNITS),
        "item_id": st.sampled_from([None, "i1", "i2", "日本"]),
        "relevance": st.sampled_from([None, 0.0, 1.5]),
        "position": st.integers(1, 2**31 - 1),
    }
)


@pytest.fixture(autouse=True, scope="module")
def small() -> Any:
    """Sizes at which a handful of rows meets every border."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "CHUNK_ROWS", 7)
        patch.setattr(blocks, "BLOCK_ROWS", 3)
        patch.setattr(blocks, "UNPACKED_ROWS", 5)
        patch.setattr(blocks, "_PART_BLOCKS", 2)
        patch.setattr(blocks, "MAX_HELD_ROWS", 1 << 20)
        patch.setattr(runs, "CHUNK_ROWS", 5)
        yield


@pytest.fixture(scope="module")
def texts(spark: Any) -> dict[Any, str]:
    """The text of each pair of names, as the engine joins them."""
    pairs = [(query, unit) for query in QUERIES for unit in UNITS]
    frame = spark.createDataFrame(pairs, "query_id string, unit_id string")
    found = frame.select("query_id", "unit_id", join_names(["query_id", "unit_id"])).collect()
    return {(row["query_id"], row["unit_id"]): row["names"] for row in found}


def named(texts: dict[Any, str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [r | {"names": texts[r["query_id"], r["unit_id"]]} for r in rows]


def batches(rows: list[dict[str, Any]], size: int, schema: pa.Schema = SCHEMA) -> Any:
    table = pa.Table.from_pylist(rows, schema).combine_chunks()
    return iter(table.to_batches(max_chunksize=size) if rows else [])


def shuffled(packed: list[pa.RecordBatch], size: int) -> Any:
    """Blocks as they come out of the engine: by bucket, in batches of any size."""
    table = pa.Table.from_batches(packed)
    order = np.argsort(table["bucket"].to_numpy(), kind="stable")
    return iter(table.take(pa.array(order)).combine_chunks().to_batches(max_chunksize=size))


def through(rows: list[dict[str, Any]], size: int, most: int, query_rows: int = 1000) -> Any:
    packed = list(Pack(LAYOUT, n_buckets=3)(batches(rows, size)))
    steps = Chain((Unpack(LAYOUT, query_rows), Runs(NAMES, ITEMS, most)))
    return [made for batch in steps(shuffled(packed, size)) for made in batch.to_pylist()]


def expected(rows: list[dict[str, Any]], most: int) -> dict[Any, Any]:
    by_name = defaultdict(list)
    for r in rows:
        by_name[r["query_id"], r["unit_id"]].append(r)
    return {
        name: (
            None
            if sum(m["item_id"] is not None for m in members) > most
            else sorted(
                (m["item_id"], str(m["relevance"] or "0"), m["position"], m["relevance"] is None)
                for m in members
                if m["item_id"] is not None
            ),
            len(members),
        )
        for name, members in by_name.items()
    }


def as_expected(lists: list[dict[str, Any]]) -> dict[Any, Any]:
    found = {}
    for made in lists:
        name = made["query_id"], made["unit_id"]
        assert name not in found, "a list came in two pieces"
        items = made["items"]
        if items is not None:
            unknown = [m["relevance"] is None or m["relevance"] != m["relevance"] for m in items]
            items = sorted(
                (m["item_id"], "0" if u else str(m["relevance"] or "0"), m["position"], u)
                for m, u in zip(items, unknown, strict=True)
            )
        found[name] = items, made["n_rows"]
    return found


@settings(max_examples=200, deadline=None)
@given(st.lists(row, min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 12), st.data())
def test_shuffled_rows_become_the_lists_of_their_names(texts, rows, size, most, data) -> None:
    # Different queries may have one hash; the rows of a query always have the same.
    hashes = {name: data.draw(st.integers(-(2**63), -(2**63) + 3)) for name in "abc"}
    rows = [r | {"query_hash": hashes.get(r["query_id"], 2**63 - 1)} for r in rows]
    assert as_expected(through(named(texts, rows), size, most)) == expected(rows, most)


@settings(max_examples=100, deadline=None)
@given(st.lists(row, min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 12))
def test_rows_that_stand_together_need_no_hash(texts, rows, size, most) -> None:
    rows = sorted(rows, key=lambda r: (r["query_id"], str(r["unit_id"])))
    schema = pa.schema([field for field in SCHEMA if field.name != "query_hash"])
    cut = Runs(NAMES, ITEMS, most)(batches(named(texts, rows), size, schema))
    found = as_expected([made for batch in cut for made in batch.to_pylist()])
    assert found == expected(rows, most)


three = st.lists(st.none() | st.text("\0\1\2emnäa日", max_size=6), min_size=3, max_size=3)


@settings(max_examples=5, deadline=None)
@given(rows=st.lists(three, min_size=50, max_size=300))
def test_names_come_back_as_they_were(spark, rows) -> None:
    frame = spark.createDataFrame(rows, "a string, b string, c string")
    texts = [row["names"] for row in frame.select(join_names(["a", "b", "c"])).collect()]
    split = split_names(pa.array(texts), 3)
    assert list(zip(*(column.to_pylist() for column in split), strict=True)) == [
        tuple(row) for row in rows
    ]


def test_a_query_without_end_is_let_go_while_others_stay_whole(monkeypatch) -> None:
    monkeypatch.setattr(blocks, "MAX_HELD_ROWS", 40)
    monkeypatch.setattr(runs, "MAX_OPEN_ROWS", 20)
    item = {"item_id": "i", "relevance": 1.0, "position": 1}
    endless = [item | {"names": "bot\1eu", "query_hash": 0} for _ in range(1000)]
    others = [item | {"names": f"q{n % 30}\1eu", "query_hash": 3 + 3 * (n % 30)} for n in range(90)]
    rows = [r for n, r in enumerate(endless) for r in (r, *others[n : n + 1])]
    made_of = through(rows, size=8, most=5, query_rows=10)
    bot = [made for made in made_of if made["query_id"] == "bot"]
    assert sum(made["n_rows"] for made in bot) == 1000
    assert any(made["items"] is None for made in bot)
    kept = as_expected([made for made in made_of if made["query_id"] != "bot"])
    assert {name[0]: n_rows for name, (_, n_rows) in kept.items()} == {
        f"q{n}": 3 for n in range(30)
    }


def test_buckets_grow_with_the_source_and_stay_few_where_its_size_is_not_known(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    spark.range(200_000).write.parquet(path)
    assert lists.buckets_for(spark.read.parquet(path)) == 512
    monkeypatch.setattr(lists, "_BYTES_A_BUCKET", 256)
    size = sum(file.stat().st_size for file in Path(path).glob("*.parquet"))
    assert lists.buckets_for(spark.read.parquet(path)) == pytest.approx(size / 256, rel=0.01)
    monkeypatch.setattr(lists, "_BYTES_A_BUCKET", 1)
    assert lists.buckets_for(spark.read.parquet(path)) == 1 << 16
    assert lists.buckets_for(spark.createDataFrame([(1,)], "a INT")) == 512

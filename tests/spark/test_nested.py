"""Items of nested rows, checked in Python, are decided as by SQL over the same items as rows."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankspark.spark import check, lists, nested, read

IDS = [None, "", " ", "   ", "\t", " \t", "\n ", "a", " a ", "\u00a0", "é", "!", " !"]
REALS = [None, math.nan, math.inf, -math.inf, -1.0, -0.0, 0.0, 1.0, 1.5]
POSITIONS = {
    "DOUBLE": [*REALS, 2.0**31 - 2, 2.0**31 - 1, 2.0**31, 1e300],
    "BIGINT": [None, -(2**63), -1, 0, 1, 2**31 - 2, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1],
    "STRING": [None, "", "x", "1", " 2 ", "1.5", "-1", "NaN", "1e400"],
}
RELEVANCES = {
    "DOUBLE": [*REALS, 2.5],
    "FLOAT": [*REALS, 2.5],
    "STRING": [None, "", "x", "1", "-1", "NaN", "Infinity"],
}
LENGTH = 90


@pytest.mark.parametrize(
    ("position", "relevance", "base", "negative", "ansi"),
    [
        ("DOUBLE", "FLOAT", 1, "reject", "true"),
        ("BIGINT", "DOUBLE", 0, "zero", "false"),
        ("STRING", "STRING", 1, "unjudged", "true"),
        ("STRING", "DOUBLE", 0, "reject", "false"),
    ],
)
def test_hostile_items_are_decided_and_repaired_as_by_sql(
    spark, make_config, position, relevance, base, negative, ansi
) -> None:
    items = [*itertools.product(IDS, POSITIONS[position], RELEVANCES[relevance]), None]
    heads = range(0, len(items), LENGTH)
    rows = [(f"q{n:03}", items[n : n + LENGTH]) for n in heads] + [("q", None), ("r", [])]
    kind = f"STRUCT<id: STRING, rank: {position}, grade: {relevance}>"
    log = spark.createDataFrame(rows, f"query_id STRING, results ARRAY<{kind}>")
    log = log.selectExpr("*", "'e' experiment", "'A' variant", "'u' unit_id", "'d' date")
    flat = log.selectExpr("* EXCEPT (results)", "posexplode(results) AS (n, it)")
    given = {
        "input__position_base": base,
        "input__columns__item_id": "id",
        "input__columns__position": "rank",
        "input__columns__relevance": "grade",
        "evaluate__negative": negative,
        "rankers": {"logged": "position", "v2": "grade desc"},
    }
    config = make_config("log", input__items={"column": "results"}, **given)
    lone = make_config("log", **given, evaluate__slices=["n"])
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        canonical = read.canonical(flat.selectExpr("*", "it.*"), lone, None)
        # A reason first: a member of a bad item cannot always be cast.
        marked = canonical.selectExpr("*", f"{check.item_reason(lone)} AS reason")
        good = marked.where("reason IS NULL").orderBy("query_id", canonical.n.cast("int"))
        expected: dict[str, list[Any]] = {query: [] for query, _ in rows}
        for query, *item in good.selectExpr("query_id", *check.item_members(lone)).collect():
            expected[query].append(plain(item))
        nested_rows = read.canonical(log, config, None)
        found = lists.of_rows(lists.cut(nested_rows, config), config).collect()
        total, findings = check.census(nested_rows, config)
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert {row.query_id: [plain(item) for item in row["items"]] for row in found} == expected
    assert {row.query_id: row.n_rows for row in found} == {q: len(e) for q, e in expected.items()}
    assert 0 < sum(map(len, expected.values())) < total == len(items)
    lost = sum(finding.n_rows for finding in findings if finding.kind == "rejected")
    assert total - lost == sum(map(len, expected.values()))


def test_plain_fields_are_read_without_a_lambda(spark, make_config, tmp_path, capsys) -> None:
    path = str(tmp_path / "log")
    spark.sql(
        "SELECT '2024-03-10' date, 'A' variant, 'q' query_id, 'u' unit_id, 'e' experiment,"
        " array(named_struct('id', 7, 'Grade', 1S, 'unused', 1)) results"
    ).write.parquet(path)
    config = make_config(
        path,
        input__items={"column": "results"},
        input__columns__item_id="id",
        input__columns__position=None,
        input__columns__relevance="grade",
    )
    rows = read.canonical(read.source(spark, config.input), config, None)
    assert rows.select("item_id", "position", "relevance").first() == (["7"], [1], [1])
    rows.explain()
    plan = capsys.readouterr().out
    assert "lambda" not in plan
    assert "unused" not in plan


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.lists(st.tuples(st.sampled_from(IDS), st.sampled_from(POSITIONS["BIGINT"]))),
        )
    ),
    st.integers(1, 4),
)
def test_chunks_nulls_and_long_lists(rows: list[Any], chunk: int) -> None:
    pairs = [None if row is None else list(zip(*row, strict=True)) or [(), ()] for row in rows]
    batch = pa.record_batch(
        {
            "query_id": pa.array([str(n) for n in range(len(rows))], pa.string()),
            "item_id": pa.array([p and list(p[0]) for p in pairs], pa.list_(pa.string())),
            "position": pa.array([p and list(p[1]) for p in pairs], pa.list_(pa.int64())),
        }
    )
    step = nested.Nested(("query_id",), ("item_id", "position"), 2, 1, 2**31 - 1, "reject")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nested, "CHUNK_ITEMS", chunk)
        found = [row for out in step(iter([batch])) for row in out.to_pylist()]
    expected = []
    for n, row in enumerate(rows):
        good = [
            {"item_id": item, "position": position}
            for item, position in row or []
            if (item or "").strip(" ") and position is not None and 1 <= position < 2**31
        ]
        items = good if len(good) <= 2 else None
        expected.append({"query_id": str(n), "items": items, "n_rows": len(good)})
    assert found == expected


def plain(item: Any) -> tuple[Any, ...]:
    """An item whose numbers are null where they are NaN: the scorer takes both alike."""
    return tuple(None if value != value else value for value in item)

"""From logged impressions to published tables, as users see them."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import rankspark
from rankspark.errors import ConfigError
from rankspark.spark import aggregate, lists, pipeline
from tests.spark.conftest import ROW, SCHEMA, items
from tests.tables import KEYS, read, values

DAY = dt.date(2024, 3, 10)
NAN = float("nan")

# Hand-computed: reciprocal ranks 1, 1/2 and 0; of two variants.
THREE_QUERIES = [
    *items("q1", 1, 0, 0, unit_id="u1"),
    *items("q2", 0, 1, 0, unit_id="u1"),
    *items("q3", 0, 0, unit_id="u2"),
    *items("q4", 0, 0, 1, variant="B", unit_id="u3"),
]


@pytest.fixture
def run(spark: SparkSession, write_log, make_config):
    """Evaluate rows of one day; gives the result and the output's folder."""

    def run(rows, *, name="log", day=DAY, **changes):
        config = make_config(write_log(rows, name=name), **changes)
        return pipeline.evaluate(spark, config, [day])[0], Path(config.output.path)

    return run


def rejects(folder: Path) -> dict[tuple[str, str], int]:
    found = read(folder, "rejects")
    return {(row.kind, row.reason): row.n_rows for row in found.itertuples()}


def test_means_intervals_and_populations_are_the_hand_computed_ones(run) -> None:
    result, out = run(THREE_QUERIES)
    assert (result.status, result.exit_code) == ("published", 0)
    metrics = read(out, "metrics").set_index(["variant", "measure"])
    row = metrics.loc[("A", "mrr")]
    assert row["mean"] == 0.5
    assert (row.n_queries, row.n_scored, row.n_no_relevant, row.n_units) == (3, 3, 1, 2)
    # Units: x = 1.5, 0 and n = 2, 1; z = 1/2, -1/2; V = 2 * 1/2 / 9.
    assert row.std_error == pytest.approx(1 / 3, rel=1e-12)
    # Student t with one degree of freedom: 12.706204736.
    assert row.ci_high == pytest.approx(0.5 + 12.706204736 / 3, rel=1e-9)
    assert metrics.loc[("B", "mrr")]["mean"] == pytest.approx(1 / 3, abs=1e-9)
    assert metrics.loc[("B", "mrr")]["std_error"] is None or math.isnan(
        metrics.loc[("B", "mrr")]["std_error"]
    )
    assert metrics.loc[("B", "ndcg@10")]["mean"] == pytest.approx(0.5, abs=1e-9)

    queries = read(out, "query_metrics").set_index("query_id")
    assert queries.mrr.to_dict() == {"q1": 1.0, "q2": 0.5, "q3": 0.0, "q4": 1 / 3}
    assert queries.ndcg_at_10.q2 == 1 / math.log2(3)
    assert queries.n_items.to_dict() == {"q1": 3, "q2": 3, "q3": 2, "q4": 3}
    assert set(queries.dataset) == {"test"}


def test_no_relevant_skip_leaves_the_query_out_of_the_mean_and_in_the_table(run) -> None:
    _, out = run(THREE_QUERIES, evaluate__no_relevant="skip")
    row = read(out, "metrics").set_index(["variant", "measure"]).loc[("A", "mrr")]
    assert (row["mean"], row.n_queries, row.n_scored, row.n_no_relevant) == (0.75, 3, 2, 1)
    queries = pq.read_table(out / "query_metrics").to_pandas().set_index("query_id")
    assert queries.mrr.isna().to_dict() == {"q1": False, "q2": False, "q3": True, "q4": False}


HOSTILE = [
    ({"query_id": None}, "bad_query_id"),
    ({"query_id": "  "}, "bad_query_id"),
    ({"item_id": None}, "bad_item_id"),
    ({"item_id": ""}, "bad_item_id"),
    ({"experiment": None}, "bad_experiment"),
    ({"experiment": ""}, "bad_experiment"),
    ({"experiment": "__HIVE_DEFAULT_PARTITION__"}, "bad_experiment"),
    ({"experiment": "x" * 300}, "bad_experiment"),
    ({"variant": None}, "bad_variant"),
    ({"position": None}, "position_missing"),
    ({"position": 0}, "position_below_base"),
    ({"position": -(2**31)}, "position_below_base"),
    ({"relevance": NAN}, "relevance_not_a_number"),
    ({"relevance": math.inf}, "relevance_infinite"),
    ({"relevance": -1.0}, "relevance_negative"),
]


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_every_hostile_row_is_rejected_counted_and_shown_and_the_rest_is_as_without_it(
    spark, run, ansi: str
) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        bad = [{"item_id": f"bad{n}", "position": 9} | row for n, (row, _) in enumerate(HOSTILE)]
        result, out = run([*THREE_QUERIES, *bad])
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    expected: dict[tuple[str, str], int] = {}
    for _, reason in HOSTILE:
        expected["rejected", reason] = expected.get(("rejected", reason), 0) + 1
    assert rejects(out) == expected
    assert result.counts == {
        "n_rows_read": len(THREE_QUERIES) + len(HOSTILE),
        "n_rows_scored": len(THREE_QUERIES),
        "n_rows_rejected": len(HOSTILE),
        "n_rows_duplicate": 0,
        "n_rows_placeholder": 0,
        "n_queries": 4,
    }
    assert values(out, "mrr", "variant")["A"] == 0.5
    examples = read(out, "rejects").set_index("reason").examples
    assert '"position":-2147483648' in "".join(examples["position_below_base"])
    assert '"query_id":null' in "".join(examples["bad_query_id"])


def test_duplicates_are_dropped_or_merged_and_counted(run) -> None:
    rows = [
        *items("q1", 0, 1, 1),
        *items("q1", 0, 1, 1),  # the whole list delivered twice
        {
            "query_id": "q1",
            "item_id": "i3",
            "position": 9,
            "relevance": 3.0,
        },  # i3 again, clicked later
        *items("q2", 1, 0),
    ]
    result, out = run(rows, evaluate__measures=["mrr", "ndcg", "precision@3"])
    assert rejects(out) == {("repaired", "duplicate"): 3, ("repaired", "conflicting_duplicate"): 1}
    query = read(out, "query_metrics").set_index("query_id").loc["q1"]
    assert (query.n_items, query.n_duplicates, query.n_conflicts) == (3, 3, 1)
    # i3 keeps position 3 and relevance 3: DCG = 1/log2(3) + 3/2, ideal 3 + 1/log2(3).
    assert query.ndcg == pytest.approx((1 / math.log2(3) + 1.5) / (3 + 1 / math.log2(3)), rel=1e-15)
    assert query.precision_at_3 == pytest.approx(2 / 3)
    counts = result.counts
    assert counts["n_rows_read"] == 9
    assert counts["n_rows_scored"] + counts["n_rows_duplicate"] + counts["n_rows_rejected"] == 9


def test_a_placeholder_row_counts_as_a_query_that_returned_nothing(run) -> None:
    rows = [
        *items("q1", 1),
        {"query_id": "q2", "item_id": None, "position": None, "relevance": None},
    ]
    result, out = run(rows)
    assert values(out, "mrr", "variant") == {"A": 0.5}
    assert result.counts["n_rows_placeholder"] == 1
    assert rejects(out) == {}


def test_gaps_stay_taken_positions_move_on_and_item_ids_decide(run) -> None:
    rows = [
        {"query_id": "gap", "item_id": "a", "position": 1},
        {"query_id": "gap", "item_id": "c", "position": 7, "relevance": 1.0},
        {"query_id": "tie", "item_id": "b", "position": 1, "relevance": 1.0},
        {"query_id": "tie", "item_id": "a", "position": 1},
        {"query_id": "tie", "item_id": "c", "position": 2},
    ]
    _, out = run(rows)
    assert read(out, "query_metrics").set_index("query_id").mrr.to_dict() == {
        "gap": 1 / 7,
        "tie": 0.5,
    }
    _, out = run(rows, evaluate__rank="order")
    assert read(out, "query_metrics").set_index("query_id").mrr.to_dict() == {
        "gap": 0.5,
        "tie": 0.5,
    }


def test_positions_may_count_from_zero(run) -> None:
    rows = [row | {"position": row["position"] - 1} for row in THREE_QUERIES]
    _, out = run(rows, input__position_base=0)
    assert values(out, "mrr", "variant")["A"] == 0.5


def test_fractional_positions_and_text_for_numbers(spark, make_config, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(
        "date,experiment,variant,query_id,item_id,position,relevance,unit_id\n"
        "2024-03-10,007,A,q1,00123,1,0,u\n"
        "2024-03-10,007,A,q1,00124,2,1.0,u\n"
        "2024-03-10,007,A,q1,00125,2.5,1,u\n"
        "2024-03-10,007,A,q1,00126,three,1,u\n"
        "2024-03-10,007,A,q1,00127,4,high,u\n"
        "2024-03-10,007,A,q1,00128,5,,u\n"
    )
    config = make_config(str(tmp_path / "log.csv"), input__format="csv")
    result = pipeline.evaluate(spark, config, [DAY])[0]
    out = Path(config.output.path)
    assert rejects(out) == {
        ("rejected", "position_not_whole"): 1,
        ("rejected", "position_missing"): 1,
        ("rejected", "relevance_not_a_number"): 1,
        # Of what is left: positions 1, 2 and 5.
        ("flagged", "position_gap"): 1,
    }
    query = read(out, "query_metrics").iloc[0]
    assert (query.mrr, query.n_items, query.n_judged, query.experiment) == (0.5, 3, 2, "007")
    assert result.counts["n_rows_read"] == 6


def test_a_list_beyond_the_limit_is_rejected_and_the_rest_published(run) -> None:
    rows = [*THREE_QUERIES, *items("bot", *[0.0] * 30)]
    result, out = run(rows, limits__max_list_length=20)
    assert rejects(out) == {("rejected", "list_too_long"): 30}
    assert values(out, "mrr", "variant")["A"] == 0.5
    assert result.counts["n_rows_rejected"] == 30
    assert '"query_id":"bot"' in read(out, "rejects").examples[0][0]


def test_a_log_whose_queries_stand_together_is_not_shuffled_and_torn_ones_are_made_whole(
    run, spark, make_config, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(lists, "_PROBED_ROWS", 6)
    head = [*items("q1", 0, 1, 0), *items("q2", 1, 0, 0)]
    torn = [*items("torn", 0, 0, 1, 1), *items("bot", *[0] * 30)]
    rows = [*head, *torn[:2], *items("q3", 0, 0), *torn[2:], *torn[::-1][:7], *items("q3", 0, 0)]
    expected, whole = run(sorted(rows, key=str), name="mixed", limits__max_list_length=20)
    assert expected.status == "published"
    # One file, so that the first rows are the first.
    spark.createDataFrame([tuple((ROW | r).values()) for r in rows], SCHEMA).coalesce(1).write.save(
        str(tmp_path / "standing")
    )
    config = make_config(
        str(tmp_path / "standing"),
        limits__max_list_length=20,
        output__path=str(tmp_path / "standing_out"),
    )
    assert "Exchange" not in pipeline.plan(spark, config, [DAY])[0].physical
    (result,) = pipeline.evaluate(spark, config, [DAY])
    assert result.status == "published"
    assert result.counts == expected.counts
    out = Path(config.output.path)
    assert (
        rejects(out)
        == rejects(whole)
        == {("rejected", "list_too_long"): 37} | {("repaired", "duplicate"): 2}
    )
    columns = ["query_id", "n_items", "n_duplicates", "mrr", "ndcg_at_10"]
    found = [
        read(folder, "query_metrics")[columns].sort_values("query_id").to_numpy().tolist()
        for folder in (out, whole)
    ]
    assert found[0] == found[1]
    assert dict(zip(*zip(*((r[0], r[3]) for r in found[0]), strict=True), strict=True)) == {
        "q1": 0.5,
        "q2": 1.0,
        "q3": 0.0,
        "torn": pytest.approx(1 / 3),
    }


def test_a_query_of_two_units_is_rejected_whole(run) -> None:
    rows = [*THREE_QUERIES, *items("torn", 1, unit_id="u8"), *items("torn", 0, 1, unit_id="u9")]
    result, out = run(rows)
    assert rejects(out) == {("rejected", "query_contradicts_itself"): 3}
    assert result.counts["n_rows_read"] == len(rows)
    assert values(out, "mrr", "variant")["A"] == 0.5


def test_slices_are_means_over_their_own_queries_and_null_shows(run) -> None:
    rows = [
        *items("q1", 1, country="fr"),
        *items("q2", 0, 1, country="fr"),
        *items("q3", 0, 1, country=None),
    ]
    _, out = run(rows, evaluate__slices=["country"])
    metrics = read(out, "metrics")
    found = (
        metrics[metrics.measure == "mrr"].set_index(["slice_name", "slice_value"])["mean"].to_dict()
    )
    assert found == {
        ("overall", "(all)"): pytest.approx(2 / 3, abs=1e-9),
        ("country", "fr"): 0.75,
        ("country", "(null)"): 0.5,
    }


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(
    "numbers",
    [
        # More than 9.2e18, the largest long, from the tenth product on.
        [10**9] * 60 + [-(10**9), 999_999_999, 333_333_333, -1, 0, None],
        [10**9] * 60 + [7 * 10**17, -(7 * 10**17), 3_030_000_001, None],
        [None],
    ],
)
def test_squares_are_summed_exactly_beyond_a_long(
    spark: SparkSession, ansi: str, numbers: list[int | None]
) -> None:
    key = "spark.sql.ansi.enabled"
    before = spark.conf.get(key)
    spark.conf.set(key, ansi)
    try:
        frame = spark.createDataFrame([(n,) for n in numbers], "v bigint").repartition(3)
        (found,) = frame.agg(aggregate.product("v", "v")).collect()[0]
    finally:
        spark.conf.set(key, before)
    known = [n * n for n in numbers if n is not None]
    assert found == (sum(known) if known else None)


def test_the_square_of_a_measure_that_passes_one_by_its_profile_is_exact(run) -> None:
    # RBP of grades, p = 0.8: 9 * (1 - 0.8^3) = 4.392, whose square in billionths passes a long.
    config = {"evaluate__measures": ["rbp"], "evaluate__profile": "ranx"}
    result, out = run(items("q1", 9, 9, 9), **config)
    assert result.error is None
    (row,) = read(out, "unit_day").itertuples()
    assert (row.s_nano, int(row.s2_nano)) == (4_392_000_000, 4_392_000_000**2)


def test_a_slice_of_too_many_values_is_refused_by_name_and_nothing_is_published(run) -> None:
    rows = [row for n in range(4) for row in items(f"q{n}", 1, country=f"c{n}")]
    result, out = run(rows, evaluate__slices=["country"], limits__max_slice_values=3)
    assert result.exit_code == 4
    assert "country" in str(result.error)
    assert not (out / "query_metrics").exists()


def test_more_groups_than_are_allowed_are_refused_and_nothing_is_published(run) -> None:
    rows = [row for n in range(4) for row in items(f"q{n}", 1, variant=f"v{n}")]
    result, out = run(rows, limits__max_groups=3)
    assert result.exit_code == 4
    assert "limits.max_groups" in str(result.error)
    assert not (out / "query_metrics").exists()


def test_a_request_in_several_experiments_is_scored_once_and_counted_in_each(
    spark, make_config, tmp_path
) -> None:
    path = str(tmp_path / "log")
    spark.createDataFrame(
        [
            ("2024-03-10", {"e1": "A", "e2": "X"}, "q1", "i1", 1, 1.0, "u1"),
            ("2024-03-10", {"e2": "X", "e1": "A"}, "q1", "i2", 2, 0.0, "u1"),
            ("2024-03-10", {"e1": "B"}, "q2", "i1", 1, 0.0, "u2"),
            ("2024-03-10", {"e1": "B"}, "q2", "i2", 2, 1.0, "u2"),
            ("2024-03-10", {}, "q3", "i1", 1, 1.0, "u3"),
            ("2024-03-10", None, "q4", "i1", 1, 1.0, "u3"),
            ("2024-03-10", {"e1": ""}, "q5", "i1", 1, 1.0, "u3"),
        ],
        "date STRING, tests MAP<STRING, STRING>, query_id STRING, item_id STRING, position INT, "
        "relevance DOUBLE, unit_id STRING",
    ).write.parquet(path)
    config = make_config(
        path,
        input__columns__experiment=None,
        input__columns__variant=None,
        input__columns__assignments="tests",
    )
    result = pipeline.evaluate(spark, config, [DAY])[0]
    out = Path(config.output.path)
    assert values(out, "mrr", "experiment", "variant") == {
        ("e1", "A"): 1.0,
        ("e1", "B"): 0.5,
        ("e2", "X"): 1.0,
    }
    assert rejects(out) == {("rejected", "no_assignment"): 2, ("rejected", "bad_assignment"): 1}
    assert result.counts["n_queries"] == 2
    assert result.counts["n_rows_scored"] == 4
    assert result.counts["n_rows_read"] == 7


NESTED = """
    SELECT date, experiment, variant, query_id, unit_id, collect_list(struct(item_id AS product,
           position AS rank, relevance AS grade)) AS results
    FROM log GROUP BY ALL
"""


@pytest.fixture
def nested_log(spark, write_log, tmp_path):
    def write(rows, name="nested"):
        spark.read.parquet(write_log(rows)).createOrReplaceTempView("log")
        path = str(tmp_path / name)
        spark.sql(NESTED).write.parquet(path)
        return path

    return write


NESTED_COLUMNS = {
    "input__items": {"column": "results"},
    "input__columns__item_id": "product",
    "input__columns__position": "rank",
    "input__columns__relevance": "case when grade > 0 then grade else 0 end",
}


def test_the_nested_shape_gives_the_very_numbers_of_the_flat_one_and_shuffles_no_impression(
    spark, run, nested_log, make_config, tmp_path
) -> None:
    rows = [*THREE_QUERIES, *items("q1", 1, 0), {"query_id": "q2", "item_id": None, "position": 9}]
    _, flat = run(rows)
    config = make_config(
        nested_log(rows), output__path=str(tmp_path / "nested-out"), **NESTED_COLUMNS
    )
    result = pipeline.evaluate(spark, config, [DAY])[0]
    assert result.error is None
    nested = Path(config.output.path)
    columns = ["query_id", "unit_id", "n_items", "n_duplicates", "mrr", "ndcg_at_10"]
    expected = read(flat, "query_metrics")[columns].sort_values("query_id", ignore_index=True)
    found = read(nested, "query_metrics")[columns].sort_values("query_id", ignore_index=True)
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
    assert rejects(nested) == rejects(flat)
    assert "Exchange" not in pipeline.plan(spark, config, [DAY])[0].physical


def test_a_nested_query_logged_twice_counts_once_and_a_contradiction_is_rejected(
    spark, nested_log, make_config
) -> None:
    path = nested_log(THREE_QUERIES, name="part/1")
    spark.read.parquet(path).where("query_id = 'q1'").write.mode("append").parquet(path)
    torn = spark.read.parquet(path).where("query_id = 'q2'")
    torn.withColumn("unit_id", torn.variant).write.mode("append").parquet(path)
    config = make_config(path, **NESTED_COLUMNS)
    result = pipeline.evaluate(spark, config, [DAY])[0]
    out = Path(config.output.path)
    assert rejects(out) == {
        ("repaired", "query_logged_twice"): 3,
        ("rejected", "query_contradicts_itself"): 6,
    }
    assert sorted(read(out, "query_metrics").query_id) == ["q1", "q3", "q4"]
    assert result.counts["n_rows_read"] == len(THREE_QUERIES) + 6


def test_nested_positions_may_be_left_to_the_array(spark, make_config, tmp_path) -> None:
    path = str(tmp_path / "log")
    spark.sql(
        "SELECT DATE'2024-03-10' AS date, 'e' AS experiment, 'A' AS variant, 'q1' AS query_id,"
        " 'u' AS unit_id,"
        " array('x', 'y', 'z') AS ids, array(0, 0, 2) AS labels"
        " UNION ALL SELECT DATE'2024-03-10', 'e', 'A', 'q2', 'u', array(), array()"
    ).write.parquet(path)
    config = make_config(
        path,
        input__items={"column": "arrays_zip(ids, labels)"},
        input__columns__item_id="ids",
        input__columns__relevance="labels",
        input__columns__position=None,
    )
    assert pipeline.evaluate(spark, config, [DAY])[0].error is None
    queries = read(Path(config.output.path), "query_metrics").set_index("query_id")
    assert queries.mrr.to_dict() == {"q1": 1 / 3, "q2": 0.0}


@pytest.mark.parametrize("kind", ["orc", "csv", "json"])
def test_every_format_gives_the_numbers_of_parquet(
    spark, write_log, make_config, kind: str
) -> None:
    config = make_config(write_log(THREE_QUERIES, kind=kind), input__format=kind)
    assert pipeline.evaluate(spark, config, [DAY])[0].error is None
    assert values(Path(config.output.path), "mrr", "variant")["A"] == 0.5


def test_a_catalog_table_is_read_by_name(spark, write_log, make_config) -> None:
    spark.read.parquet(write_log(THREE_QUERIES)).write.mode("overwrite").saveAsTable("impressions")
    try:
        config = make_config(None, input__table="impressions")
        assert pipeline.evaluate(spark, config, [DAY])[0].error is None
        assert values(Path(config.output.path), "mrr", "variant")["A"] == 0.5
    finally:
        spark.sql("DROP TABLE impressions")


def test_any_partitioning_and_batch_size_give_the_very_same_tables(
    spark, write_log, make_config, tmp_path
) -> None:
    rows = [
        row
        for n in range(40)
        for row in items(f"q{n}", *[(n * k) % 4 / 3 for k in range(n % 9 + 1)], unit_id=f"u{n % 7}")
    ]
    log = write_log([*rows, *rows[:25]])
    seen = []
    for number, (partitions, batch) in enumerate([(1, 2), (7, 3), (4, 10_000)]):
        for key, value in (
            ("shuffle.partitions", partitions),
            ("execution.arrow.maxRecordsPerBatch", batch),
        ):
            spark.conf.set(f"spark.sql.{key}", value)
        config = make_config(log, output__path=str(tmp_path / f"out{number}"))
        try:
            pipeline.evaluate(spark, config, [DAY])
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", 4)
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        out = Path(config.output.path)
        metrics = read(out, "metrics").drop(columns=["run_id", "computed_at"])
        queries = read(out, "query_metrics").drop(columns=["run_id", "computed_at"])
        seen.append((metrics, queries.sort_values("query_id", ignore_index=True)))
    for metrics, queries in seen[1:]:
        pd.testing.assert_frame_equal(metrics, seen[0][0], check_exact=True)
        pd.testing.assert_frame_equal(queries, seen[0][1], check_exact=True)


EXPERIMENTS = ["007", "1.000", "a/b", "a=b", "%", "ÄÖ", "2024-01-01", "true", "-0", "Case", "case"]


def test_pandas_pyarrow_duckdb_and_spark_read_the_same_text_back(spark, run) -> None:
    rows = [row for name in EXPERIMENTS for row in items(f"q-{name}", 0, 1, experiment=name)]
    _, out = run(rows)
    expected = dict.fromkeys(EXPERIMENTS, 0.5)
    assert values(out, "mrr", "experiment") == expected

    keys = ds.partitioning(KEYS, flavor="hive")
    frame = pd.read_parquet(out / "metrics", partitioning=keys, filters=[("measure", "=", "mrr")])
    assert dict(zip(frame.experiment, frame["mean"], strict=True)) == expected
    found = duckdb.sql(
        "SELECT experiment, mean, typeof(experiment)"
        f" FROM read_parquet('{out}/metrics/**/*.parquet',"
        " hive_partitioning = true, hive_types = {'date': VARCHAR, 'experiment': VARCHAR})"
        " WHERE measure = 'mrr' AND date = '2024-03-10'"
    ).fetchall()
    assert {(name, mean) for name, mean, _ in found} == set(expected.items())
    with_spark = rankspark.read_table(spark, str(out), "metrics").where("measure = 'mrr'")
    rows_ = with_spark.select("experiment", "mean", "date").collect()
    assert {(row[0], row[1]) for row in rows_} == set(expected.items())
    assert {row[2] for row in rows_} == {"2024-03-10"}


def test_timestamps_are_microseconds_in_utc_and_files_are_sorted_and_few(spark, run) -> None:
    rows = [
        row
        for n in range(300)
        for row in items(f"q{n}", 0, 1, experiment=f"e{n % 3}", variant="AB"[n % 2])
    ]
    _, out = run(rows)
    for experiment in ("e0", "e1", "e2"):
        files = list(
            (out / "query_metrics" / "date=2024-03-10" / f"experiment={experiment}").glob(
                "*.parquet"
            )
        )
        assert len(files) == 1
        file = pq.ParquetFile(files[0])
        assert str(file.schema_arrow.field("computed_at").type) == "timestamp[us, tz=UTC]"
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
        content = file.read(["variant", "query_id"]).to_pandas()
        assert content.equals(content.sort_values(["variant", "query_id"], ignore_index=True))


def test_a_re_run_is_a_fresh_run_and_leaves_nothing_of_a_renamed_experiment(run) -> None:
    _, out = run([*items("q1", 1, experiment="typo"), *items("q2", 1, experiment="stays")])
    other = dt.date(2024, 3, 11)
    run(items("q3", 1, date=str(other)), name="log-of-the-11th", day=other)
    result, _ = run([*items("q1", 1, experiment="fixed"), *items("q2", 1, experiment="stays")])
    metrics = read(out, "metrics")
    assert set(metrics[metrics.date == str(DAY)].experiment) == {"fixed", "stays"}
    assert set(metrics[metrics.date == str(other)].experiment) == {"e1"}
    assert "metrics/date=2024-03-10/experiment=typo" in result.replaced
    runs = read(out, "runs")
    assert len(runs) == 3
    assert not (out / "_staging").exists()
    newest = runs[runs.date == str(DAY)].sort_values("finished_at").iloc[-1]
    assert newest.run_id == result.run_id
    assert (newest.n_rows_read, newest.n_queries, newest.status) == (2, 2, "published")
    assert set(metrics[metrics.date == str(DAY)].run_id) == {result.run_id}


def test_a_date_without_rows_fails_alone_and_changes_nothing(spark, write_log, make_config) -> None:
    config = make_config(write_log(THREE_QUERIES))
    missing = dt.date(2024, 3, 9)
    results = pipeline.evaluate(spark, config, [missing, DAY])
    assert [(r.status, r.exit_code) for r in results] == [("failed", 3), ("published", 0)]
    assert "2024-03-09" in str(results[0].error)
    assert "no row of that date" in str(results[0].error)
    assert set(read(Path(config.output.path), "metrics").date) == {str(DAY)}


def test_a_date_of_which_every_row_is_rejected_publishes_nothing(run) -> None:
    run(THREE_QUERIES)
    result, out = run([{"query_id": None}, {"query_id": None}], name="broken")
    assert result.exit_code == 3
    assert "bad_query_id 2" in str(result.error)
    assert values(out, "mrr", "variant")["A"] == 0.5


def test_a_gain_that_overflows_is_one_line_and_publishes_nothing(run) -> None:
    result, out = run([*items("q1", 0, 1100, 1)], evaluate__measures=["ndcg_exp@3"])
    assert result.exit_code == 3
    assert "\n" not in str(result.error)
    assert "1100" in str(result.error)
    assert not (out / "metrics").exists()


@pytest.mark.parametrize("damage", ["no parquet at all", "cut off", "flipped"])
def test_an_unreadable_file_is_one_line_and_changes_nothing(
    run, spark, write_log, make_config, tmp_path: Path, damage: str
) -> None:
    _, out = run(THREE_QUERIES)
    before = read(out, "query_metrics")
    folder = Path(write_log(items("q9", 1), name="damaged"))
    for file in folder.glob("*.parquet"):
        content = bytearray(file.read_bytes())
        if damage == "flipped":
            content[4:60] = bytes(56)
        file.write_bytes(b"no parquet" if damage == "no parquet at all" else content[:200])
        if damage == "flipped":
            file.write_bytes(content)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    config = make_config(str(folder))
    (result,) = pipeline.evaluate(spark, config, [DAY])
    assert result.exit_code == 3, result.error
    assert "\n" not in str(result.error)
    pd.testing.assert_frame_equal(read(out, "query_metrics"), before)


def test_a_publication_that_fails_half_way_puts_everything_back(run) -> None:
    _, out = run(THREE_QUERIES)
    before = read(out, "query_metrics")
    (out / "rejects").rename(out / "rejects-away")
    (out / "rejects").write_text("a file where the table's folder should be")
    result, _ = run(items("q9", 1))
    assert result.exit_code == 5
    pd.testing.assert_frame_equal(read(out, "query_metrics"), before)
    assert set(read(out, "metrics").variant) == {"A", "B"}


def test_the_root_of_another_dataset_is_refused(spark, run, write_log, make_config) -> None:
    run(THREE_QUERIES)
    config = make_config(write_log(THREE_QUERIES)).model_copy(update={"name": "intruder"})
    with pytest.raises(ConfigError, match="belongs to dataset 'test'"):
        pipeline.evaluate(spark, config, [DAY])


def test_a_plan_names_what_it_would_replace_prunes_partitions_and_writes_nothing(
    spark, run, make_config, tmp_path
) -> None:
    _, out = run(THREE_QUERIES)
    log = str(tmp_path / "partitioned")
    spark.read.parquet(str(tmp_path / "log")).write.partitionBy("date").parquet(log)
    before = sorted(out.rglob("*"))
    plan = pipeline.plan(spark, make_config(log), [DAY])[0]
    assert "query_metrics/date=2024-03-10/experiment=e1" in plan.replaces
    assert "PartitionFilters: [((date" in plan.physical
    assert "country" not in plan.physical, "a column that is not used is read"
    assert sorted(out.rglob("*")) == before


def test_the_session_s_options_are_as_before(spark, run) -> None:
    watched = ("spark.sql.session.timeZone", "spark.sql.parquet.outputTimestampType")
    before = {key: spark.conf.get(key) for key in watched}
    run(THREE_QUERIES)
    assert {key: spark.conf.get(key) for key in watched} == before

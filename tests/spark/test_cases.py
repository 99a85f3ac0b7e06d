"""Cases reduced from public bug reports, each a row of a table, through the public interface."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import rankspark
from rankspark import config
from rankspark.spark import pipeline
from tests.conftest import SHARED
from tests.tables import read

FILE = SHARED / "cases" / "cases.jsonl"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="there is no ../shared/cases")

CASES: dict[str, dict[str, Any]] = (
    {case["id"]: case for case in map(json.loads, FILE.read_text().splitlines())}
    if FILE.is_file()
    else {}
)
SCHEMA = (
    "experiment STRING, variant STRING, query_id STRING, item_id STRING, position INT, "
    "score DOUBLE, relevance DOUBLE"
)
NAMES = SCHEMA.replace(",", "").split()[::2]

#: What `rankspark.evaluate` is told, by group; its measures are those that the table needs.
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "order": {"rank": "order"},
    "skip": {"no_relevant": "skip"},
    "threshold": {"relevant_from": 2},
    "clamped": {"negative": "zero"},
    "scored": {"rankers": {"run": "score desc"}},
    "trec": {"rankers": {"run": "score desc"}, "ties": "item_id_desc"},
}

#: Group, case, query, our measure, and where the case says what it is.
VALUES = [
    ("default", "M01", "q1", "ndcg@3", "ndcg_lin@3"),
    ("default", "M01", "q1", "ndcg@5", "ndcg_lin@5"),
    ("default", "M01", "q1", "ndcg_exp@3", "ndcg_exp@3"),
    ("default", "M02", "q1", "ndcg@5", "if_only_shown_rows_are_known/ndcg@5"),
    ("default", "M02", "q1", "precision@5", "precision@5"),
    ("default", "M02", "q1", "recall@5", "if_only_shown_rows_are_known/recall@5"),
    ("default", "M04", "q1", "mrr", "rr"),
    ("default", "M04", "q1", "ndcg@3", "ndcg@3"),
    ("scored", "M05", "q1", "mrr", "rr"),
    ("scored", "M05", "q1", "ndcg", "ndcg"),
    ("trec", "M05", "q1", "mrr", "trec_style_id_desc/rr"),
    ("trec", "M05", "q1", "ndcg", "trec_style_id_desc/ndcg"),
    ("default", "M06", "q1", "ndcg@3", "per_query_ndcg@3/q1"),
    ("skip", "M06", "q1", "ndcg@3", "per_query_ndcg@3/q1"),
    ("skip", "M06", "q2", "ndcg@3", "per_query_ndcg@3/q2"),
    ("default", "M12", "q1", "mrr@10", "per_query/q1"),
    ("default", "M12", "q2", "mrr@10", "per_query/q2"),
    ("default", "M14", "q1", "mrr@10", "raw_position/rr@10"),
    ("default", "M14", "q1", "mrr@3", "raw_position/rr@3"),
    ("default", "M14", "q1", "precision@3", "raw_position/precision@3"),
    ("default", "M14", "q1", "ndcg@10", "raw_position/ndcg@10"),
    ("order", "M14", "q1", "mrr@10", "dense_rank/rr@10"),
    ("order", "M14", "q1", "mrr@3", "dense_rank/rr@3"),
    ("order", "M14", "q1", "precision@3", "dense_rank/precision@3"),
    ("order", "M14", "q1", "ndcg@10", "dense_rank/ndcg@10"),
    ("default", "M15", "q1", "ndcg@6", "shown_rows_only/lin"),
    ("default", "M15", "q1", "ndcg_exp@6", "shown_rows_only/exp"),
    ("default", "M16", "q1", "ndcg@3", "ndcg_lin@3"),
    ("default", "M16", "q1", "ndcg_exp@3", "ndcg_exp@3"),
    ("default", "M17", "q1", "ndcg_exp@2", "ndcg_exp@2"),
    ("default", "M18", "q1", "ndcg@3", "after_dedupe_keep_best_position/ndcg@3"),
    ("default", "M18", "q1", "mrr", "after_dedupe_keep_best_position/rr"),
    ("default", "M18", "q1", "recall@3", "after_dedupe_keep_best_position/recall@3"),
    ("default", "M18", "q1", "precision@3", "after_dedupe_keep_best_position/precision@3"),
    ("clamped", "M20", "q1", "ndcg@3", "clamped_at_zero/q1"),
    ("clamped", "M20", "q2", "ndcg@3", "clamped_at_zero/q2"),
    # Beside an exponential gain this log is refused: test_pipeline's gain that overflows.
    ("skip", "M21", "q1", "ndcg@3", "ndcg_lin@3"),
    ("default", "M23", "q1", "precision@10", "precision@10"),
    ("default", "M24", "q1", "mrr@1", "rr@1"),
    ("default", "M24", "q1", "recall@1", "recall@1"),
    ("default", "M25", "q1", "recall@1", "recall@1"),
    ("default", "M25", "q1", "recall@2", "recall@2"),
    ("default", "M25", "q1", "precision@1", "precision@1"),
    ("default", "M25", "q1", "precision@3", "precision@3"),
    ("default", "M29", "q1", "ndcg@2", "ndcg@2"),
    ("default", "M29", "q1", "ndcg@3", "ndcg@3"),
    ("default", "M30", "q1", "dcg@4", "dcg_lin@4"),
    ("default", "M30", "q1", "ndcg@4", "ndcg@4"),
    ("default", "M31", "q1", "ndcg@3", "ndcg@3"),
    ("threshold", "M33", "q1", "mrr", "rr"),
    ("threshold", "M33", "q1", "precision@2", "precision@2"),
    ("threshold", "M33", "q1", "recall@2", "recall@2"),
    ("threshold", "M33", "q1", "ndcg@2", "ndcg_lin@2"),
    ("scored", "M35", "q1", "mrr", "rr"),
    ("default", "M37", "q1", "ndcg@3", "ndcg_lin@3"),
    ("default", "M37", "q1", "ndcg_exp@3", "ndcg_exp@3"),
    ("default", "M37", "q1", "ndcg@1", "ndcg_lin@1"),
    ("default", "M37", "q1", "ndcg_exp@1", "ndcg_exp@1"),
    ("default", "M38", "q1", "ndcg@3", "sklearn_ndcg_score"),
    ("default", "M38", "q1", "ndcg_exp@3", "ndcg_exp@3"),
    ("default", "D05", "q1", "mrr", "rr"),
    ("default", "D05", "q1", "ndcg@3", "ndcg@3"),
    ("default", "D05", "q1", "precision@3", "precision@3"),
    ("default", "D05", "q1", "recall@3", "recall@3"),
    ("default", "D05", "q1", "map@3", "ap@3"),
    ("default", "S01", "q1", "mrr", "rr"),
    ("default", "S02", "q1", "ndcg@4", "ndcg_lin@4"),
    ("default", "S02", "q1", "mrr", "rr"),
    ("default", "S05", "q1", "ndcg@5", "ndcg@5"),
    ("default", "S05", "q1", "mrr", "rr"),
    ("default", "S07", "q1", "mrr", "rr/q1"),
    ("default", "S07", "q2", "mrr", "rr/q2"),
    ("default", "S10", "q2", "mrr", "q2/rr"),
]

#: Group, case, variant, measure, the mean, n_queries and n_scored.
MEANS = [
    ("default", "M06", "A", "ndcg@3", "mean_if_zero", 2, 2),
    ("skip", "M06", "A", "ndcg@3", "mean_excluding_undefined", 2, 1),
    ("default", "M07", "A", "mrr@10", "mrr@10_over_requests", 2, 2),
    ("default", "M10", "A", "mrr", "mrr", 2, 2),
    ("default", "M12", "A", "mrr@10", "mrr@10", 2, 2),
    ("default", "T10", "A", "mrr", "mrr_all_queries/A", 4, 4),
    ("default", "T10", "B", "mrr", "mrr_all_queries/B", 4, 4),
    ("skip", "T10", "A", "mrr", "mrr_clicked_only/A", 4, 1),
    ("skip", "T10", "B", "mrr", "mrr_clicked_only/B", 4, 3),
    ("skip", "T13", "B", "ndcg@3", "ndcg_mean", 3, 0),
]

#: Cases with a test of their own in this file.
HERE = {"M13", "M26", "M27", "D02", "D03", "S06", "P07"}

#: Cases that are no log to be scored, and where they are held.
ELSEWHERE = {
    "M08": "no row at all: test_pipeline, a date without rows fails alone",
    "P01": "two dates: test_pipeline, a re-run is a fresh run",
    "P02": "an experiment that vanished: test_pipeline, a re-run is a fresh run",
    "P03": "a renamed experiment: test_pipeline, a re-run is a fresh run",
    "P04": "a run twice: test_pipeline, a re-run is a fresh run",
    "P06": "partition values as text: test_pipeline, pandas, pyarrow, duckdb and Spark",
    "P09": "names that differ in case: test_read",
    "P10": "two dates at once: the tests of publishing",
    "P11": "leftovers of a killed run: the tests of publishing",
    "P13": "one schema on every day: all tables are written by that of tables.py",
    "P14": "partition columns of one date: test_pipeline reads them with four readers",
    "P15": "reading and overwriting one path: no command takes its own output as input",
    "P16": "few files: test_pipeline, files are sorted and few",
    "P18": "readers other than Spark: test_pipeline, pandas, pyarrow, duckdb and Spark",
    "S11": "workers without the package: test_cli, the job runs under spark-submit",
    "S12": "throughput: tests/bench",
    "S13": "no non-deterministic expression: staging is read back and its keys are audited",
    "T01": "a configured split: test_quality",
    "T03": "a holdout: test_quality",
    "T04": "units: tests/stats, where these very numbers are in test_reference_values",
    "T06": "zero variance of a comparison: tests/stats",
    "T08": "undefined values of a comparison: tests/stats; in a log they are M06",
    "T09": "relative lift: tests/stats",
    "T11": "interval of the lift: tests/stats",
}


def rows_of(case: dict[str, Any]) -> list[tuple[Any, ...]]:
    """A case's log, under its id as the experiment."""
    given, made = case["input"], []
    rows = [dict(zip(given.get("columns", []), row, strict=True)) for row in given.get("rows", [])]
    if case["id"] == "M07":
        rows.append({"query_id": "q2", "item_id": None, "position": None, "relevance": None})
    for query, grades in given.get("relevance_lists", {}).items():
        rows += [
            {"query_id": query, "item_id": f"i{n}", "position": n, "relevance": grade}
            for n, grade in enumerate(grades, start=1)
        ]
    for variant, clicks in given.get("first_click_rank_per_query", {}).items():
        rows += [
            {"query_id": f"{variant}{q}", "item_id": f"i{n}", "position": n, "variant": variant}
            | {"relevance": int(n == click)}
            for q, click in enumerate(clicks)
            for n in (1, 2)
        ]
    if case["id"] == "T13":
        rows += [
            {"query_id": f"q{n}", "item_id": "i", "position": 1, "relevance": 0, "variant": "B"}
            for n in range(given["n_queries"])
        ]
    for row in rows:
        full = {"variant": "A", "position": 1, "score": None} | row | {"experiment": case["id"]}
        for name in ("relevance", "score"):
            full[name] = None if full[name] is None else float(full[name])
        for name in ("query_id", "item_id"):
            full[name] = None if full[name] is None else str(full[name])
        made.append(tuple(full[name] for name in NAMES))
    return made


def expected(case: str, path: str) -> Any:
    found: Any = CASES[case]["expected"]
    # A measure's name has no slash.
    for part in path.split("/"):
        found = found[part]
    return found


def frame(spark: SparkSession, ids: set[str], partitions: int) -> DataFrame:
    rows = [row for name in sorted(ids) for row in rows_of(CASES[name])]
    return spark.createDataFrame(rows, SCHEMA).repartition(partitions)


def evaluated(spark: SparkSession, group: str, partitions: int) -> rankspark.Evaluation:
    of_group = [(case, measure) for g, case, _, measure, *_ in (*VALUES, *MEANS) if g == group]
    ids, measures = {case for case, _ in of_group}, {measure for _, measure in of_group}
    return rankspark.evaluate(frame(spark, ids, partitions), sorted(measures), **OPTIONS[group])


@pytest.fixture(params=[(2, 1), (2, 7), (10_000, 1), (10_000, 7)], ids=str)
def partitions(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[int]:
    batch, number = request.param
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
    spark.conf.set("spark.sql.shuffle.partitions", number)
    yield number
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.shuffle.partitions", before)


def test_every_case_stands_in_a_table() -> None:
    tested = {case for _, case, *_ in (*VALUES, *MEANS)} | HERE
    assert tested | set(ELSEWHERE) == set(CASES)
    assert not tested & set(ELSEWHERE)


@pytest.mark.parametrize("group", OPTIONS)
def test_every_query_of_a_case_has_the_value_that_the_case_gives(
    spark, partitions: int, group: str
) -> None:
    found = {
        (row.experiment, row.query_id): row
        for row in evaluated(spark, group, partitions).queries.collect()
    }
    wrong = {}
    for g, case, query, measure, path in VALUES:
        if g == group:
            value = found[case, query][rankspark.Measure.parse(measure).column_name]
            if value != pytest.approx(expected(case, path), abs=1e-6):
                wrong[case, query, measure] = (value, expected(case, path))
    assert wrong == {}
    if group == "default":
        odd = {
            key: (row.n_repeated, row.n_gaps)
            for key, row in found.items()
            if key[0] in {"M04", "M14"}
        }
        assert odd == {("M04", "q1"): (1, 0), ("M14", "q1"): (0, 2)}
        assert found["M18", "q1"].n_conflicts == 1
        assert found["D05", "q1"].n_items == 3
        assert found["S01", "q1"].n_items == 2
        assert ("S10", "q1") not in found


@pytest.mark.parametrize("group", ["default", "skip"])
def test_the_means_are_over_the_queries_that_the_case_counts(spark, group: str) -> None:
    rows = evaluated(spark, group, 3).metrics.where("slice_name = 'overall'").collect()
    found = {(row.experiment, row.variant, row.measure): row for row in rows}
    for g, case, variant, measure, path, n_queries, n_scored in MEANS:
        if g == group:
            row = found[case, variant, measure]
            assert (row.n_queries, row.n_scored) == (n_queries, n_scored), case
            value = expected(case, path)
            assert row["mean"] == (None if value is None else pytest.approx(value, abs=1e-6)), case


DAY = dt.date(2024, 3, 10)


def published(spark, tmp_path: Path, rows: DataFrame, **sections: Any):
    log, out = str(tmp_path / "log"), tmp_path / "out"
    rows.write.parquet(log)
    columns = {name: name for name in NAMES if name != "score"} | {"date": f"DATE'{DAY}'"}
    content: dict[str, Any] = {
        "name": "cases",
        "input": {"path": log, "columns": columns},
        "output": {"path": str(out)},
        "quality": {"rejected": "off", "no_relevant": "off"},
    }
    for name, section in sections.items():
        content[name] = content.get(name, {}) | section
    (result,) = pipeline.evaluate(spark, config.from_dict(content), [DAY])
    assert result.error is None
    return result, out


def test_positions_from_zero_are_an_option_and_the_refusal_of_zero_says_its_reason(
    spark, tmp_path: Path
) -> None:
    rows = frame(spark, {"M13"}, 2)
    result, _ = published(spark, tmp_path, rows)
    assert [(f.reason, f.n_rows) for f in result.findings] == [("position_below_base", 1)]
    columns = {name: name for name in NAMES if name != "score"} | {"date": f"DATE'{DAY}'"}
    given = {"path": str(tmp_path / "log"), "columns": columns, "position_base": 0}
    where = {"path": str(tmp_path / "zero")}
    content = {"name": "cases", "input": given, "output": where}
    content["evaluate"] = {"measures": ["mrr", "ndcg@3"]}
    (result,) = pipeline.evaluate(spark, config.from_dict(content), [DAY])
    row = read(tmp_path / "zero", "query_metrics").iloc[0]
    assert row.mrr == expected("M13", "rr")
    assert row.ndcg_at_3 == pytest.approx(expected("M13", "ndcg@3"), abs=1e-6)


def test_what_is_judged_and_was_not_shown_counts(spark, tmp_path: Path) -> None:
    rows = frame(spark, {"M02", "M15", "M26", "M27"}, 2).withColumnRenamed("query_id", "q")
    rows = rows.selectExpr("*", "experiment || q AS query_id").drop("q")
    judged = [(r["experiment"] + "q1", r["item_id"], r["relevance"]) for r in rows.collect()]
    judged += [
        (f"M02{q}", item, float(grade)) for q, item, grade in CASES["M02"]["input"]["judgments"]
    ]
    judged += [
        ("M15q1", f"more{g}", float(g)) for g in CASES["M15"]["input"]["extra_judged_relevance"]
    ]
    judged += [
        ("M26q1", f"more{n}", 1.0) for n in range(CASES["M26"]["input"]["total_relevant"] - 2)
    ]
    judged += [
        ("M27q1", f"more{n}", 1.0) for n in range(CASES["M27"]["input"]["total_relevant"] - 1)
    ]
    path = str(tmp_path / "judged")
    schema = "query_id STRING, item_id STRING, relevance DOUBLE"
    spark.createDataFrame(judged, schema).distinct().write.parquet(path)
    columns = {name: name for name in NAMES if name not in ("score", "relevance")}
    measures = [
        "ndcg@5",
        "precision@5",
        "recall@5",
        "ndcg@6",
        "ndcg_exp@6",
        "map@2",
        "map",
        "ndcg@2",
        "ndcg",
    ]
    _, out = published(
        spark,
        tmp_path,
        rows,
        input={"path": str(tmp_path / "log"), "columns": columns | {"date": f"DATE'{DAY}'"}},
        judgments={"path": path, "on": ["query_id", "item_id"], "unshown": "leave_out"},
        evaluate={"measures": measures},
    )
    queries = read(out, "query_metrics").set_index("experiment")
    for case, column, key in [
        ("M02", "ndcg_at_5", "ndcg@5"),
        ("M02", "precision_at_5", "precision@5"),
        ("M02", "recall_at_5", "recall@5"),
        ("M15", "ndcg_at_6", "ndcg_lin@6"),
        ("M15", "ndcg_exp_at_6", "ndcg_exp@6"),
        ("M26", "map_at_2", "ap@2_over_all_relevant"),
        ("M26", "map", "ap_full_list"),
        ("M27", "ndcg_at_2", "ndcg@2"),
        ("M27", "ndcg", "ndcg_uncut"),
    ]:
        assert queries.loc[case, column] == pytest.approx(expected(case, key), abs=1e-6), (
            case,
            key,
        )


def test_a_bot_null_ids_and_users_of_two_variants_are_counted_and_leave_the_rest_alone(
    spark, tmp_path: Path
) -> None:
    crossed = [
        ("D02", variant, query, f"i{n}", n, None, float(value * n == 1))
        for variant, _, query, value in CASES["D02"]["input"]["rows"]
        for n in (1, 2)
    ]
    unstorable = [
        (name, "A", "q", "i", 1, None, 1.0) for _, name, *_ in CASES["P07"]["input"]["write"]
    ]
    rows = spark.createDataFrame([*rows_of(CASES["D03"]), *crossed, *unstorable], SCHEMA)
    rows = rows.unionByName(
        spark.range(60_000).selectExpr(
            "'S06' AS experiment", "'A' AS variant",
            "if(id < 50000, 'bot', 'n' || id div 10) AS query_id", "'i' || id AS item_id",
            "int(if(id < 50000, id, id % 10)) + 1 AS position", "double(null) AS score",
            "double(id % 10 = 0) AS relevance",
        )
    )  # fmt: skip
    users = {query: user for _, user, query, _ in CASES["D02"]["input"]["rows"]}
    cases = " ".join(f"when '{query}' then '{user}'" for query, user in users.items())
    unit = f"if(experiment = 'D02', case query_id {cases} end, experiment || query_id)"
    columns = {name: name for name in NAMES if name != "score"}
    result, out = published(
        spark,
        tmp_path,
        rows,
        input={
            "path": str(tmp_path / "log"),
            "columns": columns | {"date": f"DATE'{DAY}'", "unit_id": unit},
        },
        limits={"max_list_length": 1000},
    )
    found = {finding.reason: finding for finding in result.findings}
    assert {reason: (f.kind, f.n_rows) for reason, f in found.items()} == {
        "bad_query_id": ("rejected", expected("D03", "n_rows_null_query")),
        "bad_experiment": ("rejected", 2),
        "list_too_long": ("rejected", 50_000),
        "unit_in_two_variants": ("flagged", 4),
    }
    assert found["unit_in_two_variants"].n_units == 1
    assert '"bot"' in found["list_too_long"].examples[0]
    queries = read(out, "query_metrics")
    assert (queries.experiment == "S06").sum() == expected("S06", "n_queries_scored")
    assert list(queries[queries.experiment == "D03"].query_id) == expected("D03", "queries_scored")

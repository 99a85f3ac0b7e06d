"""Where relevance and order come from: judgments, events, TREC files, rankers, profiles."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rankspark
from rankspark import config as configuration
from rankspark.errors import ConfigError, InputError
from rankspark.measures import PROFILES, Measure, RankedLists, score
from rankspark.spark import pipeline, read
from tests.spark.conftest import items
from tests.tables import read as table
from tests.tables import values

DAY = dt.date(2024, 3, 10)


@pytest.fixture
def judge(spark, write_log, make_config, tmp_path: Path):
    """Evaluate rows against judgments (key, item_id, grade); gives the result and the folder."""

    def run(rows, judged, *, key="query_id", **changes):
        path = str(tmp_path / "judgments")
        schema = f"{key} STRING, item_id STRING, relevance DOUBLE"
        spark.createDataFrame(judged, schema).write.mode("overwrite").parquet(path)
        changes = {"judgments": {"path": path, "on": [key, "item_id"]}} | changes
        job = make_config(write_log(rows), input__columns__relevance=None, **changes)
        return pipeline.evaluate(spark, job, [DAY])[0], Path(job.output.path)

    return run


def findings(result) -> dict[tuple[str, str], int]:
    return {(finding.kind, finding.reason): finding.n_rows for finding in result.findings}


def test_the_ideal_and_recall_are_of_all_judged_items_also_those_never_shown(judge) -> None:
    judgments = [("q1", item, 1.0) for item in ("i1", "u1", "u2", "u3", "u4")]
    measures = ["ndcg@5", "precision@5", "recall@5", "map"]
    result, out = judge(items("q1", None, None), judgments, evaluate__measures=measures)
    row = table(out, "query_metrics").iloc[0]
    # Case M02 of the field.
    assert row.ndcg_at_5 == pytest.approx(0.33916, abs=1e-5)
    assert (row.precision_at_5, row.recall_at_5, row["map"]) == (0.2, 0.2, 0.2)
    assert (row.n_items, row.n_judged, row.n_relevant) == (2, 1, 5)
    assert findings(result) == {}


def test_judgments_of_query_texts_hold_for_every_request_of_the_text(judge) -> None:
    rows = [*items("q1", None, None, country="red shoes"), *items("q2", None, country="red shoes")]
    result, out = judge(
        [*rows, *items("q3", None, country="nobody judged this")],
        [("red shoes", "i2", 2.0), ("blue shoes", "i1", 1.0)],
        key="query_key",
        input__columns__query_key="country",
        evaluate__measures=["mrr"],
    )
    queries = table(out, "query_metrics").set_index("query_id")
    assert queries.mrr.to_dict() == {"q1": 0.5, "q2": 0.0}
    assert findings(result) == {
        ("rejected", "query_not_judged"): 1,
        ("flagged", "judged_query_not_shown"): 1,
    }
    assert result.counts["n_rows_read"] == 4
    assert result.counts["n_rows_rejected"] == 1


@pytest.mark.parametrize(("unshown", "mrr"), [("zero", 0.5), ("leave_out", 1.0), (None, 0.5)])
def test_a_judged_query_that_was_not_shown_counts_zero_or_is_left_out_and_is_counted(
    judge, tmp_path, unshown, mrr
) -> None:
    judgments = {"path": str(tmp_path / "judgments"), "on": ["query_id", "item_id"]}
    result, out = judge(
        items("q1", None),
        [("q1", "i1", 1.0), ("q2", "i1", 1.0)],
        judgments=judgments | ({"unshown": unshown} if unshown else {}),
    )
    assert result.error is None
    assert values(out, "mrr", "variant") == {"A": mrr}
    assert findings(result) == {("flagged", "judged_query_not_shown"): 1}


def test_bad_judgments_are_flagged_and_of_two_grades_the_larger_holds(judge) -> None:
    judgments = [
        ("q1", "i1", 1.0),
        ("q1", "i1", 3.0),
        ("q1", "i1", 3.0),
        ("q1", "i2", -1.0),
        ("q1", None, 1.0),
        (None, "i1", 1.0),
        ("q1", "i3", math.nan),
        ("q1", "i3", math.inf),
    ]
    measures = ["dcg@1", "mrr"]
    result, out = judge(items("q1", None, None), judgments, evaluate__measures=measures)
    assert table(out, "query_metrics").dcg_at_1.to_list() == [3.0]
    assert findings(result) == {
        ("flagged", "judgment_with_another_grade"): 1,
        ("flagged", "judgment_negative"): 1,
        ("flagged", "judgment_without_item"): 1,
        ("flagged", "judgment_without_query"): 1,
        ("flagged", "judgment_not_a_number"): 1,
        ("flagged", "judgment_infinite"): 1,
    }


def test_relevance_has_one_origin(make_config) -> None:
    with pytest.raises(ConfigError, match="exactly one of input"):
        make_config("log", judgments={"path": "j", "on": ["query_id", "item_id"]})
    with pytest.raises(ConfigError, match="exactly one of input"):
        make_config("log", input__columns__relevance=None)


@pytest.mark.parametrize("nested", [False, True])
def test_events_label_the_impressions_they_follow_within_the_window(
    spark, make_config, tmp_path, nested: bool
) -> None:
    shown = spark.sql("""
        SELECT '2024-03-10' AS date, 'e' AS experiment, 'A' AS variant, query_id,
               query_id AS unit_id, item_id, position, timestamp'2024-03-10 12:00:00' AS shown_at
        FROM VALUES ('q1', 'a', 1), ('q1', 'b', 2), ('q2', 'a', 1), ('q2', 'b', 2)
        AS t(query_id, item_id, position)
    """)
    events = spark.sql("""
        SELECT * FROM VALUES
            ('q1', 'b', timestamp'2024-03-10 12:05:00', 1), -- clicked
            ('q1', 'b', timestamp'2024-03-10 12:06:00', 1), -- again: no fan-out
            ('q1', 'b', timestamp'2024-03-11 09:00:00', 3), -- bought: the largest holds
            ('q1', 'a', timestamp'2024-03-10 11:59:59', 3), -- before it was shown
            ('q2', 'a', timestamp'2024-03-12 12:00:01', 3), -- a second after the window
            ('q2', 'z', timestamp'2024-03-10 13:00:00', 1), -- an item that was not shown
            ('q9', 'a', timestamp'2024-03-10 13:00:00', 1), -- a query that was not shown
            ('q8', 'a', timestamp'2024-03-11 13:00:00', 1), -- of a later date's, perhaps
            ('q1', 'a', cast(null as timestamp), 1)
        AS t(request, product, at, value)
    """)
    if nested:
        shown.createOrReplaceTempView("shown")
        shown = spark.sql(
            "SELECT date, experiment, variant, query_id, unit_id, shown_at,"
            " collect_list(struct(item_id, position)) AS results FROM shown GROUP BY ALL"
        )
    shown.write.parquet(str(tmp_path / "log"))
    events.write.parquet(str(tmp_path / "events"))
    job = make_config(
        str(tmp_path / "log"),
        input__columns__relevance=None,
        input__columns__time="shown_at",
        evaluate__measures=["mrr", "dcg"],
        labels={
            "path": str(tmp_path / "events"),
            "within": "2 days",
            "columns": {
                "query_id": "request",
                "item_id": "product",
                "time": "at",
                "relevance": "value",
            },
        },
        **({"input__items": {"column": "results"}} if nested else {}),
    )
    result = pipeline.evaluate(spark, job, [DAY])[0]
    assert result.error is None
    queries = table(Path(job.output.path), "query_metrics").set_index("query_id")
    assert queries.mrr.to_dict() == {"q1": 0.5, "q2": 0.0}
    assert queries.dcg.q1 == pytest.approx(3 / math.log2(3), rel=1e-15)
    assert queries.n_events_unmatched.to_dict() == {"q1": 1, "q2": 2}
    assert findings(result) == {
        ("flagged", "event_without_impression"): 4,
        ("flagged", "event_without_time"): 1,
    }


SCORED = "query_id STRING, item_id STRING, position INT, relevance DOUBLE, model DOUBLE"


@pytest.fixture
def scored(spark):
    """One list: relevant at the second position, scores with a tie, a NaN and a null."""
    return spark.createDataFrame(
        [
            ("q", "a", 1, 0.0, None),
            ("q", "b", 2, 1.0, 0.5),
            ("q", "c", 3, 0.0, 0.5),
            ("q", "d", 4, 0.0, math.nan),
            ("q", "e", 5, 0.0, 0.9),
        ],
        SCORED,
    )


RANKERS = {"logged": "position", "model": "model desc", "upward": "model"}


def test_rankers_order_the_same_items_in_one_pass_with_missing_scores_last_and_counted(
    scored,
) -> None:
    result = rankspark.evaluate(scored, ["mrr"], rankers=RANKERS)
    found = {row.ranker: (row.mrr, row.n_unscored) for row in result.queries.collect()}
    # model: e, then b and c by item_id; upward: b, c, e; a and d last in both.
    assert found == {"logged": (0.5, 0), "model": (0.5, 2), "upward": (1.0, 2)}


@pytest.mark.parametrize(
    ("ties", "mrr"), [("item_id", 1 / 2), ("item_id_desc", 1 / 3), ("average", (1 / 2 + 1 / 3) / 2)]
)
def test_tied_scores_are_ordered_by_item_id_or_averaged(scored, ties: str, mrr: float) -> None:
    result = rankspark.evaluate(scored, ["mrr"], rankers={"model": "model desc"}, ties=ties)
    assert result.queries.first()["mrr"] == pytest.approx(mrr, rel=1e-15)


def test_tied_scores_may_be_an_error(spark, write_log, make_config) -> None:
    job = make_config(
        write_log(items("q1", 1, 0)), rankers={"flat": "position * 0 desc"}, evaluate__ties="error"
    )
    result = pipeline.evaluate(spark, job, [DAY])[0]
    assert result.exit_code == 3
    assert "ranker flat" in str(result.error)


def test_each_order_of_a_constant_score_is_one_order_for_every_measure(spark) -> None:
    rows = [("q", item, 1, float(item == "d"), 1.0) for item in "abcd"]
    result = rankspark.evaluate(
        spark.createDataFrame(rows, SCORED), ["mrr", "ndcg"], rankers={"model": "model desc"}
    )
    row = result.queries.first()
    assert (row["mrr"], row["ndcg"]) == (0.25, 1 / math.log2(5))


def test_malformed_lines_of_trec_files_are_rejected_by_number(spark, make_config, tmp_path) -> None:
    (tmp_path / "run.txt").write_text(
        "# a comment\r\n7 Q0 d1 1 2.0 mine and more words\r\n\r\n7 Q0 d2 2 high mine\r\n"
        "7\tQ0\td#3\t3\t1.5\tmine\r\n8 Q0 d1\r\n"
    )
    (tmp_path / "qrels.txt").write_text("7 0 d#3 1\n# none\n7 0 d1\n7 0 d9 x\n")
    job = make_config(
        str(tmp_path / "run.txt"),
        input__format="trec",
        input__columns={},
        judgments={"path": str(tmp_path / "qrels.txt"), "format": "trec"},
        evaluate={"profile": "trec", "measures": ["mrr"]},
    )
    result = pipeline.evaluate(spark, job, [DAY])[0]
    assert values(Path(job.output.path), "mrr", "variant") == {"mine": 0.5}
    assert findings(result) == {
        ("rejected", "malformed_line"): 2,
        ("flagged", "judgment_malformed"): 2,
    }
    examples = {finding.reason: "".join(finding.examples) for finding in result.findings}
    assert "run.txt:4: 7 Q0 d2 2 high mine" in examples["malformed_line"]
    assert "run.txt:6: 8 Q0 d1" in examples["malformed_line"]
    assert "qrels.txt:3: 7 0 d1" in examples["judgment_malformed"]


def test_a_ranker_over_a_column_that_is_not_there_is_named(spark, write_log, make_config) -> None:
    job = make_config(write_log(items("q1", 1)), rankers={"v2": "score_v3 desc"})
    with pytest.raises(InputError, match=r"rankers\.v2 = 'score_v3'"):
        read.read(spark, job, DAY)


def test_mllib_s_graded_ndcg_passes_one_only_under_its_profile() -> None:
    # CONFORMANCE: labels a:1, b:3 as given, ranking b, a.
    lists = RankedLists.from_grades([3, 1])
    given = RankedLists(
        lists.offsets, lists.rank, lists.relevance, judged=(lists.offsets, lists.relevance[::-1])
    )
    ndcg = Measure.parse("ndcg@2")
    assert score(given, [ndcg])[ndcg][0] == 1.0
    assert score(given, [ndcg], PROFILES["mllib"])[ndcg][0] == pytest.approx(1.408828, abs=1e-6)


@pytest.mark.parametrize(("profile", "value"), [("mllib", 1.408828), (None, 1.0)])
def test_mllib_s_value_comes_from_a_job_too(judge, profile, value) -> None:
    rows = [
        {"query_id": "q1", "item_id": "b", "position": 1},
        {"query_id": "q1", "item_id": "a", "position": 2},
    ]
    evaluate = {"measures": ["ndcg@2" if profile else "ndcg_exp@2"]}
    _, out = judge(
        rows,
        [("q1", "a", 1.0), ("q1", "b", 3.0)],
        evaluate=evaluate | ({"profile": profile} if profile else {}),
    )
    row = table(out, "query_metrics").iloc[0]
    assert row["ndcg_at_2" if profile else "ndcg_exp_at_2"] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("feature", ["91", "12"])
@pytest.mark.parametrize(
    ("profile", "libraries"),
    [("sklearn", ["sklearn"]), ("trec", ["pytrec_eval", "ir_measures/pytrec_eval"])],
)
def test_a_feature_of_lightgbm_s_lists_scores_as_with_that_tool(
    spark, shared: Path, tmp_path: Path, feature: str, profile: str, libraries: list[str]
) -> None:
    folder = shared / "data" / "lightgbm-lambdarank"
    counts = [int(line) for line in (folder / "rank.test.query").read_text().split()]
    group = [n for n, count in enumerate(counts, start=1) for _ in range(count)]
    rows = []
    for number, line in enumerate((folder / "rank.test").read_text().splitlines()):
        grade, *features = line.split()
        value = dict(pair.split(":") for pair in features).get(feature, "0")
        rows.append((str(group[number]), f"{number:04d}", 1, float(grade), float(value)))
    reference = pd.read_csv(
        shared / "reference" / "lightgbm_rank_test.csv", dtype={"query_id": str}
    )
    chosen = reference.library.isin(libraries) & (reference.system == f"feature_{feature}")
    chosen &= reference.metric.isin(["ndcg", "ndcg_exp"]) & ~reference.query_id.str.startswith(
        "all"
    )
    expected = reference[chosen]
    text = expected.metric + expected.k.map(lambda k: "" if pd.isna(k) else f"@{int(k)}")
    result = rankspark.evaluate(
        spark.createDataFrame(rows, SCORED),
        sorted(set(text)),
        rankers={"f": "model desc"},
        profile=profile,
    )
    ours = {row.query_id: row for row in result.queries.collect()}
    assert len(ours) == 50
    for name, query_id, value in zip(text, expected.query_id, expected.value, strict=True):
        assert ours[query_id][Measure.parse(name).column_name] == pytest.approx(value, abs=1e-6)
    assert len(expected) > 400


def test_a_combination_of_slices_is_a_slice(spark, write_log, make_config) -> None:
    rows = [
        *items("q1", 1, country="fr", unit_id="u1"),
        *items("q2", 0, 1, country="fr", unit_id="u2"),
        *items("q3", 0, 1, country=None, unit_id="u2"),
    ]
    job = make_config(
        write_log(rows),
        input__columns__user="unit_id",
        evaluate__slices=["country", "country*user"],
    )
    result = pipeline.evaluate(spark, job, [DAY])[0]
    found = {
        row["slice_value"]: row["mean"]
        for row in result.metrics
        if row["measure"] == "mrr" and row["slice_name"] == "country*user"
    }
    assert found == {"fr*u1": 1.0, "fr*u2": 0.5, "(null)*u2": 0.5}


def test_a_definition_knows_its_profile(make_config) -> None:
    measure = Measure.parse("mrr")
    profiles = [None, "trec", "mllib", "ranx"]
    ids = {make_config("log", evaluate__profile=p).definition_id(measure) for p in profiles}
    assert len(ids) == len(profiles)
    assert isinstance(make_config("log"), configuration.Config)


def test_the_kernels_alone_and_the_spark_path_give_the_very_same_doubles(spark) -> None:
    random = np.random.default_rng(11)
    grades = [
        random.choice([0, 0, 0.5, 1, 2, 3], size=n).tolist() for n in random.integers(1, 40, 200)
    ]
    measures = ["mrr", "ndcg@10", "ndcg_exp@5", "map", "err@10", "rbp(p=0.9)", "recall@3", "bpref"]
    parsed = [Measure.parse(text) for text in measures]
    alone = rankspark.score_lists(RankedLists.from_grades(*grades), parsed)
    rows = [
        (f"q{number}", f"i{place:02d}", place, float(grade), 0.0)
        for number, list_ in enumerate(grades)
        for place, grade in enumerate(list_, start=1)
    ]
    random.shuffle(rows)
    result = rankspark.evaluate(spark.createDataFrame(rows, SCORED).repartition(5), measures)
    found = {row.query_id: row for row in result.queries.collect()}
    for number in range(len(grades)):
        for measure in parsed:
            assert found[f"q{number}"][measure.column_name] == alone[measure][number]


def test_ranx_s_sum_of_grades_comes_out_under_its_profile(
    spark, shared: Path, tmp_path: Path
) -> None:
    folder = shared / "data" / "trec-robust03"
    job = configuration.from_dict(
        {
            "name": "ranx",
            "input": {"path": str(folder / "input.humR03dc.gz"), "format": "trec"},
            "judgments": {"path": str(folder / "robust03_qrels.txt.gz"), "format": "trec"},
            "evaluate": {"profile": "ranx", "measures": ["rbp", "rbp(p=0.95)", "ndcg@10", "map"]},
            "output": {"path": str(tmp_path / "out")},
        }
    )
    assert pipeline.evaluate(spark, job, [DAY])[0].error is None
    ours = table(tmp_path / "out", "query_metrics").set_index("query_id")
    expected = pd.read_parquet(shared / "reference" / "trec_robust03.parquet")
    expected = expected[(expected.system == "humR03dc") & (expected.library == "ranx")]
    names = {
        ("rbp_rawgrade_p0.8", None): "rbp",
        ("rbp_rawgrade_p0.95", None): "rbp_p_0_95",
        ("ndcg", 10): "ndcg_at_10",
        ("ap", None): "map",
    }
    checked = 0
    for row in expected.itertuples():
        column = names.get((row.metric, None if pd.isna(row.k) else int(row.k)))
        if column is not None and not row.query_id.startswith("all"):
            assert ours.loc[row.query_id, column] == pytest.approx(row.value, abs=1e-6)
            checked += 1
    assert checked == 400

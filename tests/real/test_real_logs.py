"""Real logs and judgments, each by its configuration in conf/, against other libraries' values."""

from __future__ import annotations

import csv
import datetime as dt
import math
from pathlib import Path

import pandas as pd
import pytest

from rankspark import config
from rankspark.spark import pipeline
from tests.tables import read

CONF = Path(__file__).resolve().parents[2] / "conf"

#: The reference's names of our measures.
NAMES = {
    "recip_rank": "mrr",
    "ndcg": "ndcg",
    "ndcg_exp": "ndcg_exp",
    "recall": "recall",
    "p": "precision",
    "success": "hit",
    "ap": "map",
}


def evaluate(spark, shared: Path, tmp_path: Path, name: str, data: str, dates: list[dt.date]):
    folder = shared / "data" / data
    places = [f"input.path={folder}/impressions.parquet", f"output.path={tmp_path}/out"]
    if name.endswith("judged"):
        places.append(f"judgments.path={folder}/qrels.txt.gz")
    job = config.load(CONF / f"{name}.toml", places)
    results = pipeline.evaluate(spark, job, dates)
    assert [result.error for result in results] == [None] * len(dates)
    return job, results, tmp_path / "out"


def reference(file: Path, system: str, job: config.Config) -> pd.DataFrame:
    """The reference values of a job's measures: query_id, column, value."""
    frame = pd.read_parquet(file)
    frame = frame[
        (frame.system == system) & frame.metric.isin(NAMES) & ~frame.query_id.str.startswith("all")
    ]
    columns = {str(measure): measure.column_name for measure in job.measures}
    text = frame.metric.map(NAMES) + frame.k.map(lambda k: "" if pd.isna(k) else f"@{int(k)}")
    return frame.assign(column=text.map(columns)).dropna(subset="column")


@pytest.mark.parametrize(
    ("name", "system", "n_requests"),
    [
        ("trec-session-2013-clicks", "clicks", 399),
        ("trec-session-2013-grades", "grades, ideal over shown items", 382),
        ("trec-session-2013-judged", "grades, ideal over all judged items", 382),
    ],
)
def test_every_request_of_the_session_track_has_the_reference_values(
    spark, shared, tmp_path, name: str, system: str, n_requests: int
) -> None:
    job, results, out = evaluate(
        spark, shared, tmp_path, name, "trec-session-2013", [dt.date(2013, 1, 1)]
    )
    expected = reference(shared / "reference" / "trec_session_2013.parquet", system, job)
    assert set(expected.column) == {measure.column_name for measure in job.measures}
    ours = read(out, "query_metrics").melt("query_id", expected.column.unique(), "column", "ours")
    joined = expected.merge(ours, on=["query_id", "column"], how="left", validate="many_to_one")
    assert joined.query_id.nunique() == n_requests
    assert not joined.ours.isna().any()
    difference = (joined.value - joined.ours).abs()
    # gdeval prints five decimals, so its last digit may be off by half of one.
    rounded = joined.library == "ir_measures/gdeval"
    assert difference[~rounded].max() < 1e-6
    assert difference[rounded].max() <= 5.0001e-6
    counts = results[0].counts
    assert counts["n_queries"] == n_requests
    # Of requests whose topic nobody judged.
    assert counts["n_rows_rejected"] == (
        0 if job.judgments is None else 4_449 - counts["n_rows_scored"]
    )


def test_the_clicks_of_naver_add_up_row_by_row_on_every_day(spark, shared, tmp_path) -> None:
    log = pd.read_parquet(shared / "data" / "naver-clara2" / "impressions.parquet")
    pages = log.groupby("request_id").item_id.agg(["size", "nunique"])
    repeating = pages.index[pages["size"] > pages["nunique"]]
    assert len(repeating) == 90
    # The days with most of the pages that repeat a url, so that CI does not run all 64.
    by_day = (
        log[log.request_id.isin(repeating)]
        .drop_duplicates("request_id")
        .groupby("day_index")
        .size()
    )
    days = sorted(by_day.sort_values().index[-3:])
    dates = [dt.date(2000, 1, 1) + dt.timedelta(days=int(day)) for day in days]
    job, results, out = evaluate(spark, shared, tmp_path, "naver-clara2", "naver-clara2", dates)

    for day, result in zip(days, results, strict=True):
        shown = log[log.day_index == day]
        distinct = shown.drop_duplicates(["request_id", "item_id"])
        assert result.counts["n_rows_read"] == len(shown)
        assert result.counts["n_rows_scored"] == len(distinct)
        assert result.counts["n_rows_duplicate"] == len(shown) - len(distinct) > 0
        assert result.counts["n_rows_rejected"] == 0
        assert result.counts["n_queries"] == shown.request_id.nunique()

    # The reference takes the position as the item; where no url repeats that is the same.
    expected = reference(shared / "reference" / "naver_clara2_clicks.parquet", "shown_order", job)
    queries = read(out, "query_metrics")
    ours = queries.melt("query_id", expected.column.unique(), "column", "ours")
    joined = expected.merge(ours, on=["query_id", "column"])
    joined = joined[~joined.query_id.isin(repeating.astype(str))]
    assert joined.query_id.nunique() == queries.query_id.nunique() - len(
        set(queries.query_id) & set(repeating.astype(str))
    )
    assert (joined.value - joined.ours).abs().max() < 1e-6


def test_the_counts_and_click_rates_of_the_open_bandit_dataset_are_the_reference_s(
    spark, shared, tmp_path
) -> None:
    dates = [dt.date(2019, 11, 24) + dt.timedelta(days=n) for n in range(7)]
    _, results, out = evaluate(spark, shared, tmp_path, "obd-small", "obd-small", dates)
    assert sum(result.counts["n_rows_scored"] for result in results) == 60_000
    metrics = read(out, "metrics")
    rates = metrics[(metrics.measure == "hit@3") & (metrics.slice_name == "shown_at")]
    found = {
        (row.date, row.experiment, row.variant, row.slice_value): (
            row.n_queries,
            row.sum_nano / 1e9,
            row.mean,
        )
        for row in rates.itertuples()
    }
    with (shared / "reference" / "obd_small_counts.csv").open() as file:
        expected = {
            (row["date"], row["experiment"], row["variant"], row["position"]): (
                int(row["impressions"]),
                int(row["clicks"]),
            )
            for row in csv.DictReader(file)
        }
    assert set(found) == set(expected)
    for key, (impressions, clicks) in expected.items():
        n_queries, hits, mean = found[key]
        assert (n_queries, hits) == (impressions, clicks)
        assert mean == pytest.approx(clicks / impressions, abs=1e-12)


def test_faults_put_into_a_real_log_are_found_counted_and_leave_other_queries_alone(
    spark, shared, tmp_path
) -> None:
    log = pd.read_parquet(shared / "data" / "trec-session-2013" / "impressions.parquet")
    log = log[["request_id", "session_id", "query", "item_id", "position", "click"]].astype(
        {"request_id": "string", "session_id": "string", "position": float, "click": float}
    )
    pages = [page for _, page in log.groupby("request_id", sort=True) if len(page) == 10][:6]
    good = pages[0].iloc[0].to_dict()
    extra = [
        *[good | {"request_id": None, "item_id": f"x{n}"} for n in range(5)],
        *[good | {"request_id": text} for text in ("", "  ", "NULL", "-1")],
        *[good | {"item_id": text, "position": 99.0} for text in (None, " ", "None")],
        *[
            good | {"item_id": f"y{n}", "position": position}
            for n, position in enumerate([math.nan, 0.0, -3.0, 2.5, 1.7e9, math.inf])
        ],
        *[
            good | {"item_id": f"z{n}", "position": 98.0, "click": click}
            for n, click in enumerate([math.inf, -1.0])
        ],
        *pages[1].to_dict("records"),
        pages[2].iloc[0].to_dict() | {"position": 50.0},
        *[
            good | {"request_id": "bot", "item_id": f"b{n}", "position": n + 1.0}
            for n in range(150)
        ],
    ]
    dirty = log.copy()
    dirty.loc[pages[3].index[-1], "position"] = 9.0  # where the ninth stands
    dirty.loc[pages[4].index[-1], "position"] = 17.0
    dirty = pd.concat([dirty, pd.DataFrame(extra)], ignore_index=True)

    tables, findings = {}, {}
    for name, rows in (("clean", log), ("dirty", dirty)):
        rows.to_parquet(tmp_path / f"{name}.parquet")
        job = config.load(
            CONF / "trec-session-2013-clicks.toml",
            [
                f"input.path={tmp_path}/{name}.parquet",
                f"output.path={tmp_path}/{name}",
                "evaluate.measures=['mrr', 'ndcg@10', 'map']",
                "limits.max_list_length=100",
            ],
        )
        (result,) = pipeline.evaluate(spark, job, [dt.date(2013, 1, 1)])
        assert result.error is None
        tables[name] = read(tmp_path / name, "query_metrics").set_index("query_id").sort_index()
        findings[name] = {(f.kind, f.reason): f.n_rows for f in result.findings}
        assert result.counts["n_rows_read"] == len(rows)
    found = {
        key: n - findings["clean"].get(key, 0)
        for key, n in findings["dirty"].items()
        if n != findings["clean"].get(key)
    }
    assert found == {
        ("rejected", "bad_query_id"): 7,
        ("rejected", "sentinel_query_id"): 2,
        ("rejected", "bad_item_id"): 2,
        ("rejected", "sentinel_item_id"): 1,
        ("rejected", "position_missing"): 1,
        ("rejected", "position_below_base"): 2,
        ("rejected", "position_not_whole"): 1,
        ("rejected", "position_too_large"): 2,
        ("rejected", "relevance_infinite"): 1,
        ("rejected", "relevance_negative"): 1,
        ("rejected", "list_too_long"): 150,
        ("repaired", "duplicate"): 10,
        ("repaired", "conflicting_duplicate"): 1,
        ("repaired", "position_repeated"): 1,
        ("flagged", "position_gap"): 1,
    }
    touched = [page.request_id.iloc[0] for page in pages[2:5]]
    columns = ["n_items", "mrr", "ndcg_at_10", "map"]
    clean, after = (tables[name].drop(index=touched)[columns] for name in ("clean", "dirty"))
    pd.testing.assert_frame_equal(after, clean, check_exact=True)

"""The simulated log holds what it says, and the pipeline finds what was put into it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pandas as pd
import pyarrow.dataset as ds
import pytest

from rankspark import cli, demo
from tests.tables import read


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, demo.Facts]:
    folder = tmp_path_factory.mktemp("demo") / "impressions"
    return folder, demo.simulate(folder)


@pytest.fixture(scope="module")
def log(written: tuple[Path, demo.Facts]) -> pd.DataFrame:
    return ds.dataset(written[0], partitioning="hive").to_table().to_pandas()


def without_unusable(log: pd.DataFrame) -> pd.DataFrame:
    named = log.request_id.notna() & log.product_id.notna() & (log.experiment_name != " ")
    return log[named & (log["rank"] > 0)].sort_values("rank")


@pytest.fixture(scope="module")
def good(log: pd.DataFrame) -> pd.DataFrame:
    return without_unusable(log).drop_duplicates(["request_id", "product_id"])


@pytest.fixture(scope="module")
def queries(good: pd.DataFrame) -> pd.DataFrame:
    """One row a request, with 1 / rank of its first click, or 0."""
    named = good.drop_duplicates("request_id").set_index("request_id")
    named = named[["experiment_name", "arm", "user_id"]]
    first = good[good.clicked | good.purchased].groupby("request_id")["rank"].min()
    return named.assign(mrr=(1 / first).reindex(named.index, fill_value=0.0))


def test_the_reranker_lifts_mrr_from_0_54_to_0_78_and_nothing_else_moves(
    queries: pd.DataFrame,
) -> None:
    mrr = queries.groupby(["experiment_name", "arm"]).mrr.mean()
    assert mrr["rerank_v2", "control"] == pytest.approx(0.54, abs=0.01)
    assert mrr["rerank_v2", "treatment"] == pytest.approx(0.78, abs=0.01)
    assert mrr["new_retrieval", "control"] == pytest.approx(
        mrr["new_retrieval", "treatment"], abs=0.02
    )


def test_users_differ_so_much_that_queries_are_not_independent(queries: pd.DataFrame) -> None:
    for _, variant in queries.groupby(["experiment_name", "arm"]):
        error = variant.mrr - variant.mrr.mean()
        by_user = error.groupby(variant.user_id).sum()
        assert (by_user**2).sum() > 1.5 * (error**2).sum()


def test_users_return_keep_their_variant_and_click_less_further_down(good: pd.DataFrame) -> None:
    by_user = good.groupby("user_id")
    kept = good.drop_duplicates(["user_id", "experiment_name", "arm", "country"])
    assert len(kept) == len(by_user)
    assert (by_user.date.nunique() >= 2).mean() > 0.4
    activity = by_user.request_id.nunique().sort_values(ascending=False)
    assert activity.head(len(activity) // 10).sum() > 0.3 * activity.sum()
    clicks = good.groupby("rank").clicked.mean()
    assert clicks[1] > 2 * clicks[3] > 4 * clicks[10]


def test_pages_look_like_those_of_a_log(good: pd.DataFrame) -> None:
    pages = good.groupby("request_id")
    assert set(pages.size()) == set(range(3, 11))
    assert (pages["rank"].max() == pages.size()).all()
    assert 0.05 < (pages.clicked.sum() == 0).mean() < 0.3
    assert (good.clicked | ~good.purchased).all()
    assert (good.event_time.dt.date == good.date.map(dt.date.fromisoformat)).all()
    assert pages.query_text.first().duplicated().any()
    assert 0.1 < good.grade.isna().mean() < 0.3
    assert set(good.grade.dropna()) == {0, 1, 2, 3}
    n_grades = good.groupby(["query_text", "product_id"]).grade.nunique(dropna=False)
    assert n_grades.max() == 1, "a grade is of the item, not of the request"


def test_facts_are_what_the_files_hold(
    written: tuple[Path, demo.Facts], log: pd.DataFrame, good: pd.DataFrame
) -> None:
    usable = without_unusable(log)
    pair = ["request_id", "product_id"]
    again = usable.drop_duplicates()
    assert written[1] == demo.Facts(
        days=tuple(dt.date(2026, 3, 2) + dt.timedelta(days=n) for n in range(7)),
        n_rows=len(log),
        n_queries=good.request_id.nunique(),
        broken={
            "bad_query_id": log.request_id.isna().sum(),
            "bad_experiment": (log.experiment_name == " ").sum(),
            "bad_item_id": log.product_id.isna().sum(),
            "position_below_base": (log["rank"] < 1).sum(),
            "duplicate": len(usable) - len(again),
            "conflicting_duplicate": again.duplicated(pair).sum(),
        },
    )
    assert set(log.date) == {str(day) for day in written[1].days}
    assert 280_000 < len(log) < 400_000


def test_the_same_seed_gives_the_same_log_also_over_an_earlier_one(tmp_path: Path) -> None:
    def simulate(folder: str, seed: int) -> tuple[demo.Facts, dict[str, bytes]]:
        facts = demo.simulate(tmp_path / folder, seed=seed, queries_per_day=50)
        files = (tmp_path / folder).rglob("*.parquet")
        return facts, {f"{file.parent.name}/{file.name}": file.read_bytes() for file in files}

    first = simulate("a", 7)
    assert len(first[1]) == 7
    assert simulate("b", 8)[1] != first[1]
    assert simulate("b", 7) == first


@pytest.mark.parametrize("name", ['a "quoted" one', r"back\slash", "{braces}", "größe"])
def test_the_configuration_is_readable_wherever_the_demo_lies(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    config = demo.write_config(folder, folder / "log", folder / "tables")
    assert config.input.path == str(folder / "log")
    assert config.output.path == str(folder / "tables")


def test_the_demo_finds_what_was_put_in_and_says_where_the_tables_lie(
    spark, written: tuple[Path, demo.Facts], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--directory", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "simulated" in printed
    assert str(tmp_path / "tables") in printed
    rejects = read(tmp_path / "tables", "rejects").groupby("reason").n_rows.sum().to_dict()
    facts = written[1]
    assert rejects == facts.broken
    for reason, n_rows in facts.broken.items():
        assert f"{reason} {n_rows}" in printed
    runs = read(tmp_path / "tables", "runs")
    assert runs.n_rows_read.sum() == facts.n_rows
    assert set(runs.date) == {str(dt.date(2026, 3, 2) + dt.timedelta(days=n)) for n in range(7)}
    lines = [line.split() for line in printed.splitlines()]
    mrr = {(w[0], w[1]): float(w[3]) for w in lines if len(w) > 3 and w[2] == "mrr"}
    assert mrr["rerank_v2", "control"] == pytest.approx(0.54, abs=0.01)
    assert mrr["rerank_v2", "treatment"] == pytest.approx(0.78, abs=0.01)

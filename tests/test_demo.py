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
def good(written: tuple[Path, demo.Facts]) -> pd.DataFrame:
    log = ds.dataset(written[0], partitioning="hive").to_table().to_pandas()
    named = log.request_id.notna() & log.product_id.notna() & (log.experiment_name != " ")
    log = log[named & (log["rank"] > 0)].sort_values("rank")
    return log.drop_duplicates(["request_id", "product_id"])


def test_the_reranker_lifts_mrr_from_0_54_to_0_78_and_nothing_else_moves(
    good: pd.DataFrame,
) -> None:
    reciprocal = {}
    for request, page in good.groupby("request_id"):
        relevant = page[page.clicked | page.purchased]["rank"]
        reciprocal[request] = 1 / relevant.min() if len(relevant) else 0.0
    queries = good.drop_duplicates("request_id").set_index("request_id")
    mrr = pd.Series(reciprocal).groupby([queries.experiment_name, queries.arm]).mean()
    assert mrr["rerank_v2", "control"] == pytest.approx(0.54, abs=0.01)
    assert mrr["rerank_v2", "treatment"] == pytest.approx(0.78, abs=0.01)
    assert mrr["new_retrieval", "control"] == pytest.approx(
        mrr["new_retrieval", "treatment"], abs=0.02
    )


def test_users_return_keep_their_variant_and_click_less_further_down(good: pd.DataFrame) -> None:
    by_user = good.groupby("user_id")
    assert by_user[["experiment_name", "arm"]].nunique().max().to_list() == [1, 1]
    assert (by_user.date.nunique() > 1).mean() > 0.4
    clicks = good.groupby("rank").clicked.mean()
    assert clicks[1] > 2 * clicks[3] > 4 * clicks[10]


def test_the_same_seed_gives_the_same_log(written: tuple[Path, demo.Facts], tmp_path: Path) -> None:
    demo.simulate(tmp_path / "again")
    for file in (tmp_path / "again").rglob("*.parquet"):
        assert file.read_bytes() == (written[0] / file.relative_to(tmp_path / "again")).read_bytes()


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

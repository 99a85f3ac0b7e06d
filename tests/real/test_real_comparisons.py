"""Real comparisons: two recommendation policies, and runs of a track on the same topics."""

from __future__ import annotations

import csv
import datetime as dt
from pathlib import Path

import pytest

from rankspark import config
from rankspark.spark import compare, pipeline

CONF = Path(__file__).resolve().parents[2] / "conf"
DAY = dt.date(2026, 1, 1)
NAMES = {"ap": "map", "ndcg": "ndcg", "p": "precision", "recip_rank": "mrr", "recall": "recall"}


def test_of_the_open_bandit_campaigns_only_men_differs_and_all_numbers_are_the_reference_s(
    spark, shared: Path, tmp_path: Path
) -> None:
    data = shared / "data" / "obd-small" / "impressions.parquet"
    job = config.load(
        CONF / "obd-small.toml",
        [f"input.path={data}", f"output.path={tmp_path}/out", "evaluate.measures=['hit@3']"],
    )
    first, end = dt.date(2019, 11, 24), dt.date(2019, 12, 1)
    dates = [first + dt.timedelta(days=n) for n in range(7)]
    assert [result.error for result in pipeline.evaluate(spark, job, dates)] == [None] * 7
    found = compare.compare(spark, job, first, end)
    ours = {(row["experiment"], row["slice_value"]): row for row in found.rows}
    with (shared / "reference" / "obd_small_ab.csv").open() as file:
        expected = list(csv.DictReader(file))
    for line in expected:
        where = line["slice"].removeprefix("position ")
        row = ours[line["experiment"], "(all)" if where == "all" else where]
        assert (row["control"], row["treatment"]) == (line["a"], line["b"])
        assert (row["n_queries_c"], row["n_queries_t"]) == (int(line["n_a"]), int(line["n_b"]))
        assert row["sum_x_t"] == int(line["clicks_b"]) * 10**9
        for name, theirs in (("effect", "diff_b_minus_a"), ("t", "welch_t"), ("p", "p_welch")):
            assert row[name] == pytest.approx(float(line[theirs]), rel=1e-9, abs=1e-12)
        # Each query is its own unit, so it is worth itself.
        assert row["design_effect"] == pytest.approx(1, rel=1e-9)
        assert row["srm_p"] is None
    decided = {name: row["decision"] for (name, value), row in ours.items() if value == "(all)"}
    assert decided == {"all": "inconclusive", "men": "better", "women": "inconclusive"}
    within = {value for (_, value), row in ours.items() if (row["p_adj"] or 1) < 0.05}
    assert within == {"(all)", "1"}


def test_runs_of_a_track_are_paired_topic_by_topic(spark, shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "trec-robust03"
    with (shared / "reference" / "trec_robust03_paired_ab.csv").open() as file:
        expected = list(csv.DictReader(file))
    systems = sorted({line[side] for line in expected for side in "ab"})
    measures = {
        f"{NAMES[line['metric']]}{'@' * bool(line['k'])}{line['k']}"
        for line in expected
        if line["metric"] in NAMES
    }
    job = config.from_dict(
        {
            "name": "robust03",
            "input": {
                "path": [str(folder / f"input.{name}.gz") for name in systems],
                "format": "trec",
            },
            "judgments": {"path": str(folder / "robust03_qrels.txt.gz"), "format": "trec"},
            "evaluate": {"profile": "trec", "measures": sorted(measures)},
            "compare": {
                "design": "paired", "between": "variants", "control": systems[0],
                "all_pairs": True,
            },
            "output": {"path": str(tmp_path / "out")},
        }
    )  # fmt: skip
    (result,) = pipeline.evaluate(spark, job, [DAY])
    assert result.error is None
    found = compare.compare(spark, job, DAY, DAY + dt.timedelta(days=1))
    ours = {(row["control"], row["treatment"], row["measure"]): row for row in found.rows}
    seen = 0
    for line in expected:
        if line["metric"] not in NAMES:
            continue
        measure = f"{NAMES[line['metric']]}{'@' * bool(line['k'])}{line['k']}"
        row = ours.get((line["a"], line["b"], measure))
        sign = 1.0 if row else -1.0
        row = row or ours[line["b"], line["a"], measure]
        assert row["n_queries_c"] == int(line["n"])
        # The reference's values came through single precision.
        assert row["effect"] * sign == pytest.approx(float(line["mean_diff_b_minus_a"]), abs=1e-8)
        assert row["t"] * sign == pytest.approx(float(line["t"]), rel=1e-6)
        assert row["p"] == pytest.approx(float(line["p_ttest_rel"]), rel=1e-5)
        counts = [row["wins"], row["ties"], row["losses"]][:: int(sign)]
        assert counts == [int(line[name]) for name in ("wins_b", "ties", "wins_a")]
        seen += 1
    assert seen == len(expected)

"""Comparisons from stored sums, against the reference values and against every refusal."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from rankspark import config, review
from rankspark.errors import ConfigError, InputError, RanksparkError
from rankspark.spark import compare as comparing
from rankspark.spark import pipeline
from rankspark.stats import RatioMoments, difference, independent
from tests.spark.conftest import items
from tests.spark.stored import store
from tests.tables import read

MEASURES = ["mrr@10", "ndcg@10", "hit@1"]
COLUMNS = {"mrr_at_10": "rr10", "ndcg_at_10": "ndcg10", "hit_at_1": "hit1"}
RANKERS = ("bi_encoder", "bm25", "cross_encoder", "ltr")


def day(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


def compared(
    spark: SparkSession, base: config.Config, first: str, last: str, *, write: bool = False,
    **wanted: Any,
) -> comparing.Comparison:  # fmt: skip
    content = base.model_dump(mode="json", by_alias=True, exclude_unset=True)
    content["compare"] = wanted
    end = day(last) + dt.timedelta(days=1)
    return comparing.compare(spark, config.from_dict(content), day(first), end, write=write)


def overall(found: comparing.Comparison) -> dict[tuple[str, ...], dict[str, Any]]:
    return {
        (row["measure"], row["control"], row["treatment"]): row
        for row in found.rows
        if row["slice_name"] == "overall"
    }


def base_config(root: Path, **changes: Any) -> config.Config:
    names = ("date", "experiment", "variant", "query_id", "item_id", "position", "relevance")
    content: dict[str, Any] = {
        "name": "stored",
        "input": {"path": "nowhere", "columns": {n: n for n in (*names, "unit_id")}},
        "evaluate": {"measures": MEASURES},
        "output": {"path": str(root)},
    }
    return config.from_dict(content | changes)


# ------------------------------------------------------------------ the reference values
@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "reference" / "compare"


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text())["values"]


@pytest.fixture(scope="module")
def ab(spark: SparkSession, folder: Path, tmp_path_factory) -> config.Config:
    """The queries of ab_queries.csv, and on one day before them the users' pre-period."""
    job = base_config(tmp_path_factory.mktemp("ab") / "tables")
    logged = pd.read_csv(folder / "ab_queries.csv", float_precision="round_trip").rename(
        columns={"user_id": "unit_id"}
    )
    logged = logged.rename(columns={theirs: ours for ours, theirs in COLUMNS.items()})
    store(spark, job, logged)
    first = logged[logged.experiment == "rerank_v1"].drop_duplicates("unit_id")
    first = first[first.pre_queries > 0]
    before = pd.DataFrame(
        [
            {
                "date": "2024-05-05", "experiment": "before", "variant": "all",
                "unit_id": row.unit_id, "query_id": f"{row.unit_id}-{i}",
                # The sum is what counts: it stands on the first query.
                "mrr_at_10": row.pre_rr10_sum if i == 0 else 0.0,
                "ndcg_at_10": 0.0, "hit_at_1": 0.0,
            }
            for row in first.itertuples()
            for i in range(row.pre_queries)
        ]
    )  # fmt: skip
    start = min(logged.date)
    before["date"] = str(day(start) - dt.timedelta(days=1))
    store(spark, job, before)
    return job


@pytest.fixture(scope="module")
def span(folder: Path) -> tuple[str, str]:
    dates = sorted(set(pd.read_csv(folder / "ab_queries.csv").date))
    return dates[0], dates[-1]


def agree(row: dict[str, Any], entry: dict[str, Any], **names: str) -> None:
    """The fields of a reference value, by our columns' names."""
    known = {"control": "mean_c", "treatment": "mean_t", "effect": "effect", "se": "se", "df": "df",
             "t": "t", "p": "p", "lift": "lift", "variance_reduction": "variance_reduction",
             "wins": "wins", "ties": "ties", "losses": "losses", "cohen_dz": "effect_size",
             "n_units_mixed": "n_mixed", "share_mixed": "share_mixed"} | names  # fmt: skip
    seen = 0
    for field, value in entry["value"].items():
        if field in known and known[field] in row:
            assert row[known[field]] == pytest.approx(value, rel=entry["rtol"], abs=1e-9), field
            seen += 1
        lead = {"ci": "ci", "lift_ci_fieller": "lift_ci"}.get(field)
        if f"{lead}_low" in row:
            assert row[f"{lead}_low"] == pytest.approx(value[0], rel=entry["rtol"], abs=1e-9)
            assert row[f"{lead}_high"] == pytest.approx(value[1], rel=entry["rtol"], abs=1e-9)
            seen += 1
    assert seen >= 3


def test_an_ab_test_has_the_reference_values(spark, ab, span, expected) -> None:
    found = compared(
        spark, ab, *span, experiments=["rerank_v1"], control="control", primary=MEASURES,
        planned_units=600,
    )  # fmt: skip
    rows = overall(found)
    for measure, column in zip(MEASURES, COLUMNS.values(), strict=True):
        for treatment in ("rerank_a", "rerank_b"):
            row = rows[measure, "control", treatment]
            agree(row, expected[f"ab.delta.{column}.{treatment}"])
            assert row["se_method"] == "delta"
            holm = expected["ab.multiple.holm.6"]["value"][f"{column}.{treatment}"]
            assert row["p_adj"] == pytest.approx(holm, rel=1e-6)
            assert (row["ci_adj_low"] > 0) == (holm < 0.05)
    row = rows["mrr@10", "control", "rerank_a"]
    looked = expected["ab.gbstats.sequential600.rr10.rerank_a"]["value"]
    assert row["seq_p"] == pytest.approx(looked["p"], rel=1e-6)
    assert [row["seq_ci_low"], row["seq_ci_high"]] == pytest.approx(looked["ci"], rel=1e-6)
    assert row["srm_p"] == pytest.approx(expected["srm.rerank_v1"]["value"]["p"], rel=1e-6)
    per_user = expected["ab.queries_per_unit.rerank_a"]["value"]["p"]
    assert row["queries_per_unit_p"] == pytest.approx(per_user, rel=1e-6)
    trap = expected["trap.daily_moments_added.se.rr10.rerank_a"]["value"]
    assert abs(row["se"] / trap - 1) > 0.2
    assert row["design_effect"] > 1
    assert row["decision"] == "better"
    # Rank by rank it adds up to the change, exactly.
    split = {(c.measure, c.treatment): c.split for c in found.changes}["mrr@10", "rerank_a"]
    assert split.total == pytest.approx(row["effect"], abs=1e-9)
    told = review.text(found.rows, {})
    assert "queries are worth about" in told
    assert "users repeat" in told
    assert "BETTER" in told


def test_a_part_of_the_range_has_its_own_reference_values(spark, ab, expected) -> None:
    rows = overall(
        compared(
            spark, ab, "2024-05-07", "2024-05-09", experiments=["rerank_v1"], control="control",
            guardrails={"mrr@10": 0.02},
        )
    )  # fmt: skip
    row = rows["mrr@10", "control", "rerank_a"]
    # Below 200 units: the jackknife. From the moments beside it follows the delta method's.
    assert row["se_method"] == "jackknife"
    arms = (
        RatioMoments(
            row[f"n_units_{v}"],
            row[f"sum_x_{v}"],
            row[f"n_queries_{v}"],
            row[f"sum_xx_{v}"],
            row[f"sum_xn_{v}"],
            row[f"sum_nn_{v}"],
            10**9,
        )
        for v in "ct"
    )
    plain = difference(independent(*arms))
    assert row["se"] == pytest.approx(plain.se, rel=0.02)
    agree(vars(plain), expected["range.delta.rr10.rerank_a"])


def test_cuped_and_non_inferiority_have_the_reference_values(spark, ab, span, expected) -> None:
    rows = overall(
        compared(
            spark, ab, *span, experiments=["rerank_v1"], control="control", pre_period=1,
            pre_experiment="before", primary=["ndcg@10"],
        )
    )  # fmt: skip
    for treatment in ("rerank_a", "rerank_b"):
        row = rows["mrr@10", "control", treatment]
        agree(row, expected[f"ab.tea.cuped.rr10.{treatment}"])
        assert row["theta"] is not None
        assert row["pre_period_p"] is not None
        # ndcg was always 0 before the start: nothing to adjust by, and the result is plain.
        plain = rows["ndcg@10", "control", treatment]
        assert plain["theta"] is None
        agree(plain, expected[f"ab.delta.ndcg10.{treatment}"])
    rows = overall(
        compared(
            spark, ab, *span, experiments=["rerank_v1"], control="control",
            guardrails={"mrr@10": 0.02}, estimand="ratio",
        )
    )  # fmt: skip
    row = rows["mrr@10", "control", "rerank_b"]
    wanted = expected["ab.noninferior.rr10.rerank_b.margin0.02"]["value"]
    assert row["ni_p"] == pytest.approx(wanted, rel=1e-6)
    assert (row["role"], row["adjust_method"], row["decision"]) == ("guardrail", "none", "no_worse")


def test_each_unit_may_count_once(spark, ab, span, expected) -> None:
    rows = overall(
        compared(
            spark, ab, *span, experiments=["rerank_v1"], control="control", estimand="per_unit"
        )
    )
    for treatment in ("rerank_a", "rerank_b"):
        agree(rows["mrr@10", "control", treatment], expected[f"ab.per_user_mean.rr10.{treatment}"])


def test_mixed_units_are_left_out_and_small_arms_take_the_jackknife(
    spark, ab, span, expected
) -> None:
    found = compared(spark, ab, *span, experiments=["mixed_users"], control="control")
    row = overall(found)["mrr@10", "control", "treatment"]
    entry = expected["mixed_users.excluded"]
    for field, name in (("effect", "effect"), ("n_units_mixed", "n_mixed"),
                        ("share_mixed", "share_mixed")):  # fmt: skip
        assert row[name] == pytest.approx(entry["value"][field], rel=1e-6)
    assert row["se_method"] == "jackknife"
    assert row["se"] == pytest.approx(entry["value"]["se"], rel=0.1)
    assert row["se"] > entry["value"]["se"]
    assert "LOW_UNITS" in row["flags"]
    assert "6 units were seen in two variants" in " ".join(review.warnings(row))


def test_a_broken_split_is_invalid_unless_overridden(spark, ab, span, expected) -> None:
    rows = overall(compared(spark, ab, *span, experiments=["srm_bad"], control="control"))
    row = rows["mrr@10", "control", "treatment"]
    assert row["srm_p"] == pytest.approx(expected["srm.srm_bad"]["value"]["p"], rel=1e-6)
    assert row["decision"] == "invalid"
    assert "SAMPLE_RATIO_MISMATCH" in row["flags"]
    rows = overall(
        compared(
            spark, ab, *span, experiments=["srm_bad"], control="control", override_invalid=True,
            split={"control": 134, "treatment": 76},
        )
    )  # fmt: skip
    assert rows["mrr@10", "control", "treatment"]["decision"] != "invalid"


@pytest.mark.parametrize(
    ("experiment", "status"), [("zero_variance", "zero_variance"), ("one_unit", "few_units")]
)
def test_what_cannot_be_tested_is_null_with_a_status(spark, ab, span, experiment, status) -> None:
    rows = overall(compared(spark, ab, *span, experiments=[experiment], control="control"))
    row = rows["mrr@10", "control", "treatment"]
    assert row["status"] == status
    assert row["decision"] == "inconclusive"
    for name in ("se", "t", "p", "p_adj", "ci_low", "lift_ci_low", "seq_p", "mde"):
        assert row[name] is None, name


REFUSED: list[tuple[dict[str, Any], type[RanksparkError], str]] = [
    ({"experiments": ["rerank_v1"], "control": "contrl"}, ConfigError, "control, rerank_a"),
    ({"experiments": ["rerank_v1"]}, ConfigError, "compare.control"),
    ({"experiments": ["one_arm"], "control": "control"}, InputError, "at least two variants"),
    ({"experiments": ["no_such"], "control": "control"}, ConfigError, "no_such"),
    ({"experiments": ["rerank_v1"], "control": "control", "split": {"control": 1}}, ConfigError,
     "compare.split"),
    ({"experiments": ["rerank_v1"], "control": "control", "ranker": "x"}, ConfigError, "logged"),
    ({"experiments": ["rerank_v1"], "control": "control", "pre_period": 14}, InputError,
     "evaluated"),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "error", "said"), REFUSED)
def test_what_may_not_be_compared_is_refused_and_nothing_is_written(
    spark, ab, span, wanted, error, said
) -> None:
    with pytest.raises(error, match=said):
        compared(spark, ab, *span, write=True, **wanted)
    assert not (Path(ab.output.path) / "comparisons").exists()


def test_a_date_that_was_not_evaluated_is_refused_by_name(spark, ab, span) -> None:
    with pytest.raises(InputError, match="2024-06-0"):
        compared(spark, ab, span[0], "2024-06-01", experiments=["rerank_v1"], control="control")


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"primary": ["mrr@9"]}, "unknown measure 'mrr@9'"),
        ({"primry": ["mrr@10"]}, "did you mean 'compare.primary'"),
        ({"primary": ["mrr@10"], "guardrails": {"mrr@10": 0.1}}, "two roles"),
        ({"all_pairs": True}, "paired"),
        ({"guardrails": {"mrr@10": 1.5}}, "guardrails"),
        ({"design": "paired", "pre_period": 3}, "pre_period"),
    ],
)
def test_a_wrong_section_is_refused_when_it_is_read(tmp_path, wanted, said) -> None:
    with pytest.raises(ConfigError, match=said):
        base_config(tmp_path, compare=wanted)


@pytest.fixture(scope="module")
def rankers(spark: SparkSession, folder: Path, tmp_path_factory) -> dict[str, config.Config]:
    scored = pd.read_csv(folder / "paired_rankers.csv", float_precision="round_trip")
    scored = scored.rename(columns={"rr10": "mrr_at_10", "ndcg10": "ndcg_at_10"})
    scored = scored.assign(date="2024-05-06", experiment="offline", variant="all")
    jobs = {}
    for unit in ("user", "query"):
        job = base_config(
            tmp_path_factory.mktemp(unit) / "tables", evaluate={"measures": MEASURES[:2]},
            rankers={name: f"{name}_score desc" for name in RANKERS},
        )  # fmt: skip
        frame = scored.assign(unit_id=scored.user_id if unit == "user" else None)
        store(spark, job, frame)
        jobs[unit] = job
    return jobs


@pytest.mark.parametrize("unit", ["user", "query"])
def test_rankers_on_the_same_queries_have_the_reference_values(
    spark, rankers, expected, unit
) -> None:
    found = compared(
        spark, rankers[unit], "2024-05-06", "2024-05-06", design="paired", control="bm25",
        all_pairs=True, primary=["mrr@10"],
    )  # fmt: skip
    rows = overall(found)
    seen = 0
    for measure, column in (("mrr@10", "rr10"), ("ndcg@10", "ndcg10")):
        holm = expected[f"paired.{unit}.{column}.all_pairs.holm"]["value"]
        for (name, control, treatment), row in rows.items():
            key = f"paired.{unit}.{column}.{control}.{treatment}"
            if name != measure or key not in expected:
                continue
            seen += 1
            if (column, control, treatment) == ("ndcg10", "bi_encoder", "cross_encoder"):
                # Theirs counts 0.9999999999999999 against 1.0 as a win.
                row = row | {"wins": row["wins"] + 1, "ties": row["ties"] - 1}
            agree(row, expected[key])
            other = holm.get(f"{control}.{treatment}", holm.get(f"{treatment}.{control}"))
            assert row["p_adj"] == pytest.approx(other, rel=1e-6)
    assert seen >= 8
    row = rows["mrr@10", "bm25", "ltr"]
    assert row["unit"] == f"{'unit' if unit == 'user' else 'query'}_id"
    split = {(c.measure, c.control, c.treatment): c.split for c in found.changes}
    assert split["mrr@10", "bm25", "ltr"].total == pytest.approx(row["effect"], abs=1e-9)


def test_rankers_that_share_no_query_are_refused(spark, tmp_path) -> None:
    job = base_config(tmp_path / "t", evaluate={"measures": ["mrr@10"]},
                      rankers={"a": "x desc", "b": "y desc"})  # fmt: skip
    rows = [
        {"date": "2024-05-06", "experiment": "e", "variant": "all", "ranker": r, "unit_id": None,
         "query_id": f"{r}{i}", "mrr_at_10": 0.5}
        for r in "ab" for i in range(3)
    ]  # fmt: skip
    store(spark, job, pd.DataFrame(rows))
    with pytest.raises(InputError, match="queries that both a and b answered"):
        compared(spark, job, "2024-05-06", "2024-05-06", design="paired", control="a")


# ------------------------------------------------------------------ small stored tables
def queries(n: int = 40, *, first: str = "2024-05-06", days: int = 1, **by_variant: Any):
    """Units u0 ... of variants A and B with a query a day; B is better."""
    rows = []
    for d in range(days):
        for i in range(n):
            variant = "AB"[i % 2]
            value = [0.25, 0.5, 1.0, 0.0][(i // 2) % 4]
            rows.append(
                {
                    "date": str(day(first) + dt.timedelta(days=d)), "experiment": "e",
                    "variant": variant, "unit_id": f"u{i}", "query_id": f"{d}-{i}",
                    "mrr_at_10": value if variant == "A" else min(1.0, value + 0.25),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def small(tmp_path: Path, **changes: Any) -> config.Config:
    return base_config(tmp_path / "t", **({"evaluate": {"measures": ["mrr@10"]}} | changes))


def test_two_definitions_in_a_range_are_refused(spark, tmp_path) -> None:
    job = small(tmp_path)
    store(spark, job, queries())
    skip = small(tmp_path, evaluate={"measures": ["mrr@10"], "no_relevant": "skip"})
    store(spark, skip, queries(first="2024-05-07"))
    with pytest.raises(InputError, match="one definition of mrr@10"):
        compared(spark, job, "2024-05-06", "2024-05-07", control="A")
    assert compared(spark, job, "2024-05-06", "2024-05-06", control="A").rows


def test_looks_are_a_ledger_a_retry_is_none_and_power_comes_from_the_history(
    spark, tmp_path
) -> None:
    job = small(tmp_path)
    store(spark, job, queries(days=3))
    looks = []
    for last in ("2024-05-06", "2024-05-06", "2024-05-07"):
        found = compared(spark, job, "2024-05-06", last, control="A", write=True)
        (row,) = found.rows
        looks.append((row["n_looks"], "PEEKED" in row["flags"]))
    assert looks == [(1, False), (1, False), (2, True)]
    written = read(Path(job.output.path), "comparisons")
    assert len(written) == 3
    assert set(written.experiment) == {"e"}
    last = written[written.run_id == found.run_id].iloc[0]
    for name in ("effect", "p", "lift", "se"):
        assert last[name] == row[name]
    assert (int(last["sum_xx_c"]), list(last["flags"])) == (row["sum_xx_c"], row["flags"])
    # The second moments are those of units over the range, not of unit-days.
    units = queries(days=2).groupby(["variant", "unit_id"]).mrr_at_10.sum().loc["A"]
    assert row["sum_xx_c"] == sum(round(x * 1e9) ** 2 for x in units)
    assert "PARTIAL_WEEK" in row["flags"]

    job = job.model_copy(update={"compare": config.Compare(control="A")})
    found = comparing.power(spark, job, "mrr@10", 0.5)
    assert (found.units_seen, found.days_seen) == (40, 3)
    assert found.new_units_a_day == pytest.approx(40 / 3)
    assert found.units > 40
    # 40 units arrived on the first day; what is missing comes at that rate.
    assert found.days == 3 + math.ceil((found.units - 40) / (40 / 3))


def test_many_mixed_units_and_a_control_of_zero(spark, tmp_path) -> None:
    job = small(tmp_path)
    logged = queries()
    both = logged.head(8).assign(variant=["B", "A"] * 4, query_id=[f"m{i}" for i in range(8)])
    logged = pd.concat([logged, both])
    logged.loc[logged.variant == "A", "mrr_at_10"] = 0.0
    store(spark, job, logged)
    (row,) = compared(spark, job, "2024-05-06", "2024-05-06", control="A").rows
    assert (row["n_mixed"], row["share_mixed"]) == (8, 0.2)
    assert (row["decision"], row["status"]) == ("invalid", "control_near_zero")
    assert "MIXED_UNITS" in row["flags"]
    assert row["lift"] is None
    assert row["p"] < 0.05
    told = review.text([row], {})
    assert "20.0%" in told
    assert "INVALID" in told


# ------------------------------------------------------------------ from impressions
def impressions() -> list[dict[str, Any]]:
    rows = []
    for d in range(2):
        for i in range(36):
            hit = (i * 7 + d) % 5
            rows += items(
                f"q{d}-{i}", *[float(r == hit) for r in range(5)], unit_id=f"u{i % 12}",
                variant="AB"[i % 12 % 2], country=["fr", "de", None][i % 3],
                date=f"2024-03-{10 + d}",
            )  # fmt: skip
    return rows


def test_from_impressions_any_partitioning_gives_the_same_digits(
    spark: SparkSession, write_log: Callable[..., str], make_config, tmp_path: Path
) -> None:
    log = write_log(impressions())
    seen = []
    for partitions in (1, 5, 13):
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        spark.conf.set("spark.sql.ansi.enabled", "false" if partitions == 5 else "true")
        job = make_config(
            log, output__path=str(tmp_path / f"out{partitions}"), evaluate__slices=["country"],
            compare={"control": "A"},
        )  # fmt: skip
        try:
            days = [day("2024-03-10"), day("2024-03-11")]
            for result in pipeline.evaluate(spark, job, days):
                assert result.error is None
            found = comparing.compare(spark, job, days[0], day("2024-03-12"))
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", 4)
            spark.conf.unset("spark.sql.ansi.enabled")
        out = Path(job.output.path)
        told = ("run_id", "computed_at", "config_hash")
        rows = [{k: v for k, v in row.items() if k not in told} for row in found.rows]
        units = read(out, "unit_day").drop(columns=list(told[:2]))
        units["first_ranks"] = units.first_ranks.map(lambda v: None if v is None else tuple(v))
        order = ["date", "slice_name", "slice_value", "measure", "variant", "unit"]
        seen.append((rows, found.changes, units.sort_values(order, ignore_index=True)))
    for rows, changes, units in seen[1:]:
        assert rows == seen[0][0]
        assert changes == seen[0][1]
        pd.testing.assert_frame_equal(units, seen[0][2], check_exact=True)
    # Naive sums over the log.
    whole = [
        row for row in seen[0][0] if row["slice_name"] == "overall" and row["measure"] == "mrr"
    ]
    ranks = [((i * 7 + d) % 5 + 1, i % 12 % 2) for d in range(2) for i in range(36)]
    for arm, name in ((0, "c"), (1, "t")):
        assert whole[0][f"sum_x_{name}"] == sum(round(1e9 / r) for r, a in ranks if a == arm)
        assert whole[0][f"n_queries_{name}"] == 36
    units = seen[0][2]
    firsts = units[(units.slice_name == "overall") & (units.measure == "mrr")].first_ranks
    assert [sum(column) for column in zip(*firsts, strict=True)][:5] == [
        sum(r == rank for r, _ in ranks) for rank in range(1, 6)
    ]
    slices = {row["slice_value"] for row in seen[0][0] if row["slice_name"] == "country"}
    assert slices == {"fr", "de", "(null)"}
    assert set(read(out, "assignment").n_variants) == {1}


def test_stored_sums_are_those_of_metrics_and_rankers_are_counted_query_by_query(
    spark: SparkSession, write_log: Callable[..., str], make_config
) -> None:
    rows = [row for row in impressions() if row["date"] == "2024-03-10"]
    job = make_config(
        write_log(rows), rankers={"logged": "position", "backward": "-position"},
        evaluate__slices=["country"],
    )  # fmt: skip
    (result,) = pipeline.evaluate(spark, job, [day("2024-03-10")])
    assert result.error is None
    out = Path(job.output.path)
    keys = ["variant", "ranker", "slice_name", "slice_value", "measure"]
    units = read(out, "unit_day").groupby(keys)[["n", "s_nano", "n_queries"]].sum()
    metrics = read(out, "metrics").set_index(keys)
    for ours, theirs in (("n", "n_scored"), ("s_nano", "sum_nano"), ("n_queries", "n_queries")):
        assert units[ours].to_dict() == metrics[theirs].to_dict()
    values = read(out, "query_metrics").pivot_table("mrr", "query_id", "ranker")
    gap = values.logged - values.backward
    counts = read(out, "paired_counts")
    row = counts[(counts.slice_name == "overall") & (counts.measure == "mrr")].iloc[0]
    assert (row.ranker_a, row.ranker_b) == ("backward", "logged")
    assert [row.wins, row.ties, row.losses] == [(gap > 1e-9).sum(), (abs(gap) < 1e-9).sum(),
                                                (gap < -1e-9).sum()]  # fmt: skip
    nano = (values * 1e9).round().astype(int)
    assert int(row.sum_dd) == sum((nano.logged - nano.backward) ** 2)
    # A configuration with one ranker leaves nothing of the pairs.
    one = make_config(job.input.path, evaluate__slices=["country"])
    (result,) = pipeline.evaluate(spark, one, [day("2024-03-10")])
    assert result.error is None
    assert not list((out / "paired_counts").rglob("*.parquet"))


def test_formats_say_the_same(spark, tmp_path) -> None:
    job = small(tmp_path)
    store(spark, job, queries())
    found = compared(spark, job, "2024-05-06", "2024-05-06", control="A")
    changes = {(c.experiment, c.measure, c.control, c.treatment): c.split for c in found.changes}
    told = review.text(found.rows, changes)
    assert "e: B against A, 2024-05-06 to 2024-05-06" in told
    assert "rank 1: share" in told
    assert "fewer than 200 units" in told
    table = review.markdown(found.rows, changes)
    assert table.count("| mrr@10 | primary | all |") == 1
    content = json.loads(review.as_json(found.rows, changes))
    assert content["comparisons"][0]["effect"] == found.rows[0]["effect"]
    assert sum(one["contribution"] for one in content["changes"][0]["ranks"]) == pytest.approx(
        content["changes"][0]["total"]
    )

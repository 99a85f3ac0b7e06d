"""The ratio estimate against published libraries' values and closed forms."""

import csv
import json
import math
from collections import defaultdict
from pathlib import Path

import pytest

from rankspark.stats import RatioMoments, estimate

NANO = 1_000_000_000


def moments_of(units: dict[str, list[float]]) -> RatioMoments:
    x = {unit: sum(round(value * NANO) for value in values) for unit, values in units.items()}
    n = {unit: len(values) for unit, values in units.items()}
    return RatioMoments(
        n_units=len(units),
        sum_x=sum(x.values()),
        sum_n=sum(n.values()),
        sum_xx=sum(x[u] ** 2 for u in units),
        sum_xn=sum(x[u] * n[u] for u in units),
        sum_nn=sum(n[u] ** 2 for u in units),
        scale=NANO,
    )


def test_equal_units_give_the_textbook_standard_error_of_a_mean() -> None:
    # Values 0, 1, 1, 0: mean 1/2, sample variance 1/3, standard error sqrt(1/12); t(3) = 3.182446.
    result = estimate(moments_of({"a": [0], "b": [1], "c": [1], "d": [0]}))
    assert result.mean == 0.5
    assert result.std_error == pytest.approx(math.sqrt(1 / 12), rel=1e-12)
    assert result.ci_low == pytest.approx(0.5 - 3.182446305 * math.sqrt(1 / 12), rel=1e-8)
    assert result.ci_high == pytest.approx(0.5 + 3.182446305 * math.sqrt(1 / 12), rel=1e-8)


def test_two_users_of_the_field_case_have_the_published_standard_error() -> None:
    # Case T04: se of the difference of the two variants is 0.215597.
    a = {"u1": [1] * 12, "u2": [0, 1], "u3": [0, 1], "u4": [0, 0]}
    b = {"u5": [0, 1, 0, 1, 0, 0, 1, 0], "u6": [1, 0], "u7": [0, 1], "u8": [0, 0]}
    first, second = estimate(moments_of(a)), estimate(moments_of(b))
    assert first.mean == pytest.approx(0.777778, abs=1e-6)
    assert second.mean == pytest.approx(0.357143, abs=1e-6)
    assert first.std_error is not None
    assert second.std_error is not None
    assert math.hypot(first.std_error, second.std_error) == pytest.approx(0.215597, abs=1e-6)


def test_the_reference_fixture_s_arms_have_the_libraries_standard_errors(shared: Path) -> None:
    folder = shared / "reference" / "compare"
    expected = json.loads((folder / "expected.json").read_text())["values"]
    units: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with (folder / "ab_queries.csv").open() as file:
        for row in csv.DictReader(file):
            if row["experiment"] == "rerank_v1":
                units[row["variant"]][row["user_id"]].append(float(row["rr10"]))
    control, treatment = (estimate(moments_of(units[name])) for name in ("control", "rerank_a"))
    published = expected["ab.gbstats.absolute.rr10.rerank_a"]
    assert control.std_error is not None
    assert treatment.std_error is not None
    se = math.hypot(control.std_error, treatment.std_error)
    assert se == pytest.approx(published["value"]["se"], rel=published["rtol"])


def test_what_cannot_be_computed_is_none() -> None:
    assert estimate(moments_of({})).mean is None
    lone = estimate(moments_of({"a": [0.25, 0.75]}))
    assert (lone.mean, lone.std_error, lone.ci_low, lone.ci_high) == (0.5, None, None, None)


def test_large_sums_lose_no_digit() -> None:
    # 10^9 units of one query each, half of them 1: the float formula would cancel.
    k = 10**9
    half = k // 2
    result = estimate(RatioMoments(k, half * NANO, k, half * NANO**2, half * NANO, k, scale=NANO))
    assert result.std_error == pytest.approx(math.sqrt(0.25 / (k - 1)), rel=1e-12)

"""Fieller's interval against the equation it solves and the test it must agree with."""

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from rankspark.stats import Pair, RatioMoments, difference, fieller, independent, paired

seeded = settings(max_examples=50, deadline=None, derandomize=True)
rows = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=3, max_size=25)


def of(rows: list[tuple[int, int]]) -> RatioMoments:
    return RatioMoments.of([min(x, n) for x, n in rows], [n for _, n in rows])


def equation(pair: Pair, theta: float, df: float) -> float:
    """0 at both ends of the interval."""
    q2 = stats.t.ppf(0.975, df) ** 2
    v_c, v_t = float(pair.control.variance), float(pair.treatment.variance)
    gap = float(pair.treatment.mean) - theta * float(pair.control.mean)
    cov = float(pair.covariance or 0)
    return gap**2 - q2 * (v_t - 2 * theta * cov + theta**2 * v_c)


def check(pair: Pair) -> None:
    found, test = fieller(pair), difference(pair)
    assume(found.status == "ok" and test.p is not None)
    assume(found.ci_high - found.ci_low < 1e3)
    for end in (found.ci_low, found.ci_high):
        scale = max(1.0, (1 + end) ** 2)
        assert equation(pair, 1 + end, test.df) == pytest.approx(0, abs=1e-9 * scale)
    assert found.ci_low <= found.lift <= found.ci_high
    if abs(test.p - 0.05) > 1e-9:
        assert (found.ci_low > 0 or found.ci_high < 0) == (test.p < 0.05)


@seeded
@given(rows, rows)
def test_the_interval_solves_the_equation_and_agrees_with_p(a, b) -> None:
    check(independent(of(a), of(b)))


@seeded
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)), min_size=3))
def test_so_does_that_of_paired_rankers(rows) -> None:
    n = [c for _, _, c in rows]
    a, b = [x for x, _, _ in rows], [x for _, x, _ in rows]
    gaps = RatioMoments.of([y - x for x, y in zip(a, b, strict=True)], n)
    check(paired(RatioMoments.of(a, n), RatioMoments.of(b, n), gaps))


def test_a_lift_by_hand() -> None:
    # Both means are of 2 units with V = 1/400: mean_c 1/2, mean_t 3/5; df 2, q² = 18.5128.
    # g = q² / 100 = 0.185128; half = q · 0.1 · sqrt(1 + 1.2² - g) / (1 - g).
    pair = independent(RatioMoments.of([9, 11], [20, 20]), RatioMoments.of([11, 13], [20, 20]))
    assert pair.control.variance == pair.treatment.variance == Fraction(1, 400)
    found = fieller(pair)
    g = 18.512821 / 100
    half = math.sqrt(g * (1 + 1.44 - g)) / (1 - g)
    centre = 1.2 / (1 - g) - 1
    assert found.lift == pytest.approx(0.2)
    assert (found.ci_low, found.ci_high) == pytest.approx((centre - half, centre + half), rel=1e-6)


def test_a_control_that_may_be_zero_has_no_lift() -> None:
    some = RatioMoments.of([4, 5, 4], [5, 5, 5])
    for control in (RatioMoments.of([0] * 3, [5] * 3), RatioMoments.of([0, 0, 1], [5] * 3)):
        found = fieller(independent(control, some))
        assert (found.status, found.lift, found.ci_low) == ("control_near_zero", None, None)
        assert difference(independent(control, some)).p is not None


def test_what_has_no_interval_keeps_its_lift_where_the_control_is_known() -> None:
    some, lone = RatioMoments.of([4, 5, 4], [5, 5, 5]), RatioMoments.of([5], [5])
    found = fieller(independent(some, lone))
    assert (found.status, found.ci_low, found.ci_high) == ("few_units", None, None)
    assert found.lift == pytest.approx(15 / 13 - 1)
    flat = RatioMoments.of([1, 1], [2, 2])
    assert fieller(independent(flat, flat)).status == "zero_variance"
    empty = RatioMoments.of([], [])
    assert fieller(independent(some, empty)).lift is None
    assert fieller(independent(empty, some)).status == "no_queries"

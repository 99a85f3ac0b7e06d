"""Differences and non-inferiority against scipy, z-scores by hand and the edges."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rankspark.stats import (
    Pair,
    RatioMoments,
    contrast,
    delta,
    difference,
    independent,
    independent_units,
    jackknife,
    noninferiority,
    paired,
)
from rankspark.stats.pair import SMALL

seeded = settings(max_examples=50, deadline=None, derandomize=True)
NANO = 10**9
units = st.lists(st.tuples(st.integers(0, NANO), st.integers(1, 9)), min_size=2, max_size=30)


def of(rows: list[tuple[int, int]], scale: int = NANO) -> RatioMoments:
    x, n = zip(*rows, strict=True) if rows else ((), ())
    return RatioMoments.of(list(x), list(n), scale=scale)


def singles(values: list[float]) -> RatioMoments:
    return RatioMoments.of([round(v * NANO) for v in values], [1] * len(values), scale=NANO)


def naive_variance(rows: list[tuple[int, int]]) -> float:
    x, n = np.array(rows, float).T
    z = x - x.sum() / n.sum() * n
    return len(z) / (len(z) - 1) * (z @ z) / n.sum() ** 2 / NANO**2


@seeded
@given(units)
def test_the_delta_method_is_that_of_the_z_scores(rows: list[tuple[int, int]]) -> None:
    found = delta(of(rows))
    assert float(found.variance) == pytest.approx(naive_variance(rows), rel=1e-9, abs=1e-20)


@seeded
@given(units)
def test_the_jackknife_is_that_of_a_loop_over_units(rows: list[tuple[int, int]]) -> None:
    drops = []
    for i in range(len(rows)):
        rest = rows[:i] + rows[i + 1 :]
        drops.append(sum(x for x, _ in rest) / sum(n for _, n in rest) / NANO)
    k = len(rows)
    naive = (k - 1) / k * sum((d - sum(drops) / k) ** 2 for d in drops)
    found = jackknife(*map(list, zip(*rows, strict=True)), scale=NANO)
    assert float(found.variance) == pytest.approx(naive, rel=1e-7, abs=1e-20)
    assert found.mean == delta(of(rows)).mean
    assert found.method == "jackknife"


@seeded
@given(units, st.randoms())
def test_the_order_of_the_units_changes_no_bit(rows, random) -> None:
    shuffled = random.sample(rows, len(rows))
    assert of(rows) == of(shuffled)
    columns = [list(map(list, zip(*some, strict=True))) for some in (rows, shuffled)]
    assert jackknife(*columns[0]) == jackknife(*columns[1])


@seeded
@given(
    *[st.lists(st.integers(0, 1000), min_size=3, max_size=20).filter(lambda v: len(set(v)) > 1)] * 2
)
def test_queries_as_units_give_welch_s_test(a: list[int], b: list[int]) -> None:
    found = difference(independent(singles(a), singles(b)), alpha=0.1)
    theirs = stats.ttest_ind(b, a, equal_var=False)
    low, high = theirs.confidence_interval(0.9)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert found.df == pytest.approx(theirs.df, rel=1e-9)
    assert (found.ci_low, found.ci_high) == pytest.approx((low, high), rel=1e-8, abs=1e-8)


@seeded
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=3, max_size=20))
def test_queries_as_units_give_the_paired_t_test(rows: list[tuple[int, int]]) -> None:
    a, b = ([row[i] for row in rows] for i in (0, 1))
    gaps = [q - p for p, q in rows]
    found = difference(paired(singles(a), singles(b), singles(gaps)))
    if len(set(gaps)) == 1:
        assert (found.status, found.p) == ("zero_variance", None)
    else:
        assert found.p == pytest.approx(stats.ttest_rel(b, a).pvalue, rel=1e-9)
        assert found.df == len(rows) - 1


def test_a_difference_by_hand() -> None:
    # Control units 0/1 0/1 1/1 1/1: mean 1/2, V = 1/12; treatment 1/2 2/2: mean 3/4, z = ∓1/2,
    # V = 2 · (1/2) / 16 = 1/16. SE² = 7/48; df = (7/48)² / ((1/12)²/3 + (1/16)²/1) = 3.4186.
    found = difference(
        independent(of([(0, 1), (0, 1), (1, 1), (1, 1)], 1), of([(1, 2), (2, 2)], 1))
    )
    assert (found.mean_c, found.mean_t, found.effect) == (0.5, 0.75, 0.25)
    assert found.se == pytest.approx(math.sqrt(7 / 48), rel=1e-15)
    assert found.df == pytest.approx((7 / 48) ** 2 / (1 / 432 + 1 / 256), rel=1e-15)
    assert found.t == pytest.approx(0.654654, abs=1e-6)
    assert found.se_method == "delta"


def test_below_200_units_in_either_variant_the_jackknife_is_used() -> None:
    many, few = ([i % 3 for i in range(SMALL)], [2] * SMALL), ([0, 1, 2], [2, 1, 3])
    assert difference(independent_units(many, many)).se_method == "delta"
    for pair in (independent_units(many, few), independent_units(few, many)):
        assert difference(pair).se_method == "jackknife"
    short = tuple(values[:-1] for values in many)
    assert difference(independent_units(many, short)).se_method == "jackknife"


def test_the_jackknife_of_units_that_agree_has_no_variance_at_any_size() -> None:
    # x = n / 3 exactly: in doubles the leave-one-out means would differ in the last bit.
    n = [3, 300_000_003, 9, 3 * 10**15]
    assert jackknife([value // 3 for value in n], n).variance == 0


def test_what_has_no_test_says_why_and_never_p_1() -> None:
    some, flat = of([(0, 1), (1, 1)], 1), of([(1, 2), (1, 2)], 1)
    lone, empty = of([(1, 2)], 1), of([], 1)
    for control, treatment, status, effect in (
        (some, lone, "few_units", 0.0),
        (lone, some, "few_units", 0.0),
        (some, empty, "no_queries", None),
        (empty, some, "no_queries", None),
        (empty, empty, "no_queries", None),
        (flat, flat, "zero_variance", 0.0),
    ):
        found = difference(independent(control, treatment))
        assert (found.status, found.effect) == (status, effect)
        rest = (found.se, found.se_method, found.df, found.t, found.p, found.ci_low, found.ci_high)
        assert rest == (None,) * 7
        assert noninferiority(independent(control, treatment), 0.1) is None


def test_one_variant_without_variance_leaves_the_other_s_degrees_of_freedom() -> None:
    found = difference(independent(of([(1, 2)] * 5, 1), of([(0, 1), (1, 1), (1, 1)], 1)))
    assert (found.status, found.df) == ("ok", 2.0)


def test_units_without_a_query_do_not_count() -> None:
    assert of([(1, 2), (0, 0), (1, 1)]) == of([(1, 2), (1, 1)])
    assert jackknife([1, 0, 1], [2, 0, 1]) == jackknife([1, 1], [2, 1])


@seeded
@given(units, units)
def test_a_margin_of_zero_is_half_of_the_two_sided_test(a, b) -> None:
    pair = independent(of(a), of(b))
    found = difference(pair)
    if found.p is not None:
        one_sided = noninferiority(pair, 0.0)
        assert min(one_sided, 1 - one_sided) == pytest.approx(found.p / 2, rel=1e-9, abs=1e-12)
        other = noninferiority(pair, 0.0, higher_is_better=False)
        assert one_sided + other == pytest.approx(1)


@seeded
@given(units, units, st.sampled_from([0.02, 0.1, 0.5]))
def test_a_margin_shrinks_the_control(a, b, margin: float) -> None:
    scaled = Fraction(1) - Fraction(str(margin))
    control = delta(of(a))
    shrunk = Pair(
        type(control)(control.mean * scaled, control.variance * scaled**2, control.n_units),
        delta(of(b)),
    )
    found = difference(shrunk)
    if found.t is not None:
        direct = stats.t.sf(found.t, found.df)
        assert noninferiority(independent(of(a), of(b)), margin) == pytest.approx(direct, rel=1e-9)


def test_a_larger_margin_is_easier_in_either_direction() -> None:
    pair = independent(of([(3, 5), (2, 5), (3, 5)], 1), of([(3, 5), (3, 5), (2, 5)], 1))
    for higher in (True, False):
        p = [noninferiority(pair, m, higher_is_better=higher) for m in (0.0, 0.1, 0.5)]
        assert p == sorted(p, reverse=True)
        assert p[2] < 0.06 < 0.4 < p[0]


def test_a_paired_contrast_with_a_weight_is_that_of_the_weighted_differences() -> None:
    a, b, n = [3, 1, 4, 1], [2, 7, 1, 8], [5, 9, 5, 9]
    pair = paired(
        RatioMoments.of(a, n),
        RatioMoments.of(b, n),
        RatioMoments.of([q - p for p, q in zip(a, b, strict=True)], n),
    )
    direct = delta(RatioMoments.of([4 * q - 3 * p for p, q in zip(a, b, strict=True)], n, scale=4))
    found = contrast(pair, Fraction(3, 4))
    assert (found.effect, found.variance, found.df) == (direct.mean, direct.variance, 3.0)
    assert pair.n_units == 4


def test_paired_moments_of_two_populations_are_refused() -> None:
    a, b = of([(1, 2), (1, 1)], 1), of([(1, 2), (1, 3)], 1)
    with pytest.raises(ValueError, match="same units"):
        paired(a, b, a)
    with pytest.raises(ValueError, match="same units"):
        paired(a, a, a)


@pytest.mark.parametrize("wrong", [-0.1, 1.0, float("nan")])
def test_a_margin_or_level_out_of_range_is_refused(wrong: float) -> None:
    pair = independent(of([(0, 1), (1, 1)], 1), of([(0, 1), (1, 1)], 1))
    with pytest.raises(ValueError, match="margin"):
        noninferiority(pair, wrong)
    with pytest.raises(ValueError, match="alpha"):
        difference(pair, alpha=wrong)


def test_moments_of_two_scales_do_not_add() -> None:
    with pytest.raises(ValueError, match="scales"):
        of([(1, 1)], 1) + of([(1, 1)], NANO)

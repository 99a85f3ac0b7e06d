"""The checks beside a result."""

import pytest
from scipy import stats

from rankspark.stats import (
    RatioMoments,
    design_effect,
    difference,
    effect_size,
    independent,
    max_unit_share,
    pre_period_p,
    queries_per_unit_p,
    sample_ratio,
)


def test_a_split_is_tested_against_its_weights() -> None:
    # Expected 75 and 25: (9² / 75 + 9² / 25) = 4.32.
    found = sample_ratio([84, 16], [3, 1])
    assert found.chi2 == pytest.approx(4.32)
    assert found.p == pytest.approx(stats.chi2.sf(4.32, 1), rel=1e-12)
    assert found == sample_ratio([84, 16], [0.75, 0.25])


def test_an_exact_split_has_p_1_and_too_few_units_have_none() -> None:
    assert sample_ratio([100, 200, 300], [1, 2, 3]).p == 1
    assert sample_ratio([8, 8]).p == 1
    assert sample_ratio([1, 14]).p is None  # 7.5 expected
    assert sample_ratio([900, 10], [0.995, 0.005]).p is None  # 4.55 expected
    assert sample_ratio([100]).p is None
    assert sample_ratio([0, 0]).p is None
    assert sample_ratio([0, 100]).p < 1e-20


@pytest.mark.parametrize("split", [[1], [1, 2, 3], [0, 1], [-1, 2]])
def test_a_split_that_is_none_is_refused(split: list[float]) -> None:
    with pytest.raises(ValueError, match="positive weight"):
        sample_ratio([10, 10], split)


def test_queries_per_unit_is_welch_s_test_of_the_counts() -> None:
    a, b = [1, 4, 2, 2, 3], [5, 3, 6, 4]
    left, right = (RatioMoments.of([0] * len(n), n) for n in (a, b))
    expected = stats.ttest_ind(b, a, equal_var=False).pvalue
    assert queries_per_unit_p(left, right) == pytest.approx(expected, rel=1e-12)
    assert queries_per_unit_p(left, RatioMoments.of([0], [3])) is None


def test_the_pre_period_is_compared_as_the_period_is() -> None:
    a, b = RatioMoments.of([1, 4, 2], [5, 6, 7]), RatioMoments.of([5, 3, 6], [6, 6, 7])
    assert pre_period_p(a, b) == difference(independent(a, b)).p
    assert pre_period_p(a, RatioMoments.of([], [])) is None


def test_the_heaviest_unit_is_that_of_any_variant() -> None:
    assert max_unit_share([3, 10], [100, 100]) == 0.1
    assert max_unit_share([0], [0]) is None


def test_queries_that_are_units_have_a_design_effect_of_1() -> None:
    values = [3, 1, 4, 1, 5]
    moments, squares = RatioMoments.of(values, [1] * 5, scale=10), sum(v * v for v in values)
    assert design_effect((moments, squares), (moments, squares)) == 1


def test_units_whose_queries_agree_count_once() -> None:
    # 50 units of 4 equal queries: the variance is 4 times as large, up to k/(k-1) of each.
    moments = RatioMoments.of([4 * (i % 2) for i in range(50)], [4] * 50)
    clustered, single = 0.25 / 49, 0.25 / 199
    assert design_effect((moments, 100)) == pytest.approx(clustered / single)
    assert clustered / single == pytest.approx(4, rel=0.02)


def test_a_design_effect_without_variance_is_none() -> None:
    flat, lone = RatioMoments.of([2, 2], [2, 2]), RatioMoments.of([1], [2])
    assert design_effect((flat, 4)) is None
    assert design_effect((lone, 1)) is None
    assert design_effect((RatioMoments.of([], []), 0)) is None
    # All variance within units: clustered there is none.
    assert design_effect((RatioMoments.of([1, 1], [2, 2]), 2)) is None


def test_the_effect_size_is_in_pooled_standard_deviations_of_a_query() -> None:
    a, b = [1, 2, 3, 6], [4, 5, 9]
    groups = [(RatioMoments.of([sum(v)], [len(v)], scale=1), sum(x * x for x in v)) for v in (a, b)]
    pooled = (14 + 14) / (3 + 2)  # the sums of squares about 3 and 6
    assert effect_size(3.0, *groups) == pytest.approx(3 / pooled**0.5)
    assert effect_size(3.0, (RatioMoments.of([2], [2]), 2)) is None

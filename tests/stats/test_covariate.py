"""CUPED against a regression on the units' z-scores and the edges."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rankspark.stats import CupedMoments, cuped, delta, difference, independent

seeded = settings(max_examples=50, deadline=None, derandomize=True)
row = st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
group = st.lists(row, min_size=3, max_size=20)


def of(rows: list[tuple[int, int, int, int]]) -> CupedMoments:
    return CupedMoments.of(*(list(column) for column in zip(*rows, strict=True)))


def z(rows) -> tuple[np.ndarray, np.ndarray]:
    """Each unit's part of the mean, and of the pre-period mean, about their own ratios."""
    x, n, a, b = np.array(rows, float).T
    return (x - x.sum() / n.sum() * n) / n.mean(), (a - a.sum() / b.sum() * b) / b.mean()


@seeded
@given(group, group)
def test_theta_is_the_slope_and_the_variance_that_of_the_residuals(control, treatment) -> None:
    assume(all(sum(r[3] for r in rows) for rows in (control, treatment)))
    now, pre = z([*control, *treatment])
    assume(pre @ pre > 1e-9)
    found = cuped(of(control), of(treatment))
    theta = (now @ pre) / (pre @ pre)
    assert found.theta == pytest.approx(theta, rel=1e-9, abs=1e-12)
    for rows, mean in ((control, found.pair.control), (treatment, found.pair.treatment)):
        now, pre = z(rows)
        k = len(rows)
        residual = now - theta * pre
        naive = residual @ residual / (k - 1) / k
        assert float(mean.variance) == pytest.approx(naive, rel=1e-7, abs=1e-12)


def test_a_pre_period_that_explains_everything_leaves_nothing() -> None:
    # Every unit repeats its past, the treatment's units are a tenth better throughout.
    past = [3, 5, 8, 2, 6, 4]
    control = of([(10 * v, 10, 10 * v, 10) for v in past])
    found = cuped(control, control)
    assert (found.theta, found.variance_reduction) == (1.0, 1.0)
    better = of([(10 * v + 1, 10, 10 * v, 10) for v in past])
    result = difference(cuped(control, better).pair)
    assert result.effect == pytest.approx(0.1)
    assert result.status == "zero_variance"


def test_an_imbalance_before_the_start_is_taken_out() -> None:
    # The treatment's units were better by 1 before and are better by 1 now: no effect is left.
    now = [3, 5, 4, 6]
    control = of([(v, 1, v, 1) for v in now])
    treatment = of([(v + 1, 1, v + 1, 1) for v in now])
    raw = difference(independent(control.now, treatment.now)).effect
    assert raw == 1.0
    assert difference(cuped(control, treatment).pair).effect == pytest.approx(0)


def test_without_a_pre_period_the_means_stay_as_they_are_and_the_status_says_so() -> None:
    new = of([(1, 2, 0, 0), (2, 2, 0, 0), (0, 1, 0, 0)])
    old = of([(1, 2, 1, 2), (2, 2, 2, 2), (0, 1, 0, 1)])
    flat = of([(1, 2, 1, 2), (2, 2, 1, 2), (0, 1, 1, 2)])
    for control, treatment in ((new, new), (new, old), (old, new), (flat, flat)):
        found = cuped(control, treatment)
        assert (found.status, found.theta, found.variance_reduction) == (
            "no_pre_period",
            None,
            None,
        )
        assert found.pair.control == delta(control.now)
    assert cuped(old, of([(1, 1, 1, 1)])).status == "few_units"
    assert cuped(old, CupedMoments.of([], [], [], [])).status == "no_queries"


def test_new_units_count_as_no_queries_before_and_none_may_be_missing() -> None:
    moments = of([(1, 2, 0, 0), (2, 2, 2, 3)])
    assert (moments.pre.n_units, moments.pre.sum_n) == (2, 3)
    with pytest.raises(ValueError, match="new unit"):
        CupedMoments(moments.now, of([(1, 2, 0, 0)]).pre, 0, 0, 0, 0)

"""Power by simulation and by published numbers, the sequence by its guarantee."""

import math

import numpy as np
import pytest
from scipy import stats

from rankspark.stats import (
    Difference,
    RatioMoments,
    confidence_sequence,
    delta,
    difference,
    independent,
    mde,
    mde_ratio,
    planned_mde,
    required_units,
)


def found(effect: float, se: float, df: float) -> Difference:
    return Difference("ok", effect=effect, se=se, df=df, t=effect / se)


def test_the_mde_is_found_with_the_power_asked_for() -> None:
    # Draws of the t statistic of 6 degrees of freedom; 400,000 give the power to ±0.2%.
    smallest = mde(found(0, 1, 6))
    random = np.random.default_rng(7)
    t = (random.normal(smallest, 1, 400_000)) / np.sqrt(random.chisquare(6, 400_000) / 6)
    assert (abs(t) > stats.t.ppf(0.975, 6)).mean() == pytest.approx(0.8, abs=0.003)


@pytest.mark.parametrize("df", [1.0, 2.5, 200.0, 1e5, 9e6, 2e7, 1e12])
def test_the_mde_of_any_number_of_units_is_finite_and_falls_to_the_normal_s(df: float) -> None:
    smallest = mde(found(0, 1, df))
    assert smallest >= 2.80158
    assert df < 1e5 or smallest == pytest.approx(2.801585, abs=1e-4)


def test_the_mde_ratio_has_no_sign_and_what_has_no_error_no_mde() -> None:
    assert mde_ratio(found(-0.1, 0.02, 1e9)) == pytest.approx(5 / 2.801585, rel=1e-6)
    assert mde(Difference("few_units", effect=0.1)) is None
    assert mde_ratio(Difference("few_units", effect=0.1)) is None
    with pytest.raises(ValueError, match="power"):
        mde(found(0, 1, 5), power=1.0)


def test_cohen_s_table_of_sample_sizes() -> None:
    # Cohen 1988, table 2.4.1: d = .5, two-sided .05, power .80: 64 a group; d = .2: 393 or 394.
    unit = delta(RatioMoments.of([0, 2] * 5000, [1] * 10000))  # mean 1, variance 10000 / 9999
    assert required_units(unit, 0.5) / 2 == pytest.approx(64, abs=0.5)
    assert required_units(unit, -0.2) / 2 == pytest.approx(393.5, abs=0.6)


def test_the_units_required_are_the_fewest_that_find_the_lift() -> None:
    baseline = delta(RatioMoments.of([3, 1, 4, 1, 5], [5, 9, 2, 6, 5]))
    for share in (0.5, 0.1):
        n = required_units(baseline, 0.1, share=share)
        effect = 0.1 * float(baseline.mean)
        assert planned_mde(baseline, n, share=share) <= effect
        assert planned_mde(baseline, n - 1, share=share) > effect


def test_nothing_can_be_planned_without_a_baseline() -> None:
    flat, none = delta(RatioMoments.of([0, 0], [1, 1])), delta(RatioMoments.of([], []))
    assert required_units(flat, 0.1) is None
    assert required_units(none, 0.1) is None
    assert required_units(delta(RatioMoments.of([0, 1], [1, 1])), 0.0) is None
    assert planned_mde(none, 100) is None


def test_the_sequence_is_tuned_to_the_plan_never_to_the_current_number() -> None:
    now = found(0.1, 0.03, 100)
    default = confidence_sequence(now, 300)
    assert default.n_planned == 5000
    assert default == confidence_sequence(now, 300, planned=5000)
    assert confidence_sequence(now, 300, planned=300).ci_low > default.ci_low
    with pytest.raises(ValueError, match="planned"):
        confidence_sequence(now, 300, planned=0)


def test_the_sequence_s_p_is_the_level_at_which_it_excludes_0() -> None:
    now = found(0.1, 0.025, 100)
    p = confidence_sequence(now, 400).p
    # Its width at another level, with the plan's tuning kept: solve for the edge at 0.
    w = (-2 * math.log(0.05) + math.log(1 - 2 * math.log(0.05))) / 5000
    half = 0.025 * math.sqrt(2 * (400 * w + 1) / (400 * w) * math.log((400 * w + 1) ** 0.5 / p))
    assert half == pytest.approx(0.1, rel=1e-12)
    assert confidence_sequence(found(1e-9, 1, 100), 400).p == 1
    assert confidence_sequence(found(1e3, 1, 100), 10**9).p == pytest.approx(0, abs=1e-300)


def test_daily_looks_at_nothing_alarm_as_rarely_as_promised() -> None:
    # 150 A/A tests of 10 looks at 200 more units each: fixed p < .05 at some look in far more
    # than 5%, the sequence in at most 5%.
    random = np.random.default_rng(3)
    fixed = always = 0
    for _ in range(150):
        x = random.integers(0, 2, (2, 1000)).cumsum(axis=1)
        hits = [False, False]
        for k in range(100, 1001, 100):
            a, b = (RatioMoments(k, int(s), k, int(s), int(s), k) for s in x[:, k - 1])
            looked = difference(independent(a, b))
            hits[0] |= looked.p < 0.05
            hits[1] |= confidence_sequence(looked, 2 * k, planned=2000).p < 0.05
        fixed, always = fixed + hits[0], always + hits[1]
    assert fixed / 150 > 0.12
    assert always / 150 <= 0.05


def test_no_difference_has_no_sequence() -> None:
    gone = confidence_sequence(Difference("few_units", effect=0.1), 3)
    assert (gone.p, gone.ci_low, gone.ci_high) == (None, None, None)

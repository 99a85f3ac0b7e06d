"""How large a difference a test can see, and how many units a difference needs.

The power is that of the two-sided t-test, by the noncentral t distribution, not its normal
approximation.
"""

from __future__ import annotations

import math
from functools import lru_cache

from scipy.optimize import brentq
from scipy.stats import nct, norm
from scipy.stats import t as student

from rankspark.stats.pair import Difference, check_alpha
from rankspark.stats.ratio import Mean

# From here the noncentral t is the normal to eight digits, and its series grows slow.
_MANY = 1e7


def mde(result: Difference, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest true difference that a test of this standard error finds with this power.

        >>> mde(Difference("ok", effect=0.1, se=0.02, df=1e6))
        0.0560

    Args:
        result: whose `se` and `df` count; its effect does not.
        alpha: of the two-sided test.
        power: the chance to find it.
    """
    if result.se is None or result.df is None:
        return None
    return _noncentrality(result.df, alpha, power) * result.se


def mde_ratio(result: Difference, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """|effect| / MDE: below 1 the test was too small for an effect like the one it shows.

    >>> mde_ratio(Difference("ok", effect=-0.028, se=0.02, df=1e6))
    0.4997
    """
    smallest = mde(result, alpha=alpha, power=power)
    return None if smallest is None or result.effect is None else abs(result.effect) / smallest


def planned_mde(
    baseline: Mean, n_units: int, *, share: float = 0.5, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest difference that a planned test finds.

        >>> from rankspark.stats import RatioMoments, delta
        >>> planned_mde(delta(RatioMoments.of([0, 1] * 50, [1] * 100)), 1000)
        0.0892

    Args:
        baseline: the mean as it is today, over any number of units.
        n_units: of both variants together.
        share: of them in the treatment.
        alpha: of the two-sided test.
        power: the chance to find it.
    """
    if baseline.variance is None or n_units < 4:
        return None
    se = math.sqrt(float(baseline.variance) * baseline.n_units / (n_units * share * (1 - share)))
    return _noncentrality(float(n_units - 2), alpha, power) * se


def required_units(
    baseline: Mean, lift: float, *, share: float = 0.5, alpha: float = 0.05, power: float = 0.8
) -> int | None:
    """The units of both variants together that find a relative lift.

        >>> from rankspark.stats import RatioMoments, delta
        >>> required_units(delta(RatioMoments.of([0, 1] * 50, [1] * 100)), 0.1)
        3174

    Args:
        baseline: the mean as it is today, over any number of units.
        lift: 0.02 is two percent; its sign does not count.
        share: of the units in the treatment.
        alpha: of the two-sided test.
        power: the chance to find it.

    Returns:
        None where the baseline has no variance or no mean, or the lift is 0.
    """
    if not baseline.mean or not baseline.variance or not lift:
        return None
    effect = abs(float(baseline.mean) * lift)

    def found(n: int) -> bool:
        smallest = planned_mde(baseline, n, share=share, alpha=alpha, power=power)
        return smallest is not None and smallest <= effect

    high = 4
    while not found(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if found(middle) else (middle, high)
    return high


@lru_cache(maxsize=1024)
def _noncentrality(df: float, alpha: float, power: float) -> float:
    check_alpha(alpha)
    if not alpha < power < 1:
        raise ValueError(f"a power lies between alpha and 1, not {power}")
    if df > _MANY:
        # The other tail is below 1e-6 of this for any usual alpha and power.
        return float(norm.ppf(1 - alpha / 2) + norm.ppf(power))
    q = float(student.ppf(1 - alpha / 2, df))

    def missing(delta: float) -> float:
        return float(nct.sf(q, df, delta) + nct.sf(q, df, -delta)) - power

    high = 1.0
    while missing(high) < 0:
        high *= 2
    return float(brentq(missing, 0.0, high, xtol=1e-12, rtol=1e-12))

"""The mean of a per-query measure when units, not queries, were randomised.

MRR, NDCG and hit rate are ratios Σx / Σn over units u: x_u the sum of a unit's per-query values,
n_u the number of its queries. Their variance is that of a ratio of means (the delta method: Deng,
Knoblich, Lu, "Applying the Delta Method in Metric Analytics", KDD 2018), equal to cluster-robust
least squares (CR0) times k / (k - 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from scipy.stats import t as student


@dataclass(frozen=True)
class RatioMoments:
    """Sums over units, exact integers; x may be in any unit (see `scale`), n counts queries.

    Attributes:
        n_units: k, the units with a query.
        sum_x: Σx.
        sum_n: Σn.
        sum_xx: Σx².
        sum_xn: Σxn.
        sum_nn: Σn².
        scale: parts of one in which x is counted.
    """

    n_units: int
    sum_x: int
    sum_n: int
    sum_xx: int
    sum_xn: int
    sum_nn: int
    scale: int = 1


@dataclass(frozen=True)
class RatioEstimate:
    """A mean with its uncertainty; None where it cannot be computed.

    Attributes:
        mean: Σx / Σn.
        std_error: of the mean; None below two units.
        ci_low: lower end of the interval, Student t with k - 1 degrees of freedom.
        ci_high: its upper end.
    """

    mean: float | None = None
    std_error: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


def estimate(moments: RatioMoments, *, alpha: float = 0.05) -> RatioEstimate:
    """Estimate a ratio of sums over units.

    With r = Σx/Σn and z_u = x_u - r·n_u: V = k/(k-1) · Σz² / (Σn)². The arithmetic is exact up to
    the last division, so nothing cancels and any order of the sums gives the same doubles.

    Args:
        moments: the sums.
        alpha: one minus the level of the interval.
    """
    m = moments
    if m.sum_n == 0:
        return RatioEstimate()
    ratio = Fraction(m.sum_x, m.sum_n)
    mean = float(ratio / m.scale)
    if m.n_units < 2:
        return RatioEstimate(mean=mean)
    sum_zz = m.sum_xx - 2 * ratio * m.sum_xn + ratio * ratio * m.sum_nn
    variance = Fraction(m.n_units, m.n_units - 1) * sum_zz / (m.sum_n * m.scale) ** 2
    std_error = math.sqrt(variance)
    half = float(student.ppf(1 - alpha / 2, m.n_units - 1)) * std_error
    return RatioEstimate(mean, std_error, mean - half, mean + half)

"""The relative difference with an interval that never contradicts the p-value.

Fieller, "Some Problems in Interval Estimation", JRSS B 1954. The interval holds every θ for which
treatment - θ · control is not significantly different from 0; so it excludes a lift of 0 exactly
when the absolute test rejects. The delta method and the log scale do not have this property.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from scipy.stats import t as student

from rankspark.stats.pair import Pair, check_alpha, contrast
from rankspark.stats.ratio import Status


@dataclass(frozen=True)
class Lift:
    """mean_t / mean_c - 1; None where it cannot be computed, and `status` says why.

    Attributes:
        status: "ok", or why something is None.
        lift: 0.02 is two percent; None where the control may be 0.
        ci_low: lower end of Fieller's interval.
        ci_high: its upper end.
    """

    status: Status
    lift: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


def fieller(pair: Pair, *, alpha: float = 0.05) -> Lift:
    """The relative lift and Fieller's interval, at the degrees of freedom of the absolute test.

    With q Student's quantile, it solves (mean_t - θ·mean_c)² = q²·(V_t - 2θC + θ²V_c), C the
    covariance of paired rankers. Where q²·V_c >= mean_c² the control is not clearly different from
    0 and a ratio to it means nothing.

        >>> from rankspark.stats import RatioMoments, fieller, independent
        >>> control = RatioMoments.of([3, 4, 5, 4], [5] * 4)
        >>> treatment = RatioMoments.of([4, 5, 5, 5], [5] * 4)
        >>> result = fieller(independent(control, treatment))
        >>> result.lift, result.ci_low, result.ci_high
        (0.1875, -0.0988, 0.6500)

    Args:
        pair: the two means.
        alpha: one minus the level of the interval.
    """
    check_alpha(alpha)
    control, treatment = pair.control, pair.treatment
    if control.mean is None or treatment.mean is None:
        return Lift(pair.status)
    if control.mean == 0:
        return Lift("control_near_zero")
    ratio = treatment.mean / control.mean
    status, df = pair.status, contrast(pair).df
    if status != "ok" or df is None or control.variance is None or treatment.variance is None:
        return Lift(status, float(ratio - 1))
    q2 = Fraction(float(student.ppf(1 - alpha / 2, df))) ** 2
    g = q2 * control.variance / control.mean**2
    if g >= 1:
        return Lift("control_near_zero")
    v_c, v_t = control.variance / control.mean**2, treatment.variance / control.mean**2
    cov = (pair.covariance or Fraction(0)) / control.mean**2
    # The discriminant in a form that is not negative: the last bracket is a determinant.
    inside = v_t - 2 * ratio * cov + ratio**2 * v_c - q2 * (v_t * v_c - cov**2)
    half = math.sqrt(q2 * max(inside, Fraction(0))) / float(1 - g)
    centre = float((ratio - q2 * cov) / (1 - g) - 1)
    return Lift("ok", float(ratio - 1), centre - half, centre + half)

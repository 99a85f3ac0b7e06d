"""The mean of a per-query measure when units, not queries, were randomised.

MRR, NDCG and hit rate are ratios Σx / Σn over units u: x_u the sum of a unit's per-query values,
n_u the number of its queries. Their variance is that of a ratio of means (the delta method: Deng,
Knoblich, Lu, "Applying the Delta Method in Metric Analytics", KDD 2018), equal to cluster-robust
least squares (CR0) times k / (k - 1).

Means and variances stay fractions of integers until a result is reported: nothing cancels, and
equal sums give equal doubles whatever order they were added in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

Ints = NDArray[np.int64]

Status = Literal[
    "ok", "no_queries", "few_units", "zero_variance", "control_near_zero", "no_pre_period"
]
"""Why a result is None: a variant without a query; below 2 units; nothing varies; a relative result
whose control may be 0; nothing before the start to adjust by."""

SeMethod = Literal["delta", "jackknife"]


@dataclass(frozen=True)
class RatioMoments:
    """Sums over units, exact integers; x may be in any unit (see `scale`), n counts queries.

        >>> one, two = RatioMoments.of([1, 2], [2, 2]), RatioMoments.of([0], [4])
        >>> one + two
        RatioMoments(n_units=3, sum_x=3, sum_n=8, sum_xx=5, sum_xn=6, sum_nn=24, scale=1)

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

    @classmethod
    def of(cls, x: Ints | list[int], n: Ints | list[int], *, scale: int = 1) -> RatioMoments:
        """The sums of the given units, those without a query left out.

        Args:
            x: int[k], a unit's sum of values.
            n: int[k], the number of its queries.
            scale: parts of one in which x is counted.
        """
        pairs = [(int(a), int(b)) for a, b in zip(x, n, strict=True) if b]
        return cls(
            n_units=len(pairs),
            sum_x=sum(a for a, _ in pairs),
            sum_n=sum(b for _, b in pairs),
            sum_xx=sum(a * a for a, _ in pairs),
            sum_xn=sum(a * b for a, b in pairs),
            sum_nn=sum(b * b for _, b in pairs),
            scale=scale,
        )

    def __add__(self, other: RatioMoments) -> RatioMoments:
        """The sums of both, which must share no unit."""
        if self.scale != other.scale:
            raise ValueError(f"moments of scales {self.scale} and {other.scale} do not add")
        return RatioMoments(
            self.n_units + other.n_units,
            self.sum_x + other.sum_x,
            self.sum_n + other.sum_n,
            self.sum_xx + other.sum_xx,
            self.sum_xn + other.sum_xn,
            self.sum_nn + other.sum_nn,
            self.scale,
        )

    @property
    def counts(self) -> RatioMoments:
        """The moments of queries a unit: the same engine then compares these."""
        k, n, nn = self.n_units, self.sum_n, self.sum_nn
        return RatioMoments(k, n, k, nn, n, k)


@dataclass(frozen=True)
class Mean:
    """A mean over units and its variance, exact.

    Attributes:
        mean: None without a query.
        variance: of the mean; None below two units.
        n_units: k.
        method: how the variance came about.
    """

    mean: Fraction | None
    variance: Fraction | None
    n_units: int
    method: SeMethod = "delta"

    @property
    def status(self) -> Status:
        """What it lacks."""
        if self.mean is None:
            return "no_queries"
        return "few_units" if self.variance is None else "ok"


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


def delta(moments: RatioMoments) -> Mean:
    """Σx / Σn with the delta method's variance.

    With r = Σx/Σn and z_u = x_u - r·n_u: V = k/(k-1) · Σz² / (Σn)². Exact.

        >>> delta(RatioMoments.of([0, 1, 1, 0], [1, 1, 1, 1]))
        Mean(mean=Fraction(1, 2), variance=Fraction(1, 12), n_units=4, method='delta')
    """
    m = moments
    if m.sum_n == 0:
        return Mean(None, None, m.n_units)
    ratio = Fraction(m.sum_x, m.sum_n)
    if m.n_units < 2:
        return Mean(ratio / m.scale, None, m.n_units)
    sum_zz = m.sum_xx - 2 * ratio * m.sum_xn + ratio * ratio * m.sum_nn
    variance = Fraction(m.n_units, m.n_units - 1) * sum_zz / (m.sum_n * m.scale) ** 2
    return Mean(ratio / m.scale, variance, m.n_units)


def jackknife(x: Ints | list[int], n: Ints | list[int], *, scale: int = 1) -> Mean:
    """Σx / Σn with the variance of leaving out a unit at a time: for few units.

    V = (k-1)/k · Σ(r₍₋u₎ - mean of them)². In any order of the units the same double.

        >>> float(jackknife([0, 1, 1, 0], [1, 1, 1, 1]).variance)  # of equal units: the delta's
        0.0833

    Args:
        x: int[k], a unit's sum of values.
        n: int[k], the number of its queries; units without one are left out.
        scale: parts of one in which x is counted.
    """
    whole = delta(RatioMoments.of(x, n, scale=scale))
    if whole.variance is None:
        return whole
    pairs = [(int(a), int(b)) for a, b in zip(x, n, strict=True) if b]
    sum_x, sum_n = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    # r(-u) - r, a quotient of integers: their difference in doubles would cancel.
    moves = [(sum_x * b - a * sum_n) / (sum_n * (sum_n - b)) for a, b in pairs]
    k = len(pairs)
    centre = math.fsum(moves) / k
    spread = math.fsum((move - centre) ** 2 for move in moves)
    return Mean(whole.mean, Fraction(k - 1, k) * Fraction(spread) / scale**2, k, "jackknife")


def estimate(moments: RatioMoments, *, alpha: float = 0.05) -> RatioEstimate:
    """Estimate a ratio of sums over units.

        >>> estimate(RatioMoments.of([0, 1, 1, 0], [1, 1, 1, 1])).mean
        0.5

    Args:
        moments: the sums.
        alpha: one minus the level of the interval.
    """
    result = delta(moments)
    if result.mean is None:
        return RatioEstimate()
    mean = float(result.mean)
    if result.variance is None:
        return RatioEstimate(mean=mean)
    std_error = math.sqrt(result.variance)
    half = float(student.ppf(1 - alpha / 2, result.n_units - 1)) * std_error
    return RatioEstimate(mean, std_error, mean - half, mean + half)

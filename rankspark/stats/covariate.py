"""Less variance from what the units did before the start.

CUPED: Deng, Xu, Kohavi, Walker, "Improving the Sensitivity of Online Controlled Experiments by
Utilizing Pre-Experiment Data", WSDM 2013; for ratios Deng, Knoblich, Lu, KDD 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rankspark.stats.pair import Pair
from rankspark.stats.ratio import Ints, Mean, RatioMoments, Status, delta


@dataclass(frozen=True)
class CupedMoments:
    """Sums over the units of a variant: of x and n since the start, of a and b before it.

    Attributes:
        now: moments of x and n.
        pre: moments of a and b over the same units, those new at the start with 0 and 0; so its
            `n_units` is that of `now`.
        sum_xa: Σxa.
        sum_xb: Σxb.
        sum_na: Σna.
        sum_nb: Σnb.
    """

    now: RatioMoments
    pre: RatioMoments
    sum_xa: int
    sum_xb: int
    sum_na: int
    sum_nb: int

    def __post_init__(self) -> None:
        """Refuse moments of two populations."""
        if self.now.n_units != self.pre.n_units:
            raise ValueError(
                f"{self.pre.n_units} units before the start for {self.now.n_units} since;"
                " a new unit counts as 0 queries before"
            )

    @classmethod
    def of(
        cls,
        x: Ints | list[int],
        n: Ints | list[int],
        a: Ints | list[int],
        b: Ints | list[int],
        *,
        scale: int = 1,
    ) -> CupedMoments:
        """The sums of the given units, those without a query since the start left out.

        Args:
            x: int[k], a unit's sum of values.
            n: int[k], the number of its queries.
            a: int[k], its sum of values before the start, 0 for a new unit.
            b: int[k], the number of its queries before the start, 0 for a new unit.
            scale: parts of one in which x and a are counted.
        """
        rows = [
            (int(p), int(q), int(r), int(s)) for p, q, r, s in zip(x, n, a, b, strict=True) if q
        ]
        pre = RatioMoments(
            n_units=len(rows),
            sum_x=sum(r for _, _, r, _ in rows),
            sum_n=sum(s for _, _, _, s in rows),
            sum_xx=sum(r * r for _, _, r, _ in rows),
            sum_xn=sum(r * s for _, _, r, s in rows),
            sum_nn=sum(s * s for _, _, _, s in rows),
            scale=scale,
        )
        return cls(
            now=RatioMoments.of(x, n, scale=scale),
            pre=pre,
            sum_xa=sum(p * r for p, _, r, _ in rows),
            sum_xb=sum(p * s for p, _, _, s in rows),
            sum_na=sum(q * r for _, q, r, _ in rows),
            sum_nb=sum(q * s for _, q, _, s in rows),
        )

    def __add__(self, other: CupedMoments) -> CupedMoments:
        """The sums of both, which must share no unit."""
        return CupedMoments(
            self.now + other.now,
            self.pre + other.pre,
            self.sum_xa + other.sum_xa,
            self.sum_xb + other.sum_xb,
            self.sum_na + other.sum_na,
            self.sum_nb + other.sum_nb,
        )


@dataclass(frozen=True)
class Cuped:
    """Adjusted means, to be tested as any pair.

    Attributes:
        status: "ok", or why nothing was adjusted; `pair` is then of the means as they are.
        pair: the two means less theta times how far each variant's pre-period mean is from that of
            both.
        theta: the slope of the mean on the pre-period mean, of both variants together.
        variance_reduction: 1 - V adjusted / V of the difference; below 0 where it did harm.
    """

    status: Status
    pair: Pair
    theta: float | None = None
    variance_reduction: float | None = None


def cuped(control: CupedMoments, treatment: CupedMoments) -> Cuped:
    """Adjust two groups of units by their pre-period ratios, with one theta for both.

        >>> was = [3, 1, 4, 1, 5]
        >>> control = CupedMoments.of([4, 1, 4, 2, 5], [5] * 5, was, [5] * 5)
        >>> treatment = CupedMoments.of([4, 2, 5, 1, 5], [5] * 5, was, [5] * 5)
        >>> result = cuped(control, treatment)
        >>> result.theta, result.variance_reduction
        (0.9219, 0.9065)

    Args:
        control: its sums.
        treatment: its sums.
    """
    raw = Pair(delta(control.now), delta(treatment.now))
    if raw.status in ("no_queries", "few_units"):
        return Cuped(raw.status, raw)
    both = control + treatment
    pooled = delta(both.pre)
    # A variant without any query before the start has no pre-period mean to adjust by.
    if not (control.pre.sum_n and treatment.pre.sum_n and pooled.variance):
        return Cuped("no_pre_period", raw)
    theta = _covariance(both) / pooled.variance
    centre = pooled.mean or Fraction(0)
    adjusted = Pair(_adjusted(control, theta, centre), _adjusted(treatment, theta, centre))
    before, after = _variance(raw), _variance(adjusted)
    return Cuped("ok", adjusted, float(theta), float(1 - after / before) if before else None)


def _covariance(m: CupedMoments) -> Fraction:
    # Of the two ratios: k/(k-1) · Σzw / (N·B), z = x - r·n and w = a - s·b.
    now, pre = m.now, m.pre
    r, s = Fraction(now.sum_x, now.sum_n), Fraction(pre.sum_x, pre.sum_n)
    sum_zw = m.sum_xa - r * m.sum_na - s * m.sum_xb + r * s * m.sum_nb
    scales = now.sum_n * now.scale * pre.sum_n * pre.scale
    return Fraction(now.n_units, now.n_units - 1) * sum_zw / scales


def _adjusted(m: CupedMoments, theta: Fraction, pooled: Fraction) -> Mean:
    now, pre = delta(m.now), delta(m.pre)
    # None of them is None: there are queries and two units.
    mean = (now.mean or 0) - theta * ((pre.mean or 0) - pooled)
    variance = (now.variance or 0) + theta**2 * (pre.variance or 0) - 2 * theta * _covariance(m)
    return Mean(Fraction(mean), Fraction(variance), m.now.n_units)


def _variance(pair: Pair) -> Fraction:
    return (pair.control.variance or Fraction(0)) + (pair.treatment.variance or Fraction(0))

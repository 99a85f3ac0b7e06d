"""What makes a comparison doubtful: the split, the denominators, the start, single units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import scipy.stats

from rankspark.stats.pair import difference, independent
from rankspark.stats.ratio import RatioMoments, delta

MIN_EXPECTED = 8
"""Units a variant below which the chi-square distribution is no good approximation."""


@dataclass(frozen=True)
class SampleRatio:
    """Whether units were split as configured; None where too few are expected to say.

    Attributes:
        chi2: the statistic.
        p: of the configured split.
    """

    chi2: float | None = None
    p: float | None = None


def sample_ratio(n_units: Sequence[int], split: Sequence[float] | None = None) -> SampleRatio:
    """Chi-square test of distinct units against the configured split.

    Fabijan et al., "Diagnosing Sample Ratio Mismatch in Online Controlled Experiments", KDD 2019.
    Never of queries: those of one unit come together.

        >>> sample_ratio([134, 76]).p
        0.0001

    Args:
        n_units: distinct units by variant, exact.
        split: the shares or weights, in the same order; equal ones by default.

    Raises:
        ValueError: a weight that is not positive, or another number of them.
    """
    weights = [Fraction(str(weight)) for weight in split or [1] * len(n_units)]
    if len(weights) != len(n_units) or min(weights, default=Fraction(1)) <= 0:
        raise ValueError(f"a split has a positive weight for each of the {len(n_units)} variants")
    total = sum(n_units)
    expected = [total * weight / sum(weights) for weight in weights]
    if len(n_units) < 2 or min(expected) < MIN_EXPECTED:
        return SampleRatio()
    chi2 = float(sum((n - e) ** 2 / e for n, e in zip(n_units, expected, strict=True)))
    return SampleRatio(chi2, float(scipy.stats.chi2.sf(chi2, len(n_units) - 1)))


def queries_per_unit_p(control: RatioMoments, treatment: RatioMoments) -> float | None:
    """Welch's p that units of both variants issue as many queries: else the denominator moved.

    >>> a, b = RatioMoments.of([0] * 4, [1, 2, 1, 2]), RatioMoments.of([0] * 4, [3, 4, 3, 4])
    >>> queries_per_unit_p(a, b)
    0.0027
    """
    return difference(independent(control.counts, treatment.counts)).p


def pre_period_p(control: RatioMoments, treatment: RatioMoments) -> float | None:
    """The p of the same comparison before the start, when nothing differed yet.

    Args:
        control: moments of the pre-period over the units with a query in it.
        treatment: the same.

    >>> a, b = RatioMoments.of([1, 2, 1], [2] * 3), RatioMoments.of([2, 1, 1], [2] * 3)
    >>> pre_period_p(a, b)
    1.0
    """
    return difference(independent(control, treatment)).p


def max_unit_share(heaviest: Iterable[int], totals: Iterable[int]) -> float | None:
    """The largest share of a variant's queries that one unit issued.

        >>> max_unit_share([10, 30], [100, 120])
        0.25

    Args:
        heaviest: by variant, the queries of the unit with most.
        totals: by variant, all queries.
    """
    return max((top / n for top, n in zip(heaviest, totals, strict=True) if n), default=None)


def design_effect(*groups: tuple[RatioMoments, int]) -> float | None:
    """How many times the variance is what it would be were each query a unit of its own.

    Queries / design effect is what they are worth. Kish, "Survey Sampling", 1965. Beside the
    moments over units this needs one sum over queries; 1 exactly where each query is a unit.

        >>> moments = RatioMoments.of([2, 0, 2], [2, 2, 2])  # queries 1 1, 0 0, 1 1
        >>> design_effect((moments, 4))
        2.5

    Args:
        groups: of an A/B test the two variants, of paired rankers one group of their differences:
            moments over units, and Σx² over single queries in parts of scale².

    Returns:
        None where either variance is 0 or cannot be computed.
    """
    clustered = [delta(moments).variance for moments, _ in groups]
    single = [_query_variance(moments, squares) for moments, squares in groups]
    if None in clustered or None in single:
        return None
    bottom = sum(
        (v / m.sum_n for v, (m, _) in zip(single, groups, strict=True) if v is not None),
        Fraction(0),
    )
    top = sum((v for v in clustered if v is not None), Fraction(0))
    return float(top / bottom) if top and bottom else None


def effect_size(effect: float, *groups: tuple[RatioMoments, int]) -> float | None:
    """The effect in standard deviations of a single query: Cohen's d, of paired rankers d_z.

    Args:
        effect: the difference.
        groups: as of :func:`design_effect`; the two variances are pooled.

    >>> effect_size(0.5, (RatioMoments.of([0, 1], [1, 1]), 1), (RatioMoments.of([1, 1], [1, 1]), 2))
    1.0
    """
    single = [_query_variance(moments, squares) for moments, squares in groups]
    pooled, df = Fraction(0), 0
    for variance, (moments, _) in zip(single, groups, strict=True):
        if variance is None:
            return None
        pooled += variance * (moments.sum_n - 1)
        df += moments.sum_n - 1
    return effect / float(pooled / df) ** 0.5 if pooled else None


def _query_variance(moments: RatioMoments, squares: int) -> Fraction | None:
    n = moments.sum_n
    if n < 2:
        return None
    return (squares - Fraction(moments.sum_x**2, n)) / ((n - 1) * moments.scale**2)

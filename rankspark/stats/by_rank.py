"""Where a change of MRR came from, rank by rank.

MRR = Σ_r share(r) / r, share(r) the queries whose first relevant item stands at rank r. So its
change is the sum of Δshare(r) / r, and each share is a ratio over units like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from rankspark.stats.pair import Pair, contrast, difference


@dataclass(frozen=True)
class RankChange:
    """What one rank contributed; None where it cannot be computed.

    Attributes:
        rank: of the first relevant item, from 1.
        share_c: the control's share of queries whose first relevant item stands here.
        share_t: the treatment's.
        contribution: (share_t - share_c) / rank.
        se: its standard error, units clustered; None also where nothing varies.
        ci_low: lower end of its interval.
        ci_high: its upper end.
        p: two-sided, of no change of the share.
    """

    rank: int
    share_c: float | None
    share_t: float | None
    contribution: float | None
    se: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None


@dataclass(frozen=True)
class Decomposition:
    """The change of MRR and its parts.

    Attributes:
        total: the change, the sum of the exact contributions; None without queries.
        ranks: in order of rank.
    """

    total: float | None
    ranks: tuple[RankChange, ...]


def decompose(pairs: Mapping[int, Pair], *, alpha: float = 0.05) -> Decomposition:
    """Split a change of MRR.

        >>> from rankspark.stats import RatioMoments, independent
        >>> n = [2, 2]
        >>> first = independent(RatioMoments.of([1, 0], n), RatioMoments.of([2, 1], n))
        >>> second = independent(RatioMoments.of([1, 1], n), RatioMoments.of([0, 1], n))
        >>> split = decompose({1: first, 2: second})
        >>> split.total, [one.contribution for one in split.ranks]
        (0.375, [0.5, -0.125])

    Args:
        pairs: by rank up to the cutoff, over all queries: x_u counts the unit's queries whose first
            relevant item stands there, n_u all its queries. The ranks at which nobody had one may
            be left out.
        alpha: one minus the level of the intervals.

    Raises:
        ValueError: a rank below 1.
    """
    total, ranks = Fraction(0), []
    known = bool(pairs)
    for rank, pair in sorted(pairs.items()):
        if rank < 1:
            raise ValueError(f"ranks count from 1, not {rank}")
        change = contrast(pair).effect
        known = known and change is not None
        total += (change or Fraction(0)) / rank
        found = difference(pair, alpha=alpha)
        ranks.append(
            RankChange(
                rank=rank,
                share_c=found.mean_c,
                share_t=found.mean_t,
                contribution=None if change is None else float(change / rank),
                se=_over(found.se, rank),
                ci_low=_over(found.ci_low, rank),
                ci_high=_over(found.ci_high, rank),
                p=found.p,
            )
        )
    return Decomposition(float(total) if known else None, tuple(ranks))


def _over(value: float | None, rank: int) -> float | None:
    return None if value is None else value / rank

"""Many tests at once: adjusted p-values, and intervals that agree with them.

A family is the tests of one experiment, range and role. Holm, "A Simple Sequentially Rejective
Multiple Test Procedure", 1979 (the chance of any false alarm), for primary measures and for all
pairs of rankers; Benjamini & Hochberg, JRSS B 1995 (the share of false alarms), for secondary ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rankspark.stats.pair import check_alpha

AdjustMethod = Literal["holm", "benjamini_hochberg", "none"]


@dataclass(frozen=True)
class Adjusted:
    """A test in its family.

    Attributes:
        p: adjusted, at most 1; None for a test that could not be computed.
        alpha: the level at which its interval excludes 0 exactly when p < the family's alpha.
        family_size: the tests that could be computed.
    """

    p: float | None
    alpha: float | None
    family_size: int


def adjust(
    p_values: Sequence[float | None], method: AdjustMethod, *, alpha: float = 0.05
) -> list[Adjusted]:
    """Adjust the p-values of a family, in their order.

    Levels of the intervals, m tests of which R are rejected. Holm: alpha / (m - i + 1), the step
    at which the i-th smallest p was rejected, and alpha / (m - R), where the procedure stopped,
    for the rest; each interval holds at its own level, not all together. Benjamini-Hochberg:
    alpha · R / m (at least alpha / m), so that of the intervals of rejected tests a share of at
    most alpha misses in expectation (Benjamini & Yekutieli, JASA 2005). Either way an interval
    excludes 0 exactly when its adjusted p is below alpha.

        >>> [(round(one.p, 3), round(one.alpha, 4)) for one in adjust([0.01, 0.04, 0.03], "holm")]
        [(0.03, 0.0167), (0.06, 0.025), (0.06, 0.025)]

    Args:
        p_values: None for what could not be computed: it stays None and is not counted.
        method: how.
        alpha: of the family.
    """
    check_alpha(alpha)
    known = [(p, i) for i, p in enumerate(p_values) if p is not None]
    m = len(known)
    result = [Adjusted(None, None, m) for _ in p_values]
    order = sorted(known)
    values = [p for p, _ in order]
    if method == "holm":
        adjusted = _running_max([(m - i) * p for i, p in enumerate(values)])
    elif method == "benjamini_hochberg":
        backward = [m * p / (i + 1) for i, p in enumerate(values)][::-1]
        adjusted = _running_min(backward)[::-1]
    else:
        adjusted = values
    rejected = sum(p < alpha for p in adjusted)
    for rank, (_, i) in enumerate(order):
        if method == "holm":
            level = alpha / (m - min(rank, rejected))
        elif method == "benjamini_hochberg":
            level = alpha * max(rejected, 1) / m
        else:
            level = alpha
        result[i] = Adjusted(min(1.0, adjusted[rank]), level, m)
    return result


def _running_max(values: Sequence[float]) -> list[float]:
    out: list[float] = []
    for value in values:
        out.append(max(value, out[-1]) if out else value)
    return out


def _running_min(values: Sequence[float]) -> list[float]:
    return [-value for value in _running_max([-value for value in values])]

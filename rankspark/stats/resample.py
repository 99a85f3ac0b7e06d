"""A Poisson bootstrap that gives the same numbers wherever and in whatever order it runs.

The weight of a unit in a replicate follows from the unit's id and the replicate's number alone. So
sums of replicates add over partitions, and a unit has the same weights under every ranker and on
every day: pairing survives. Chamandy et al., "Estimating Uncertainty for Massive Data Streams",
2012; splitmix64: Steele, Lea, Flood, OOPSLA 2014.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from rankspark.stats.pair import check_alpha
from rankspark.stats.ratio import Ints

REPLICATES = 1000
SALT = "rankspark|bootstrap|1|"

_CELLS = 1 << 20
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def _thresholds() -> NDArray[np.uint64]:
    # ceil(2^53 · P(Poisson(1) <= w)): exact integers, so no library's rounding decides a weight.
    terms = [Fraction(1)]
    for k in range(1, 40):
        terms.append(terms[-1] / k)
    e, sums = sum(terms), [sum(terms[: k + 1]) for k in range(18)]
    return np.array([-(-(part * 2**53) // e) for part in sums], dtype=np.uint64)


_QUANTILES = _thresholds()


def seeds(unit_ids: Sequence[str]) -> NDArray[np.uint64]:
    """uint64[k]: the first 8 bytes, big-endian, of SHA-256 of the salt and the unit's id."""
    digests = (hashlib.sha256((SALT + unit).encode()).digest() for unit in unit_ids)
    return np.array([int.from_bytes(digest[:8], "big") for digest in digests], dtype=np.uint64)


def splitmix64(seed: NDArray[np.uint64], first: int, last: int) -> NDArray[np.uint64]:
    """uint64[k, last - first]: outputs number first to last - 1, from 0, of each seed.

    >>> splitmix64(np.array([1234567], dtype=np.uint64), 0, 1)
    array([[6457827717110365317]], dtype=uint64)
    """
    steps = np.arange(first + 1, last + 1, dtype=np.uint64)
    z = seed[:, None] + steps * _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _MIX[0]
    z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed


def poisson_weights(seed: NDArray[np.uint64], first: int, last: int) -> Ints:
    """int64[k, last - first]: the units' weights in these replicates, Poisson(1)."""
    uniform = splitmix64(seed, first, last) >> np.uint64(11)
    return np.searchsorted(_QUANTILES, uniform, side="right").astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Replicates:
    """Sums of a variant in each replicate; they add over parts that share no unit.

    Attributes:
        x: int64[B], Σ weight · x.
        n: int64[B], Σ weight · n.
    """

    x: Ints
    n: Ints

    def __add__(self, other: Replicates) -> Replicates:
        """The sums of both parts."""
        return Replicates(self.x + other.x, self.n + other.n)


def replicates(
    unit_ids: Sequence[str], x: Ints | list[int], n: Ints | list[int], *, count: int = REPLICATES
) -> Replicates:
    """Resample units, with a bounded amount of memory.

    Sums are int64: in billionths they hold nine billion queries of value 1 a variant.

        >>> replicates(["u0000"], [5], [1], count=4).x
        array([5, 0, 5, 5])

    Args:
        unit_ids: of k units.
        x: int[k], a unit's sum of values.
        n: int[k], the number of its queries.
        count: B.
    """
    seed = seeds(unit_ids)
    values = np.column_stack([np.asarray(x, np.int64), np.asarray(n, np.int64)]).reshape(-1, 2)
    if len(values) != len(seed):
        raise ValueError(f"{len(seed)} units and {len(values)} pairs of sums")
    sums = np.zeros((count, 2), dtype=np.int64)
    rows = max(1, min(len(seed), _CELLS // max(count, 1)))
    for start in range(0, len(seed), rows):
        part = slice(start, start + rows)
        sums += poisson_weights(seed[part], 0, count).T @ values[part]
    return Replicates(sums[:, 0], sums[:, 1])


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals of a difference; None where fewer than two replicates have queries.

    Attributes:
        n_replicates: those in which both variants have a query.
        se: standard deviation of the difference.
        ci_low: lower percentile of the difference.
        ci_high: upper percentile.
        se_c: standard deviation of the control's mean.
        se_t: of the treatment's.
        lift_ci_low: lower percentile of the lift; None where a replicate's control is 0.
        lift_ci_high: upper percentile.
    """

    n_replicates: int
    se: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    se_c: float | None = None
    se_t: float | None = None
    lift_ci_low: float | None = None
    lift_ci_high: float | None = None


def bootstrap(
    control: Replicates, treatment: Replicates, *, scale: int = 1, alpha: float = 0.05
) -> Bootstrap:
    """The difference over replicates: of two groups of units, or of rankers over the same units.

        >>> ids, n = [f"u{i}" for i in range(400)], [1] * 400
        >>> control, treatment = replicates(ids, [0, 1] * 200, n), replicates(ids, [1, 1] * 200, n)
        >>> bootstrap(control, treatment).se  # sqrt(1/4 / 400) = 0.025
        0.02

    Args:
        control: its sums.
        treatment: its sums.
        scale: parts of one in which x is counted.
        alpha: one minus the level of the intervals.
    """
    check_alpha(alpha)
    used = (control.n > 0) & (treatment.n > 0)
    count = int(used.sum())
    if count < 2:
        return Bootstrap(count)
    mean_c = control.x[used] / control.n[used] / scale
    mean_t = treatment.x[used] / treatment.n[used] / scale
    percentiles = [100 * alpha / 2, 100 * (1 - alpha / 2)]
    gap = mean_t - mean_c
    low, high = np.percentile(gap, percentiles)
    lift: tuple[float | None, float | None] = (None, None)
    if (mean_c != 0).all():
        ends = np.percentile(mean_t / mean_c - 1, percentiles)
        lift = float(ends[0]), float(ends[1])
    return Bootstrap(
        count,
        float(gap.std(ddof=1)),
        float(low),
        float(high),
        float(mean_c.std(ddof=1)),
        float(mean_t.std(ddof=1)),
        *lift,
    )

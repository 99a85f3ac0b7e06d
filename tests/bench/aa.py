"""How often rankspark.stats is wrong when the truth is known: A/A tests of returning users.

    python tests/bench/aa.py [tests]

Users keep a quality over days, come back, and issue more queries the worse they are served. Each
test splits them at random; nothing differs. Shares are of tests, with twice their standard error.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from numpy.typing import NDArray

from rankspark.stats import (
    CupedMoments,
    RatioMoments,
    confidence_sequence,
    cuped,
    difference,
    fieller,
    independent,
    paired,
)

#: Reciprocal ranks down to 10 are whole parts of 2520, so all sums are small integers.
USERS, DAYS, PRE, SCALE = 1000, 28, 14, 2520
Ints = NDArray[np.int64]


def moments(x: Ints, n: Ints) -> RatioMoments:
    k, used = int((n > 0).sum()), n > 0
    x, n = x[used], n[used]
    return RatioMoments(k, int(x.sum()), int(n.sum()), int(x @ x), int(x @ n), int(n @ n), SCALE)


def with_pre(x: Ints, n: Ints, a: Ints, b: Ints) -> CupedMoments:
    used = n > 0
    x, n, a, b = (v[used] for v in (x, n, a, b))
    sums = (int(v) for v in (a.sum(), b.sum(), a @ a, a @ b, b @ b))
    pre = RatioMoments(len(x), *sums, SCALE)
    return CupedMoments(moments(x, n), pre, int(x @ a), int(x @ b), int(n @ a), int(n @ b))


class World:
    """Queries and sums of reciprocal ranks a user and day, of the ranker and of its twin."""

    def __init__(self, random: np.random.Generator) -> None:
        quality = random.normal(0, 0.9, USERS)
        activity = random.gamma(1.3, 1.0, USERS) * np.exp(-0.25 * quality)
        first = random.integers(-PRE, DAYS // 2, USERS)
        days = np.arange(-PRE, DAYS)
        rate = np.where(first[:, None] <= days, 0.2 * activity[:, None], 0)
        self.n = (first[:, None] == days) + random.poisson(rate)
        cell = np.repeat(np.arange(self.n.size), self.n.ravel())
        user = cell // len(days)
        self.x, self.y = (self._sums(random, quality[user], cell) for _ in range(2))

    def _sums(self, random: np.random.Generator, quality: NDArray[np.float64], cell: Ints) -> Ints:
        good = 1 / (1 + np.exp(-(quality - 0.2 + random.normal(0, 0.8, len(cell)))))
        rank = random.geometric(0.15 + 0.75 * good)
        value = np.where(rank <= 10, SCALE // rank, 0)
        summed = np.bincount(cell, value, minlength=self.n.size).astype(np.int64)
        return summed.reshape(self.n.shape)

    def until(self, day: int) -> tuple[Ints, Ints]:
        part = slice(PRE, PRE + day)
        return self.x[:, part].sum(1), self.n[:, part].sum(1)


def main(tests: int) -> None:
    random = np.random.default_rng(20261201)
    hits: dict[str, int] = {}

    def count(name: str, yes: object) -> None:
        hits[name] = hits.get(name, 0) + bool(yes)

    removed = []
    for _ in range(tests):
        world = World(random)
        treated = random.random(USERS) < 0.5
        x, n = world.until(DAYS)
        groups = [moments(x[side], n[side]) for side in (~treated, treated)]
        pair = independent(*groups)
        result = difference(pair)
        count("delta: p < .05", (result.p or 1) < 0.05)
        lift = fieller(pair)
        count("Fieller: interval misses 0", not (lift.ci_low or 0) <= 0 <= (lift.ci_high or 0))
        outside = (lift.ci_low or 0) > 0 or (lift.ci_high or 0) < 0
        count("Fieller: contradicts p", outside != ((result.p or 1) < 0.05))

        a, b = world.x[:, :PRE].sum(1), world.n[:, :PRE].sum(1)
        adjusted = cuped(*(with_pre(*(v[side] for v in (x, n, a, b)))
                           for side in (~treated, treated)))  # fmt: skip
        count("CUPED: p < .05", (difference(adjusted.pair).p or 1) < 0.05)
        removed.append(adjusted.variance_reduction or 0.0)

        y = world.y[:, PRE:].sum(1)
        twin = difference(paired(moments(x, n), moments(y, n), moments(y - x, n)))
        count("paired rankers: p < .05", (twin.p or 1) < 0.05)

        fixed = sequential = False
        for day in range(1, DAYS + 1):
            x, n = world.until(day)
            pair = independent(*(moments(x[side], n[side]) for side in (~treated, treated)))
            looked = difference(pair)
            fixed |= (looked.p or 1) < 0.05
            p = confidence_sequence(looked, pair.n_units, planned=USERS).p
            sequential |= (1.0 if p is None else p) < 0.05
        count("28 daily looks at the fixed test: any p < .05", fixed)
        count("28 daily looks at the confidence sequence: any p < .05", sequential)
    for name, number in hits.items():
        share = number / tests
        print(f"{name}: {share:.4f} +- {2 * (share * (1 - share) / tests) ** 0.5:.4f}")
    print(f"CUPED: variance removed, mean {np.mean(removed):.3f}")
    print(json.dumps({"tests": tests, "users": USERS} | {k: v / tests for k, v in hits.items()}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)

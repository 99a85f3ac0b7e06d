"""Ranked lists, flat and many at once, and sums over the items that matter in them.

A value of a list must be the very same double whatever else is in the batch, so floats are only
added up within a list; running totals over the whole batch are of integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rankspark.errors import ConfigError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Gain = Literal["linear", "exponential"]

#: Whole grades up to this need no search for their levels.
_WHOLE_GRADES = 1000


@dataclass(frozen=True)
class Options:
    """The conventions that all measures share (DESIGN section 4); each default is ours.

    Attributes:
        relevant_from: the smallest relevance that counts as relevant, above 0; None: anything
            above 0. Measures with a gain do not use it.
        no_relevant: the value of a list without a relevant item: 0, or NaN ("skip").
        ties: "average" gives every measure the expected value over all orders of tied items, as
            its parameter `ties=average` does for one (scikit-learn).
        gain: of `ndcg` and `dcg`; "exponential" as in MLlib. `ndcg_exp` and `dcg_exp` have theirs.
        ideal: what the ideal and the number of relevant items come from: the "judged" items where
            these are given; the "shown" ones, always; or, as in MLlib, the judged ones with the
            ideal in their "given" order (without judged items, the shown one), not sorted, so that
            NDCG may pass 1.
        map_denominator: `map@k` divides by all "relevant" items, or by min(relevant, k), the
            "cutoff" (MLlib).
        rbp_gain: "grade" sums the grades of relevant items instead of counting them, so that RBP
            may pass 1 (ranx).

    Raises:
        ConfigError: `relevant_from` is not a number above 0.
    """

    relevant_from: float | None = None
    no_relevant: Literal["zero", "skip"] = "zero"
    ties: Literal["order", "average"] = "order"
    gain: Gain = "linear"
    ideal: Literal["judged", "shown", "given"] = "judged"
    map_denominator: Literal["relevant", "cutoff"] = "relevant"
    rbp_gain: Literal["binary", "grade"] = "binary"

    def __post_init__(self) -> None:
        """Check the threshold."""
        if self.relevant_from is not None and not 0 < self.relevant_from < np.inf:
            raise ConfigError(
                expected="relevant_from to be a number above 0",
                found=str(self.relevant_from),
                action="leave it out for 'any relevance above 0'",
            )


#: The other conventions when nothing is said.
DEFAULTS = Options()

#: What makes the values equal another tool's, given lists in that tool's order.
PROFILES: Mapping[str, Options] = {
    "trec": DEFAULTS,
    "sklearn": Options(ties="average", ideal="shown"),
    "mllib": Options(gain="exponential", ideal="given", map_denominator="cutoff"),
    "ranx": Options(rbp_gain="grade"),
}


@dataclass(frozen=True, eq=False)
class RankedLists:
    """n lists of m items in all, flat, each in rank order; a list may be empty.

    Attributes:
        offsets: int64[n + 1] from 0 to m; list i owns the items offsets[i] to offsets[i + 1].
        rank: int64[m], 1 or more, strictly increasing inside a list, gaps allowed.
        relevance: float64[m], the grade, NaN = unjudged; below 0 counts as 0.
        tied: bool[m], True where an item has the same ranking key as the item before it in its
            list. None: not known, so ties=average cannot be had.
        judged: (int64[n + 1] offsets, float64[...] grades) of all judged items of each list, those
            shown and those never shown; the ideal and the number of relevant items then come from
            here. None: from the shown items.

    Raises:
        ValueError: the arrays do not fit together.
    """

    offsets: Ints
    rank: Ints
    relevance: Floats
    tied: Bools | None = None
    judged: tuple[Ints, Floats] | None = None

    def __post_init__(self) -> None:
        """Check the lengths."""
        fits = (
            len(self.offsets) >= 1
            and self.offsets[0] == 0
            and self.offsets[-1] == len(self.rank) == len(self.relevance)
            and (self.tied is None or len(self.tied) == len(self.rank))
        )
        if fits and self.judged is not None:
            offsets, grades = self.judged
            fits = len(offsets) == len(self.offsets) and offsets[-1] == len(grades)
        if not fits:
            raise ValueError("offsets, rank, relevance, tied and judged do not fit together")

    @classmethod
    def from_grades(cls, *lists: Sequence[float | None]) -> RankedLists:
        """Lists of grades in rank order, None = unjudged; the ranks are 1, 2, 3 ...

        >>> RankedLists.from_grades([1, None], [3]).offsets.tolist()
        [0, 2, 3]
        """
        offsets = bounds_of(np.array([len(grades) for grades in lists], dtype=np.int64))
        return cls(
            offsets=offsets,
            rank=ordinals(offsets),
            relevance=np.array([grade for grades in lists for grade in grades], dtype=np.float64),
        )

    def __len__(self) -> int:
        """The number of lists."""
        return len(self.offsets) - 1


@dataclass(frozen=True, eq=False)
class Selection:
    """Some items of each list: those with a gain, say, typically a tenth to a third of all.

    Attributes:
        lists: n lists.
        index: int64[p], where the items stand in the flat arrays, increasing.
    """

    lists: RankedLists
    index: Ints

    @cached_property
    def bounds(self) -> Ints:
        """int64[n + 1]: list i owns the entries bounds[i] to bounds[i + 1] of the selection."""
        return np.searchsorted(self.index, self.lists.offsets)

    @cached_property
    def rank(self) -> Ints:
        """int64[p]."""
        return self.lists.rank[self.index]

    @cached_property
    def relevance(self) -> Floats:
        """float64[p]."""
        return self.lists.relevance[self.index]

    @cached_property
    def list_index(self) -> Ints:
        """int64[p]: the list of each."""
        return owners(self.bounds)

    @property
    def heads(self) -> Ints:
        """int64[p]: where the list of each begins in the flat arrays."""
        return np.repeat(self.lists.offsets[:-1], np.diff(self.bounds))

    @cached_property
    def number(self) -> Ints:
        """int64[p]: 1, 2, 3 ... in each list."""
        return ordinals(self.bounds)

    def total(self, values: Floats, cutoff: int | None = None) -> Floats:
        """float64[n]: the sum of float64[p] values a list, over ranks up to the cutoff."""
        if cutoff is not None:
            values = np.where(self.rank <= cutoff, values, 0.0)
        return segment_sum(values, self.list_index, len(self.lists))


def segment_sum(values: Floats, owner: Ints, n: int) -> Floats:
    """float64[n]: the sum of the values of each owner; 0 where there are none.

    Adds one value after the other, from 0: a sum depends on its own values and their order alone,
    zeros at the end change nothing, and short segments cost far less than with `add.reduceat`.
    """
    # Without any values bincount forgets the type of its weights.
    return np.bincount(owner, weights=values, minlength=n).astype(np.float64, copy=False)


def segment_count(mask: Bools, bounds: Ints) -> Ints:
    """int64[s]: how many are true between each bound and the next."""
    running = running_count(mask)[bounds]
    return running[1:] - running[:-1]


def running_count(mask: Bools) -> Ints:
    """int64[m + 1]: how many are true before each place."""
    running = np.zeros(len(mask) + 1, dtype=np.int64)
    np.cumsum(mask, out=running[1:])
    return running


def bounds_of(lengths: Ints) -> Ints:
    """int64[s + 1]: the bounds of segments with these lengths."""
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def owners(bounds: Ints) -> Ints:
    """The segment of each entry."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def ordinals(bounds: Ints) -> Ints:
    """1, 2, 3 ... in each segment."""
    return np.arange(1, int(bounds[-1]) + 1) - np.repeat(bounds[:-1], np.diff(bounds))


def product_before(values: Floats, number: Ints) -> Floats:
    """The product of the values that stand before each in its segment; 1 for the first.

    By doubling steps, so the work is p * log2(longest segment), and which factors meet depends on
    the place in the segment alone.

    Args:
        values: float64[p].
        number: int64[p], 1, 2, 3 ... in each segment.
    """
    product = np.ones_like(values)
    later = np.flatnonzero(number > 1)
    product[later] = values[later - 1]
    step, longest = 1, int(number.max(initial=0))
    while step < longest - 1:
        later = np.flatnonzero(number > step)
        product[later] = product[later] * product[later - step]
        step *= 2
    return product


def descending(grades: Floats, bounds: Ints) -> Floats:
    """The grades (none NaN or below 0) sorted within each segment, largest first."""
    if len(grades) == 0:
        return grades
    owner = owners(bounds)
    if ((grades[1:] <= grades[:-1]) | (owner[1:] != owner[:-1])).all():
        return grades
    levels, level = _levels(grades)
    # One integer that sorts by segment, then grade, is several times faster than a lexsort.
    last = (owner + 1) * len(levels) - 1
    key = last - level
    key.sort()
    return levels[last - key]


def _levels(grades: Floats) -> tuple[Floats, Ints]:
    """Ascending levels that hold every grade (none below 0), and the level of each grade."""
    if grades.max() <= _WHOLE_GRADES:
        whole = grades.astype(np.int64)
        if (whole == grades).all():
            return np.arange(float(whole.max()) + 1.0), whole
    levels: Floats = np.unique(grades)
    return levels, np.searchsorted(levels, grades)

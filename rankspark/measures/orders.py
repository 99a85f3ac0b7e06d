"""What the order of a list yields: as it stands, or in expectation over the orders of its ties.

Kernels are written once against `Order`, which :func:`order_of` gives in either form. The second is
that of McSherry & Najork, "Computing Information Retrieval Performance Measures Efficiently in the
Presence of Tied Scores", ECIR 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from rankspark.errors import GainOverflow
from rankspark.measures.lists import (
    Bools,
    Floats,
    Gain,
    Ints,
    RankedLists,
    Selection,
    bounds_of,
    ordinals,
    product_before,
    segment_count,
    segment_sum,
)

#: Ranks below this are looked up, so that a rank's weight costs a table access.
_TABLE_SIZE = 1 << 14


class Order(Protocol):
    """float64[n] statistics of n lists; a cutoff is a rank, None for the whole list."""

    def dcg(self, gain: Gain, cutoff: int | None) -> Floats:
        """The discounted gains added up."""
        ...

    def relevant_within(self, cutoff: int | Ints) -> Floats:
        """The number of relevant items at ranks up to the cutoff, or up to each list's own."""
        ...

    def any_relevant_within(self, cutoff: int) -> Floats:
        """1 where a relevant item stands within the cutoff, else 0."""
        ...

    def reciprocal_first(self, cutoff: int | None) -> Floats:
        """1 / rank of the first relevant item; 0 where there is none within the cutoff."""
        ...

    def precision_sum(self, cutoff: int | None) -> Floats:
        """The precision at the rank of each relevant item within the cutoff, added up."""
        ...

    def persistence_sum(self, p: float, *, graded: bool) -> Floats:
        """p^(rank - 1) of the relevant items added up, times their grades if graded."""
        ...


def order_of(
    lists: RankedLists, gainful: Selection, relevant: Selection, *, average_ties: bool
) -> Order:
    """The statistics of the lists as they stand, or expected over the orders of tied items.

    The items of a tie keep its ranks between them, gaps included, each arrangement equally likely.
    Without ties the two forms give the very same doubles.

    Args:
        lists: n lists.
        gainful: their items with a grade above 0.
        relevant: their relevant items; the same object where these are the same items.
        average_ties: which form.

    Raises:
        ValueError: ties are to be averaged, and `lists.tied` is None.
    """
    if not average_ties:
        return _AsRanked(lists, gainful, relevant)
    if lists.tied is None:
        raise ValueError("ties=average needs RankedLists.tied")
    return _TiesAveraged(lists, lists.tied, gainful, relevant)


class _AsRanked:
    def __init__(self, lists: RankedLists, gainful: Selection, relevant: Selection) -> None:
        self._lists, self._gainful, self._relevant = lists, gainful, relevant
        self._discounted: dict[Gain, Floats] = {}

    def dcg(self, gain: Gain, cutoff: int | None) -> Floats:
        if gain not in self._discounted:
            gains = gains_of(self._gainful.relevance, gain)
            self._discounted[gain] = gains * discount(self._gainful.rank)
        return finite_sums(self._gainful.total(self._discounted[gain], cutoff))

    def relevant_within(self, cutoff: int | Ints) -> Floats:
        return self._count_within(cutoff).astype(np.float64)

    def any_relevant_within(self, cutoff: int) -> Floats:
        return (self._count_within(cutoff) > 0).astype(np.float64)

    def reciprocal_first(self, cutoff: int | None) -> Floats:
        result = np.zeros(len(self._lists))
        bounds = self._relevant.bounds
        found = np.flatnonzero(bounds[1:] > bounds[:-1])
        rank = self._relevant.rank[bounds[found]]
        result[found] = 1.0 / rank
        if cutoff is not None:
            result[found[rank > cutoff]] = 0.0
        return result

    def precision_sum(self, cutoff: int | None) -> Floats:
        return self._relevant.total(self._precisions, cutoff)

    def persistence_sum(self, p: float, *, graded: bool) -> Floats:
        weights = persistence(self._relevant.rank, p)
        if graded:
            weights = weights * self._relevant.relevance
        return finite_sums(self._relevant.total(weights))

    @cached_property
    def _precisions(self) -> Floats:
        return self._relevant.number / self._relevant.rank

    def _count_within(self, cutoff: int | Ints) -> Ints:
        limit = cutoff if isinstance(cutoff, int) else cutoff[self._relevant.list_index]
        return segment_count(self._relevant.rank <= limit, self._relevant.bounds)


class _TiesAveraged:
    def __init__(
        self, lists: RankedLists, tied: Bools, gainful: Selection, relevant: Selection
    ) -> None:
        starts = ~tied
        # An item at the head of its list is tied with none, whatever the array says.
        starts[lists.offsets[:-1][np.diff(lists.offsets) > 0]] = True
        tie_of = np.cumsum(starts, dtype=np.int64) - 1
        first = np.flatnonzero(starts)
        self._lists = lists
        self._gainful = _Ties(lists, gainful, tie_of, first)
        self._relevant = (
            self._gainful if relevant is gainful else _Ties(lists, relevant, tie_of, first)
        )
        self._discounted: dict[Gain, Floats] = {}

    def dcg(self, gain: Gain, cutoff: int | None) -> Floats:
        ties = self._gainful
        if gain not in self._discounted:
            gains = gains_of(ties.chosen.relevance, gain)
            # A slot's gain is the mean of its tie's.
            mean = ties.sum_of_chosen(gains) / ties.size
            self._discounted[gain] = mean[ties.tie_of_slot] * discount(ties.slots.rank)
        return finite_sums(ties.slots.total(self._discounted[gain], cutoff))

    def relevant_within(self, cutoff: int | Ints) -> Floats:
        ties = self._relevant
        # hits * inside / size, not a sum of hits / size, so that ties wholly inside stay integers.
        expected = ties.hits * ties.slots_within(cutoff) / ties.size
        return segment_sum(expected, ties.list_index, len(self._lists))

    def any_relevant_within(self, cutoff: int) -> Floats:
        ties = self._relevant
        # The list's first tie decides: it lies within the cutoff, or the ties after it lie beyond.
        first = ties.first_of_list
        missed = _none_drawn(ties.size[first], ties.hits[first], ties.slots_within(cutoff)[first])
        result = np.zeros(len(self._lists))
        result[ties.list_index[first]] = 1.0 - missed
        return result

    def reciprocal_first(self, cutoff: int | None) -> Floats:
        ties = self._relevant
        # Only the first tie that holds relevant items can hold the first one.
        leading = np.zeros(len(ties.size), dtype=np.bool_)
        leading[ties.first_of_list] = True
        of, left = ties.tie_of_slot, ties.slots_left
        none_here = np.maximum(left - ties.hits[of], 0) / left
        none_before = product_before(none_here, ties.slot_number)
        here = none_before * (ties.hits[of] / left)
        return ties.slots.total(np.where(leading[of], here / ties.slots.rank, 0.0), cutoff)

    def precision_sum(self, cutoff: int | None) -> Floats:
        return self._relevant.slots.total(self._precisions, cutoff)

    def persistence_sum(self, p: float, *, graded: bool) -> Floats:
        ties = self._relevant
        held = ties.sum_of_chosen(ties.chosen.relevance) if graded else ties.hits
        weights = (held / ties.size)[ties.tie_of_slot] * persistence(ties.slots.rank, p)
        return finite_sums(ties.slots.total(weights))

    @cached_property
    def _precisions(self) -> Floats:
        ties = self._relevant
        of = ties.tie_of_slot
        # Given that this slot holds a relevant item, each slot of the tie before it holds one of
        # the other hits - 1 with chance (hits - 1) / (size - 1).
        other = (ties.hits - 1) / np.maximum(ties.size - 1, 1)
        expected = ties.before[of] + 1 + (ties.slot_number - 1) * other[of]
        return (ties.hits / ties.size)[of] * (expected / ties.slots.rank)


class _Ties:
    """The ties that hold chosen items; an item tied with none is a tie of one.

    Attributes:
        chosen: the items (those with a gain, or the relevant ones).
        hits: int64[t], how many chosen items it holds, at least 1.
        size: int64[t], how many items it holds.
        before: int64[t], the chosen items of its list before it.
        list_index: int64[t], the list of each.
        first_of_list: the first tie of each list that has one.
        slots: the places that these ties fill.
        slot_number: 1, 2, 3 ... in each tie.
    """

    def __init__(self, lists: RankedLists, chosen: Selection, tie_of: Ints, first: Ints) -> None:
        tie = tie_of[chosen.index]
        head = np.flatnonzero(np.diff(tie, prepend=-1))
        begin = first[tie[head]]
        end = np.append(first, len(lists.rank))[tie[head] + 1]
        self.chosen = chosen
        self.hits = np.diff(np.append(head, len(tie)))
        self.size = end - begin
        self.before = chosen.number[head] - 1
        self.list_index = chosen.list_index[head]
        self.first_of_list = np.flatnonzero(np.diff(self.list_index, prepend=-1))
        self._slot_bounds = bounds_of(self.size)
        self.slot_number = ordinals(self._slot_bounds)
        self.tie_of_slot = np.repeat(np.arange(len(begin)), self.size)
        self.slots = Selection(lists, begin[self.tie_of_slot] + self.slot_number - 1)

    def sum_of_chosen(self, values: Floats) -> Floats:
        """float64[t]: the sum of the chosen items' values."""
        owner = np.repeat(np.arange(len(self.hits)), self.hits)
        return segment_sum(values, owner, len(self.hits))

    @property
    def slots_left(self) -> Ints:
        """The slots of its tie from each slot on, itself included."""
        return self.size[self.tie_of_slot] - self.slot_number + 1

    def slots_within(self, cutoff: int | Ints) -> Ints:
        """int64[t]: the slots of each tie at ranks up to the cutoff, or up to its list's own."""
        limit = cutoff if isinstance(cutoff, int) else cutoff[self.slots.list_index]
        return segment_count(self.slots.rank <= limit, self._slot_bounds)


def _none_drawn(size: Ints, hits: Ints, drawn: Ints) -> Floats:
    """The chance that `drawn` of `size` items, drawn without putting back, hold none of the hits.

    C(size - hits, drawn) / C(size, drawn) as a product, exact in its symmetry of hits and drawn, so
    the shorter product will do.
    """
    few, many = np.minimum(hits, drawn), np.maximum(hits, drawn)
    chance = np.where(many + few > size, 0.0, 1.0)
    open_ = np.flatnonzero((chance > 0) & (few > 0))
    factor = 0
    while len(open_):
        chance[open_] *= (size[open_] - many[open_] - factor) / (size[open_] - factor)
        factor += 1
        open_ = open_[few[open_] > factor]
    return chance


def gains_of(grades: Floats, gain: Gain) -> Floats:
    """The gain of each grade: the grade itself, or 2^grade - 1.

    Raises:
        GainOverflow: a gain is not finite.
    """
    if gain == "linear":
        gains = grades
    else:
        with np.errstate(over="ignore"):
            gains = np.exp2(grades) - 1.0
    if not np.isfinite(gains).all():
        raise GainOverflow(
            expected=f"relevances with a finite {gain} gain"
            + ("" if gain == "linear" else " (2^relevance - 1, so below 1024)"),
            found=f"a relevance of {grades.max():g}",
            action="map relevance to small grades, or use a measure with linear gain such as ndcg",
        )
    return gains


def finite_sums(sums: Floats) -> Floats:
    """The sums, if all are finite.

    Raises:
        GainOverflow: one is not.
    """
    if not np.isfinite(sums).all():
        raise GainOverflow(
            expected="relevances with finite sums of gains",
            found="a list whose gains add up beyond the largest double",
            action="map relevance to small grades",
        )
    return sums


def discount(rank: Ints) -> Floats:
    """1 / log2(rank + 1)."""
    return _by_rank(rank, _discounts(), _discount)


def persistence(rank: Ints, p: float) -> Floats:
    """p^(rank - 1)."""
    return _by_rank(rank, _persistences(p), lambda far: _persistence(far, p))


@lru_cache(maxsize=1)
def _discounts() -> Floats:
    table = np.zeros(_TABLE_SIZE)
    table[1:] = _discount(np.arange(1, _TABLE_SIZE))
    return table


def _discount(rank: Ints) -> Floats:
    return 1.0 / np.log2(rank.astype(np.float64) + 1.0)


@lru_cache(maxsize=16)
def _persistences(p: float) -> Floats:
    return _persistence(np.arange(_TABLE_SIZE), p)


def _persistence(rank: Ints, p: float) -> Floats:
    return np.power(p, rank.astype(np.float64) - 1.0)


def _by_rank(rank: Ints, table: Floats, beyond: Callable[[Ints], Floats]) -> Floats:
    if rank.max(initial=0) < len(table):
        return table[rank]
    weights = table[np.minimum(rank, len(table) - 1)]
    far = np.flatnonzero(rank >= len(table))
    weights[far] = beyond(rank[far])
    return weights

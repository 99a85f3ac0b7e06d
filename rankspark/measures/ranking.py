"""Shown items -> ranked lists: duplicates, the total order and ranks, many lists at once.

One rule each (DESIGN section 4): the total order of a list is (ranker's key, item_id); a rank is
the logged position or, where that is taken, the next free one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankspark.measures.lists import RankedLists

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ShownItems:
    """The items of n lists, flat, in any order within a list.

    Attributes:
        offsets: int64[n + 1]; list i owns the items offsets[i] to offsets[i + 1].
        item: int64[m], a code from 0 for each distinct item_id of the batch.
        item_order: gives int64[codes], the rank of each code in the order of item_id; a function,
            since only ties need it.
        relevance: float64[m], NaN = unjudged.
        position: int64[m] from 1, or None where no ranker uses it.
        scores: float64[m] by ranker, NaN = missing.
    """

    offsets: Ints
    item: Ints
    item_order: Callable[[], Ints]
    relevance: Floats
    position: Ints | None
    scores: Mapping[str, Floats]

    @property
    def list_index(self) -> Ints:
        """int64[m]: the list that each item belongs to."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class Deduplicated:
    """Lists in which each item stands once.

    Attributes:
        items: the lists that are left.
        n_duplicates: int64[n], rows dropped because the same row stood there already.
        n_conflicts: int64[n], rows merged into another row of the same item.
    """

    items: ShownItems
    n_duplicates: Ints
    n_conflicts: Ints


def deduplicate(shown: ShownItems) -> Deduplicated:
    """Keep one row of each item of a list.

    The same row again is dropped. Rows of one item that differ are merged: the smallest position
    and the largest relevance; of scores the largest.
    """
    n = len(shown.offsets) - 1
    none = np.zeros(n, dtype=np.int64)
    lists = shown.list_index
    key = lists * (int(shown.item.max(initial=0)) + 1) + shown.item
    ordered = np.sort(key)
    if not (ordered[1:] == ordered[:-1]).any():
        return Deduplicated(shown, none, none)

    # Equal rows side by side: by item, then by every column that may differ (NaN as its bits).
    columns = [shown.relevance, *shown.scores.values()]
    bits = [column.view(np.int64) for column in columns]
    if shown.position is not None:
        bits.append(shown.position)
    by = np.lexsort((*bits, key))
    new_item = _starts(key[by])
    new_row = new_item.copy()
    for column in bits:
        new_row |= _starts(column[by])
    first = np.flatnonzero(new_item)

    list_of_row = lists[by]
    n_duplicates = np.bincount(list_of_row[~new_row], minlength=n)
    n_conflicts = np.bincount(list_of_row[new_row & ~new_item], minlength=n)
    position = shown.position
    kept = replace(
        shown,
        offsets=np.concatenate(([0], np.cumsum(np.bincount(list_of_row[first], minlength=n)))),
        item=shown.item[by][first],
        relevance=np.fmax.reduceat(shown.relevance[by], first),
        position=None if position is None else np.minimum.reduceat(position[by], first),
        scores={name: np.fmax.reduceat(score[by], first) for name, score in shown.scores.items()},
    )
    return Deduplicated(kept, n_duplicates, n_conflicts)


@dataclass(frozen=True)
class Positioned:
    """Lists in their logged order, and what is odd about their positions.

    Attributes:
        ranked: the lists.
        n_repeated: int64[n], items whose position another item of the list has taken.
        n_gaps: int64[n], items right behind positions that no item has; where a list begins does
            not matter, since a second page begins at 11.
    """

    ranked: RankedLists
    n_repeated: Ints
    n_gaps: Ints


def by_position(shown: ShownItems, *, gaps: bool = True) -> Positioned:
    """Lists in their logged order.

    Args:
        shown: lists without duplicates, with positions.
        gaps: whether an item keeps its position where it can; otherwise ranks are 1, 2, 3 ...
    """
    position = shown.position
    if position is None:
        raise ValueError("by_position needs the items' positions")
    lists = shown.list_index
    key = (lists << 32) | position
    order = None
    if not (key[1:] > key[:-1]).all():
        order, key = _sorted(key, shown)
    ranked = position if order is None else position[order]
    tied = ~_starts(key)
    if not gaps:
        ranked = _counting(shown.offsets, lists)
    elif tied.any():
        ranked = _next_free(ranked, shown.offsets, lists)
    relevance = shown.relevance if order is None else shown.relevance[order]
    # Sorting leaves each list where it was, so `lists` fits the sorted keys too.
    behind = np.zeros(len(key), dtype=np.bool_)
    behind[1:] = (key[1:] - key[:-1] > 1) & (lists[1:] == lists[:-1])
    n = len(shown.offsets) - 1
    return Positioned(
        RankedLists(shown.offsets, ranked, relevance, tied=tied),
        np.bincount(lists[tied], minlength=n),
        np.bincount(lists[behind], minlength=n),
    )


def by_score(
    shown: ShownItems, ranker: str, *, descending: bool, item_descending: bool = False
) -> RankedLists:
    """Lists in the order of a score, missing scores last, ranks 1, 2, 3 ...

    Args:
        shown: lists without duplicates, with the ranker's scores.
        ranker: whose scores.
        descending: whether the largest score comes first.
        item_descending: whether of equal scores the largest item_id comes first, as in trec_eval.
    """
    lists = shown.list_index
    score = shown.scores[ranker] + 0.0  # -0.0 and 0.0 are one score
    key = -score if descending else score
    item = shown.item_order()[shown.item]
    order = np.lexsort((-item if item_descending else item, key, lists))
    key = key[order]
    same = (key[1:] == key[:-1]) | (np.isnan(key[1:]) & np.isnan(key[:-1]))
    tied = np.zeros(len(key), dtype=np.bool_)
    tied[1:] = same & (lists[1:] == lists[:-1])
    return RankedLists(
        shown.offsets, _counting(shown.offsets, lists), shown.relevance[order], tied=tied
    )


@dataclass(frozen=True)
class Shown:
    """Shown items of n lists: int64[n + 1]; item codes and times in microseconds, int64[m]."""

    offsets: Ints
    item: Ints
    time: Ints


@dataclass(frozen=True)
class Events:
    """Events of the same n lists: int64[n + 1]; item codes and times, int64[e]; float64[e]."""

    offsets: Ints
    item: Ints
    time: Ints
    relevance: Floats


def attribute(shown: Shown, events: Events, window: int) -> tuple[Floats, Ints]:
    """Give shown items the largest relevance of their events within a window of time.

    Args:
        shown: the items.
        events: what happened to items of the lists.
        window: an event counts from when its item was shown until this many microseconds later.

    Returns:
        float64[m], 0 without an event; int64[n], the events of each list that no item has.
    """
    n_codes = max(int(shown.item.max(initial=0)), int(events.item.max(initial=0))) + 1
    number = np.arange(len(shown.offsets) - 1)
    owner = np.repeat(number, np.diff(events.offsets))
    key = owner * n_codes + events.item
    order = np.argsort(key, kind="stable")
    wanted = np.repeat(number, np.diff(shown.offsets)) * n_codes + shown.item
    first = np.searchsorted(key, wanted, side="left", sorter=order)
    count = np.searchsorted(key, wanted, side="right", sorter=order) - first
    # All pairs of an item and an event of its: as many as there are events, but for repeated items.
    item = np.repeat(np.arange(len(wanted)), count)
    within = np.arange(len(item)) - np.repeat(np.cumsum(count) - count, count)
    event = order[np.repeat(first, count) + within]
    delay = events.time[event] - shown.time[item]
    counts = (delay >= 0) & (delay <= window)
    relevance = np.zeros(len(wanted))
    np.maximum.at(relevance, item[counts], events.relevance[event[counts]])
    lone = np.ones(len(key), dtype=np.bool_)
    lone[event[counts]] = False
    return relevance, np.bincount(owner[lone], minlength=len(number))


def look_up(
    offsets: Ints, item: Ints, pool_offsets: Ints, pool_item: Ints, pool_value: Floats
) -> Floats:
    """float64[m]: the value that each item of a list has in the list's pool, NaN where it is not.

    Args:
        offsets: int64[n + 1], the lists.
        item: int64[m], their items' codes.
        pool_offsets: int64[n + 1], the pools.
        pool_item: int64[p], the codes in them, each once in a pool.
        pool_value: float64[p].
    """
    n_codes = max(int(item.max(initial=0)), int(pool_item.max(initial=0))) + 1
    number = np.arange(len(offsets) - 1)
    wanted = np.repeat(number, np.diff(offsets)) * n_codes + item
    pooled = np.repeat(number, np.diff(pool_offsets)) * n_codes + pool_item
    order = np.argsort(pooled)
    at = np.searchsorted(pooled, wanted, sorter=order)
    found = np.full(len(wanted), np.nan)
    inside = at < len(pooled)
    place = order[at[inside]]
    found[inside] = np.where(pooled[place] == wanted[inside], pool_value[place], np.nan)
    return found


def _sorted(key: Ints, shown: ShownItems) -> tuple[Ints, Ints]:
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    if (ordered[1:] == ordered[:-1]).any():
        order = np.lexsort((shown.item_order()[shown.item], key))
    return order, ordered


def _starts(ordered: Ints) -> NDArray[np.bool_]:
    """Where a run of equal values begins."""
    starts = np.ones(len(ordered), dtype=np.bool_)
    starts[1:] = ordered[1:] != ordered[:-1]
    return starts


def _counting(offsets: Ints, lists: Ints) -> Ints:
    """1, 2, 3 ... in each list."""
    return np.arange(1, len(lists) + 1) - offsets[:-1][lists]


def _next_free(position: Ints, offsets: Ints, lists: Ints) -> Ints:
    """rank_i = max(position_i, rank_(i-1) + 1), for all lists at once.

    Without the running + 1 this is a running maximum of position_i - i. Lifting each list above all
    that the lists before it can reach keeps that maximum from running into the next list.
    """
    count = _counting(offsets, lists)
    lead = position - count
    lift = lists * (int(lead.max()) - int(lead.min()) + 1)
    return np.maximum.accumulate(lead + lift) - lift + count

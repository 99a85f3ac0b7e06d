"""Nested rows -> lists: whole Arrow batches of parallel arrays, checked item by item at once.

What the engine would do in a lambda, called for every item, is done here on the arrays as they are.
The decisions are those of :func:`rankspark.spark.check.item_reason`, without the reasons. Runs on
the executors; needs numpy and pyarrow alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankspark.spark.runs import bounds_of, lists_of

#: Items checked at once, but for a list that holds more; few, so that they stay in the cache.
CHUNK_ITEMS = 1 << 16


@dataclass(frozen=True)
class Nested:
    """Turns rows with an array of each item column into lists of the items that are good.

    Numbers come as they are in the source and leave as the scorer takes them. A row is cut out of
    its batch as a whole, so that memory grows with the longest row, as in the engine.

    Attributes:
        names: the columns that name a list and say what is known of it.
        items: the columns of an item, in the order of :func:`rankspark.spark.check.item_columns`.
        max_length: items of the longest list that is kept.
        position_base: of the first position.
        largest_position: above which there is none.
        negative: what becomes of negative relevance: `reject`, `zero` or `unjudged`.
        sentinels: ids that stand for null, and are none.
    """

    names: tuple[str, ...]
    items: tuple[str, ...]
    max_length: int
    position_base: int
    largest_position: int
    negative: str
    sentinels: tuple[str, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the lists: their names, `items` (null where there are too many) and `n_rows`."""
        for batch in batches:
            lengths = pc.fill_null(pc.list_value_length(batch.column("item_id")), 0)
            ends = np.cumsum(lengths.to_numpy(), dtype=np.int64)
            start, before = 0, 0
            while start < len(batch):
                end = int(np.searchsorted(ends, before + CHUNK_ITEMS, side="right"))
                end = min(max(end, start + 1), len(batch))
                bounds = np.concatenate(([before], ends[start:end])) - before
                yield self._lists(batch.slice(start, end - start), bounds)
                start, before = end, int(ends[end - 1])

    def _lists(self, rows: pa.RecordBatch, bounds: NDArray[np.int64]) -> pa.RecordBatch:
        # Null arrays are empty ones: their values, if any, are passed over.
        given = {name: rows.column(name).flatten() for name in self.items}
        good, members = self.checked(given)
        kept = pa.RecordBatch.from_arrays(list(members.values()), names=list(members))
        if not good.all():
            kept, bounds = kept.filter(pa.array(good)), bounds_of(good, bounds)
        n_rows = np.diff(bounds)
        items = lists_of(kept, bounds, self.max_length)
        return pa.RecordBatch.from_arrays(
            [*(rows.column(name) for name in self.names), items, pa.array(n_rows, pa.int32())],
            names=[*self.names, "items", "n_rows"],
        )

    def checked(self, given: dict[str, pa.Array]) -> tuple[NDArray[np.bool_], dict[str, pa.Array]]:
        """Which items are good, and all of them as the scorer takes them; bad ones as anything."""
        ids = given["item_id"]
        good = ~blank(ids)
        if self.sentinels:
            good &= ~_mask(pc.is_in(ids, value_set=pa.array(self.sentinels, ids.type)))
        members = dict(given)
        for name, values in given.items():
            if name == "position":
                # A whole number that a double cannot hold is too large in either.
                position = _floats(values)
                right = (position >= self.position_base) & (position <= self.largest_position)
                right &= position == np.floor(position)
                good &= right
                whole = np.where(right, position, 0).astype(np.int32)
                members[name] = pa.array(whole - np.int32(self.position_base - 1))
            elif name == "time":
                good &= _valid(values)
            elif name == "relevance":
                relevance = _floats(values)
                right = np.isfinite(relevance)
                negative = relevance < 0
                if self.negative == "reject":
                    right &= ~negative
                elif self.negative == "zero":
                    # As in SQL, the greatest of null and 0 is 0.
                    relevance = np.fmax(relevance, 0.0)
                else:
                    relevance = np.where(negative, np.nan, relevance)
                good &= right | ~_valid(values) if values.null_count else right
                members[name] = pa.array(relevance)
            elif name != "item_id":
                members[name] = values.cast(pa.float64(), safe=False)
        return good, members


def blank(texts: pa.Array) -> NDArray[np.bool_]:
    """Whether each text is null or has no character but spaces, as `blank` of check.py."""
    found = ~_valid(texts)
    # Only text that begins with a space, or is empty, needs to be trimmed to be known.
    low = _mask(pc.fill_null(pc.less(texts, pa.scalar("!", texts.type)), fill_value=False))
    if low.any():
        at = np.flatnonzero(low)
        trimmed = pc.ascii_trim(texts.take(pa.array(at)), characters=" ")
        found[at] = _mask(pc.equal(pc.binary_length(trimmed), 0))
    return found


def _floats(values: pa.Array) -> NDArray[np.float64]:
    """As doubles, NaN where null."""
    found = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return np.asarray(found, dtype=np.float64)


def _valid(values: pa.Array) -> NDArray[np.bool_]:
    if not values.null_count:
        return np.ones(len(values), dtype=np.bool_)
    return _mask(values.is_valid())


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=np.bool_)

"""Rows that stand together -> lists: whole Arrow batches, cut where one list ends.

Runs on the executors; needs numpy and pyarrow alone. Memory is bounded whatever the log holds: a
list that is too long leaves its length and none of its items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rankspark.spark.names import NAMES, split_names

#: Rows that are grouped at once: the hash table of their item ids then fits a core's cache.
CHUNK_ROWS = 1 << 16
#: Rows of one query that are held at most, in hope of its end.
MAX_OPEN_ROWS = 1 << 20

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

#: The column that rows are sorted by where they were shuffled.
QUERY_HASH = "query_hash"


@dataclass(frozen=True)
class Chain:
    """Steps over Arrow batches, one after the other."""

    steps: tuple[Step, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the steps."""
        for step in self.steps:
            batches = step(batches)
        return batches


@dataclass(frozen=True)
class Runs:
    """Turns rows, the rows of a list side by side, into lists.

    Rows come with :data:`~rankspark.spark.names.NAMES`, in the order of :data:`QUERY_HASH`, so that
    all rows of a query are side by side but may be mixed with each other where they disagree in a
    name, or with those of another query of the same hash; or, without that column, in the order of
    the log: a list is what stands together.

    Attributes:
        names: what the names were joined of: all that names a list and that is known of it.
        items: the columns of an item; a row with a null `item_id` only says that its query
            returned nothing.
        max_length: items of the longest list that is kept.
    """

    names: tuple[str, ...]
    items: tuple[str, ...]
    max_length: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Give the lists: their names, `items` (null where there are too many) and `n_rows`."""
        held: list[pa.RecordBatch] = []
        n_held, wanted = 0, CHUNK_ROWS
        for batch in batches:
            held.append(batch)
            n_held += len(batch)
            if n_held < wanted:
                continue
            rows = _Rows.of(held)
            end = rows.last_start()
            if end == 0 and n_held < MAX_OPEN_ROWS:
                wanted = 2 * n_held
                continue
            # The last list may go on in the next batch. A query so long that it is cut all the same
            # has lists that are too long, or the same list twice, which the audit finds.
            end = end or n_held
            yield self._lists(rows.batch.slice(0, end), rows.starts[: end - 1], rows.mixed)
            held = [rows.batch.slice(end)]
            n_held, wanted = n_held - end, CHUNK_ROWS
        if n_held:
            rows = _Rows.of(held)
            yield self._lists(rows.batch, rows.starts, rows.mixed)

    def _lists(
        self, rows: pa.RecordBatch, starts: NDArray[np.bool_], mixed: bool
    ) -> pa.RecordBatch:
        if mixed:
            rows = rows.take(pa.array(_together(rows)))
            starts = _changes(rows.column(NAMES))
        heads = np.concatenate(([0], np.flatnonzero(starts) + 1))
        bounds = np.append(heads, len(rows))
        n_rows = np.diff(bounds)
        kept = rows.select(self.items)
        ids = rows.column("item_id")
        # Most logs have a single item in every row, and no list that is too long.
        if ids.null_count:
            shown = ids.is_valid().to_numpy(zero_copy_only=False)
            kept, bounds = kept.filter(pa.array(shown)), bounds_of(shown, bounds)
        items = lists_of(kept, bounds, self.max_length)
        named = split_names(rows.column(NAMES).take(pa.array(heads)), len(self.names))
        return pa.RecordBatch.from_arrays(
            [*named, items, pa.array(n_rows, pa.int32())],
            names=[*self.names, "items", "n_rows"],
        )


@dataclass(frozen=True)
class _Rows:
    """Rows side by side.

    Attributes:
        batch: m rows.
        starts: bool[m - 1], whether a list begins after each row.
        new_query: bool[m - 1], the same for queries, all of whose rows are side by side.
        mixed: whether rows of one query belong to several lists.
    """

    batch: pa.RecordBatch
    starts: NDArray[np.bool_]
    new_query: NDArray[np.bool_]
    mixed: bool

    @classmethod
    def of(cls, batches: list[pa.RecordBatch]) -> _Rows:
        batch = concatenated(batches)
        starts = _changes(batch.column(NAMES))
        if QUERY_HASH not in batch.schema.names:
            return cls(batch, starts, starts, mixed=False)
        hashes = batch.column(QUERY_HASH).to_numpy()
        new_query = hashes[1:] != hashes[:-1]
        return cls(batch, starts, new_query, mixed=bool((starts & ~new_query).any()))

    def last_start(self) -> int:
        """Where the last query begins, which may go on; 0 where there is but one."""
        starts = np.flatnonzero(self.new_query)
        return int(starts[-1]) + 1 if len(starts) else 0


def concatenated(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of the rows of several, with offsets from 0."""
    columns = [pa.concat_arrays(parts) for parts in zip(*batches, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def _changes(column: pa.Array) -> NDArray[np.bool_]:
    """bool[m - 1]: whether each value differs from the one before."""
    differ = pc.not_equal(column.slice(0, len(column) - 1), column.slice(1))
    return np.asarray(differ.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _together(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """An order in which the rows of a list, too, are side by side."""
    codes = rows.column(NAMES).dictionary_encode().indices.to_numpy()
    return np.lexsort((codes, rows.column(QUERY_HASH).to_numpy())).astype(np.int64)


def lists_of(items: pa.RecordBatch, bounds: NDArray[np.int64], max_length: int) -> pa.ListArray:
    """Lists of the items between bounds as structs; null in place of those that are too long."""
    too_long = np.diff(bounds) > max_length
    if too_long.any():
        short = np.repeat(~too_long, np.diff(bounds))
        items, bounds = items.filter(pa.array(short)), bounds_of(short, bounds)
    return pa.ListArray.from_arrays(
        pa.array(bounds, pa.int32()),
        pa.StructArray.from_arrays(items.columns, items.schema.names),
        mask=pa.array(too_long),
    )


def bounds_of(kept: NDArray[np.bool_], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The bounds of lists after rows were left out."""
    return np.concatenate(([0], np.cumsum(kept)))[bounds]

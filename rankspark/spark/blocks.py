"""Rows -> blocks of rows, column by column, and back: how impressions are shuffled.

A shuffle handles every row by itself, at a cost near that of all else. So rows are handed to it
packed: each Arrow batch is sorted by the bucket of its queries, and what falls into one bucket
becomes a row or a few, with each column's values one after the other in a BINARY. Packing and
unpacking copy whole buffers, never a value. Runs on the executors; needs numpy and pyarrow alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rankspark.spark.runs import QUERY_HASH, concatenated

BUCKET = "bucket"
#: Rows packed at once, some 100 bytes each. What is left for a bucket is this over the buckets.
CHUNK_ROWS = 1 << 17
#: Rows of a block at most, so that an Arrow batch of 10,000 blocks stays near 100 MB.
BLOCK_ROWS = 128
#: Rows unpacked at once, but for a bucket that holds more; few, so that they stay in the cache.
UNPACKED_ROWS = 1 << 15
_PART_BLOCKS = UNPACKED_ROWS // BLOCK_ROWS
#: Rows of unfinished buckets held at most before very long queries are let go.
MAX_HELD_ROWS = 1 << 20

#: Spark SQL type of a column -> type of its elements in a block; text has its lengths beside it.
ELEMENTS = {"string": "<i4", "int": "<i4", "bigint": "<i8", "double": "<f8"}
_LENGTHS = "_lengths"


@dataclass(frozen=True)
class Layout:
    """The columns of the rows: name and Spark SQL type, a key of :data:`ELEMENTS`."""

    columns: tuple[tuple[str, str], ...]

    @property
    def block_schema(self) -> str:
        """The schema of the blocks, as DDL."""
        parts = [f"{BUCKET} int"]
        for name, kind in self.columns:
            if kind == "string":
                parts.append(f"`{name}{_LENGTHS}` binary")
            parts.append(f"`{name}` binary")
        return ", ".join(parts)


@dataclass(frozen=True)
class Pack:
    """Rows -> blocks. A null number becomes NaN or 0: only rows without an item have the latter."""

    layout: Layout
    n_buckets: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pack the rows of a task."""
        held: list[pa.RecordBatch] = []
        n_held = 0
        for batch in batches:
            held.append(batch)
            n_held += len(batch)
            if n_held >= CHUNK_ROWS:
                yield self._packed(concatenated(held))
                held, n_held = [], 0
        if n_held:
            yield self._packed(concatenated(held))

    def _packed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        hashes = rows.column(QUERY_HASH).to_numpy().view(np.uint64)
        bucket = (hashes % np.uint64(self.n_buckets)).astype(np.uint16)
        order = np.argsort(bucket, kind="stable")
        rows, bucket = rows.take(pa.array(order)), bucket[order]
        bounds = _block_bounds(bucket)
        arrays, names = [pa.array(bucket[bounds[:-1]], pa.int32())], [BUCKET]
        for name, kind in self.layout.columns:
            column = rows.column(name)
            if kind == "string":
                offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)
                lengths = np.diff(offsets)
                if column.null_count:
                    lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
                arrays.append(_binaries(lengths, bounds * 4))
                names.append(name + _LENGTHS)
                arrays.append(_binaries(column.buffers()[2], offsets[bounds]))
            else:
                missing = np.nan if kind == "double" else 0
                filled = column.fill_null(missing) if column.null_count else column
                values = filled.to_numpy(zero_copy_only=False)
                arrays.append(_binaries(values, bounds * values.itemsize))
            names.append(name)
        return pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True)
class Unpack:
    """Blocks in the order of their bucket -> rows in the order of their query's hash.

    All rows of a query come together, unless they are more than `max_query_rows`, which may come in
    pieces: so memory is bounded however many there are.
    """

    layout: Layout
    max_query_rows: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Unpack the blocks of a task."""
        held: list[pa.RecordBatch] = []
        n_held, allowed = 0, MAX_HELD_ROWS
        for blocks, begins in _parts(batches):
            if begins and n_held >= UNPACKED_ROWS:
                yield _by_hash(held)
                held, n_held, allowed = [], 0, MAX_HELD_ROWS
            rows = self._rows(blocks)
            held.append(rows)
            n_held += len(rows)
            if n_held >= allowed:
                together = _by_hash(held)
                many = _many(together, self.max_query_rows)
                yield together.filter(pa.array(many))
                held = [together.filter(pa.array(~many))]
                n_held = len(held[0])
                allowed = max(MAX_HELD_ROWS, 2 * n_held)
        if n_held:
            yield _by_hash(held)

    def _rows(self, blocks: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for name, kind in self.layout.columns:
            data = _joined(blocks.column(name))
            if kind == "string":
                lengths = np.frombuffer(_joined(blocks.column(name + _LENGTHS)), ELEMENTS[kind])
                arrays.append(_text(lengths, data))
            else:
                arrays.append(pa.array(np.frombuffer(data, ELEMENTS[kind])))
        return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.layout.columns])


def _block_bounds(bucket: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Where blocks begin, and the end: at each new bucket, and after so many rows of one."""
    starts = np.concatenate(([0], np.flatnonzero(bucket[1:] != bucket[:-1]) + 1, [len(bucket)]))
    n_blocks = -(-np.diff(starts) // BLOCK_ROWS)
    first = np.repeat(starts[:-1], n_blocks)
    within = np.arange(len(first)) - np.repeat(np.cumsum(n_blocks) - n_blocks, n_blocks)
    return np.append(first + within * BLOCK_ROWS, len(bucket))


def _binaries(data: object, offsets: NDArray[np.signedinteger]) -> pa.Array:
    """Pieces of a buffer as BINARY values, not copied."""
    values = pa.py_buffer(b"" if data is None else data)
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), values]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _joined(column: pa.Array) -> pa.Buffer:
    """The bytes of BINARY values, which stand side by side already."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    start, end = offsets[column.offset], offsets[column.offset + len(column)]
    data = column.buffers()[2]
    return pa.py_buffer(b"") if data is None else data.slice(int(start), int(end - start))


def _text(lengths: NDArray[np.int32], data: pa.Buffer) -> pa.Array:
    null = lengths < 0
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    valid = None
    if null.any():
        valid = pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(lengths), [valid, pa.py_buffer(offsets), data])


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Batches in parts of some buckets each; whether a part begins with a new bucket."""
    last = -1
    for batch in batches:
        bucket = batch.column(BUCKET).to_numpy()
        start = 0
        while start < len(batch):
            # Up to the last bucket that begins among the next blocks, or all of the first.
            end = min(start + _PART_BLOCKS, len(batch))
            if end < len(batch):
                head = int(np.searchsorted(bucket, bucket[end]))
                end = head if head > start else int(np.searchsorted(bucket, bucket[end], "right"))
            yield batch.slice(start, end - start), bucket[start] != last
            start, last = end, bucket[end - 1]


def _by_hash(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    together = concatenated(rows)
    # Which of a query's rows comes first does not matter: lists are ordered later.
    order = np.argsort(together.column(QUERY_HASH).to_numpy())
    return together.take(pa.array(order))


def _many(rows: pa.RecordBatch, most: int) -> NDArray[np.bool_]:
    """bool[m]: whether the query of each row, sorted by its hash, has more rows than that."""
    hashes = rows.column(QUERY_HASH).to_numpy()
    starts = np.flatnonzero(np.concatenate(([True], hashes[1:] != hashes[:-1])))
    n_rows = np.diff(np.append(starts, len(hashes)))
    return np.repeat(n_rows > most, n_rows)

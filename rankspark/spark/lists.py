"""Clean rows -> lists: one row a query, with its items in an array.

Flat rows are shuffled once, by query, packed into blocks (:mod:`rankspark.spark.blocks`), and cut
into lists (:mod:`rankspark.spark.runs`) on their way to the scorer. Where the rows of a query stand
together in the log already, they are not shuffled: that no query was cut in two is seen afterwards,
in the results. Nested rows are lists as they are, but for bad items
(:mod:`rankspark.spark.nested`). Flat lists that are too long are never held whole.
"""

from __future__ import annotations

import contextlib
import io
import re
import threading
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from rankspark.config import Definition
from rankspark.spark import check
from rankspark.spark.blocks import BUCKET, Layout, Pack, Unpack
from rankspark.spark.judge import Judged
from rankspark.spark.label import Labelled
from rankspark.spark.names import join_names
from rankspark.spark.nested import Nested
from rankspark.spark.runs import QUERY_HASH, Chain, Runs, Step

#: Rows by whose order a log is judged.
_PROBED_ROWS = 10_000
#: Parts of the day that are grouped one after the other, whatever the number of tasks: as many as
#: the source has times so many bytes, some 400,000 rows of Parquet.
_MIN_BUCKETS, _MAX_BUCKETS = 512, 1 << 16
_BYTES_A_BUCKET = 8 << 20
_SIZE = re.compile(r"sizeInBytes=([\d.]+) ?([KMGTPE]?)i?B")
_UNKNOWN_SIZE = 1 << 60
_PRINTING = threading.Lock()
#: A query with more rows than this, and than 16 lists at their longest, may be grouped in pieces.
_MAX_QUERY_ROWS = 1 << 17
_LITERAL = re.compile(r"\s*'[^'\\]*'\s*")
_PAIRS = "array<struct<key: string, value: string>>"


@dataclass(frozen=True)
class Origins:
    """Where relevance comes from, if not from the impressions: judgments, or events."""

    judged: Judged | None = None
    labelled: Labelled | None = None


def query_columns(config: Definition) -> list[str]:
    """The columns that name a query."""
    if config.input.columns.assignments is None:
        return ["experiment", "variant", "query_id"]
    return ["assignments", "query_id"]


def attribute_columns(config: Definition) -> list[str]:
    """What is known of a query beyond its name; the same in all its rows."""
    return ["unit_id", "query_key", *config.evaluate.slice_columns]


def list_columns(config: Definition) -> list[str]:
    """All columns of a list but its items."""
    return [*query_columns(config), *attribute_columns(config)]


def constants(config: Definition) -> dict[str, str]:
    """SQL of the columns that are the same in all lists, and so need not travel with every row."""
    columns = config.input.columns
    given = {
        "experiment": columns.experiment or "",
        "variant": columns.variant or "",
        "unit_id": columns.unit_id or "null",
        "query_key": columns.query_key or "null",
    }
    wanted = set(list_columns(config))
    return {
        name: f"cast({sql} as string)"
        for name, sql in given.items()
        if name in wanted and (sql == "null" or _LITERAL.fullmatch(sql))
    }


@dataclass(frozen=True)
class Cut:
    """Rows on their way to lists.

    Attributes:
        frame: what the engine hands to Python: rows, or blocks of them.
        steps: what makes Arrow batches of lists of it, one after the other, on the executors.
        schema: of the lists, as of :func:`of_rows` but for :func:`constants`.
    """

    frame: DataFrame
    steps: tuple[Step, ...]
    schema: T.StructType


def cut(rows: DataFrame, config: Definition, *, together: bool = False) -> Cut:
    """Bring the rows of each query together.

    Args:
        rows: canonical rows as of :func:`rankspark.spark.check.mark`; those with a reason against
            them are left out, as are such items of nested ones.
        config: the configuration.
        together: whether the flat rows of a query stand together in the log as it is.
    """
    fixed = constants(config)
    names = [name for name in list_columns(config) if name not in fixed]
    nested = config.input.items is not None
    good = rows.where(f"{check.row_reason(config)} is null" if nested else "reason is null")
    if "assignments" in names:
        # An array cannot be compared with the one before; its text can.
        good = good.withColumn("assignments", F.to_json("assignments"))
    schema = (
        T.StructType([T.StructField(name, T.StringType()) for name in names])
        .add("items", T.ArrayType(item_type(config)))
        .add("n_rows", T.IntegerType())
    )
    longest = config.limits.max_list_length
    columns = check.item_columns(config)
    if nested:
        checked = Nested(
            names=tuple(names),
            items=tuple(columns),
            max_length=longest,
            position_base=config.input.position_base,
            largest_position=check.largest_position(config),
            negative=config.evaluate.negative_grades,
            sentinels=config.quality.sentinel_texts if config.quality.sentinels == "reject" else (),
        )
        return Cut(good.select(*names, *columns), (checked,), schema)
    runs = Runs(tuple(names), tuple(columns), longest)
    selected = [join_names(names), *(F.expr(member) for member in check.item_members(config))]
    if together:
        return Cut(good.select(*selected), (runs,), schema)
    hashed = good.select(*selected, F.xxhash64("query_id").alias(QUERY_HASH))
    layout = Layout(tuple((f.name, f.dataType.simpleString()) for f in hashed.schema.fields))
    n_buckets = buckets_for(rows)
    blocks = hashed.mapInArrow(Pack(layout, n_buckets).__call__, layout.block_schema)
    if n_buckets == _MIN_BUCKETS:
        parts = blocks.repartition(BUCKET)
    else:
        # A number of tasks that fits the size; the engine puts small ones together only otherwise.
        parts = blocks.repartition(n_buckets // 2, BUCKET)
    shuffled = parts.sortWithinPartitions(BUCKET)
    unpack = Unpack(layout, max(_MAX_QUERY_ROWS, 16 * longest))
    return Cut(shuffled, (unpack, runs), schema)


def handed(config: Definition) -> dict[str, bool]:
    """What Python gets as rows, in the words of :func:`rankspark.spark.session.options`."""
    flat = config.input.items is None
    joined = config.judgments is not None or config.labels is not None
    return {"flat": flat, "lists": joined or not flat}


def buckets_for(rows: DataFrame) -> int:
    """How many parts to group the rows of a source in, by the size that the engine states."""
    size = stated_size(rows)
    return min(_MAX_BUCKETS, max(_MIN_BUCKETS, (size or 0) // _BYTES_A_BUCKET))


def stated_size(frame: DataFrame) -> int | None:
    """Bytes of a source's files, as the engine states them without reading any; None: unknown."""
    printed = io.StringIO()
    # What is printed can be had by one thread at a time.
    with _PRINTING, contextlib.redirect_stdout(printed):
        frame.explain("cost")
    stated = _SIZE.findall(printed.getvalue())
    if not stated:
        return None
    # The source comes last.
    number, unit = stated[-1]
    size = int(float(number) * 1024 ** " KMGTPE".index(unit or " "))
    return size if size < _UNKNOWN_SIZE else None


def of_rows(rows: Cut, config: Definition) -> DataFrame:
    """Lists, where they are to be joined.

    Returns:
        One row a list: its columns, `items` (an array of structs, null where there are more than
        `limits.max_list_length`) and `n_rows`, the impressions.
    """
    return completed(rows.frame.mapInArrow(Chain(rows.steps).__call__, rows.schema), config)


def completed(frame: DataFrame, config: Definition) -> DataFrame:
    """Give lists, or what was made of them, the columns that did not travel with the rows."""
    known = {name: F.expr(sql) for name, sql in constants(config).items()}
    if "assignments" in frame.columns:
        known["assignments"] = F.from_json("assignments", _PAIRS)
    return frame.withColumns(known)


def with_origins(lists: DataFrame, origins: Origins) -> DataFrame:
    """The lists with `judged` or `events`; those without a judgment are left out."""
    if origins.labelled is not None:
        return lists.join(origins.labelled.by_query, "query_id", "left")
    judged = origins.judged
    return lists if judged is None else lists.join(judged.pools, judged.key)


def stand_together(rows: DataFrame) -> bool:
    """Whether the rows of a query stand together in a log, going by the first of them.

    It decides how lists are made, never what they are.

    Args:
        rows: canonical flat rows with `reason`.
    """
    first = rows.where("reason is null").select("query_id").limit(_PROBED_ROWS)
    # Not as Arrow or pandas, for which the engine reads as many rows of every file.
    ids = np.array([row[0] for row in first.collect()], dtype=object)
    n_runs = len(ids[:1]) + int((ids[1:] != ids[:-1]).sum())
    return n_runs == len(set(ids)) and 2 * n_runs <= len(ids)


def without_judgment(rows: DataFrame, config: Definition, judged: Judged) -> list[check.Finding]:
    """Count the rows of the lists that have no judgment, without building the lists."""
    names = list_columns(config)
    if config.input.items is None:
        counted = (
            rows.where("reason is null").groupBy(*names).agg(F.count(F.lit(1)).alias("n_rows"))
        )
    else:
        counted = of_rows(cut(rows, config), config).select(*names, "n_rows")
    known = judged.pools.select(judged.key)
    lost = counted.join(known, judged.key, "left_anti")
    n_rows = lost.agg(F.coalesce(F.sum("n_rows"), F.lit(0))).collect()[0][0]
    if not n_rows:
        return []
    example = F.to_json(F.struct("query_id", "n_rows"))
    longest = lost.orderBy(F.desc("n_rows"), "query_id").limit(check.MAX_EXAMPLES)
    examples = [row[0] for row in longest.select(example).collect()]
    return [check.Finding("query_not_judged", "rejected", n_rows, examples)]


def item_type(config: Definition) -> T.StructType:
    """The type of an item as the scorer takes it."""
    types = {"item_id": T.StringType(), "time": T.LongType(), "position": T.IntegerType()}
    return T.StructType(
        [
            T.StructField(name, types.get(name, T.DoubleType()))
            for name in check.item_columns(config)
        ]
    )

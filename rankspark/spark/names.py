"""The names of a list as one text, and back.

Each column of text that is handed to Python costs a quarter of reading the log (tests/bench). So
what is the same in all rows of a list travels as one column, which tells lists apart as well, and
is split when a list is all that is left of its rows. Any text comes back as it was, null too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

#: The column.
NAMES = "names"
# A mark is always followed by what it means, also where a name has one itself.
_MARK = "\1"
_END, _ITSELF, _NULL = f"{_MARK}e", f"{_MARK}m", f"{_MARK}n"


def join_names(columns: Sequence[str]) -> Column:
    """One text of several columns of text; equal where each of them is, null like null."""
    return F.concat_ws(_END, *(_marked(F.col(name)) for name in columns)).alias(NAMES)


def _marked(name: Column) -> Column:
    mark = F.lit(_MARK)
    # Looking first, since hardly any has one, costs a third of replacing in all.
    safe = F.when(F.contains(name, mark), F.replace(name, mark, F.lit(_ITSELF))).otherwise(name)
    return F.coalesce(safe, F.lit(_NULL))


def split_names(texts: pa.Array, n_names: int) -> list[pa.Array]:
    """The columns that were joined.

    Args:
        texts: STRING[n], without null.
        n_names: how many columns there were.
    """
    parts = pc.split_pattern(texts, _END)
    return [_unmarked(pc.list_element(parts, i)) for i in range(n_names)]


def _unmarked(parts: pa.Array) -> pa.Array:
    names = pc.if_else(pc.equal(parts, _NULL), pa.scalar(None, pa.string()), parts)
    return pc.replace_substring(names, _ITSELF, _MARK)

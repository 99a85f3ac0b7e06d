"""Lists -> per-query metrics: whole Arrow batches of lists to the numpy kernels.

The function that runs on the executors needs numpy, pyarrow and rankspark's measures alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from rankspark.measures import Measure, Options, RankedLists, ranking
from rankspark.measures import score as score_lists
from rankspark.measures.ranking import ShownItems

if TYPE_CHECKING:  # executors have no pydantic
    from rankspark.config import Definition

#: Items scored at once: bounds the kernels' memory (some 200 bytes an item) whatever a batch holds.
CHUNK_ITEMS = 500_000

COUNTS = ("n_items", "n_judged", "n_relevant", "n_duplicates", "n_conflicts")
N_RELEVANT = Measure.parse("n_relevant")


@dataclass(frozen=True)
class Scorer:
    """What the executors need to know; small and picklable."""

    measures: tuple[Measure, ...]
    options: Options
    rankers: tuple[tuple[str, bool, bool], ...]
    gaps: bool
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Score every list under every ranker."""
        for batch in batches:
            for chunk in _chunks(batch):
                yield from self._score(chunk)

    def _score(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        unique = ranking.deduplicate(shown_items(batch.column("items")))
        shown = unique.items
        counts = {
            "n_items": np.diff(shown.offsets),
            "n_judged": _count(~np.isnan(shown.relevance), shown.offsets),
            "n_duplicates": unique.n_duplicates,
            "n_conflicts": unique.n_conflicts,
        }
        passed = [batch.column(name) for name in (*self.names, "n_placeholders")]
        for ranker, is_position, descending in self.rankers:
            ranked = self._ranked(shown, ranker, is_position=is_position, descending=descending)
            values = score_lists(ranked, [N_RELEVANT, *self.measures], self.options)
            counts["n_relevant"] = np.nan_to_num(values[N_RELEVANT]).astype(np.int64)
            yield pa.RecordBatch.from_arrays(
                [
                    *passed,
                    pa.array([ranker], pa.string()).take(pa.array(np.zeros(len(batch), np.int32))),
                    *(pa.array(counts[name], pa.int32()) for name in COUNTS),
                    *(
                        pa.array(values[measure], mask=np.isnan(values[measure]))
                        for measure in self.measures
                    ),
                ],
                names=[
                    *self.names,
                    "n_placeholders",
                    "ranker",
                    *COUNTS,
                    *(measure.column_name for measure in self.measures),
                ],
            )

    def _ranked(
        self, shown: ShownItems, ranker: str, *, is_position: bool, descending: bool
    ) -> RankedLists:
        if is_position:
            return ranking.by_position(shown, gaps=self.gaps)
        return ranking.by_score(shown, ranker, descending=descending)


def score(lists: DataFrame, config: Definition) -> DataFrame:
    """Score lists: one row a query and ranker, as in `query_metrics` but for the audit columns.

    Args:
        lists: as of :func:`rankspark.spark.lists.lists`.
        config: the configuration.
    """
    scorer = Scorer(
        measures=config.measures,
        options=config.options,
        rankers=tuple((r.name, r.by_position, r.descending) for r in config.parsed_rankers),
        gaps=config.evaluate.rank == "position",
        names=tuple(name for name in lists.columns if name not in ("items", "n_placeholders")),
    )
    passed = [field for field in lists.schema.fields if field.name in scorer.names]
    schema = T.StructType(
        [
            *passed,
            T.StructField("n_placeholders", T.IntegerType()),
            T.StructField("ranker", T.StringType()),
            *(T.StructField(name, T.IntegerType()) for name in COUNTS),
            *(T.StructField(measure.column_name, T.DoubleType()) for measure in config.measures),
        ]
    )
    return lists.mapInArrow(scorer.__call__, schema)


def shown_items(items: pa.ListArray) -> ShownItems:
    """The items of an Arrow array of lists of structs, as numpy arrays."""
    offsets = items.offsets.to_numpy().astype(np.int64)
    members = items.flatten()
    fields = dict(zip((field.name for field in members.type), members.flatten(), strict=True))
    coded = fields.pop("item_id").dictionary_encode()
    position = fields.pop("position", None)
    floats = {name: values.to_numpy(zero_copy_only=False) for name, values in fields.items()}

    def item_order() -> NDArray[np.int64]:
        order = np.empty(len(coded.dictionary), dtype=np.int64)
        order[pc.array_sort_indices(coded.dictionary).to_numpy()] = np.arange(len(order))
        return order

    return ShownItems(
        offsets=offsets - offsets[0],
        item=coded.indices.to_numpy().astype(np.int64),
        item_order=item_order,
        relevance=floats.pop("relevance"),
        position=None if position is None else position.to_numpy().astype(np.int64),
        scores={name.removeprefix("score_"): values for name, values in floats.items()},
    )


def _chunks(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    offsets = batch.column("items").offsets.to_numpy()
    start = 0
    while start < len(batch):
        # At least one list, however long it is.
        end = int(np.searchsorted(offsets, offsets[start] + CHUNK_ITEMS, side="right")) - 1
        end = min(max(end, start + 1), len(batch))
        yield batch.slice(start, end - start)
        start = end


def _count(mask: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    running = np.concatenate(([0], np.cumsum(mask)))
    return running[offsets[1:]] - running[offsets[:-1]]

"""Lists -> per-query metrics: whole Arrow batches of lists to the numpy kernels.

The function that runs on the executors needs numpy, pyarrow and rankspark's measures alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from rankspark.errors import InputError
from rankspark.measures import Measure, Options, RankedLists, ranking
from rankspark.measures import score as score_lists
from rankspark.measures.ranking import ShownItems
from rankspark.spark.runs import Chain, Step

if TYPE_CHECKING:  # executors have no pydantic
    from rankspark.config import Definition

#: Items scored at once: bounds the kernels' memory (some 200 bytes an item) whatever a batch holds.
CHUNK_ITEMS = 1 << 16

COUNTS = (
    "n_placeholders",
    "n_items",
    "n_judged",
    "n_relevant",
    "n_duplicates",
    "n_conflicts",
    "n_unscored",
    "n_events_unmatched",
    "n_repeated",
    "n_gaps",
)
_CONSUMED = ("items", "n_rows", "judged", "events")
N_RELEVANT = Measure.parse("n_relevant")


@dataclass(frozen=True)
class Scorer:
    """Scores lists, or what `steps` make lists of; small and picklable.

    Of a list without `items`, because they are too many, only `n_items` is known, which then is
    above `limits.max_list_length`.
    """

    measures: tuple[Measure, ...]
    options: Options
    rankers: tuple[tuple[str, bool, bool], ...]
    gaps: bool
    ties: str
    window: int
    names: tuple[str, ...]
    steps: tuple[Step, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Score every list under every ranker."""
        for batch in Chain(self.steps)(batches):
            for chunk in _chunks(batch):
                yield from self._score(chunk)

    def _score(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        names = batch.schema.names
        pools = batch.column("judged") if "judged" in names else None
        events = batch.column("events") if "events" in names else None
        items = batch.column("items")
        everything, judged, unmatched = shown_items(items, pools, events, self.window)
        unique = ranking.deduplicate(everything)
        shown = unique.items
        n_rows = batch.column("n_rows").to_numpy()
        cut = items.is_null().to_numpy(zero_copy_only=False)
        counts = {
            "n_placeholders": np.where(cut, 0, n_rows - np.diff(everything.offsets)),
            "n_items": np.where(cut, n_rows, np.diff(shown.offsets)),
            "n_judged": _count(~np.isnan(shown.relevance), shown.offsets),
            "n_duplicates": unique.n_duplicates,
            "n_conflicts": unique.n_conflicts,
            "n_events_unmatched": unmatched,
        }
        passed = [batch.column(name) for name in self.names]
        none = np.zeros(len(batch), np.int64)
        for ranker, is_position, descending in self.rankers:
            counts |= {"n_unscored": none, "n_repeated": none, "n_gaps": none}
            if is_position:
                placed = ranking.by_position(shown, gaps=self.gaps)
                ranked = placed.ranked
                counts |= {"n_repeated": placed.n_repeated, "n_gaps": placed.n_gaps}
            else:
                ranked = self._by_score(shown, ranker, descending=descending)
                counts["n_unscored"] = _count(np.isnan(shown.scores[ranker]), shown.offsets)
            ranked = replace(ranked, judged=judged)
            values = score_lists(ranked, [N_RELEVANT, *self.measures], self.options)
            counts["n_relevant"] = np.nan_to_num(values[N_RELEVANT]).astype(np.int64)
            yield pa.RecordBatch.from_arrays(
                [
                    *passed,
                    pa.array([ranker], pa.string()).take(pa.array(np.zeros(len(batch), np.int32))),
                    *(pa.array(counts[name], pa.int32()) for name in COUNTS),
                    *(
                        pa.array(values[measure], mask=np.isnan(values[measure]) | cut)
                        for measure in self.measures
                    ),
                ],
                names=[
                    *self.names,
                    "ranker",
                    *COUNTS,
                    *(measure.column_name for measure in self.measures),
                ],
            )

    def _by_score(self, shown: ShownItems, ranker: str, *, descending: bool) -> RankedLists:
        ranked = ranking.by_score(
            shown, ranker, descending=descending, item_descending=self.ties == "item_id_desc"
        )
        if self.ties == "error" and ranked.tied is not None and ranked.tied.any():
            raise InputError(
                expected=f"no two items of a list with one score of ranker {ranker}",
                found=f"{int(ranked.tied.sum())} such items in a batch of {len(ranked)} lists",
                action="correct the scores, or set evaluate.ties to item_id or average",
            )
        return ranked


def score(
    lists: DataFrame,
    config: Definition,
    steps: tuple[Step, ...] = (),
    schema: T.StructType | None = None,
) -> DataFrame:
    """Score lists: one row a list and ranker, as in `query_metrics` but for the audit columns.

    Args:
        lists: their columns, `items` and `n_rows`; with judgments `judged`, with events `events`.
            Or, with `steps`, what these make such lists of.
        config: the configuration.
        steps: functions of Arrow batches, run before on the executors.
        schema: of the lists, where there are steps.
    """
    fields = (schema or lists.schema).fields
    passed = [field for field in fields if field.name not in _CONSUMED]
    scorer = Scorer(
        measures=config.measures,
        options=config.evaluate.options,
        rankers=tuple((r.name, r.by_position, r.descending) for r in config.parsed_rankers),
        gaps=config.evaluate.rank == "position",
        ties=config.evaluate.tied_scores,
        window=0 if config.labels is None else config.labels.seconds * 1_000_000,
        names=tuple(field.name for field in passed),
        steps=steps,
    )
    scored = T.StructType(
        [
            *passed,
            T.StructField("ranker", T.StringType()),
            *(T.StructField(name, T.IntegerType()) for name in COUNTS),
            *(T.StructField(measure.column_name, T.DoubleType()) for measure in config.measures),
        ]
    )
    return lists.mapInArrow(scorer.__call__, scored)


def shown_items(
    items: pa.ListArray,
    pools: pa.ListArray | None = None,
    events: pa.ListArray | None = None,
    window: int = 0,
) -> tuple[ShownItems, tuple[NDArray[np.int64], NDArray[np.float64]] | None, NDArray[np.int64]]:
    """The items of Arrow arrays of lists of structs, as numpy arrays.

    Args:
        items: what was shown.
        pools: the judged items of each list, each once; shown items then take their grades.
        events: what happened to items of each list; shown items then take their relevance.
        window: how long after it was shown an item's events count, in microseconds.

    Returns:
        the shown items; offsets and grades of the judged ones, or None; int64[n] events of each
        list that belong to no item.
    """
    offsets, fields = _members(items)
    ids = fields.pop("item_id")
    more = pools if pools is not None else events
    if more is not None:
        bounds, others = _members(more)
        ids = pa.concat_arrays([ids, others["item_id"]])
        grades = others["relevance"].to_numpy(zero_copy_only=False)
    coded = ids.dictionary_encode()
    codes = coded.indices.to_numpy().astype(np.int64)
    code, other = codes[: offsets[-1]], codes[offsets[-1] :]
    position = fields.pop("position", None)
    shown_at = fields.pop("time", None)
    floats = {name: values.to_numpy(zero_copy_only=False) for name, values in fields.items()}
    judged, unmatched = None, np.zeros(len(items), dtype=np.int64)
    if pools is not None:
        judged = bounds, grades
        floats["relevance"] = ranking.look_up(offsets, code, bounds, other, grades)
    elif events is not None:
        floats["relevance"], unmatched = ranking.attribute(
            ranking.Shown(offsets, code, shown_at.to_numpy()),
            ranking.Events(bounds, other, others["time"].to_numpy(), grades),
            window,
        )

    def item_order() -> NDArray[np.int64]:
        order = np.empty(len(coded.dictionary), dtype=np.int64)
        order[pc.array_sort_indices(coded.dictionary).to_numpy()] = np.arange(len(order))
        return order

    shown = ShownItems(
        offsets=offsets,
        item=code,
        item_order=item_order,
        relevance=floats.pop("relevance"),
        position=None if position is None else position.to_numpy().astype(np.int64),
        scores={name.removeprefix("score_"): values for name, values in floats.items()},
    )
    return shown, judged, unmatched


def _members(lists: pa.ListArray) -> tuple[NDArray[np.int64], dict[str, pa.Array]]:
    """Offsets from 0, and the structs' fields, flat."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    members = lists.flatten()
    fields = zip((field.name for field in members.type), members.flatten(), strict=True)
    return offsets - offsets[0], dict(fields)


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

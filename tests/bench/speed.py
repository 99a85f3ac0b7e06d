"""How fast rankspark is beside other ways from Parquet to mean mrr and ndcg@10; run by hand.

    .venv/bin/python tests/bench/speed.py --rows 3000000 --order random --json speed.json

Contenders take turns in one process, so that the machine's drift touches all alike; the first
rounds warm up and do not count; the very first shows that all give the same numbers. What is
claimed is a ratio of medians, never a time. A contender that is too slow for so many rows is left
out.

    scan    read the seven columns that rankspark needs
    floor   read and shuffle them by query
    rankspark    read, check, group and score mrr and ndcg@10 for every query; mean by variant
    duckdb, polars, window (functions of Spark SQL), apply_in_pandas, grouped_agg (a pandas
        aggregate function a measure), mllib (ndcg only), ranx, pytrec_eval    the same means
    measures12   rankspark with twelve measures
    rankers3     rankspark under three rankers: the logged one and two scores
    slices3      rankspark with means by three slices too
    job, job_slices3    the whole of `rankspark evaluate`: all tables written, audited, published
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rankspark.spark import session
from tests.bench.contenders import MAX_ROWS, VARIANTS, Contender, Log, Means, contenders, reference

DAY = date(2024, 3, 10)
ITEMS_A_QUERY = 20
N_ITEMS = 5_000_000
#: Of grades 0, 1, 2, 3.
GRADES = np.cumsum([0.9, 0.06, 0.03, 0.01])
COUNTRIES = [f"country-{i}" for i in range(12)]
DEVICES = ["phone", "tablet", "desktop"]
SEGMENTS = ["new", "casual", "regular", "loyal"]
#: Rows of a file, at most: what is in memory while the log is written.
FILE_ROWS = 1_000_000
TOLERANCE = 1e-9
#: Rounds before those that count: Java compiles for as long in the background.
WARM_UP = 3
#: What else is compared: name / base.
OVER = {
    "measures12": "rankspark",
    "rankers3": "rankspark",
    "slices3": "rankspark",
    "job": "rankspark",
    "job_slices3": "job",
}

Ints = NDArray[np.int64]


def write_log(folder: Path, rows: int, order: str, seed: int = 0) -> None:
    """A log of one day, in the order asked for; a row depends on its index and the seed only."""
    folder.mkdir(parents=True)
    for i, index in enumerate(pieces(rows - rows % ITEMS_A_QUERY, order, seed)):
        table = nested(index, seed) if order == "nested" else flat(index, seed)
        pq.write_table(table, folder / f"{i:05}.parquet", compression="zstd")


def pieces(rows: int, order: str, seed: int) -> Iterator[Ints]:
    """The indexes of the rows of each file: whole queries unless in random order.

    Random order is two steps, so that no array of all rows is needed: rows are dealt out to files
    by a multiplier coprime with their number, which takes the items of a query far from each
    other, and then each file is shuffled.
    """
    n_queries = rows // ITEMS_A_QUERY
    # Eight files at least, for as many tasks.
    size = ITEMS_A_QUERY * min(-(-n_queries // 8), FILE_ROWS // ITEMS_A_QUERY)
    stride = round(rows * 0.6180339887)
    while math.gcd(stride, rows) != 1:
        stride += 1
    # Row i is put at i * stride; the row at j is therefore j / stride, all modulo rows.
    inverse = pow(stride, -1, rows)
    for start in range(0, rows, size):
        index = np.arange(start, min(start + size, rows))
        if order == "random":
            index = index * inverse % rows
            np.random.default_rng((seed, start)).shuffle(index)
        yield index


def flat(index: Ints, seed: int) -> pa.Table:
    """A row an item."""
    query = index // ITEMS_A_QUERY
    return pa.table(query_columns(query, seed) | item_columns(index, seed))


def nested(index: Ints, seed: int) -> pa.Table:
    """A row a query, of whole queries."""
    members = item_columns(index, seed)
    offsets = np.arange(0, len(index) + 1, ITEMS_A_QUERY, dtype=np.int32)
    structs = pa.StructArray.from_arrays(list(members.values()), names=list(members))
    query = index[::ITEMS_A_QUERY] // ITEMS_A_QUERY
    items = pa.ListArray.from_arrays(pa.array(offsets), structs)
    return pa.table(query_columns(query, seed) | {"items": items})


def query_columns(query: Ints, seed: int) -> dict[str, pa.Array]:
    """What is the same in all rows of a query."""
    return {
        "day": chosen([str(DAY)], np.zeros_like(query)),
        "variant": chosen(list(VARIANTS), query // 5 % 2),
        "query_id": named("request-", query),
        "user_id": named("user-", query // 5),
        "country": chosen(COUNTRIES, hashed(query, seed, 1) % np.uint64(len(COUNTRIES))),
        "device": chosen(DEVICES, hashed(query, seed, 2) % np.uint64(len(DEVICES))),
        "segment": chosen(SEGMENTS, hashed(query // 5, seed, 3) % np.uint64(len(SEGMENTS))),
    }


def item_columns(index: Ints, seed: int) -> dict[str, pa.Array]:
    """What differs within a query: its items are different ones, at positions without gaps."""
    query, place = np.divmod(index, ITEMS_A_QUERY)
    first = (hashed(query, seed, 4) % np.uint64(N_ITEMS)).astype(np.int64)
    # Far from each other and in no order, but never one item twice.
    item = (first + place * 1_618_033) % N_ITEMS
    relevance = np.searchsorted(GRADES[:-1], uniform(hashed(index, seed, 5)), side="right")
    return {
        "item_id": named("item-", item),
        "position": pa.array((place + 1).astype(np.int32)),
        "relevance": pa.array(relevance.astype(np.int32)),
        "score": pa.array(uniform(hashed(index, seed, 6))),
    }


def hashed(values: Ints, seed: int, salt: int) -> NDArray[np.uint64]:
    """Splitmix64: random bits that depend on the value alone."""
    mixed = values.astype(np.uint64) + np.uint64((seed * 1_000 + salt) << 40)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """From 0 to below 1."""
    return (bits >> np.uint64(11)).astype(np.float64) / 2.0**53


def named(prefix: str, numbers: Ints) -> pa.Array:
    """Ids as text."""
    return pc.binary_join_element_wise(prefix, pc.cast(pa.array(numbers), pa.string()), "")


def chosen(texts: list[str], which: NDArray[np.integer]) -> pa.Array:
    """One of a few texts each."""
    return pa.array(texts).take(pa.array(which.astype(np.int32)))


def main() -> None:
    """Measure, print the medians and ratios, write them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--order", choices=["random", "clustered", "nested"], default="random")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders, instead of all")
    options = parser.parse_args()
    if options.rows < ITEMS_A_QUERY * len(VARIANTS):
        parser.error(f"--rows must be at least {ITEMS_A_QUERY * len(VARIANTS)}")

    folder = Path(tempfile.mkdtemp(prefix="rankspark-bench-"))
    try:
        log = Log(folder / "log", nested=options.order == "nested", day=DAY)
        spark = session.get_session("speed")
        everyone = contenders(spark, log, folder)
        unknown = set(options.only or ()) - set(everyone)
        if unknown:
            parser.error(
                f"no contender {', '.join(sorted(unknown))}; there are {', '.join(everyone)}"
            )
        invited = {n: c for n, c in everyone.items() if not options.only or n in options.only}
        present = {n: c for n, c in invited.items() if MAX_ROWS.get(n, math.inf) >= options.rows}
        write_log(log.folder, options.rows, options.order)
        with session.options(spark, flat=options.order != "nested"):
            expected = reference(spark, log, folder, present)
            seconds = measure(present, expected, options.rounds)
    finally:
        shutil.rmtree(folder)
    ratios = compared(seconds)
    report(seconds, ratios)
    for name in [name for name in invited if name not in present]:
        print(f"{name} left out: at most {MAX_ROWS[name]:,} rows")
    if options.json:
        content = {
            "rows": options.rows,
            "order": options.order,
            "seconds": seconds,
            "ratios": ratios,
        }
        options.json.write_text(json.dumps(content, indent=2))


def measure(present: Mapping[str, Contender], expected: Means, rounds: int) -> dict[str, float]:
    """Median seconds of each contender, taken in turns after some rounds that do not count.

    Each round has an order of its own: what one leaves behind (files to be written back, a heap
    to be cleaned) is paid for by whoever comes next, which must not always be the same one.

    Raises:
        ValueError: not all give the numbers expected.
    """
    times: dict[str, list[float]] = {name: [] for name in present}
    refuse_disagreement({name: run() for name, run in present.items()}, expected)
    chance = random.Random(0)
    for _ in range(WARM_UP - 1 + rounds):
        for name in chance.sample(list(present), len(present)):
            began = time.perf_counter()
            present[name]()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken[WARM_UP - 1 :]) for name, taken in times.items()}


def refuse_disagreement(found: Mapping[str, Means | None], expected: Means) -> None:
    """Raise a ValueError with the names and numbers of those that differ from what is expected."""
    wrong = []
    for name, means in found.items():
        if means is None:
            continue
        measured = {measure for _, measure in means} & {measure for _, measure in expected}
        if not measured:
            wrong.append(f"{name} gives no mean")
        for (variant, measure), right in expected.items():
            value = means.get((variant, measure), math.nan)
            # The negation also catches NaN.
            if measure in measured and not abs(value - right) <= TOLERANCE:
                wrong.append(f"{name}: {measure} of {variant} is {value!r}, not {right!r}")
    if wrong:
        raise ValueError("contenders disagree with rankspark:\n" + "\n".join(wrong))


def compared(seconds: Mapping[str, float]) -> dict[str, float]:
    """Ratios of medians: rankspark over each other contender; the extra ones over their base."""
    ratios = {}
    if "rankspark" in seconds:
        for name in [n for n in seconds if n != "rankspark" and n not in OVER]:
            ratios[name] = seconds["rankspark"] / seconds[name]
    for name, base in OVER.items():
        if {name, base} <= seconds.keys():
            ratios[f"{name}_over_{base}"] = seconds[name] / seconds[base]
    return ratios


def report(seconds: Mapping[str, float], ratios: Mapping[str, float]) -> None:
    """Print the medians and the ratios."""
    for name, median in seconds.items():
        print(f"{name:15} {median:8.2f} s")
    for name, ratio in ratios.items():
        print(f"{f'rankspark/{name}' if name in seconds else name:26} {ratio:6.2f}")


if __name__ == "__main__":
    main()

"""How much the per-query path costs over reading and shuffling the same rows; run by hand.

    .venv/bin/python tests/bench/speed.py --rows 3000000 --order random --json /tmp/speed.json

Contenders take turns in one session, so that the machine's drift touches all alike; the first round
warms up and does not count. What is claimed is a ratio of medians, never a time.

    scan    read all columns
    floor   read and shuffle them all by query
    rankspark    read, check, group and score mrr and ndcg@10 for every query
    measures12   the same with twelve measures
    rankers3     the same under three rankers: the logged one and two scores
    job     the whole of `rankspark evaluate`: all tables written, audited, published
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from rankspark import config
from rankspark.spark import check, pipeline, read, session

DAY = date(2024, 3, 10)
ITEMS_A_QUERY = 20


def write_log(folder: Path, rows: int, order: str, seed: int = 0) -> None:
    """A log of one day, ten of its files at most, in the order asked for."""
    random = np.random.default_rng(seed)
    n_queries = rows // ITEMS_A_QUERY
    query = np.repeat(np.arange(n_queries), ITEMS_A_QUERY)
    position = np.tile(np.arange(1, ITEMS_A_QUERY + 1), n_queries)
    item = random.integers(0, 5_000_000, len(query))
    relevance = random.choice([0, 1, 2, 3], len(query), p=[0.9, 0.06, 0.03, 0.01])
    where = random.permutation(len(query)) if order == "random" else np.arange(len(query))
    query, position, item, relevance = (a[where] for a in (query, position, item, relevance))
    table = pa.table(
        {
            "day": pa.array([str(DAY)]).take(pa.array(np.zeros(len(query), np.int32))),
            "variant": pa.array(["control", "treatment"]).take(pa.array(query % 2)),
            "query_id": np.char.add("request-", query.astype(str)),
            "user_id": np.char.add("user-", (query // 5).astype(str)),
            "item_id": np.char.add("item-", item.astype(str)),
            "position": position.astype(np.int32),
            "relevance": relevance.astype(np.int32),
            "score": random.random(len(query)),
        }
    )
    folder.mkdir(parents=True)
    part = -(-len(query) // 8)
    for i in range(8):
        pq.write_table(table.slice(i * part, part), folder / f"{i}.parquet", compression="zstd")


TWO = ("mrr", "ndcg@10")
TWELVE = (
    "mrr", "mrr@10", "ndcg@5", "ndcg@10", "ndcg_exp@10", "map", "recall@5", "recall@10",
    "precision@5", "precision@10", "hit@1", "hit@10",
)  # fmt: skip
THREE = {"logged": "position", "model": "score desc", "upward": "score"}


def configuration(
    log: Path,
    output: Path,
    measures: Sequence[str] = TWO,
    rankers: Mapping[str, str] | None = None,
) -> config.Config:
    """The job, per user."""
    return config.from_dict(
        {
            "name": "speed",
            "input": {
                "path": str(log),
                "columns": {
                    "date": "day",
                    "experiment": "'speed'",
                    "variant": "variant",
                    "query_id": "query_id",
                    "unit_id": "user_id",
                    "item_id": "item_id",
                    "position": "position",
                    "relevance": "relevance",
                },
            },
            "evaluate": {"measures": list(measures)},
            "rankers": dict(rankers or {"logged": "position"}),
            "output": {"path": str(output)},
        }
    )


def consume(frame: DataFrame) -> None:
    """Compute every column of every row and keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    """Measure, print the medians and ratios, write them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--order", choices=["random", "clustered"], default="random")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    folder = Path(tempfile.mkdtemp(prefix="rankspark-bench-"))
    try:
        write_log(folder / "log", options.rows, options.order)
        seconds = measure(folder, options.rounds)
    finally:
        shutil.rmtree(folder)
    ratios = {name: seconds["rankspark"] / seconds[name] for name in ("scan", "floor")}
    for name in ("measures12", "rankers3", "job"):
        ratios[f"{name}_over_rankspark"] = seconds[name] / seconds["rankspark"]
    for name, median in seconds.items():
        print(f"{name:10} {median:7.2f} s")
    for name, ratio in ratios.items():
        print(f"{'rankspark/' + name if name in seconds else name:26} {ratio:5.2f}")
    if options.json:
        content = {
            "rows": options.rows,
            "order": options.order,
            "seconds": seconds,
            "ratios": ratios,
        }
        options.json.write_text(json.dumps(content, indent=2))


def measure(folder: Path, rounds: int) -> dict[str, float]:
    """Median seconds of each contender, taken in turns."""
    spark = session.get_session("speed")
    job = configuration(folder / "log", folder / "tables")
    # The seven columns that the job uses.
    log = spark.read.parquet(str(folder / "log")).drop("score")

    def score(definition: config.Config) -> Callable[[], None]:
        def run() -> None:
            rows = read.read(spark, definition, DAY)
            consume(pipeline.per_query(check.mark(rows, definition), definition))

        return run

    files = (folder / "log", folder / "tables")

    contenders: dict[str, Callable[[], object]] = {
        "scan": lambda: consume(log),
        "floor": lambda: consume(log.repartition("query_id")),
        "rankspark": score(job),
        "measures12": score(configuration(*files, measures=TWELVE)),
        "rankers3": score(configuration(*files, rankers=THREE)),
        "job": lambda: pipeline.evaluate(spark, job, [DAY]),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with session.options(spark):
        for _ in range(rounds + 1):
            for name, contender in contenders.items():
                began = time.perf_counter()
                contender()
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


if __name__ == "__main__":
    main()

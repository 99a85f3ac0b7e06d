"""What a whole evaluation costs as the log grows, and that hostile logs fit small heaps; by hand.

    .venv/bin/python tests/bench/scale.py --rows 1000000 3000000 10000000 --driver-memory 4g
    .venv/bin/python tests/bench/scale.py --rows 3000000 --giant 20000000 --null-ids \\
        --driver-memory 1g

Each size runs in a process of its own, so that its peak memory is its own, after some small jobs
that warm it up. Printed as JSON, a line a size: seconds of the job (all tables written, audited,
published), peak resident memory of the JVM and of the Python workers together in MB, and a million
rows' bytes in shuffle and spill.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import speed
from pyspark.sql import SparkSession

from rankspark.config import Config, Gate
from rankspark.spark import pipeline, session
from tests.bench.contenders import Log, configuration

_UI = "http://localhost:4040/api/v1/applications"
WARM_UP_ROWS, WARM_UP = 300_000, 5


def main() -> None:
    """Run each size in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", required=True)
    parser.add_argument("--order", choices=["random", "clustered", "nested"], default="random")
    parser.add_argument("--driver-memory", default="4g")
    parser.add_argument("--giant", type=int, default=0, help="rows of one more query")
    parser.add_argument("--null-ids", action="store_true", help="as many rows without query_id")
    options = parser.parse_args()
    if len(options.rows) == 1:
        print(json.dumps(measured(options.rows[0], options)), flush=True)
        return
    own = [argument for argument in sys.argv[1:] if argument not in map(str, options.rows)]
    own.remove("--rows")
    for rows in options.rows:
        subprocess.run([sys.executable, __file__, "--rows", str(rows), *own], check=True)


def measured(rows: int, options: argparse.Namespace) -> dict[str, object]:
    """Write a log, evaluate it, say what that took."""
    folder = Path(tempfile.mkdtemp(prefix="rankspark-scale-"))
    try:
        log = Log(folder / "log", nested=options.order == "nested", day=speed.DAY)
        speed.write_log(log.folder, rows, options.order)
        total = rows + add_giant(log.folder, options.giant) + add_null_ids(log, options.null_ids)
        settings = {"spark.driver.memory": options.driver_memory, "spark.ui.enabled": "true"}
        spark = session.get_session("scale", settings=settings)
        warm = Log(folder / "warm", nested=log.nested, day=speed.DAY)
        speed.write_log(warm.folder, WARM_UP_ROWS, options.order)
        for _ in range(WARM_UP):
            evaluated(spark, configuration(warm, folder / "out-of-warm"))
        before = stage_bytes()
        job = hospitable(configuration(log, folder / "out"))
        with peak_memory() as peak:
            began = time.perf_counter()
            result = evaluated(spark, job)
            seconds = time.perf_counter() - began
        millions = total / 1e6
        return {
            "rows": total,
            "order": options.order,
            "seconds": round(seconds, 1),
            "seconds_a_million": round(seconds / millions, 2),
            "peak_mb": {name: round(kb / 1024) for name, kb in peak.items()},
            "mb_a_million": {
                name: round((n - before[name]) / millions / 1e6, 1)
                for name, n in stage_bytes().items()
            },
            "stages": result.seconds,
            "findings": {found.reason: found.n_rows for found in result.findings},
        }
    finally:
        shutil.rmtree(folder)


def hospitable(job: Config) -> Config:
    """The same, but publishing a day most of which is rejected."""
    quality = job.quality.model_copy(update={"rejected": Gate()})
    return job.model_copy(update={"quality": quality})


def evaluated(spark: SparkSession, job: Config) -> pipeline.DateResult:
    """Evaluate the day.

    Raises:
        RuntimeError: it failed.
    """
    (result,) = pipeline.evaluate(spark, job, [speed.DAY])
    if result.error is not None:
        raise RuntimeError(result.error)
    return result


def add_giant(folder: Path, rows: int) -> int:
    """One query of so many rows, spread over files of a million."""
    for start in range(0, rows, speed.FILE_ROWS):
        n = min(speed.FILE_ROWS, rows - start)
        table = speed.flat(speed.np.arange(start, start + n), 1)
        query = pa.array(["bot"] * n)
        table = table.set_column(table.schema.get_field_index("query_id"), "query_id", query)
        pq.write_table(table, folder / f"giant-{start:010}.parquet", compression="zstd")
    return rows


def add_null_ids(log: Log, wanted: bool) -> int:
    """Every file once more, with no query_id."""
    rows = 0
    for file in sorted(log.folder.glob("*.parquet")) if wanted else ():
        table = pq.read_table(file)
        null = pa.nulls(len(table), pa.string())
        table = table.set_column(table.schema.get_field_index("query_id"), "query_id", null)
        pq.write_table(table, file.with_name(f"null-{file.name}"), compression="zstd")
        rows += len(table)
    return rows


@contextmanager
def peak_memory() -> Iterator[dict[str, int]]:
    """Peak resident kilobytes of the JVM and of all Python workers, seen ten times a second."""
    peak = {"jvm": 0, "python_workers": 0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            for name, kb in resident(os.getpid()).items():
                peak[name] = max(peak[name], kb)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def resident(root: int) -> dict[str, int]:
    """Resident kilobytes of the descendants of a process: of java, and of others."""
    parents, sizes, names = {}, {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # it has ended
        pid = int(lines["Pid"])
        parents[pid], names[pid] = int(lines["PPid"]), lines["Name"].strip()
        sizes[pid] = int(lines.get("VmRSS", "0").split()[0])
    found = {"jvm": 0, "python_workers": 0}
    for pid in parents:
        above = pid
        while above not in (0, root):
            above = parents.get(above, 0)
        if above == root and pid != root:
            found["jvm" if names[pid] == "java" else "python_workers"] += sizes[pid]
    return found


def stage_bytes() -> dict[str, int]:
    """What all stages so far have written to shuffle and spilled."""

    def get(path: str) -> list[dict[str, int]]:
        with urllib.request.urlopen(_UI + path) as answer:
            return list(json.load(answer))

    stages = get(f"/{get('')[0]['id']}/stages?status=complete")
    names = {"shuffle": "shuffleWriteBytes", "spill": "diskBytesSpilled"}
    return {name: sum(stage[key] for stage in stages) for name, key in names.items()}


if __name__ == "__main__":
    main()

"""What it takes to evaluate and to compare very many units; by hand.

    .venv/bin/python tests/bench/units.py --units 10000000 --days 5 --driver-memory 4g

Every unit comes back every day with one query. With `--copy`, only the first day is evaluated and
its published files stand for the others too, so that every day is alike. Printed as JSON: seconds
of each day's evaluation and of the comparison, its result, and peak resident memory in MB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

from scale import peak_memory

from rankspark import config, tables
from rankspark.spark import compare, pipeline, session

FIRST = date(2024, 3, 4)
NAMES = ("date", "experiment", "variant", "query_id", "unit_id", "item_id", "position", "relevance")


def main() -> None:
    """Write, evaluate, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--units", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=5)
    parser.add_argument("--copy", action="store_true", help="evaluate the first day alone")
    parser.add_argument("--driver-memory", default="4g")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rankspark-units-"))
    spark = session.get_session(
        "units",
        settings={"spark.driver.memory": given.driver_memory, "spark.ui.enabled": "false"},
    )
    days = [FIRST + timedelta(days=n) for n in range(given.days)]
    job = config.from_dict(
        {
            "name": "units",
            "input": {"path": str(folder / "log" / "*"), "columns": {name: name for name in NAMES}},
            "evaluate": {"measures": ["hit@1"]},
            "compare": {"control": "A", "primary": ["hit@1"]},
            "output": {"path": str(folder / "out")},
        }
    )
    told: dict[str, object] = {"unit_days": given.units * given.days}
    try:
        with peak_memory() as peak:
            evaluated = days[:1] if given.copy else days
            for day in evaluated:
                # B finds what it looks for in 31 of 100 cases, A in 30.
                spark.range(given.units).selectExpr(
                    f"'{day}' AS date", "'e' AS experiment",
                    "if(id % 2 = 0, 'A', 'B') AS variant",
                    f"concat(id, '-{day}') AS query_id", "cast(id AS string) AS unit_id",
                    "'item' AS item_id", "1 AS position",
                    f"int(pmod(xxhash64(id, '{day}'), 100) < 30 + id % 2) AS relevance",
                ).write.parquet(str(folder / "log" / f"{day}"))  # fmt: skip
            seconds = []
            for day in evaluated:
                began = time.perf_counter()
                (result,) = pipeline.evaluate(spark, job, [day])
                if result.error is not None:
                    raise RuntimeError(result.error)
                seconds.append(round(time.perf_counter() - began, 1))
            told["evaluate_seconds"] = seconds
            for day in set(days) - set(evaluated):
                for table in ("metrics", "unit_day", "assignment", "runs"):
                    root = folder / "out" / table
                    shutil.copytree(root / f"date={FIRST}", root / f"date={day}")
            began = time.perf_counter()
            rows = compare.compare(spark, job, days[0], days[-1] + timedelta(days=1)).rows
            told["compare_seconds"] = round(time.perf_counter() - began, 1)
        told["peak_mb"] = {name: round(kb / 1024) for name, kb in peak.items()}
        told["result"] = [
            {
                k: str(row[k])
                for k in ("measure", "n_units_c", "n_units_t", "effect", "ci_low", "ci_high", "p")
            }
            for row in rows
            if row["slice_name"] == tables.OVERALL[0]
        ]
        print(json.dumps(told))
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

"""Logs that kill clusters, on a heap of 1 GiB: does the job end, how, and with what memory?

python tests/bench/hostile.py --rows 20000000 {bot,nulls,experiments,variants}

bot: one query has all rows but 100,000; nulls: half the rows have no query_id; experiments and
variants: as many as there are queries, by mistake.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path

from rankspark import config
from rankspark.spark import pipeline
from rankspark.spark.session import get_session

DAY = dt.date(2024, 3, 10)
QUERY = {
    "bot": "if(id < {rows} - 100000, 'bot', 'q' || id div 10)",
    "nulls": "if(id % 20 < 10, null, 'q' || id div 10)",
    "experiments": "'q' || id div 10",
    "variants": "'q' || id div 10",
}
NAME = {"experiments": ("'e' || id div 10", "'A'"), "variants": ("'e'", "'v' || id div 10")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=sorted(QUERY))
    parser.add_argument("--rows", type=int, default=20_000_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rankspark-hostile-"))
    spark = get_session(
        settings={
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
        }
    )
    experiment, variant = NAME.get(given.case, ("'e'", "if(id div 10 % 2 = 0, 'A', 'B')"))
    spark.range(given.rows).selectExpr(
        f"{experiment} AS experiment", f"{variant} AS variant",
        f"{QUERY[given.case].format(rows=given.rows)} AS query_id", "'i' || id AS item_id",
        "int(id % 10) + 1 AS position", "double(id % 10 = 3) AS relevance",
        "'u' || id div 30 AS unit_id",
    ).write.parquet(str(folder / "log"))  # fmt: skip
    names = ("experiment", "variant", "query_id", "item_id", "position", "relevance", "unit_id")
    job = config.from_dict(
        {
            "name": "hostile",
            "input": {
                "path": str(folder / "log"),
                "columns": {name: name for name in names} | {"date": f"DATE'{DAY}'"},
            },
            "output": {"path": str(folder / "out")},
            "quality": {"rejected": {"warn": 0.01}},
        }
    )
    since = time.monotonic()
    (result,) = pipeline.evaluate(spark, job, [DAY])
    told = {
        "case": given.case,
        "rows": given.rows,
        "seconds": round(time.monotonic() - since, 1),
        "status": result.status,
        "error": result.error,
        "counts": result.counts,
        "findings": {f.reason: f.n_rows for f in result.findings},
        "driver_python_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(told))
    spark.stop()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()

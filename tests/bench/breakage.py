"""Kills while a date is published again, and an object store; run by hand.

    .venv/bin/python tests/bench/breakage.py driver --times 20
    .venv/bin/python tests/bench/breakage.py executor
    .venv/bin/python tests/bench/breakage.py s3 --endpoint http://127.0.0.1:5557 --bucket warehouse

`driver` kills a run's processes at random moments over a published date, and looks at what readers
see and at what the next run does. `executor` starts a standalone cluster of two workers with
speculation on and kills an executor while it writes. `s3` publishes to an S3 server (such as that
of moto) with hadoop-aws and counts what a reader in a loop sees. Each prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import date
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyspark
import speed

from rankspark import config
from rankspark.spark import pipeline, session
from tests.bench.contenders import Log, configuration

RUN = """
import json, sys, datetime
from rankspark import config, get_session
from rankspark.spark import pipeline
job = config.from_dict(json.loads(sys.argv[1]))
spark = get_session(settings=json.loads(sys.argv[2]))
print("started", flush=True)
say = lambda day, stage: print(stage, flush=True)
(result,) = pipeline.evaluate(spark, job, [datetime.date(2024, 3, 10)], say)
print(json.dumps({"error": result.error, "counts": result.counts}), flush=True)
"""


def main() -> None:
    """Break what was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["driver", "executor", "s3"])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--endpoint")
    parser.add_argument("--bucket")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rankspark-breakage-"))
    try:
        log = Log(folder / "log", nested=False, day=speed.DAY)
        speed.write_log(log.folder, options.rows, "random")
        if options.what == "s3":
            print(json.dumps(object_store(log, options.endpoint, options.bucket)))
        elif options.what == "driver":
            print(json.dumps(kill_drivers(log, folder / "out", options.times)))
        else:
            print(json.dumps(kill_executor(log, folder / "out")))
    finally:
        shutil.rmtree(folder)


def start(job: config.Config, settings: dict[str, str]) -> subprocess.Popen[str]:
    """A run in processes of its own."""
    command = [sys.executable, "-c", RUN, job.canonical_json(), json.dumps(settings)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def seen(out: Path) -> tuple[int, int, int]:
    """Rows, distinct keys and runs that a reader of query_metrics sees."""
    rows = ds.dataset(out / "query_metrics", partitioning="hive").to_table(
        columns=["variant", "ranker", "query_id", "run_id"]
    )
    keys = rows.group_by(["variant", "ranker", "query_id"]).aggregate([])
    return len(rows), len(keys), len(rows.column("run_id").unique())


def kill_drivers(log: Log, out: Path, times: int) -> dict[str, object]:
    """Kill runs at random moments of their work, as many as asked for."""
    job = configuration(log, out)
    random.seed(0)
    began = run_to_end(job)
    whole = seen(out)
    stages: Counter[str] = Counter()
    for _ in range(times):
        child = start(job, {})
        assert child.stdout is not None
        last = child.stdout.readline().strip()
        lines: list[str] = [last]
        reader = threading.Thread(target=lines.extend, args=(child.stdout,))
        reader.start()
        time.sleep(random.uniform(0, began))
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        reader.join()
        stages[lines[-1].strip()[:12]] += 1
        if seen(out) != whole:
            raise RuntimeError(f"after a kill at {lines[-1]}: {seen(out)}, not {whole}")
    run_to_end(job)
    left = sorted(path.name for path in out.iterdir())
    return {"kills_by_stage": dict(stages), "readers_saw": whole, "left": left}


def run_to_end(job: config.Config, settings: dict[str, str] | None = None) -> float:
    """Seconds of a run from where its session stands."""
    child = start(job, settings or {})
    assert child.stdout is not None
    child.stdout.readline()
    began = time.monotonic()
    last = child.stdout.read().splitlines()[-1]
    child.wait()
    if json.loads(last)["error"]:
        raise RuntimeError(last)
    return time.monotonic() - began


def kill_executor(log: Log, out: Path) -> dict[str, object]:
    """Kill one of two executors while the other still writes."""
    home = Path(pyspark.__file__).parent
    launch = [str(home / "bin" / "spark-class")]
    environment = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(out.parent / "w"),
    }
    master = "spark://127.0.0.1:7177"
    deploy = "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", "7177", "--webui-port", "0"],
        *[[f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", master]] * 2,
    ]
    servers = []
    try:
        for command in commands:
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            servers.append(
                subprocess.Popen(launch + command, env=environment, start_new_session=True, **quiet)
            )
            time.sleep(5)
        settings = {
            "spark.master": master, "spark.executor.memory": "1g", "spark.executor.cores": "1",
            "spark.speculation": "true", "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.3", "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "16",
        }  # fmt: skip
        job = configuration(log, out)
        run_to_end(job, settings)
        expected, killed = seen(out), 0
        for _ in range(3):
            child = start(job, settings)
            assert child.stdout is not None
            # A task's file, which is moved from there when it is whole: some task is writing.
            while not list((out / "_staging").glob("**/_temporary/**/*.parquet")):
                time.sleep(0.02)
            found = subprocess.run(
                ["pgrep", "-f", "CoarseGrainedExecutorBackend"],
                capture_output=True, text=True, check=False,
            ).stdout.split()  # fmt: skip
            if found:
                os.kill(int(found[0]), signal.SIGKILL)
                killed += 1
            last = json.loads(child.stdout.read().splitlines()[-1])
            child.wait()
            if last["error"] or seen(out) != expected:
                raise RuntimeError(f"{last}; {seen(out)}, not {expected}")
        return {"executors_killed": killed, "readers_saw": expected, "counts": last["counts"]}
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)


def object_store(log: Log, endpoint: str, bucket: str) -> dict[str, object]:
    """Publish ten times to a bucket while a reader looks."""
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": endpoint,
    }  # fmt: skip
    hadoop = next((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")).stem
    version = hadoop.rpartition("-")[2]
    settings = {
        "spark.jars.packages": f"org.apache.hadoop:hadoop-aws:{version}",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    }
    if ivy := os.environ.get("RANKSPARK_TEST_IVY"):
        settings["spark.jars.ivy"] = ivy
    spark = session.get_session("s3", settings=settings)
    job = configuration(log, Path("out")).model_copy(
        update={"output": config.Output(path=f"s3a://{bucket}/out")}
    )
    fs = pafs.S3FileSystem(
        endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True
    )
    fs.create_dir(bucket)
    done = threading.Event()
    looks: Counter[str] = Counter()

    def look() -> None:
        while not done.wait(0.05):
            try:
                data = ds.dataset(f"{bucket}/out/query_metrics", filesystem=fs, partitioning="hive")
                rows = data.to_table(columns=["run_id"])
                runs = len(rows.column("run_id").unique())
                looks[f"{len(rows)} rows of {runs} runs"] += 1
            except (OSError, KeyError, ValueError) as error:
                looks[type(error).__name__] += 1

    seconds = []
    reader = threading.Thread(target=look)
    for n in range(10):
        (result,) = pipeline.evaluate(spark, job, [date(2024, 3, 10)])
        if result.error:
            raise RuntimeError(result.error)
        seconds.append(result.seconds["publish"])
        if n == 0:
            reader.start()
    done.set()
    reader.join()
    return {"looks": dict(looks), "publish_seconds": seconds}


if __name__ == "__main__":
    main()

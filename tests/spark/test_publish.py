"""Publishing as it breaks: kills at every step, two runs at once, readers in between."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.errors import ConfigError, LockedError
from rankspark.spark import lock, pipeline, publish
from rankspark.spark.publish import Root, Staging
from rankspark.tables import Column
from tests.spark.conftest import items
from tests.tables import KEYS, read

DAY = dt.date(2024, 3, 10)
PUBLISHED = [tables.METRICS, tables.REJECTS]
CRASHED = 77


def stage(root: Root, run_id: str, n_rows: int = 3, day: dt.date = DAY) -> Staging:
    """A run's tables as they are before publication, without Spark."""
    staged = Staging(root, run_id, day)
    for table, keys in ((tables.METRICS, {"experiment": "e"}), (tables.REJECTS, {})):
        rows = [
            {c.name: None for c in table.columns} | keys | {"dataset": "d", "run_id": run_id}
            for _ in range(n_rows)
        ]
        staged.write_rows(rows, table)
    staged.write_rows(
        [{c.name: None for c in tables.RUNS.columns} | {"run_id": run_id}], tables.RUNS
    )
    return staged


def in_force(root: Root) -> dict[str, set[str]]:
    """The runs whose rows stand in each table, and in `runs`."""
    found: dict[str, set[str]] = {}
    for table in (*PUBLISHED, tables.RUNS):
        folder = Path(root.base, table.name)
        rows = read(folder.parent, table.name) if folder.exists() else {}
        found[table.name] = set(rows.get("run_id", []))
    return found


def publish_and_crash(base: str, run_id: str, at: int, exchange: bool) -> None:
    """In a process of its own: publish, and end without a word at a step of the file system."""
    if not exchange:
        publish._exchanged = lambda *_: False  # as on a file system that cannot
    steps = iter(range(10_000))

    def before(function: Any) -> Any:
        def step(*arguments: Any, **named: Any) -> Any:
            if next(steps) == at:
                os._exit(CRASHED)
            return function(*arguments, **named)

        return step

    class Crashing(pafs.LocalFileSystem):
        move = before(pafs.LocalFileSystem.move)
        create_dir = before(pafs.LocalFileSystem.create_dir)
        open_output_stream = before(pafs.LocalFileSystem.open_output_stream)
        delete_dir = before(pafs.LocalFileSystem.delete_dir)

    publish._exchanged = before(publish._exchanged)
    plain = Root.open(base)
    staged = stage(plain, run_id, n_rows=5)
    staged.root = Root(plain.path, Crashing(), plain.base)
    staged.publish(PUBLISHED, tables.RUNS)


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("first", [True, False], ids=["new date", "over a date"])
def test_a_kill_at_any_step_of_publishing_is_finished_or_undone_by_the_next_run(
    tmp_path: Path, first: bool, exchange: bool
) -> None:
    # Forked from a process that has imported this file and has no threads.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([__name__])
    crashed = 0
    for at in range(100):
        root = Root.open(str(tmp_path / f"{at}"))
        if not first:
            stage(root, "old").publish(PUBLISHED, tables.RUNS)
        child = server.Process(target=publish_and_crash, args=(root.base, "new", at, exchange))
        child.start()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == CRASHED
        crashed += 1
        seen = in_force(root)
        for table in PUBLISHED:
            # Never half a date, never both. Only two renames leave a moment without it.
            assert seen[table.name] in (
                {"old"},
                {"new"},
                *([set()] if first or not exchange else []),
            )
        with publish.staging(root, "next", DAY, Staging.finish) as staged:
            assert not Path(root.base, "_staging", f"date={DAY}", "new").exists()
            after = in_force(root)
            whole = after[tables.METRICS.name]
            assert whole == after[tables.REJECTS.name], "the tables are of different runs"
            assert whole in ({"new"}, set() if first else {"old"})
            assert ("new" in after["runs"]) == (whole == {"new"})
            assert staged.journal() is None
        stage(root, "later").publish(PUBLISHED, tables.RUNS)
        assert in_force(root)[tables.METRICS.name] == {"later"}
    else:
        pytest.fail("never came to an end")
    assert crashed > 8


def test_readers_during_republication_see_one_run_whole(spark, tmp_path: Path) -> None:
    root = Root.open(str(tmp_path / "out"))
    stage(root, "run0", n_rows=4).publish(PUBLISHED, tables.RUNS)
    done = threading.Event()
    seen: dict[str, list[tuple[bool, list[str]]]] = {"with_pyarrow": [], "with_spark": []}
    late: list[str] = []

    def with_pyarrow() -> list[str]:
        partitioning = ds.partitioning(KEYS, flavor="hive")
        data = ds.dataset(f"{root.base}/metrics", partitioning=partitioning)
        return data.to_table().to_pydict().get("run_id", [])

    def with_spark() -> list[str]:
        rows = publish.read_table(spark, root.path, "metrics").select("run_id").collect()
        return [row[0] for row in rows]

    def look(read: Callable[[], list[str]]) -> None:
        while not done.is_set():
            before, found = root.running("metrics", DAY), list[str]()
            try:
                found = read()
            except (FileNotFoundError, PySparkException, Py4JJavaError) as error:
                # It had listed the files of the run before: documented, and gone at the next look.
                late.append(repr(error) + str(error))
            undisturbed = root.running("metrics", DAY) == before
            seen[read.__name__].append((undisturbed, found))

    def seen_with_spark() -> int:
        return sum(bool(found) for _, found in seen["with_spark"])

    readers = [
        threading.Thread(target=look, args=(read,))
        for read in (with_pyarrow, with_pyarrow, with_spark)
    ]
    for reader in readers:
        reader.start()
    for n in range(1, 51):
        with publish.staging(root, f"run{n}", DAY, Staging.finish):
            stage(root, f"run{n}", n_rows=4).publish(PUBLISHED, tables.RUNS)
        n_seen, since = seen_with_spark(), time.monotonic()
        # Spark takes longer to look than ten publications take: now and then it gets the time.
        while n % 10 == 0 and seen_with_spark() == n_seen and time.monotonic() < since + 60:
            time.sleep(0.01)
    done.set()
    for reader in readers:
        reader.join()
    assert all(re.search("FileNotFound|NOT_EXIST|NOT_FOUND|UNABLE_TO_INFER", e) for e in late)
    for name, changes in (("with_pyarrow", 5), ("with_spark", 2)):
        looks = seen[name]
        runs = [set(found) for _, found in looks if found]
        assert len(set(map(frozenset, runs))) > changes, f"{name}: the readers saw no change"
        assert all(len(run) == 1 for run in runs), "rows of two runs"
        # Who looks while the folders are exchanged may find nothing, and never a part.
        assert {len(found) for undisturbed, found in looks if undisturbed} == {4}
        assert {len(found) for _, found in looks} <= {0, 4}


def test_a_date_is_one_runs_at_a_time_and_dates_do_not_disturb_each_other(tmp_path: Path) -> None:
    root = Root.open(str(tmp_path / "out"))
    with publish.staging(root, "one", DAY, Staging.finish):
        with (
            pytest.raises(LockedError, match=r"run one on .*delete .*_locks") as caught,
            publish.staging(root, "two", DAY, Staging.finish),
        ):
            pass
        assert caught.value.exit_code == 75
        with publish.staging(root, "three", DAY + dt.timedelta(days=1), Staging.finish):
            pass
    with publish.staging(root, "two", DAY, Staging.finish):
        pass
    assert not Path(root.base).exists(), "runs that published nothing leave nothing"


def test_a_run_waits_for_another(tmp_path: Path) -> None:
    root = Root.open(str(tmp_path / "out"))
    order: list[str] = []

    def other() -> None:
        with publish.staging(root, "one", DAY, Staging.finish):
            held.set()
            time.sleep(1.5)
            order.append("one")

    held = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    with publish.staging(root, "two", DAY, Staging.finish, wait=30):
        order.append("two")
    thread.join()
    assert order == ["one", "two"]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({"pid": 2**22 + 1}, True),  # no such process
        ({"started": "1"}, True),  # its number was given to another
        ({"host": "elsewhere"}, False),
        ({"host": "elsewhere", "renewed_at": time.time() - lock.STALE_AFTER - 1}, True),
        ({}, False),
    ],
)
def test_the_lock_of_a_dead_run_is_broken_and_of_a_living_one_kept(
    tmp_path: Path, changes: dict[str, object], broken: bool
) -> None:
    root = Root.open(str(tmp_path))
    file = Path(root.base, "_locks", f"date={DAY}.json")
    file.parent.mkdir()
    file.write_text(json.dumps(json.loads(lock._content("other")) | changes))
    if broken:
        with publish.staging(root, "mine", DAY, Staging.finish):
            assert json.loads(file.read_text())["run_id"] == "mine"
    else:
        with pytest.raises(LockedError), publish.staging(root, "mine", DAY, Staging.finish):
            pass


def test_new_columns_go_to_the_end_and_lost_or_changed_ones_are_refused(tmp_path: Path) -> None:
    root = Root.open(str(tmp_path / "out"))
    before = tables.query_metrics(["country"], ["mrr"])
    Staging(root, "r", DAY).note_columns(before)
    more = root.evolved(tables.query_metrics(["country", "device"], ["ndcg_at_10", "mrr"]))
    assert more.column_names == (*before.column_names, "device", "ndcg_at_10")
    with pytest.raises(ConfigError, match=r"mrr gone; .*new output\.path"):
        root.evolved(tables.query_metrics(["country"], ["ndcg_at_10"]))
    Staging(root, "r", DAY).note_columns(tables.Table("t", "", (Column("a", "INT", ""),), (), ()))
    changed = tables.Table("t", "", (Column("a", "STRING", ""),), (), ())
    with pytest.raises(ConfigError, match="a INT to STRING"):
        root.evolved(changed)


def test_dates_with_and_without_a_new_measure_are_read_together(
    spark, write_log, make_config
) -> None:
    log = write_log([*items("q1", 0, 1), *items("q1", 0, 1, date="2024-03-11")])
    pipeline.evaluate(spark, make_config(log), [DAY])
    more = make_config(
        log, evaluate__measures=["hit@1", "mrr", "ndcg@10"], evaluate__slices=["country"]
    )
    (result,) = pipeline.evaluate(spark, more, [DAY + dt.timedelta(days=1)])
    assert result.status == "published"
    found = publish.read_table(spark, more.output.path, "query_metrics")
    assert found.orderBy("date").select("mrr", "hit_at_1", "country").collect() == [
        (0.5, None, None),
        (0.5, 0.0, "fr"),
    ]
    with pytest.raises(ConfigError, match=r"(hit_at_1, country|country, hit_at_1) gone"):
        pipeline.evaluate(spark, make_config(log), [DAY])


def test_backfill_takes_missing_failed_and_changed_dates_only(
    spark, write_log, make_config
) -> None:
    days = [DAY + dt.timedelta(days=n) for n in range(3)]
    rows = [*items("q1", 1), *items("q1", 1, date=str(days[2]))]
    config = make_config(write_log(rows))
    results = pipeline.evaluate(spark, config, days, skip_unchanged=True)
    assert [result.status for result in results] == ["published", "failed", "published"]
    assert pipeline.wanted(spark, config, days, failed=False) == (days[1],)
    assert pipeline.wanted(spark, config, days, failed=True) == (days[1],)
    runs = publish.read_table(spark, config.output.path, "runs").where("status = 'failed'")
    (failed,) = runs.select("date", "exit_code", "error").collect()
    assert failed[:2] == (str(days[1]), 3)
    assert "no row of that date" in failed.error
    again = pipeline.evaluate(spark, config, days, skip_unchanged=True)
    assert [result.status for result in again] == ["unchanged", "failed", "unchanged"]
    write_log([*rows, *items("q2", 1, date=str(days[1]))])
    third = pipeline.evaluate(spark, config, days, skip_unchanged=True, jobs=3)
    assert [result.status for result in third] == ["published"] * 3
    assert pipeline.wanted(spark, config, days, failed=True) == ()


def test_an_empty_date_replaces_nothing_unless_that_is_asked_for(
    spark, write_log, make_config
) -> None:
    config = make_config(write_log(items("q1", 1)))
    pipeline.evaluate(spark, config, [DAY])
    write_log(items("q1", 1, date="2024-03-11"))
    (refused,) = pipeline.evaluate(spark, config, [DAY])
    assert (refused.exit_code, "--allow-empty" in str(refused.error)) == (3, True)
    out = Path(config.output.path)
    assert len(read(out, "query_metrics")) == 1
    (emptied,) = pipeline.evaluate(spark, config, [DAY], allow_empty=True)
    assert (emptied.status, emptied.counts["n_rows_read"]) == ("published", 0)
    assert emptied.replaced
    pipeline.evaluate(spark, config, [DAY + dt.timedelta(days=1)])
    assert set(read(out, "query_metrics").date) == {"2024-03-11"}


def test_a_date_is_final_once_it_has_settled(spark, write_log, make_config) -> None:
    today = dt.datetime.now(dt.UTC).date()
    days = [today - dt.timedelta(days=n) for n in (0, 3)]
    log = write_log([r for day in days for r in items("q1", 1, date=str(day))])
    config = make_config(log, output__settles_after="2 days")
    pipeline.evaluate(spark, config, days)
    final = read(Path(config.output.path), "metrics").groupby("date").is_final.all()
    assert final.to_dict() == {str(days[0]): False, str(days[1]): True}


def test_catalog_tables_keep_comments_and_know_their_partitions(
    spark, write_log, make_config
) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS ranking_test")
    try:
        config = make_config(
            write_log([*items("q1", 1), *items("q2", 1, experiment="a/b")]),
            output__catalog="ranking_test",
        )
        assert pipeline.evaluate(spark, config, [DAY])[0].error is None
        write_log([*items("q1", 1), *items("q2", 1, experiment="c=d"), *items("q3", 0, 1)])
        assert pipeline.evaluate(spark, config, [DAY])[0].error is None
        found = spark.table("ranking_test.query_metrics")
        assert {tuple(r) for r in found.select("experiment", "query_id", "mrr").collect()} == {
            ("e1", "q1", 1.0), ("c=d", "q2", 1.0), ("e1", "q3", 0.5),
        }  # fmt: skip
        described = {
            row.col_name: row.comment
            for row in spark.sql("DESCRIBE ranking_test.query_metrics").collect()
        }
        assert described["n_items"] == "items scored, after duplicates were dropped"
        assert described["date"] == tables.PARTITION_COMMENTS["date"]
        listed = spark.sql("SHOW PARTITIONS ranking_test.query_metrics").collect()
        assert len(listed) == 2
        properties = spark.sql("SHOW TBLPROPERTIES ranking_test.metrics").collect()
        assert ("rankspark.schema_version", "1") in {tuple(row) for row in properties}
    finally:
        spark.sql("DROP DATABASE ranking_test CASCADE")


def test_a_driver_killed_at_any_moment_leaves_the_old_date_or_the_new_one(
    spark, write_log, make_config, tmp_path: Path
) -> None:
    """Two moments here; twenty by hand, with tests/bench/breakage.py."""
    config = make_config(write_log(items("q1", 0, 1)))
    pipeline.evaluate(spark, config, [DAY])
    write_log([*items("q1", 1), *items("q2", 1)])
    code = (
        "import json, sys, datetime\n"
        "from rankspark import config, get_session\n"
        "from rankspark.spark import pipeline\n"
        "job = config.from_dict(json.loads(sys.argv[1]))\n"
        "spark = get_session()\n"
        "def say(day, stage): print(stage, flush=True)\n"
        f"pipeline.evaluate(spark, job, [datetime.date.fromisoformat('{DAY}')], say)\n"
    )
    content = json.dumps(json.loads(config.canonical_json()))
    environment = {k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"}
    for moment in ("score", "publish"):
        child = subprocess.Popen(
            [sys.executable, "-c", code, content],
            stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment,
        )  # fmt: skip
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == moment:
                break
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        out = Path(config.output.path)
        seen = sorted(read(out, "query_metrics")[["query_id", "mrr"]].itertuples(index=False))
        assert seen in ([("q1", 0.5)], [("q1", 1.0), ("q2", 1.0)])
    (result,) = pipeline.evaluate(spark, config, [DAY])
    assert result.status == "published"
    assert not (Path(config.output.path) / "_staging").exists()
    assert publish.read_table(spark, config.output.path, "query_metrics").agg(
        F.sum("mrr")
    ).first() == (2.0,)

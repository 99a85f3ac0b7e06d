"""The whole way of a date: read, check, group, score, aggregate, audit, publish.

Every number comes from files that were written once: `query_metrics` is staged first, and all else
is computed from what stands in the staged files.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Any
from zoneinfo import ZoneInfo

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import rankspark
from rankspark import errors, tables
from rankspark.config import Config, Definition
from rankspark.errors import InputError, NoRowsError, PublishError, RanksparkError
from rankspark.spark import (
    aggregate,
    audit,
    check,
    judge,
    label,
    lists,
    publish,
    quality,
    read,
    score,
    session,
    sinks,
)
from rankspark.spark.check import Finding

Progress = Callable[[date, str], None]


@dataclass
class DateResult:
    """What became of one date.

        >>> (result,) = rankspark.run(spark, job, [date(2024, 3, 9)])
        >>> result.status, result.exit_code
        ('failed', 3)

    Attributes:
        date: the date.
        status: `published`, `failed`, or `unchanged`: not evaluated again.
        run_id: the run.
        error: what failed, in one line.
        exit_code: 0, or that of the error.
        counts: rows and queries, as in the table `runs`.
        findings: rejected and repaired rows by reason.
        metrics: the rows of `metrics`.
        replaced: partitions that stood there before.
        seconds: wall time by stage.
        warnings: quality gates that gave a warning, in words.
    """

    date: date
    status: str
    run_id: str
    error: str | None = None
    exit_code: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        """What a result file says: all but the metrics, which are in their table."""
        content = asdict(self) | {"date": str(self.date)}
        del content["metrics"]
        return content


@dataclass(frozen=True)
class Plan:
    """What a run would do."""

    date: date
    replaces: list[str]
    physical: str


def evaluate(
    spark: SparkSession,
    config: Config,
    dates: Sequence[date],
    progress: Progress | None = None,
    *,
    wait: float = 0.0,
    jobs: int = 1,
    skip_unchanged: bool = False,
    allow_empty: bool = False,
) -> list[DateResult]:
    """Evaluate dates and publish each; a date that fails does not keep the others from running.

        >>> (result,) = rankspark.run(spark, job, [date(2024, 3, 10)])
        >>> result.status, result.counts["n_rows_read"], result.counts["n_queries"]
        ('published', 5, 2)

    Args:
        spark: the session; its options are restored afterwards.
        config: the configuration.
        dates: the dates, in the order in which they are begun.
        progress: called with the date and the stage that begins.
        wait: for how many seconds to wait for another run of a date.
        jobs: how many dates are worked on at once, in one session.
        skip_unchanged: leave a date as it is whose input files, configuration and version of the
            code are those of the run that published it.
        allow_empty: publish a date without any row as empty, in place of what stands there.

    Raises:
        ConfigError: the output is another dataset's, or its tables cannot take this configuration.
    """
    root = publish.Root.open(config.output.path)
    root.refuse_other(config.name, config.output.format)
    sink = sinks.sink(spark, root, config.output)
    for table in (config.query_metrics, tables.METRICS, tables.REJECTS, tables.RUNS):
        root.evolved(table)

    def one(day: date) -> DateResult:
        result = DateResult(day, "failed", run_id=_run_id())
        work = _Work(spark, config, root, sink, result, progress or _silent, allow_empty)
        try:
            with (
                _engine_errors(),
                publish.staging(root, result.run_id, day, sink.finish, wait) as staged,
            ):
                if skip_unchanged and work.is_unchanged():
                    result.status = "unchanged"
                    return result
                try:
                    work.evaluate(staged)
                except Exception as error:
                    with _engine_errors(), suppress(OSError):
                        work.record_failure(staged, error)
                    raise
        except RanksparkError as error:
            result.status = "failed"
            result.error, result.exit_code = str(error), error.exit_code
        return result

    with (
        session.options(
            spark,
            timezone=config.input.timezone,
            **lists.handed(config),
            size=_size(spark, config),
        ),
        ThreadPoolExecutor(max_workers=jobs) as pool,
    ):
        return list(pool.map(one, dates))


def wanted(
    spark: SparkSession, config: Config, dates: Sequence[date], *, failed: bool
) -> tuple[date, ...]:
    """Those of the dates that were never published, or those whose newest run failed.

    Args:
        spark: the session.
        config: the configuration.
        dates: the dates.
        failed: which of the two.
    """
    root = publish.Root.open(config.output.path)
    root.refuse_other(config.name, config.output.format)
    sink = sinks.sink(spark, root, config.output)
    if not failed:
        return tuple(day for day in dates if not sink.partitions(tables.METRICS.name, day))
    if not root.columns(tables.RUNS.name):
        return ()
    runs = sink.read(tables.RUNS.name)
    last = runs.groupBy("date").agg(F.max_by("status", F.struct("started_at", "run_id")))
    status = {row[0]: row[1] for row in last.collect()}
    return tuple(day for day in dates if status.get(str(day)) == "failed")


def plan(spark: SparkSession, config: Config, dates: Sequence[date]) -> list[Plan]:
    """What :func:`evaluate` would do, without writing anything."""
    root = publish.Root.open(config.output.path)
    root.refuse_other(config.name, config.output.format)
    sink = sinks.sink(spark, root, config.output)
    plans = []
    with session.options(spark, timezone=config.input.timezone), _engine_errors():
        for day in dates:
            marked = check.mark(read.read(spark, config, day), config)
            together = _together(marked, config)
            scored = per_query(marked, config, _origins(spark, config, day), together=together)
            replaces = [
                f"{table.name}/{partition}"
                for table in _published(config)
                for partition in sink.partitions(table.name, day)
            ]
            plans.append(Plan(day, replaces, _explained(scored)))
    return plans


def per_query(
    marked: DataFrame,
    config: Definition,
    origins: lists.Origins | None = None,
    *,
    together: bool = False,
) -> DataFrame:
    """Checked canonical rows -> one row a query, ranker and, with assignments, experiment.

    A list longer than `limits.max_list_length` has a row with its `n_items` and no values.

    Args:
        marked: as of :func:`rankspark.spark.check.mark`.
        config: the configuration.
        origins: where relevance comes from, if not from the rows.
        together: whether the flat rows of a query stand together. Where they do not all, a query
            has several rows.
    """
    scored = _scored(marked, config, origins or lists.Origins(), together=together)
    if config.input.columns.assignments is None:
        return scored.withColumn("n_experiments", F.lit(1))
    # Scored once; only the result is repeated for each experiment of the request.
    others = [name for name in scored.columns if name != "assignments"]
    exploded = scored.select(
        *others,
        F.size("assignments").alias("n_experiments"),
        F.explode("assignments").alias("pair"),
    )
    return exploded.select(
        F.col("pair.key").alias("experiment"),
        F.col("pair.value").alias("variant"),
        *others,
        "n_experiments",
    )


def _scored(
    marked: DataFrame, config: Definition, origins: lists.Origins, *, together: bool
) -> DataFrame:
    rows = lists.cut(marked, config, together=together)
    if origins.judged is None and origins.labelled is None:
        # With nothing to join, rows are cut into lists and scored in one go.
        scored = score.score(rows.frame, config, rows.steps, rows.schema)
        return lists.completed(scored, config)
    grouped = lists.of_rows(rows, config)
    return score.score(lists.with_origins(grouped, origins), config)


@dataclass
class _Work:
    """One run of one date."""

    spark: SparkSession
    config: Config
    root: publish.Root
    sink: sinks.Folders | sinks.Lake
    result: DateResult
    progress: Progress
    allow_empty: bool
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    fingerprint: str | None = None

    def evaluate(self, staged: publish.Staging) -> None:
        """Read, score, aggregate, audit and publish the date."""
        spark, config, result = self.spark, self.config, self.result
        stage = _Stages(result, self.progress)
        stamp = {
            "dataset": config.name,
            "run_id": result.run_id,
            "computed_at": self.started,
        }
        queries_table = config.query_metrics
        stage("score")
        rows = read.read(spark, config, result.date)
        if not lists.constants(config).get("experiment"):
            quality.refuse_many_experiments(rows, config)
        observation = Observation(f"rankspark-{result.run_id}")
        marked = check.mark(rows, config)
        observed = marked.observe(observation, *check.row_counts(config))
        origins = _origins(spark, config, result.date)
        together = _together(marked, config)
        scored = per_query(observed, config, origins, together=together)
        queries = staged.write(_stamped(scored, stamp), queries_table)

        def regroup(ids: DataFrame) -> DataFrame:
            concerned = marked.join(ids, "query_id", "left_semi")
            return _stamped(per_query(concerned, config, origins), stamp)

        stage("check")
        settled = audit.settle(queries, staged, config, regroup if together else None)
        try:
            account = audit.account(
                observation, rows, marked, settled, origins, config, result.date
            )
        except NoRowsError:
            if not self.allow_empty:
                raise
            result.counts = dict.fromkeys(audit.COUNTED, 0)
            self._publish(staged, stage)
            return
        queries, unshown = _with_unshown(settled.queries, origins.judged, staged, config, stamp)
        account.findings.extend(unshown)
        result.counts, result.findings = account.counts, account.findings

        stage("aggregate")
        # Most of this is a task or two each: side by side they use all cores.
        with ThreadPoolExecutor() as pool:
            totals = pool.submit(audit.totals, queries, config)
            units = staged.write(
                _stamped(aggregate.unit_sums(queries, config), stamp), tables.UNIT_DAY
            )
            assigned = pool.submit(
                staged.write,
                _stamped(aggregate.assignments(units, config), stamp),
                tables.ASSIGNMENT,
            )
            summed = aggregate.collected(aggregate.moments(units), config)
            # What these bring to the driver is bounded by now.
            pairs = pool.submit(_paired_counts, queries, config)
            n_units = pool.submit(quality.units, queries, config)
            result.metrics = aggregate.metrics_rows(summed, config)
        final = {"is_final": self.started >= _end_of(result.date, config) + config.output.settling}
        staged.write_rows([row | stamp | final for row in result.metrics], tables.METRICS)
        staged.write_rows([row | stamp for row in pairs.result()], tables.PAIRED_COUNTS)
        account.findings.extend(
            quality.look(
                queries, assigned.result(), config, _variants(result), crossed=settled.crossed
            )
        )
        total = result.counts["n_rows_read"]
        staged.write_rows(
            [asdict(f) | {"share": f.n_rows / total} | stamp for f in account.findings],
            tables.REJECTS,
        )

        stage("audit")
        audit.audit(totals.result(), staged, account, config)
        held = quality.Day(
            result.counts,
            settled.population,
            result.metrics,
            n_units.result(),
            sum(f.n_rows for f in account.findings if f.reason == "query_not_judged"),
        )
        alarms = quality.alarms(held, quality.history(self.sink, config, result.date), config)
        result.warnings = [alarm.message for alarm in alarms if alarm.level == "warn"]
        quality.refuse(alarms, result.date)

        self._publish(staged, stage)

    def _publish(self, staged: publish.Staging, stage: _Stages) -> None:
        stage("publish")
        result, config = self.result, self.config
        published = _published(config)
        result.replaced = [
            f"{table.name}/{partition}"
            for table in published
            for partition in self.sink.partitions(table.name, result.date)
        ]
        self.root.claim(config.name, config.output.format, config.output.catalog)
        result.status = "published"
        staged.write_rows([self._record()], tables.RUNS)
        self.sink.publish(staged, published, tables.RUNS)
        stage.end()

    def is_unchanged(self) -> bool:
        """Whether the run in force had the same input files, configuration and code."""
        self.fingerprint = read.fingerprint(self.spark, self.config, self.result.date)
        in_force = self.sink.running(tables.METRICS.name, self.result.date)
        if self.fingerprint is None or in_force is None:
            return False
        found = self.sink.read(tables.RUNS.name)
        same = {
            "run_id": in_force,
            "fingerprint": self.fingerprint,
            "config_hash": self.config.config_hash,
            "rankspark_version": rankspark.__version__,
        }
        for name, value in same.items():
            if name not in found.columns:
                return False
            found = found.where(F.col(name) == value)
        return not found.isEmpty()

    def record_failure(self, staged: publish.Staging, error: Exception) -> None:
        """Add a failed run to `runs`, where there are tables of this dataset already."""
        self.result.status = "failed"
        if self.root.owner() == self.config.name:
            code = getattr(error, "exit_code", 1)
            record = self._record() | {"error": read.first_line(error), "exit_code": code}
            staged.write_rows([record], tables.RUNS)
            self.sink.append(staged, tables.RUNS)

    def _record(self) -> dict[str, Any]:
        result, config = self.result, self.config
        return result.counts | {
            "dataset": config.name,
            "run_id": result.run_id,
            "status": result.status,
            "started_at": self.started,
            "finished_at": datetime.now(UTC),
            "rankspark_version": rankspark.__version__,
            "spark_version": self.spark.version,
            "config_hash": config.config_hash,
            "config": config.canonical_json(),
            "experiments": sorted({row["experiment"] for row in result.metrics}),
            "replaced": result.replaced,
            "seconds": list(result.seconds.items()),
            "error": None,
            "exit_code": 0,
            "fingerprint": self.fingerprint,
            "warnings": result.warnings,
        }


def _size(spark: SparkSession, config: Config) -> int | None:
    try:
        with _engine_errors():
            return lists.stated_size(read.source(spark, config.input))
    except InputError:
        return None  # the run of each date says what is wrong with it


def _end_of(day: date, config: Config) -> datetime:
    midnight = datetime.combine(day + timedelta(days=1), time_of_day.min)
    return midnight.replace(tzinfo=ZoneInfo(config.input.timezone))


def _published(config: Config) -> list[tables.Table]:
    """The tables of which a run replaces its date."""
    return [
        config.query_metrics,
        tables.METRICS,
        tables.UNIT_DAY,
        tables.ASSIGNMENT,
        tables.PAIRED_COUNTS,
        tables.REJECTS,
    ]


def _origins(spark: SparkSession, config: Config, day: date) -> lists.Origins:
    return lists.Origins(judge.judgments(spark, config), label.labels(spark, config, day))


def _together(marked: DataFrame, config: Definition) -> bool:
    return config.input.items is None and lists.stand_together(marked)


def _paired_counts(queries: DataFrame, config: Config) -> list[dict[str, Any]]:
    paired = aggregate.paired_counts(queries, config)
    return [] if paired is None else [row.asDict() for row in paired.collect()]


def _variants(result: DateResult) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for row in result.metrics:
        found.setdefault(row["experiment"], set()).add(row["variant"])
    return {experiment: sorted(variants) for experiment, variants in found.items()}


def _silent(day: date, stage: str) -> None:
    """Show no progress."""


def _with_unshown(
    queries: DataFrame,
    judged: judge.Judged | None,
    staged: publish.Staging,
    config: Config,
    stamp: Mapping[str, Any],
) -> tuple[DataFrame, list[Finding]]:
    """Count the judged queries that no variant showed and, if they count 0, add them to each.

    Returns:
        the table as it is now staged; what was found.
    """
    if judged is None:
        return queries, []
    pools = judged.pools.where("exists(judged, item -> item.relevance is not null)")
    key = judged.key
    variants = queries.select("experiment", "variant").distinct()
    missing = variants.crossJoin(pools).join(
        queries.select("experiment", "variant", key).distinct(),
        ["experiment", "variant", key],
        "left_anti",
    )
    names = missing.select(key).distinct().orderBy(key)
    n_missing = missing.count()
    if n_missing == 0:
        return queries, []
    examples = names.limit(check.MAX_EXAMPLES).select(F.to_json(F.struct(key))).collect()
    found = Finding("judged_query_not_shown", "flagged", n_missing, [row[0] for row in examples])
    if not config.counts_unshown:
        return queries, [found]
    item = lists.item_type(config).simpleString()
    absent = missing.select(
        "experiment",
        "variant",
        "query_id",
        *(F.lit(None).cast("string").alias(name) for name in lists.attribute_columns(config)),
        F.expr(f"cast(array() as array<{item}>)").alias("items"),
        "judged",
        F.lit(0).alias("n_rows"),
    )
    zeros = _stamped(score.score(absent, config).withColumn("n_experiments", F.lit(1)), stamp)
    both = queries.drop("date").unionByName(zeros.select(*queries.drop("date").columns))
    return staged.rewrite(both, config.query_metrics), [found]


class _Stages:
    """Tells the progress display what begins, and the result how long it took."""

    def __init__(self, result: DateResult, progress: Progress) -> None:
        self._result, self._progress = result, progress
        self._name, self._since = "", 0.0

    def __call__(self, name: str) -> None:
        self.end()
        self._name, self._since = name, time.monotonic()
        self._progress(self._result.date, name)

    def end(self) -> None:
        if self._name:
            self._result.seconds[self._name] = round(time.monotonic() - self._since, 3)
        self._name = ""


def _run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"


def _stamped(frame: DataFrame, stamp: Mapping[str, Any]) -> DataFrame:
    return frame.withColumns({name: F.lit(value) for name, value in stamp.items()})


def _explained(frame: DataFrame) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain()
    return printed.getvalue().strip()


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Turn what the engine says of our own errors and of unreadable files into one line."""
    try:
        yield
    except RanksparkError:
        raise
    except Exception as error:
        text = str(error)
        own = re.search(r"rankspark\.errors\.(\w+): expected (.*?); found (.*?); (.*)", text)
        if own:
            name, expected, found, action = own.groups()
            cls: type[RanksparkError] = getattr(errors, name)
            raise cls(expected=expected, found=found, action=action) from error
        full = re.search(r"(No space left on device|Permission denied|Read-only file system)", text)
        if full and not re.search("FAILED_READ_FILE|CANNOT_READ_FILE", text):
            raise PublishError(
                expected="room and the right to write below output.path",
                found=full[0],
                action="make room or correct the permissions, then run the date again; nothing was"
                " changed",
            ) from error
        unreadable = re.search(r"\[(FAILED_READ_FILE|CANNOT_READ_FILE|PATH_NOT_FOUND)[^\n]*", text)
        if unreadable:
            raise InputError(
                expected="input files that can be read whole",
                found=unreadable[0],
                action="restore or remove that file, then run the date again",
            ) from error
        raise

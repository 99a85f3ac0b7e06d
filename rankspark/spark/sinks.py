"""Where an audited date goes: folders of Parquet, Delta Lake or Apache Iceberg.

Everything is staged and audited as Parquet first. Folders are then exchanged whole; into a Delta or
Iceberg table the staged rows are written in one commit, which replaces the date. The formats' own
libraries and catalogs are a matter of the session (the README has a table of versions).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Output
from rankspark.errors import ConfigError, PublishError
from rankspark.spark import publish
from rankspark.spark.publish import Root, Staging
from rankspark.tables import Table

#: A commit that meets another is tried again; the lock keeps our own apart, so this is rare.
_ATTEMPTS = 5
_CONFLICT = re.compile(
    r"Concurrent\w*Exception|DELTA_CONCURRENT|MetadataChangedException|DELTA_METADATA_CHANGED"
    r"|ProtocolChangedException|DELTA_PROTOCOL_CHANGED|Found conflicting|CommitFailedException"
    r"|is not an ancestor of|CREATE_TABLE_WITH_NON_EMPTY_LOCATION|ALREADY_EXISTS"
)
_UNFIT = re.compile(
    r"DATA_SOURCE_NOT_FOUND|Failed to find|NoSuchMethodError|NoClassDefFoundError"
    r"|IncompatibleClassChangeError|ClassNotFoundException|CATALOG_NOT_FOUND"
    r"|plugin class not found|does not support"
)


@dataclass(frozen=True)
class Folders:
    """Date folders of Parquet and, where a catalog is named, external tables over them."""

    spark: SparkSession
    root: Root
    output: Output

    def partitions(self, table: str, day: date) -> list[str]:
        """What a table holds of a date, as `date=D/experiment=E`."""
        return self.root.partitions(table, day)

    def has(self, table: str) -> bool:
        """Whether a table was ever published."""
        return self.root.has(table)

    def running(self, table: str, day: date) -> str | None:
        """The run that published a date of a table."""
        return self.root.running(table, day)

    def read(self, table: str) -> DataFrame:
        """A published table."""
        return publish.read_table(self.spark, self.root.path, table)

    def days_before(self, table: str, day: date, most: int) -> list[str]:
        """The last published days before a date, newest first."""
        selector = pafs.FileSelector(f"{self.root.base}/{table}", allow_not_found=True)
        names = (f.base_name.removeprefix("date=") for f in self.root.fs.get_file_info(selector))
        return sorted((name for name in names if name < str(day)), reverse=True)[:most]

    def rows(self, table: str, days: list[str], columns: list[str]) -> list[dict[str, Any]]:
        """Columns of some days of a small table; read without Spark, and without other days."""
        keys = pa.schema([("date", pa.string()), ("experiment", pa.string())])
        found: list[dict[str, Any]] = []
        for name in days:
            folder = f"{self.root.base}/{table}/date={name}"
            if self.root.fs.get_file_info(folder).type != pafs.FileType.Directory:
                continue
            data = ds.dataset(
                folder,
                filesystem=self.root.fs,
                format="parquet",
                partitioning=ds.partitioning(keys, flavor="hive"),
                partition_base_dir=f"{self.root.base}/{table}",
            )
            if set(columns) <= set(data.schema.names):  # an empty date has no columns
                found += data.to_table(columns=columns).to_pylist()
        return found

    def publish(self, staged: Staging, replaced: list[Table], grown: Table) -> None:
        """Replace the date in each table, and add to one that only grows."""
        staged.publish(replaced, grown)
        for table in (*replaced, grown):
            self._register(self.root.evolved(table), staged.day)

    def append(self, staged: Staging, grown: Table) -> None:
        """Add to a table that only grows."""
        staged.append(grown)
        self._register(self.root.evolved(grown), staged.day)

    def extend(self, run_id: str, rows: list[dict[str, Any]], table: Table) -> None:
        """Add a run's rows to a table without dates."""
        publish.append_rows(self.root, run_id, rows, table)

    def finish(self, staged: Staging) -> None:
        """Finish what a killed run had begun to publish."""
        staged.finish()

    def _register(self, table: Table, day: date) -> None:
        """Make the catalog know the table, its new columns, and the partitions of the date."""
        if self.output.catalog is None:
            return
        name = f"{self.output.catalog}.{table.name}"
        location = f"LOCATION '{self.root.path}/{table.name}'"
        self.spark.sql(tables.ddl(table, name, rest=location))
        _add_columns(self.spark, table, name)
        keys = [key for key in table.partition_by if key != "date"]
        known = {
            row[0]
            for row in self.spark.sql(
                f"SHOW PARTITIONS {name} PARTITION (date = '{day}')"
            ).collect()
        }
        found = self.root.partitions(table.name, day)
        # The folder of an empty date is no partition below it.
        found = [name for name in found if name.count("/") == len(keys)]
        for partition in found:
            self.spark.sql(f"ALTER TABLE {name} ADD IF NOT EXISTS PARTITION {_spec(partition)}")
        for partition in known - set(found) if keys else ():
            self.spark.sql(f"ALTER TABLE {name} DROP IF EXISTS PARTITION {_spec(partition)}")
        self.spark.catalog.refreshTable(name)


@dataclass(frozen=True)
class Lake:
    """Tables of Delta Lake or Apache Iceberg; a date is replaced in one commit a table.

    A kill between the commits of two tables leaves the staging, from which the next run of the date
    writes them all again.
    """

    spark: SparkSession
    root: Root
    output: Output

    def partitions(self, table: str, day: date) -> list[str]:
        """What a table holds of a date, as `date=D/experiment=E`."""
        found = self._dated(table, day)
        if found is None:
            return []
        if "experiment" not in found.columns:
            return [] if found.isEmpty() else [f"date={day}"]
        rows = found.select("experiment").distinct().collect()
        return sorted(f"date={day}/experiment={row[0]}" for row in rows)

    def has(self, table: str) -> bool:
        """Whether a table was ever published."""
        return self._found(table) is not None

    def running(self, table: str, day: date) -> str | None:
        """The run that published a date of a table."""
        found = self._dated(table, day)
        row = None if found is None else found.select("run_id").first()
        return None if row is None else str(row[0])

    def read(self, table: str) -> DataFrame:
        """A published table."""
        return self.spark.table(self._name(table))

    def days_before(self, table: str, day: date, most: int) -> list[str]:
        """The last published days before a date, newest first."""
        found = self._found(table)
        if found is None:
            return []
        days = found.where(F.col("date") < str(day)).select("date").distinct()
        return [row[0] for row in days.orderBy(F.desc("date")).limit(most).collect()]

    def rows(self, table: str, days: list[str], columns: list[str]) -> list[dict[str, Any]]:
        """Columns of some days of a small table."""
        found = self._found(table)
        if found is None:
            return []
        return [r.asDict() for r in found.where(F.col("date").isin(days)).select(columns).collect()]

    def publish(self, staged: Staging, replaced: list[Table], grown: Table) -> None:
        """Replace the date in each table, and add to one that only grows.

        Raises:
            ConfigError: the session has no library for the format that fits its Spark.
            PublishError: a commit failed; the tables before it have the new date.
        """
        staged.write_journal(replaced, grown)
        done: list[str] = []
        for table in replaced:
            self._commit(staged, table, f"date = '{staged.day}'", done)
            done.append(table.name)
        self._commit(staged, grown, _of_run(staged), done)

    def append(self, staged: Staging, grown: Table) -> None:
        """Add to a table that only grows; the same run once, however often this is tried."""
        staged.note_columns(grown)
        self._commit(staged, grown, _of_run(staged), [])

    def extend(self, run_id: str, rows: list[dict[str, Any]], table: Table) -> None:
        """Add a run's rows to a table without dates."""
        names = [*table.column_names, *table.partition_by]
        kinds = [
            *(column.type for column in table.columns),
            *("STRING" for _ in table.partition_by),
        ]
        schema = ", ".join(f"`{name}` {kind}" for name, kind in zip(names, kinds, strict=True))
        keys = [pa.field(key, pa.string()) for key in table.partition_by]
        # Arrow, as for files: unlike it, the engine makes no decimal of an integer.
        typed = pa.Table.from_pylist(rows, pa.schema([*publish.arrow_schema(table), *keys]))
        data = [tuple(row.values()) for row in typed.to_pylist()]
        frame = self.spark.createDataFrame(data, schema)
        self._write(frame, table, f"run_id = '{run_id}'", run_id, [])

    def finish(self, staged: Staging) -> None:
        """Write once more what a killed run had begun to publish."""
        journal = staged.journal()
        if journal is not None:
            for name in journal["replaced"]:
                self._commit(staged, self._staged(name), f"date = '{staged.day}'", [])
            self._commit(staged, self._staged(journal["grown"]), _of_run(staged), [])

    def _staged(self, name: str) -> Table:
        # Its columns were noted before the journal was written.
        fixed = {table.name: table for table in (tables.query_metrics((), ()), *tables.FIXED)}
        return replace(fixed[name], columns=tuple(self.root.columns(name)))

    def _commit(self, staged: Staging, table: Table, where: str, done: list[str]) -> None:
        table = self.root.evolved(table)
        keys = [F.col(key).cast("string").alias(key) for key in table.partition_by]
        frame = staged.read(self.spark, table).select(*table.column_names, *keys)
        self._write(frame, table, where, staged.run_id, done)

    def _write(
        self, frame: DataFrame, table: Table, where: str, run_id: str, done: list[str]
    ) -> None:
        name = self._name(table.name)

        def write() -> None:
            self.spark.sql(tables.ddl(table, name, using=self.output.format))
            _add_columns(self.spark, table, name)
            if self.output.format == "delta":
                self._delta(frame, name, where, run_id)
            else:
                self._iceberg(frame, name, where, run_id)

        self._attempt(write, name, done)

    def _delta(self, frame: DataFrame, name: str, where: str, run_id: str) -> None:
        writer = frame.write.format("delta").mode("overwrite").option("replaceWhere", where)
        writer = writer.option("userMetadata", run_id)
        if self.output.catalog is None:
            writer.save(name.removeprefix("delta.`").removesuffix("`"))
        else:
            writer.saveAsTable(name)

    def _iceberg(self, frame: DataFrame, name: str, where: str, run_id: str) -> None:
        catalog = name.split(".")[0]
        table = name.removeprefix(f"{catalog}.")
        options = {"isolation-level": "serializable", "snapshot-property.rankspark.run": run_id}
        main = self.spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").first()  # noqa: S608
        if main is not None:
            options["validate-from-snapshot-id"] = str(main[0])
        if not self.output.audit_branch:
            frame.writeTo(name).options(**options).overwrite(F.expr(where))
            return
        branch = "rankspark_" + re.sub(r"\W", "_", run_id)
        self.spark.sql(f"ALTER TABLE {name} CREATE OR REPLACE BRANCH `{branch}`")
        try:
            written = f"{name}.branch_{branch}"
            frame.writeTo(written).options(**options).overwrite(F.expr(where))
            found, expected = self.spark.table(written).where(where).count(), frame.count()
            if found != expected:
                raise PublishError(
                    expected=f"{expected} rows of {where} on branch {branch} of {name}",
                    found=str(found),
                    action="nothing was published in that table; run the date again",
                )
            self.spark.sql(f"CALL {catalog}.system.fast_forward('{table}', 'main', '{branch}')")
        finally:
            self.spark.sql(f"ALTER TABLE {name} DROP BRANCH IF EXISTS `{branch}`")

    def _attempt(self, write: Callable[[], None], name: str, done: list[str]) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                write()
                return
            except PublishError:
                raise
            except Exception as error:
                # The classic client and Connect wrap the engine's errors in different classes.
                text = str(error)
                if _CONFLICT.search(text) and attempt < _ATTEMPTS:
                    time.sleep(attempt)
                    continue
                if _UNFIT.search(text):
                    raise ConfigError(
                        expected=f"a session with {self.output.format} for Spark"
                        f" {self.spark.version}",
                        found=text.splitlines()[0],
                        action="start Spark with the packages and catalogs of the README's table",
                    ) from error
                state = (
                    f"{', '.join(done)} already have the new date" if done else "nothing changed"
                )
                raise PublishError(
                    expected=f"to commit {name}",
                    found=text.splitlines()[0],
                    action=f"{state}; run the date again",
                ) from error

    def _name(self, table: str) -> str:
        if self.output.catalog is None:
            return f"delta.`{self.root.path}/{table}`"
        return f"{self.output.catalog}.{table}"

    def _dated(self, table: str, day: date) -> DataFrame | None:
        found = self._found(table)
        return None if found is None else found.where(F.col("date") == str(day))

    def _found(self, table: str) -> DataFrame | None:
        """A table; None where there is none yet."""
        try:
            found = self.read(table)
            found.schema  # noqa: B018  under Connect this is where the table is looked up
        except AnalysisException:
            return None
        return found


def sink(spark: SparkSession, root: Root, output: Output) -> Folders | Lake:
    """What publishes to an output, and reads it."""
    return (Folders if output.format == "parquet" else Lake)(spark, root, output)


def _of_run(staged: Staging) -> str:
    return f"date = '{staged.day}' AND run_id = '{staged.run_id}'"


def _add_columns(spark: SparkSession, table: Table, name: str) -> None:
    known = set(spark.table(name).columns)
    for column in table.columns:
        if column.name not in known:
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({tables.column_ddl(column)})")


def _spec(partition: str) -> str:
    """`date=D/experiment=E`, escaped as in folders, as a partition of SQL."""
    pairs = (part.split("=", 1) for part in partition.split("/"))
    return "(" + ", ".join(f"{key} = '{publish.unescaped(v)}'" for key, v in pairs) + ")"

"""Staging, reading back and replacing whole dates of tables on a file system.

    <root>/_dataset.json                           who owns the root
    <root>/_staging/<run_id>/<table>/date=D/...    what a run writes and audits
    <root>/<table>/date=D/experiment=E/*.parquet   what readers see

What is staged lies beside the tables' folders, where their readers do not look. A date is replaced
by two renames of its folder: the old one away, the new one in. Between them a reader can miss the
date, and a kill exactly there leaves the old one below _staging/<run_id>/replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rankspark.errors import ConfigError, PublishError
from rankspark.spark import session
from rankspark.tables import Table

_MARKER = "_dataset.json"
_STAGING = "_staging"


@dataclass(frozen=True)
class Root:
    """The folder that holds a dataset's tables.

    Attributes:
        path: as Spark takes it.
        fs: the file system, as pyarrow sees it.
        base: the path on that file system.
    """

    path: str
    fs: pafs.FileSystem
    base: str

    @classmethod
    def open(cls, path: str) -> Root:
        """Find the file system of a path or URI; nothing is created.

        Raises:
            ConfigError: no file system for that URI.
        """
        # Hadoop's name for S3 is s3a, pyarrow's is s3.
        uri = "s3://" + path.removeprefix("s3a://") if path.startswith("s3a://") else path
        try:
            if "://" in uri or uri.startswith("file:"):
                fs, base = pafs.FileSystem.from_uri(uri)
            else:
                fs, base = pafs.FileSystem.from_uri(_absolute(uri))
                path = f"file://{base}"
        except (pa.ArrowInvalid, OSError) as error:
            raise ConfigError(
                expected="output.path as a path or a URI of a known file system",
                found=f"{path!r}: {error}",
                action="correct output.path",
            ) from error
        return cls(path.rstrip("/"), fs, base.rstrip("/"))

    def owner(self) -> str | None:
        """The dataset that owns the root, or None where nobody does yet."""
        try:
            with self.fs.open_input_stream(f"{self.base}/{_MARKER}") as stream:
                return str(json.loads(stream.read())["dataset"])
        except FileNotFoundError:
            return None

    def claim(self, dataset: str) -> None:
        """Make the root the dataset's own.

        Raises:
            ConfigError: it is another dataset's.
        """
        self.refuse_other(dataset)
        if self.owner() is None:
            self.fs.create_dir(self.base, recursive=True)
            with self.fs.open_output_stream(f"{self.base}/{_MARKER}") as stream:
                stream.write(json.dumps({"dataset": dataset}).encode())

    def refuse_other(self, dataset: str) -> None:
        """Raise a ConfigError where the root is another dataset's."""
        owner = self.owner()
        if owner not in (None, dataset):
            raise ConfigError(
                expected=f"an output.path of dataset {dataset!r}, or a new one",
                found=f"{self.path}, which belongs to dataset {owner!r}",
                action="give each dataset an output.path of its own",
            )

    def has(self, table: str) -> bool:
        """Whether a table was ever published."""
        return bool(self.fs.get_file_info(f"{self.base}/{table}").type == pafs.FileType.Directory)

    def partitions(self, table: str, day: date) -> list[str]:
        """What a table holds of a date, as `date=D/experiment=E`."""
        folder = f"{self.base}/{table}/date={day}"
        selector = pafs.FileSelector(folder, allow_not_found=True)
        found = sorted(
            info.base_name
            for info in self.fs.get_file_info(selector)
            if info.type == pafs.FileType.Directory
        )
        exists = self.fs.get_file_info(folder).type == pafs.FileType.Directory
        return [f"date={day}/{name}" for name in found] or [f"date={day}"] * exists


def _absolute(path: str) -> str:
    return Path(path).expanduser().absolute().as_uri()


@dataclass
class Staging:
    """What one run of one date has written and not yet published."""

    root: Root
    run_id: str
    day: date

    @property
    def _folder(self) -> str:
        return f"{_STAGING}/{self.run_id}"

    def write(self, frame: DataFrame, table: Table, name: str | None = None) -> DataFrame:
        """Write a table of the date and give back what was written, read from the files.

        Rows are put together by experiment and sorted within; the engine splits what is larger than
        `spark.sql.adaptive.advisoryPartitionSizeInBytes`, so a partition is a handful of files
        however uneven the experiments are.

        Args:
            frame: the table's columns and its partition keys below the date.
            table: its schema.
            name: the folder, where it is not the table's name.
        """
        inner = [key for key in table.partition_by if key != "date"]
        columns = [F.col(c.name).cast(c.type).alias(c.name) for c in table.columns]
        selected = frame.select(*columns, *inner)
        if inner:
            # As text, since the hint of Spark 3.5's DataFrame takes no columns.
            hint = f"SELECT /*+ REBALANCE({', '.join(inner)}) */ * FROM {{rows}}"  # noqa: S608  names of tables.py
            selected = frame.sparkSession.sql(hint, rows=selected)
        path = f"{self.root.path}/{self._folder}/{name or table.name}"
        writer = selected.sortWithinPartitions(*inner, *table.key).write.mode("error")
        writer.partitionBy(*inner).parquet(f"{path}/date={self.day}")
        return self.read(frame.sparkSession, table, name)

    def rewrite(self, frame: DataFrame, table: Table) -> DataFrame:
        """Write a table anew that may be computed from what was staged before."""
        written = f"{table.name}_rewritten"
        self.write(frame, table, name=written)
        folder = f"{self.root.base}/{self._folder}"
        self.root.fs.delete_dir(f"{folder}/{table.name}")
        self.root.fs.move(f"{folder}/{written}", f"{folder}/{table.name}")
        # The engine may remember the old files of that path; a new read lists them again.
        return self.read(frame.sparkSession, table)

    def read(self, spark: SparkSession, table: Table, name: str | None = None) -> DataFrame:
        """Read back what was written."""
        path = f"{self.root.path}/{self._folder}/{name or table.name}"
        schema = ", ".join(
            [
                *(f"`{c.name}` {c.type}" for c in table.columns),
                *(f"`{key}` STRING" for key in table.partition_by),
            ]
        )
        return spark.read.schema(schema).parquet(path)

    def write_rows(self, rows: list[dict[str, Any]], table: Table) -> None:
        """Write a table of the date whose rows stand on the driver: one file a partition."""
        schema = pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in table.columns])
        inner = [key for key in table.partition_by if key != "date"]
        partitions: dict[str, list[dict[str, Any]]] = {} if inner else {"": rows}
        for row in rows if inner else ():
            name = "/".join(f"{key}={_escaped(row[key])}" for key in inner)
            partitions.setdefault(name, []).append(row)
        for name, members in partitions.items():
            folder = f"{self._dated(table)}/{name}".rstrip("/")
            self.root.fs.create_dir(folder, recursive=True)
            file = f"{folder}/{self.run_id}.parquet"
            data = pa.Table.from_pylist(members, schema)
            pq.write_table(data, file, filesystem=self.root.fs, compression="zstd")

    def read_rows(self, table: Table) -> list[dict[str, Any]]:
        """Read back what :meth:`write_rows` wrote, with the partition keys, as readers would."""
        keys = pa.schema([(key, pa.string()) for key in table.partition_by])
        folder = f"{self.root.base}/{self._folder}/{table.name}"
        partitioning = ds.partitioning(keys, flavor="hive")
        data = ds.dataset(
            folder, filesystem=self.root.fs, partitioning=partitioning, format="parquet"
        )
        rows: list[dict[str, Any]] = data.to_table().to_pylist()
        return rows

    def _dated(self, table: Table) -> str:
        return f"{self.root.base}/{self._folder}/{table.name}/date={self.day}"

    def publish(self, tables: list[Table]) -> None:
        """Replace the date in each table by what was staged.

        Raises:
            PublishError: a rename failed; what had been moved is back where it was.
        """
        root, fs = self.root, self.root.fs
        undo: list[tuple[str, str]] = []
        try:
            for table in tables:
                live = f"{root.base}/{table.name}/date={self.day}"
                staged = self._dated(table)
                old = f"{root.base}/{self._folder}/replaced/{table.name}"
                # A table that has no row of the date any more has nothing staged.
                fresh = fs.get_file_info(staged).type == pafs.FileType.Directory
                if fresh:
                    fs.create_dir(f"{root.base}/{table.name}", recursive=True)
                if fs.get_file_info(live).type == pafs.FileType.Directory:
                    fs.create_dir(f"{root.base}/{self._folder}/replaced", recursive=True)
                    fs.move(live, old)
                    undo.append((old, live))
                if fresh:
                    fs.move(staged, live)
                    undo.append((live, staged))
        except OSError as error:
            for source, target in reversed(undo):
                fs.move(source, target)
            raise PublishError(
                expected=f"to replace date={self.day} below {root.path}",
                found=str(error),
                action="check permissions and space, then run the date again; nothing was changed",
            ) from error

    def append(self, table: Table) -> None:
        """Add the file that was staged for the date of a table that only grows."""
        target = f"{self.root.base}/{table.name}/date={self.day}"
        self.root.fs.create_dir(target, recursive=True)
        name = f"{self.run_id}.parquet"
        self.root.fs.move(f"{self._dated(table)}/{name}", f"{target}/{name}")


def append_rows(root: Root, run_id: str, rows: list[dict[str, Any]], table: Table) -> None:
    """Add a run's rows to a table that only grows and has no date: a file a partition.

    A file is written beside the tables and then moved, so a reader sees all of it or nothing.

    Raises:
        PublishError: it cannot be written.
    """
    schema = pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in table.columns])
    partitions: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name = "/".join(f"{key}={_escaped(row[key])}" for key in table.partition_by)
        partitions.setdefault(name, []).append(row)
    staged = f"{root.base}/{_STAGING}/{run_id}"
    try:
        root.fs.create_dir(staged, recursive=True)
        for number, (name, members) in enumerate(partitions.items()):
            file = f"{staged}/{number}.parquet"
            data = pa.Table.from_pylist(members, schema)
            pq.write_table(data, file, filesystem=root.fs, compression="zstd")
            folder = f"{root.base}/{table.name}/{name}"
            root.fs.create_dir(folder, recursive=True)
            root.fs.move(file, f"{folder}/{run_id}.parquet")
    except OSError as error:
        raise PublishError(
            expected=f"to add a file to {table.name} below {root.path}",
            found=str(error),
            action="check permissions and space, then run it again",
        ) from error
    finally:
        with suppress(OSError):
            root.fs.delete_dir(staged)
            if isinstance(root.fs, pafs.LocalFileSystem):
                Path(root.base, _STAGING).rmdir()


_ARROW_TYPES = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "DECIMAL(38,0)": pa.decimal128(38, 0),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "MAP<STRING, DOUBLE>": pa.map_(pa.string(), pa.float64()),
}


def _escaped(value: str) -> str:
    """A partition's value in a folder's name, as Hive and Spark write it (and all readers undo)."""
    return re.sub(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""", lambda m: f"%{ord(m[0]):02X}", value)


@contextmanager
def staging(root: Root, run_id: str, day: date) -> Iterator[Staging]:
    """A staging folder for a run of a date, gone afterwards whatever happened."""
    try:
        yield Staging(root, run_id, day)
    finally:
        folder = f"{root.base}/{_STAGING}/{run_id}"
        if root.fs.get_file_info(folder).type == pafs.FileType.Directory:
            root.fs.delete_dir(folder)
        if isinstance(root.fs, pafs.LocalFileSystem):
            # A failed first run leaves no trace; rmdir spares what another run has put there since.
            for parent in (f"{root.base}/{_STAGING}", root.base):
                with suppress(OSError):
                    Path(parent).rmdir()


def read_table(spark: SparkSession, path: str, table: str) -> DataFrame:
    """Read a published table, of all dates, with date and experiment as text.

        >>> rankspark.read_table(spark, published, "metrics").select("date", "experiment").first()
        Row(date='2024-03-10', experiment='007')

    Args:
        spark: the session.
        path: the output's root.
        table: the table's name.
    """
    root = Root.open(path)
    # Types of partition values are inferred, or not, when the files are looked up.
    with session.options(spark):
        # A date may have columns that older dates have not.
        frame = spark.read.option("mergeSchema", "true").parquet(f"{root.path}/{table}")
        frame.schema  # noqa: B018
    return frame

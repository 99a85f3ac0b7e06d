"""Staging, reading back and replacing whole dates of tables on a file system.

    <root>/_dataset.json                                 who owns the root
    <root>/_locks/date=D.json                            who works on a date
    <root>/_staging/date=D/<run_id>/<table>/date=D/...   what a run writes and audits
    <root>/_tables/<table>.json                          the columns it has ever had, in order
    <root>/<table>/date=D/_publication.json              the run that is in force
    <root>/<table>/date=D/experiment=E/*.parquet         what readers see

What is staged lies beside the tables' folders, where their readers do not look. A date is replaced
by exchanging its folder for the staged one: on Linux in a single step, elsewhere by two renames,
between which a reader can miss the date. Before the first table is touched, a journal says what is
to be exchanged, so that the next run of the date can finish what a killed one had begun.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rankspark.errors import ConfigError, PublishError
from rankspark.spark import lock, session
from rankspark.tables import Column, Table

_MARKER = "_dataset.json"
_STAGING = "_staging"
_TABLES = "_tables"
_PUBLICATION = "_publication.json"
_JOURNAL = "_journal.json"


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

    def marker(self) -> dict[str, Any]:
        """Who owns the root and how its tables are kept; empty where nobody does yet."""
        try:
            with self.fs.open_input_stream(f"{self.base}/{_MARKER}") as stream:
                return dict(json.loads(stream.read()))
        except FileNotFoundError:
            return {}

    def owner(self) -> str | None:
        """The dataset that owns the root, or None where nobody does yet."""
        return self.marker().get("dataset")

    def claim(self, dataset: str, form: str = "parquet", catalog: str | None = None) -> None:
        """Make the root the dataset's own.

        Raises:
            ConfigError: it is another dataset's, or of another format.
        """
        self.refuse_other(dataset, form)
        if self.owner() is None:
            content = {"dataset": dataset, "format": form, "catalog": catalog}
            self.fs.create_dir(self.base, recursive=True)
            with self.fs.open_output_stream(f"{self.base}/{_MARKER}") as stream:
                stream.write(json.dumps(content).encode())

    def refuse_other(self, dataset: str, form: str = "parquet") -> None:
        """Raise a ConfigError where the root is another dataset's, or of another format."""
        owner = self.owner()
        if owner not in (None, dataset):
            raise ConfigError(
                expected=f"an output.path of dataset {dataset!r}, or a new one",
                found=f"{self.path}, which belongs to dataset {owner!r}",
                action="give each dataset an output.path of its own",
            )
        kept = self.marker().get("format", form)
        if kept != form:
            raise ConfigError(
                expected=f"output.format = {kept!r}, as the tables at {self.path} are kept",
                found=repr(form),
                action="keep the format, or give another output.path",
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

    def columns(self, table: str) -> list[Column]:
        """The columns that a table has had so far, in order; none where it is new."""
        try:
            with self.fs.open_input_stream(f"{self.base}/{_TABLES}/{table}.json") as stream:
                return [Column(**column) for column in json.loads(stream.read())]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def evolved(self, table: Table) -> Table:
        """A table with the columns that it has already first, and new ones at the end.

        Raises:
            ConfigError: a column would vanish or change its type.
        """
        before, now = self.columns(table.name), {c.name: c for c in table.columns}
        gone = [c.name for c in before if c.name not in now]
        changed = [
            f"{c.name} {c.type} to {now[c.name].type}"
            for c in before
            if c.name in now and now[c.name].type != c.type
        ]
        if gone or changed:
            parts = [f"{', '.join(gone)} gone"] * bool(gone) + [", ".join(changed)] * bool(changed)
            raise ConfigError(
                expected=f"every column that {table.name} below {self.path} has, and its type",
                found="; ".join(parts),
                action="keep the measures and slices that it has; to drop some, give a new"
                " output.path and evaluate the dates again there",
            )
        old = [now[c.name] for c in before]
        new = [c for c in table.columns if c.name not in {c.name for c in before}]
        return replace(table, columns=(*old, *new))

    def running(self, table: str, day: date) -> str | None:
        """The run that published a date of a table, or None."""
        try:
            path = f"{self.base}/{table}/date={day}/{_PUBLICATION}"
            with self.fs.open_input_stream(path) as stream:
                return str(json.loads(stream.read())["run_id"])
        except FileNotFoundError:
            return None


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
        return f"{_STAGING}/date={self.day}/{self.run_id}"

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
        table = self.root.evolved(table)
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
        table = self.root.evolved(table)
        schema = ", ".join(
            [
                *(f"`{c.name}` {c.type}" for c in table.columns),
                *(f"`{key}` STRING" for key in table.partition_by),
            ]
        )
        return spark.read.schema(schema).parquet(path)

    def write_rows(self, rows: list[dict[str, Any]], table: Table) -> None:
        """Write a table of the date whose rows stand on the driver: one file a partition."""
        table = self.root.evolved(table)
        schema = arrow_schema(table)
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

    def publish(self, tables: list[Table], grown: Table) -> None:
        """Replace the date in each table by what was staged, and add a file to one that only grows.

        Raises:
            PublishError: a rename failed; what had been exchanged is back where it was.
        """
        root, done = self.root, list[str]()
        try:
            self.write_journal(tables, grown)
            for table in tables:
                self._exchange(table.name)
                done.append(table.name)
            self._add(grown.name)
        except OSError as error:
            for name in reversed(done):
                self._exchange(name)
            # What is staged was refused: nobody must finish it.
            self._forget()
            raise PublishError(
                expected=f"to replace date={self.day} below {root.path}",
                found=str(error),
                action="check permissions and space, then run the date again; nothing was changed",
            ) from error
        try:
            # Done: what is left here is the date before, which nobody must take for a new one.
            self._forget()
        except OSError as error:
            raise PublishError(
                expected=f"to remove {_JOURNAL} of run {self.run_id} below {root.path}/{_STAGING}",
                found=str(error),
                action=f"date={self.day} is published; delete that folder before its next run",
            ) from error

    def _forget(self) -> None:
        if self.journal() is not None:
            self.root.fs.delete_file(f"{self.root.base}/{self._folder}/{_JOURNAL}")

    def finish(self) -> bool:
        """Do what the run of this staging had begun to publish when it was killed.

        Returns:
            whether there was anything to finish.
        """
        journal = self.journal()
        if journal is None:
            return False  # it had not audited everything
        for name in journal["replaced"]:
            if self.root.running(name, self.day) != self.run_id:
                self._exchange(name)
        self._add(journal["grown"])
        return True

    def write_journal(self, replaced: list[Table], grown: Table) -> None:
        """Say what is to be published, now that all is staged and audited."""
        for table in (*replaced, grown):
            self.note_columns(table)
        for table in replaced:
            # An empty date has no files, and yet was published.
            self.root.fs.create_dir(self._dated(table), recursive=True)
            self._write_json(f"{self._dated(table)}/{_PUBLICATION}", {"run_id": self.run_id})
        journal = {"replaced": [table.name for table in replaced], "grown": grown.name}
        self._write_json(f"{self.root.base}/{self._folder}/{_JOURNAL}", journal)

    def journal(self) -> dict[str, Any] | None:
        """What was to be published, or None where it was not audited yet."""
        try:
            path = f"{self.root.base}/{self._folder}/{_JOURNAL}"
            with self.root.fs.open_input_stream(path) as stream:
                return dict(json.loads(stream.read()))
        except FileNotFoundError:
            return None

    def append(self, table: Table) -> None:
        """Add the file that was staged for the date of a table that only grows."""
        self.note_columns(table)
        self._add(table.name)

    def _add(self, table: str) -> None:
        source = f"{self.root.base}/{self._folder}/{table}/date={self.day}/{self.run_id}.parquet"
        if self.root.fs.get_file_info(source).type != pafs.FileType.NotFound:
            target = f"{self.root.base}/{table}/date={self.day}"
            self.root.fs.create_dir(target, recursive=True)
            self.root.fs.move(source, f"{target}/{self.run_id}.parquet")

    def _exchange(self, table: str) -> None:
        """Swap the staged folder of the date and the published one; either may be absent."""
        fs = self.root.fs
        live = f"{self.root.base}/{table}/date={self.day}"
        staged = f"{self.root.base}/{self._folder}/{table}/date={self.day}"
        aside = f"{staged}.replaced"
        fs.create_dir(f"{self.root.base}/{table}", recursive=True)
        if not _is_folder(fs, live) and not _is_folder(fs, aside):
            _move(fs, staged, live)
        elif not _is_folder(fs, staged):
            _move(fs, live, staged)
        elif _is_folder(fs, aside) or not _exchanged(fs, staged, live):
            # The run that is finished here may have been killed between the two renames.
            if not _is_folder(fs, aside):
                _move(fs, live, aside)
            _move(fs, staged, live)
            _move(fs, aside, staged)

    def note_columns(self, table: Table) -> None:
        """Remember the columns of a table, so that later runs keep them in their order."""
        columns = self.root.evolved(table).columns
        if list(columns) != self.root.columns(table.name):
            folder = f"{self.root.base}/{_TABLES}"
            self.root.fs.create_dir(folder, recursive=True)
            content = [asdict(column) for column in columns]
            self._write_json(f"{folder}/{table.name}.json", content)

    def _write_json(self, path: str, content: object) -> None:
        aside = f"{path}.{self.run_id}"
        with self.root.fs.open_output_stream(aside) as stream:
            stream.write(json.dumps(content).encode())
        self.root.fs.move(aside, path)


def arrow_schema(table: Table) -> pa.Schema:
    """A table's columns but for its partition keys, which are text, as Arrow."""
    return pa.schema([(column.name, _ARROW_TYPES[column.type]) for column in table.columns])


def append_rows(root: Root, run_id: str, rows: list[dict[str, Any]], table: Table) -> None:
    """Add a run's rows to a table that only grows and has no date: a file a partition.

    A file is written beside the tables and then moved, so a reader sees all of it or nothing.

    Raises:
        PublishError: it cannot be written.
    """
    schema = arrow_schema(table)
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
    "INT": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "DOUBLE": pa.float64(),
    "DECIMAL(38,0)": pa.decimal128(38, 0),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<STRING>": pa.list_(pa.string()),
    "MAP<STRING, DOUBLE>": pa.map_(pa.string(), pa.float64()),
}


def unescaped(value: str) -> str:
    """The value of a partition whose folder's name is given, quoted for a SQL string."""
    return unquote(value).replace("\\", "\\\\").replace("'", "\\'")


def _escaped(value: str) -> str:
    """A partition's value in a folder's name, as Hive and Spark write it (and all readers undo)."""
    return re.sub(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""", lambda m: f"%{ord(m[0]):02X}", value)


def _is_folder(fs: pafs.FileSystem, path: str) -> bool:
    return bool(fs.get_file_info(path).type == pafs.FileType.Directory)


def _move(fs: pafs.FileSystem, source: str, target: str) -> None:
    """Rename a folder or, in an object store, which has no folders, copy its files."""
    if fs.type_name in _OBJECT_STORES:
        pafs.copy_files(source, target, source_filesystem=fs, destination_filesystem=fs)
        fs.delete_dir(source)
    else:
        fs.move(source, target)


_OBJECT_STORES = ("s3", "gcs", "abfs")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchanged(fs: pafs.FileSystem, one: str, other: str) -> bool:
    """Swap two folders in one step, where the system can (Linux); whether it did."""
    if not isinstance(fs, pafs.LocalFileSystem):
        return False
    try:
        swap = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if swap(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False  # this file system cannot
    raise OSError(code, os.strerror(code), other)


@contextmanager
def staging(
    root: Root,
    run_id: str,
    day: date,
    finish: Callable[[Staging], object],
    wait: float = 0.0,
) -> Iterator[Staging]:
    """The date for this run alone, and a staging folder for it, gone afterwards.

    What a killed run of the date left is finished, where it had begun to publish, and removed.

    Args:
        root: where.
        run_id: the run.
        day: the date.
        finish: finishes what a killed run had staged and begun to publish.
        wait: for how many seconds to wait for another run of the date.

    Raises:
        LockedError: another run of that date is at work.
        PublishError: nothing can be written there.
    """
    folder = f"{root.base}/{_STAGING}/date={day}"
    try:
        with lock.held(root.fs, root.base, day, run_id, wait):
            try:
                for info in root.fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True)):
                    finish(Staging(root, info.base_name, day))
                    root.fs.delete_dir(info.path)
                yield Staging(root, run_id, day)
            finally:
                if _is_folder(root.fs, folder):
                    root.fs.delete_dir(folder)
    except OSError as error:
        raise PublishError(
            expected=f"to write below {root.path}",
            found=str(error),
            action="check permissions and space, then run the date again; nothing was changed",
        ) from error
    finally:
        if isinstance(root.fs, pafs.LocalFileSystem):
            # A failed first run leaves no trace; rmdir spares what another run has put there since.
            for parent in (_STAGING, lock.FOLDER, ""):
                with suppress(OSError):
                    Path(root.base, parent).rmdir()


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
    marker = root.marker()
    if marker.get("catalog"):
        return spark.table(f"{marker['catalog']}.{table}")
    if marker.get("format") == "delta":
        return spark.read.format("delta").load(f"{root.path}/{table}")
    # Types of partition values are inferred, or not, when the files are looked up.
    with session.options(spark):
        # A date may have columns that older dates have not.
        frame = spark.read.option("mergeSchema", "true").parquet(f"{root.path}/{table}")
        frame.schema  # noqa: B018
    return frame

"""The source -> canonical rows of one date, typed, named as in DESIGN section 3.

Flat sources give a row an impression. Nested sources give a row a query with an array of each of
the same item columns, so that nothing has to be shuffled later.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import date

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from rankspark.config import Config, Definition, Source
from rankspark.errors import InputError
from rankspark.spark import trec

ITEM = "__item"
INDEX = "__index"
_FIELD = re.compile(rf"{ITEM}\.`[^`]*`")
_MODIFIED = "_metadata.file_modification_time"


def read(spark: SparkSession, config: Config, day: date) -> DataFrame:
    """The canonical rows of one date.

    Raises:
        InputError: the source is absent, a column does not resolve or has a wrong type. Nothing has
            run on the cluster by then, but for the listing of files.
    """
    return canonical(source(spark, config.input), config, day)


def fingerprint(spark: SparkSession, config: Config, day: date) -> str | None:
    """A hash of the input files that hold rows of a date, and of all judgments' and events' files.

    Reads their names, sizes and times, and of the rows at most the date. None where the source
    does not say which files it has.
    """
    frame = source(spark, config.input)
    columns = config.input.columns
    if columns.date is not None:
        date_type = resolve(frame, {"date": columns.date})["date"]
        frame = frame.where(_is_day(columns.date, date_type, day))
    others = [("judgments", config.judgments), ("labels", config.labels)]
    frames = [frame, *(source(spark, given, name) for name, given in others if given is not None)]
    digest = hashlib.sha256()
    for one in frames:
        try:
            found = one.select("_metadata.file_path", "_metadata.file_size", _MODIFIED).distinct()
            files = sorted(tuple(row) for row in found.collect())
        except AnalysisException:
            return None
        digest.update(repr(files).encode())
    return digest.hexdigest()[:16]


def source(spark: SparkSession, given: Source, section: str = "input") -> DataFrame:
    """A source as it is, filtered by its `where` only.

    Args:
        spark: the session.
        given: where it is.
        section: of the configuration, for messages.
    """
    name = given.table or given.path
    try:
        if given.table is not None:
            frame = spark.read.table(given.table)
        elif given.format == "trec":
            frame = trec.lines(spark, given.path, trec.RUN if section == "input" else trec.QRELS)
        else:
            reader = spark.read.format(given.format).options(**_read_options(given))
            if given.schema_ is not None:
                reader = reader.schema(given.schema_)
            paths = [given.path] if isinstance(given.path, str) else list(given.path or ())
            frame = reader.load(paths)
        columns = frame.columns  # under Connect this is where the source is looked up
    except AnalysisException as error:
        raise InputError(
            expected=f"a readable {'table' if given.table else given.format} at {name}",
            found=first_line(error),
            action=f"check {section}.path or {section}.table, its format and its permissions",
        ) from error
    _refuse_case_twins(columns)
    if given.where is not None:
        resolve(frame, {"where": f"({given.where})"}, prefix=section)
        frame = frame.where(given.where)
    return frame


def _read_options(given: Source) -> dict[str, str]:
    # Text has no types to infer: every column is read as text and cast at the boundary.
    defaults = {"header": "true"} if given.format == "csv" else {}
    return defaults | given.options


def _refuse_case_twins(columns: list[str]) -> None:
    seen: dict[str, str] = {}
    for column in columns:
        twin = seen.setdefault(column.lower(), column)
        if twin != column:
            raise InputError(
                expected="column names that differ by more than case",
                found=f"{twin!r} and {column!r} in the source",
                action="rename one of them",
            )


def canonical(frame: DataFrame, config: Definition, day: date | None) -> DataFrame:
    """Select the canonical columns of a source, of one date where it is given.

    Returns:
        `experiment` and `variant`, or `assignments` as a sorted array of their pairs; `query_id`,
        `unit_id`, `query_key` and the slices as STRING; then `item_id` STRING, `position` BIGINT or
        DOUBLE, `relevance` DOUBLE and `score_<ranker>` DOUBLE, or an array of each, with numbers
        that need no conversion as they are.
    """
    columns = config.input.columns
    row = {
        "query_id": columns.query_id,
        "unit_id": columns.unit_id or "cast(null as string)",
        "query_key": columns.query_key or "cast(null as string)",
    }
    if columns.assignments is None:
        row |= {"experiment": str(columns.experiment), "variant": str(columns.variant)}
    else:
        row["assignments"] = columns.assignments
    row |= {name: columns.extra.get(name, name) for name in config.evaluate.slice_columns}
    if config.input.format == "trec":
        row["malformed"] = "malformed"
    item = {"item_id": columns.item_id}
    if columns.relevance is not None:
        item["relevance"] = columns.relevance
    if columns.time is not None:
        item["time"] = columns.time
    if config.uses_position:
        item["position"] = columns.position or INDEX
    for ranker in config.parsed_rankers:
        if not ranker.by_position:
            item[f"score_{ranker.name}"] = ranker.expression

    plain = row | item if config.input.items is None else row
    types = resolve(frame, plain)
    if day is not None and columns.date is not None:
        date_type = resolve(frame, {"date": columns.date})["date"]
        frame = frame.where(_is_day(columns.date, date_type, day))
    outputs = [F.expr(typed(name, sql, types[name])).alias(name) for name, sql in plain.items()]
    if config.input.items is not None:
        outputs += _items(frame, config.input.items.column, item, config)
    return frame.select(*outputs)


def _items(
    frame: DataFrame, column: str, item: Mapping[str, str], config: Definition
) -> list[Column]:
    array_type = resolve(frame, {"column": column}, prefix="input.items")["column"]
    if not isinstance(array_type, T.ArrayType) or not isinstance(
        array_type.elementType, T.StructType
    ):
        raise InputError(
            expected="an array of structs as input.items.column",
            found=f"{column!r} of type {array_type.simpleString()}",
            action="name one, or zip parallel arrays: arrays_zip(ids, positions, labels)",
        )
    fields = array_type.elementType.names
    _refuse_case_twins(fields)
    base = config.input.position_base
    bound = {
        name: f"{INDEX} + {base}" if sql == INDEX else _bind(sql, fields)
        for name, sql in item.items()
    }
    arrays = resolve(
        frame,
        {name: f"transform({column}, ({ITEM}, {INDEX}) -> {sql})" for name, sql in bound.items()},
        shown=item,
        known=[*frame.columns, *fields],
    )
    # A null element becomes an item of nulls, which is rejected for its item_id.
    columns = []
    for name, sql in bound.items():
        array = arrays[name]
        assert isinstance(array, T.ArrayType)  # noqa: S101  transform() gives nothing else
        element = typed(name, sql, array.elementType)
        whole = f"transform({column}, ({ITEM}, {INDEX}) -> {element})"
        if item[name] == INDEX:
            size = f"array_size({column})"
            whole = f"slice(sequence({base}, {base} + {size}), 1, {size})"
        elif _FIELD.fullmatch(sql) and (kind := _converted(name, array.elementType)):
            # Unlike a lambda, access to a field of all items is compiled, and reads that field
            # alone.
            whole = kind.format(f"({column}).{sql.removeprefix(f'{ITEM}.')}")
        columns.append(F.expr(whole).alias(name))
    return columns


def _converted(name: str, found: T.DataType) -> str | None:
    """SQL of the typed array of a plain field, with {} for it; None where a cast may fail.

    Numbers that a double or a bigint holds stay as they are: Python converts them for nothing.
    """
    if name == "item_id":
        return "cast({} as array<string>)"
    if name == "time" or isinstance(found, T.StringType):
        return None
    if isinstance(found, (T.IntegralType, *_FLOATS)):
        return "{}"
    return "cast({} as array<double>)"


def _bind(sql: str, fields: list[str]) -> str:
    """Make the item's fields visible by name inside a lambda over the array of items.

    A field by itself is a plain access. In a longer expression each field that it may use becomes
    the variable of a lambda over an array of one, which shadows any column of the row: no parsing,
    and what Spark SQL can say over columns it can say over fields.
    """
    by_name = {field.lower(): field for field in fields}
    if sql.strip("` ").lower() in by_name:
        return f"{ITEM}.`{by_name[sql.strip('` ').lower()]}`"
    for field in fields:
        if re.search(rf"\b{re.escape(field)}\b", sql, flags=re.IGNORECASE):
            sql = f"transform(array({ITEM}.`{field}`), `{field}` -> {sql})[0]"
    return sql


def resolve(
    frame: DataFrame,
    expressions: Mapping[str, str],
    *,
    prefix: str = "input.columns",
    shown: Mapping[str, str] | None = None,
    known: list[str] | None = None,
) -> dict[str, T.DataType]:
    """The type of each expression, or an error that names the one which does not resolve."""
    try:
        selected = frame.select(*(F.expr(sql).alias(name) for name, sql in expressions.items()))
        return {field.name: field.dataType for field in selected.schema.fields}
    except AnalysisException as error:
        if len(expressions) > 1:
            for name, sql in expressions.items():
                resolve(frame, {name: sql}, prefix=prefix, shown=shown, known=known)
            raise
        name, sql = next(iter(expressions.items()))
        place = f"rankers.{name[6:]}" if name.startswith("score_") else f"{prefix}.{name}"
        raise InputError(
            expected=f"{place} = {(shown or expressions)[name]!r} to resolve over the source",
            found=f"{first_line(error)}; it has {', '.join(known or frame.columns)}",
            action=f"correct {place}",
        ) from error


_FLOATS = (T.FloatType, T.DoubleType)
_ID_TYPES = (T.StringType, T.IntegralType, T.DecimalType, T.DateType, T.BooleanType, T.NullType)
_NUMBER_TYPES = (T.NumericType, T.StringType, T.BooleanType, T.NullType)


def typed(name: str, sql: str, found: T.DataType, prefix: str = "input.columns") -> str:
    """The SQL that casts one canonical column to its type; what cannot be cast becomes null.

    Raises:
        InputError: the expression's type can never be that column.
    """
    if name == "assignments":
        if not (
            isinstance(found, T.MapType)
            and isinstance(found.keyType, T.StringType)
            and isinstance(found.valueType, T.StringType)
        ):
            raise _wrong_type(
                f"{prefix}.{name}", sql, found, "MAP<STRING, STRING> of experiment to variant"
            )
        # A map is no grouping key; its sorted entries are.
        return f"array_sort(map_entries({sql}))"
    if name in ("position", "relevance") or name.startswith("score_"):
        if not isinstance(found, _NUMBER_TYPES):
            raise _wrong_type(f"{prefix}.{name}", sql, found, "a number")
        if name == "position" and isinstance(found, T.IntegralType):
            return f"cast(({sql}) as bigint)"
        number = f"try_cast(({sql}) as double)"
        if name == "relevance" and isinstance(found, T.StringType):
            # Text that is no number is not the same as no judgment: NaN, which check.py rejects.
            return f"(case when ({sql}) is not null then coalesce({number}, double('NaN')) end)"
        return number
    if name == "time":
        if not isinstance(found, (T.TimestampType, T.TimestampNTZType, T.StringType)):
            raise _wrong_type(f"{prefix}.{name}", sql, found, "a TIMESTAMP")
        return f"unix_micros(try_cast(({sql}) as timestamp))"
    if name in ("query_id", "item_id", "unit_id") and isinstance(found, _FLOATS):
        raise _wrong_type(
            f"{prefix}.{name}", sql, found, "an id as STRING or a whole number (a float merges ids)"
        )
    if not isinstance(found, (*_ID_TYPES, *_FLOATS)):
        raise _wrong_type(f"{prefix}.{name}", sql, found, "text")
    return f"cast(({sql}) as string)"


def _is_day(sql: str, found: T.DataType, day: date) -> str:
    """SQL: whether a column is that day."""
    if isinstance(found, T.DateType):
        return f"({sql}) = DATE'{day}'"
    if isinstance(found, T.StringType):
        # Text as it is usually written need not be parsed in every row.
        return f"(({sql}) = '{day}' or try_cast(({sql}) as date) = DATE'{day}')"
    raise _wrong_type("input.columns.date", sql, found, "a DATE, or text as YYYY-MM-DD")


def _wrong_type(place: str, sql: str, found: T.DataType, expected: str) -> InputError:
    return InputError(
        expected=f"{expected} from {place}",
        found=f"{sql!r} of type {found.simpleString()}",
        action="cast it in the expression",
    )


def first_line(error: BaseException) -> str:
    """The sentence of an engine's error that a person can use."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return re.sub(r"\s*SQLSTATE: \w+", "", text).rstrip(".; ")

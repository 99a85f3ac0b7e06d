"""The configuration: TOML -> a validated, frozen model; unknown keys are refused.

load(file) -> Config                        what the file says, with overrides
Config.definition_id(measure)               what makes two values comparable
parse_dates(...)                            the dates of a run
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from rankspark import tables
from rankspark.errors import ConfigError
from rankspark.measures import Measure, Options

#: Raised whenever the same input and configuration would give other numbers than before.
SEMANTICS_VERSION = 1

_NAME = re.compile(r"[a-z_][a-z0-9_]*")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _sql(text: str) -> str:
    if not text.strip():
        raise ValueError("an empty expression; give Spark SQL over the source's columns")
    return text


def _identifier(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no column name; use a-z, 0-9 and _, such as 'country'")
    return text


Sql = Annotated[str, AfterValidator(_sql)]
Identifier = Annotated[str, AfterValidator(_identifier)]


class Columns(_Model):
    """Canonical columns as Spark SQL expressions over the source (DESIGN section 3).

    In the nested shape `item_id`, `position` and `relevance` are expressions over the fields of the
    items' struct; the others are over the row. Slices that are not named here are taken from the
    source by their own name.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    date: Sql
    query_id: Sql
    item_id: Sql
    relevance: Sql
    experiment: Sql | None = None
    variant: Sql | None = None
    assignments: Sql | None = None
    position: Sql | None = None
    unit_id: Sql | None = None
    query_key: Sql | None = None

    __pydantic_extra__: dict[str, Sql]

    @property
    def extra(self) -> dict[str, str]:
        """Expressions of slice columns."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _experiment_or_assignments(self) -> Self:
        both = (self.experiment, self.variant)
        if self.assignments is None and None in both:
            raise ValueError(
                "needs experiment and variant (a literal will do: \"'baseline'\"), or assignments"
            )
        if self.assignments is not None and both != (None, None):
            raise ValueError("has assignments as well as experiment or variant; keep one")
        return self


class Items(_Model):
    """The nested shape: an array of structs a row."""

    column: Sql


class Input(_Model):
    """Where the impressions are."""

    path: str | tuple[str, ...] | None = None
    table: str | None = None
    format: Literal["parquet", "orc", "csv", "json"] = "parquet"
    options: dict[str, str] = {}
    schema_: str | None = Field(default=None, alias="schema")
    where: Sql | None = None
    timezone: str = "UTC"
    position_base: Literal[0, 1] = 1
    columns: Columns
    items: Items | None = None

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(f"{value!r} is no time zone; use a name such as 'UTC'") from error
        return value


class Evaluate(_Model):
    """What is measured (DESIGN section 4)."""

    measures: tuple[str, ...] = ("mrr", "ndcg@10")
    slices: tuple[Identifier, ...] = ()
    no_relevant: Literal["zero", "skip"] = "zero"
    relevant_from: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    negative: Literal["reject", "zero"] = "reject"
    rank: Literal["position", "order"] = "position"

    @field_validator("measures", mode="after")
    @classmethod
    def _canonical(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("no measure; name at least one, such as 'mrr@10'")
        return tuple(dict.fromkeys(str(Measure.parse(text)) for text in value))

    @field_validator("slices", mode="after")
    @classmethod
    def _unreserved(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        taken = {*tables.query_metrics((), ()).column_names, *tables.PARTITION_COMMENTS}
        for name in value:
            if name in taken or name == tables.OVERALL[0]:
                raise ValueError(f"slice {name!r} is the name of a table's own column; rename it")
        return tuple(dict.fromkeys(value))


class Ranker(_Model):
    """One ordering of the same items: an expression, ascending or descending."""

    name: Identifier
    expression: str
    descending: bool

    @classmethod
    def parse(cls, name: str, text: str) -> Ranker:
        """Read `"score_v2 desc"`."""
        expression, _, order = text.strip().rpartition(" ")
        if order.lower() not in ("asc", "desc") or not expression:
            expression, order = text.strip(), "asc"
        return cls(name=name, expression=expression, descending=order.lower() == "desc")

    @property
    def by_position(self) -> bool:
        """Whether it is the logged order."""
        return self.expression == "position" and not self.descending


class Limits(_Model):
    """What keeps the cluster alive."""

    max_list_length: int = Field(default=10_000, ge=1)
    max_slice_values: int = Field(default=1_000, ge=1)


class Output(_Model):
    """Where the tables go: folders below `path`."""

    path: str
    format: Literal["parquet"] = "parquet"


class Definition(_Model):
    """What is read and measured, wherever the rows come from and the tables go."""

    input: Input
    evaluate: Evaluate = Evaluate()
    rankers: dict[Identifier, Sql] = {"logged": "position"}
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        unknown = set(self.input.columns.extra) - set(self.evaluate.slices)
        if unknown:
            known = [*Columns.model_fields, *self.evaluate.slices]
            raise ValueError(
                f"unknown key input.columns: {_hint(min(unknown), known)} "
                "(a slice column must be listed in evaluate.slices)"
            )
        if not self.rankers:
            raise ValueError("rankers is empty; leave it out for logged = 'position'")
        nested = self.input.items is not None
        if self.uses_position and self.input.columns.position is None and not nested:
            raise ValueError("input.columns.position is missing, and a ranker sorts by position")
        return self

    @property
    def parsed_rankers(self) -> tuple[Ranker, ...]:
        """The rankers in the order of the file."""
        return tuple(Ranker.parse(name, text) for name, text in self.rankers.items())

    @property
    def uses_position(self) -> bool:
        """Whether any ranker keeps the logged order."""
        return any(ranker.by_position for ranker in self.parsed_rankers)

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """The measures, parsed, without repetition."""
        return tuple(Measure.parse(text) for text in self.evaluate.measures)

    @property
    def options(self) -> Options:
        """What the kernels need of section 4."""
        return Options(
            relevant_from=self.evaluate.relevant_from, no_relevant=self.evaluate.no_relevant
        )

    @property
    def query_metrics(self) -> tables.Table:
        """The table of queries that this configuration gives."""
        return tables.query_metrics(
            self.evaluate.slices, [measure.column_name for measure in self.measures]
        )

    def definition_id(self, measure: Measure) -> str:
        """16 hexadecimal digits of all that defines the value of a measure.

        Two rows of `metrics` may be compared only where these are equal. Rankers and variants are
        what is compared, so they are no part of it.
        """
        semantics = self.evaluate.model_dump(mode="json", exclude={"measures", "slices"})
        columns = self.input.columns
        return _digest(
            json.dumps(
                [
                    SEMANTICS_VERSION,
                    str(measure),
                    semantics,
                    columns.relevance,
                    columns.position,
                    self.input.position_base,
                ],
                sort_keys=True,
            )
        )


class Config(Definition):
    """A whole configuration: a definition, its source and its output."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    output: Output

    @model_validator(mode="after")
    def _path_or_table(self) -> Self:
        if (self.input.path is None) == (self.input.table is None):
            raise ValueError("input needs exactly one of path and table")
        return self

    def canonical_json(self) -> str:
        """The configuration as one line of JSON, keys sorted, defaults written out."""
        return json.dumps(self.model_dump(mode="json", by_alias=True), sort_keys=True)

    @property
    def config_hash(self) -> str:
        """16 hexadecimal digits of the whole configuration."""
        return _digest(self.canonical_json())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(file: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Read a TOML configuration.

    Args:
        file: its path.
        overrides: `key=value` each, the key dotted (`output.path=/tmp/x`), the value TOML or, where
            it is not, text.

    Raises:
        ConfigError: no such file, no TOML, an unknown key, a wrong value.
    """
    path = Path(file)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            expected=f"a readable configuration at {path}",
            found=str(error.strerror or error),
            action="give --config an existing TOML file",
        ) from error
    except ValueError as error:
        raise ConfigError(
            expected=f"TOML in {path}", found=str(error), action="correct the file at that place"
        ) from error
    for override in overrides:
        _override(content, override)
    return from_dict(content, where=str(path))


def from_dict(content: Mapping[str, Any], where: str = "the configuration") -> Config:
    """Validate a configuration that is already a dictionary.

    Raises:
        ConfigError: an unknown key or a wrong value.
    """
    _refuse_templates(content, where)
    try:
        return Config.model_validate(content)
    except ValidationError as error:
        raise ConfigError(
            expected=f"a valid configuration in {where}",
            found="; ".join(describe(problem) for problem in error.errors()),
            action="correct it; DESIGN of the keys: README, section Configuration",
        ) from error


def describe(problem: Any) -> str:
    """One of pydantic's problems in a few words, with a hint where a key is unknown."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {_hint(where, _known_keys(problem['loc'][:-1]))}"
    if problem["type"] == "missing":
        return f"{where} is missing"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _known_keys(prefix: Sequence[str | int]) -> list[str]:
    model: Any = Config
    for part in prefix:
        model = model.model_fields[part].annotation
        for candidate in getattr(model, "__args__", ()):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
    lead = ".".join(str(part) for part in prefix)
    names = [field.alias or name for name, field in model.model_fields.items()]
    return [f"{lead}.{name}" if lead else name for name in names]


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return (
        f"{name!r}; did you mean {near[0]!r}?" if near else f"{name!r}; known: {', '.join(known)}"
    )


def _override(content: dict[str, Any], text: str) -> None:
    key, separator, value = text.partition("=")
    parts = key.strip().split(".")
    if not separator or not all(parts):
        raise ConfigError(
            expected="--set key=value, such as output.path=/tmp/x",
            found=repr(text),
            action="write the dotted key, =, and the value",
        )
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    table = content
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(
                expected=f"a table at {part!r} of --set {key}",
                found=f"the value {table!r}",
                action="override a key inside a table",
            )
    table[parts[-1]] = parsed


def _refuse_templates(content: object, where: str) -> None:
    if isinstance(content, Mapping):
        for key, value in content.items():
            _refuse_templates(value, f"{where}: {key}")
    elif isinstance(content, list | tuple):
        for value in content:
            _refuse_templates(value, where)
    elif isinstance(content, str) and ("{{" in content or "}}" in content):
        raise ConfigError(
            expected="values without template marks",
            found=f"{content!r} in {where}",
            action="have the scheduler render its template before it calls rankspark",
        )


def parse_dates(
    dates: Sequence[str] = (), start: str | None = None, end: str | None = None
) -> tuple[date, ...]:
    """The dates of a run: those listed, or every day of the half-open range.

    Raises:
        ConfigError: no date, a date that is none, an end that is not after the start.
    """
    if bool(dates) == bool(start or end) or bool(start) != bool(end):
        raise ConfigError(
            expected="--date D (repeatable), or --start D and --end D",
            found=f"date={list(dates)}, start={start}, end={end}",
            action="give one of the two forms",
        )
    if dates:
        return tuple(sorted({_day(text, "--date") for text in dates}))
    first, last = _day(str(start), "--start"), _day(str(end), "--end")
    if last <= first:
        raise ConfigError(
            expected="an end after the start (the end itself is not included)",
            found=f"--start {first} --end {last}",
            action=f"for that one day use --end {first + timedelta(days=1)}",
        )
    return tuple(first + timedelta(days=n) for n in range((last - first).days))


def _day(text: str, flag: str) -> date:
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass  # falls through to the same message: 2024-02-30 is no date either
    action = "write it as YYYY-MM-DD"
    if "{{" in text:
        action = "have the scheduler render its template before it calls rankspark"
    raise ConfigError(expected=f"a date for {flag}", found=repr(text), action=action)

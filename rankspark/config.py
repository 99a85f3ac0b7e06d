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
from dataclasses import asdict, replace
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from rankspark import tables
from rankspark.errors import ConfigError
from rankspark.measures import PROFILES, Measure, Options

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

    date: Sql | None = None
    query_id: Sql
    item_id: Sql
    relevance: Sql | None = None
    experiment: Sql | None = None
    variant: Sql | None = None
    assignments: Sql | None = None
    position: Sql | None = None
    unit_id: Sql | None = None
    query_key: Sql | None = None
    time: Sql | None = None

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


#: What a TREC run file has: `topic iteration item rank score tag`. The order is that of the scores;
#: trec_eval does not look at the ranks, and neither do we.
_TREC_COLUMNS = {
    "query_id": "query_id",
    "item_id": "item_id",
    "experiment": "'trec'",
    "variant": "tag",
}
_TREC_RANKERS = {"run": "score desc"}
_TREC_JUDGMENTS = {"query_id": "query_id", "item_id": "item_id", "relevance": "grade"}


class Items(_Model):
    """The nested shape: an array of structs a row."""

    column: Sql


class Source(_Model):
    """Where rows are: files, or a table of the catalog."""

    path: str | tuple[str, ...] | None = None
    table: str | None = None
    format: Literal["parquet", "orc", "csv", "json", "delta", "iceberg", "trec"] = "parquet"
    options: dict[str, str] = {}
    schema_: str | None = Field(default=None, alias="schema")
    where: Sql | None = None

    def require_place(self) -> None:
        """Raise a ValueError unless there is either a path or a table."""
        if (self.path is None) == (self.table is None):
            raise ValueError("needs exactly one of path and table")


class Input(Source):
    """Where the impressions are."""

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


class JudgmentColumns(_Model):
    """Columns of the judgments, as Spark SQL over their source; one of query_id and query_key."""

    query_id: Sql | None = None
    query_key: Sql | None = None
    item_id: Sql
    relevance: Sql
    order: Sql | None = None

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if (self.query_id is None) == (self.query_key is None):
            raise ValueError("needs exactly one of query_id and query_key")
        return self


class Judgments(Source):
    """Relevance known beyond what was shown: a table, files, or TREC qrels.

    It takes the place of `input.columns.relevance`. The ideal, recall and MAP count all judged
    items. `unshown` says what a judged query that was never shown counts: "zero", or "leave_out".
    The default is "zero" where judgments are of requests (query_id); a query_key that nobody asked
    for has no request that could count, and trec_eval leaves topics out too.
    """

    columns: JudgmentColumns
    unshown: Literal["zero", "leave_out"] | None = None

    @property
    def key(self) -> str:
        """The column of the lists that judgments are joined on."""
        return "query_key" if self.columns.query_id is None else "query_id"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.require_place()
        if self.unshown == "zero" and self.key == "query_key":
            raise ValueError("unshown = 'zero' needs judgments by query_id: no request was made")
        return self


class LabelColumns(_Model):
    """Columns of the events, as Spark SQL over their source."""

    query_id: Sql
    item_id: Sql
    time: Sql
    relevance: Sql


class Labels(Source):
    """Relevance from events (clicks, orders) in a table of their own.

    An event counts for the impressions of its query and item that it follows `within` a time; of
    several the largest relevance does. An impression without an event has relevance 0.
    """

    within: str = Field(default="7 days", pattern=r"^[1-9]\d* (second|minute|hour|day)s?$")
    columns: LabelColumns

    @property
    def seconds(self) -> int:
        """The attribution window."""
        count, unit = self.within.split()
        return int(count) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[unit[0]]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.require_place()
        if self.format == "trec":
            raise ValueError("format = 'trec' has no events; use [judgments] for qrels")
        return self


Slice = Annotated[str, AfterValidator(lambda text: "*".join(map(_identifier, text.split("*"))))]


#: The columns of rows and lists on their way, beside those of the tables and the scores.
_OF_ROWS = (
    "item_id", "position", "relevance", "time", "items", "n_rows", "reason", "malformed",
    "assignments", "judged", "events",
)  # fmt: skip


class Evaluate(_Model):
    """What is measured (DESIGN section 4).

    A `profile` sets the conventions of another tool wherever nothing else is said here.
    """

    profile: Literal["trec", "sklearn", "mllib", "ranx"] | None = None
    measures: tuple[str, ...] = ("mrr", "ndcg@10")
    slices: tuple[Slice, ...] = ()
    no_relevant: Literal["zero", "skip"] = "zero"
    relevant_from: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    negative: Literal["reject", "zero", "unjudged"] | None = None
    rank: Literal["position", "order"] = "position"
    ties: Literal["item_id", "item_id_desc", "average", "error"] | None = None
    ideal: Literal["judged", "shown"] | None = None

    @property
    def negative_grades(self) -> str:
        """What becomes of them: trec_eval takes them for no judgment."""
        return self.negative or ("unjudged" if self.profile == "trec" else "reject")

    @property
    def tied_scores(self) -> str:
        """How they are ordered."""
        return self.ties or {"trec": "item_id_desc", "sklearn": "average"}.get(
            str(self.profile), "item_id"
        )

    @property
    def slice_columns(self) -> tuple[str, ...]:
        """The columns that the slices are made of."""
        return tuple(dict.fromkeys(name for text in self.slices for name in text.split("*")))

    @property
    def options(self) -> Options:
        """What the kernels need to know."""
        base = Options() if self.profile is None else PROFILES[self.profile]
        changes: dict[str, Any] = {
            "relevant_from": self.relevant_from,
            "no_relevant": self.no_relevant,
        }
        if self.ties is not None or self.profile is None:
            changes["ties"] = "average" if self.ties == "average" else "order"
        if self.ideal is not None:
            changes["ideal"] = self.ideal
        return replace(base, **changes)

    @field_validator("measures", mode="after")
    @classmethod
    def _canonical(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("no measure; name at least one, such as 'mrr@10'")
        return tuple(dict.fromkeys(str(Measure.parse(text)) for text in value))

    @field_validator("slices", mode="after")
    @classmethod
    def _unreserved(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        taken = {*tables.query_metrics((), ()).column_names, *tables.PARTITION_COMMENTS, *_OF_ROWS}
        for name in (part for text in value for part in text.split("*")):
            # The engine does not tell names apart by case.
            if name.lower() in taken or name.lower().startswith("score_"):
                raise ValueError(f"slice {name!r} has the name of a column of rankspark's own")
            if name == tables.OVERALL[0]:
                raise ValueError(f"slice {name!r} is what stands for all queries; rename it")
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
    """What keeps the cluster alive, and the driver.

    Longer lists and larger positions are rejected; more experiments, values of a slice, or groups
    (experiment, variant, ranker and slice value) than these are refused before they cost anything.
    """

    max_list_length: int = Field(default=10_000, ge=1)
    max_slice_values: int = Field(default=1_000, ge=1)
    max_experiments: int = Field(default=1_000, ge=1)
    max_groups: int = Field(default=100_000, ge=1)
    max_position: int = Field(default=1_000_000, ge=1, le=2**31 - 1)


class Gate(_Model):
    """A limit that warns and one that keeps a date from being published, each reached or passed.

    >>> Gate(warn=0.01, fail=0.5).level(0.02), Gate(warn=0.01).level(0.005)
    ('warn', None)
    """

    warn: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    fail: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    def level(self, value: float) -> Literal["warn", "fail"] | None:
        """What a value calls for."""
        if self.fail is not None and value >= self.fail:
            return "fail"
        return "warn" if self.warn is not None and value >= self.warn else None

    @property
    def is_off(self) -> bool:
        """Whether it has no limit."""
        return self.warn is None and self.fail is None


def _gate(value: object) -> object:
    return {} if value == "off" else value


Limited = Annotated[Gate, BeforeValidator(_gate)]
Level = Literal["warn", "fail", "off"]


class Quality(_Model):
    """What a date must be like to be published, and which ids are none.

    Attributes:
        sentinels: what becomes of rows whose query_id or item_id is text that stands for null:
            "reject", "flag" (scored, and counted) or "keep". Of experiment, variant and unit_id
            they are only ever flagged: rows without a unit still count.
        sentinel_values: such texts; upper case, lower case and capitalised ones count too.
        rejected: rows rejected over rows read.
        duplicates: rows dropped or merged as duplicates over rows read.
        unjudged: items of unknown relevance over items; off by default with [judgments], which
            seldom cover what was shown.
        no_relevant: queries without a relevant item over queries.
        rows: rows read against the trailing days, in robust deviations of the logarithm.
        queries: the same of queries.
        means: the mean of each measure, variant and ranker against the trailing days, in robust
            deviations.
        missing_variant: a variant that the last published day had.
        sample_ratio: units split otherwise than `split` says, p < 0.001.
        split: weights of the variants by experiment.
        history_days: how many published days before the date it is held against.
        min_history: with fewer, `rows`, `queries` and `means` say nothing.
    """

    sentinels: Literal["reject", "flag", "keep"] = "reject"
    sentinel_values: tuple[str, ...] = (
        "null", "none", "nan", "nil", "undefined", "n/a", "(null)", "<null>", "\\N", "-1",
    )  # fmt: skip
    rejected: Limited = Gate(warn=0.01, fail=0.5)
    duplicates: Limited = Gate(warn=0.05)
    unjudged: Limited | None = None
    no_relevant: Limited = Gate(warn=0.95, fail=1.0)
    # A deviation is at least 5%: 5 of them are a change by a quarter, 45 by a factor of ten.
    rows: Limited = Gate(warn=5, fail=45)
    queries: Limited = Gate(warn=5, fail=45)
    means: Limited = Gate(warn=6)
    missing_variant: Level = "warn"
    sample_ratio: Level = "warn"
    split: dict[str, dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]] = {}
    history_days: int = Field(default=7, ge=1)
    min_history: int = Field(default=3, ge=2)

    @property
    def sentinel_texts(self) -> tuple[str, ...]:
        """All texts that stand for null."""
        cases = (str, str.lower, str.upper, str.capitalize)
        return tuple(dict.fromkeys(case(v) for v in self.sentinel_values for case in cases))

    @field_validator("split")
    @classmethod
    def _two_variants(cls, value: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        for experiment, weights in value.items():
            if len(weights) < 2:
                raise ValueError(f"the split of {experiment!r} names fewer than two variants")
        return value


class Output(_Model):
    """Where the tables go: folders below `path`, which also holds what is staged.

    With a `catalog` (`metrics`, or `lake.metrics`) the tables are known there by name; Iceberg has
    them nowhere else. `audit_branch` writes Iceberg tables to a branch first. A date is final once
    it has been over for `settles_after`, when late labels and rows have come.
    """

    path: str
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    catalog: str | None = Field(default=None, pattern=r"^\w+(\.\w+)*$")
    audit_branch: bool = False
    settles_after: str = Field(default="0 days", pattern=r"^\d+ (hour|day)s?$")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.format == "iceberg" and (self.catalog is None or "." not in self.catalog):
            raise ValueError("format = 'iceberg' needs catalog = '<catalog>.<namespace>'")
        if self.audit_branch and self.format != "iceberg":
            raise ValueError("audit_branch is Iceberg's")
        return self

    @property
    def settling(self) -> timedelta:
        """How long after its end a date may still change."""
        count, unit = self.settles_after.split()
        return int(count) * (timedelta(hours=1) if unit.startswith("hour") else timedelta(days=1))


class Compare(_Model):
    """What is compared with what, and when a difference counts (STATISTICS, sections 1 and 4).

    `ab` compares the variants of an experiment, `paired` its rankers over the same queries or, with
    `between = "variants"`, its variants where each answered the same queries.
    """

    experiments: tuple[str, ...] = ()
    design: Literal["ab", "paired"] = "ab"
    between: Literal["rankers", "variants"] = "rankers"
    control: str | None = None
    all_pairs: bool = False
    ranker: str | None = None
    primary: tuple[str, ...] = ()
    secondary: tuple[str, ...] = ()
    guardrails: dict[str, Annotated[float, Field(ge=0, lt=1)]] = {}
    split: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = {}
    planned_units: int | None = Field(default=None, ge=1)
    pre_period: int = Field(default=0, ge=0)
    pre_experiment: str | None = None
    alpha: float = Field(default=0.05, gt=0, lt=1)
    estimand: Literal["ratio", "per_unit"] = "ratio"
    sequential: bool = False
    override_invalid: bool = False

    @field_validator("primary", "secondary", mode="after")
    @classmethod
    def _canonical(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(Measure.parse(text)) for text in value))

    @field_validator("guardrails", mode="after")
    @classmethod
    def _canonical_keys(cls, value: dict[str, float]) -> dict[str, float]:
        return {str(Measure.parse(text)): margin for text, margin in value.items()}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        named = [*self.primary, *self.secondary, *self.guardrails]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise ValueError(f"{twice[0]} has two roles; keep one")
        if self.all_pairs and self.design == "ab":
            raise ValueError("all_pairs is for design = 'paired'")
        if self.design == "paired" and (self.pre_period or self.split):
            raise ValueError("pre_period and split are for design = 'ab'")
        return self

    def role(
        self, measure: str, measures: Sequence[str]
    ) -> Literal["primary", "secondary", "guardrail"]:
        """The role of a measure; of those that have none named, the first is primary.

        >>> [Compare().role(name, ["mrr", "ndcg@10"]) for name in ("mrr", "ndcg@10")]
        ['primary', 'secondary']
        """
        if measure in self.guardrails:
            return "guardrail"
        if measure in (self.primary or measures[:1]) and measure not in self.secondary:
            return "primary"
        return "secondary"


class Definition(_Model):
    """What is read and measured, wherever the rows come from and the tables go."""

    input: Input
    evaluate: Evaluate = Evaluate()
    rankers: dict[Identifier, Sql] = {"logged": "position"}
    labels: Labels | None = None
    judgments: Judgments | None = None
    limits: Limits = Limits()
    quality: Quality = Quality()

    @model_validator(mode="before")
    @classmethod
    def _trec_files(cls, content: Any) -> Any:
        """Say for TREC files what everybody would."""
        if not isinstance(content, Mapping):
            return content
        content = dict(content)
        for key, columns in (("input", _TREC_COLUMNS), ("judgments", _TREC_JUDGMENTS)):
            section = content.get(key)
            if isinstance(section, Mapping) and section.get("format") == "trec":
                named = dict(section.get("columns", {}))
                if "query_key" in named and key == "judgments":
                    columns = {k: v for k, v in columns.items() if k != "query_id"}
                content[key] = {**section, "columns": columns | named}
                if key == "input":
                    content.setdefault("rankers", _TREC_RANKERS)
        return content

    @model_validator(mode="before")
    @classmethod
    def _joined_on(cls, content: Any) -> Any:
        """`on` names the columns of judgments that are called as ours are."""
        if not isinstance(content, Mapping) or not isinstance(content.get("judgments"), Mapping):
            return content
        section = dict(content["judgments"])
        names = section.pop("on", None)
        if isinstance(names, list | tuple):
            same = {str(name): str(name) for name in (*names, "relevance")}
            section["columns"] = same | dict(section.get("columns", {}))
        return {**content, "judgments": section}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        columns = self.input.columns
        if columns.date is None and self.input.format != "trec":
            raise ValueError("input.columns.date is missing")
        given = [columns.relevance, self.judgments, self.labels]
        if sum(one is not None for one in given) != 1:
            raise ValueError(
                "needs exactly one of input.columns.relevance, [judgments] and [labels]"
            )
        if (self.labels is None) != (columns.time is None):
            raise ValueError("input.columns.time and [labels] need each other")
        if self.judgments and self.judgments.key == "query_key" and columns.query_key is None:
            raise ValueError("judgments are by query_key, and input.columns.query_key is missing")
        for measure in self.measures:
            if self.evaluate.options.ties == "average" and measure.spec.ties == "fixed":
                raise ValueError(f"evaluate.measures: {measure} cannot average over ties")
        unknown = set(columns.extra) - set(self.evaluate.slice_columns)
        if unknown:
            known = [*Columns.model_fields, *self.evaluate.slice_columns]
            raise ValueError(
                f"unknown key input.columns: {_hint(min(unknown), known)} "
                "(a slice column must be listed in evaluate.slices)"
            )
        if not self.rankers:
            raise ValueError("rankers is empty; leave it out for logged = 'position'")
        nested = self.input.items is not None
        if self.uses_position and columns.position is None and not nested:
            raise ValueError("input.columns.position is missing, and a ranker sorts by position")
        return self

    @property
    def parsed_rankers(self) -> tuple[Ranker, ...]:
        """The rankers in the order of the file."""
        return tuple(Ranker.parse(name, text) for name, text in self.rankers.items())

    @property
    def counts_unshown(self) -> bool:
        """Whether a judged query that was never shown counts 0."""
        if self.judgments is None or self.judgments.key == "query_key":
            return False
        default = "leave_out" if self.evaluate.profile == "trec" else "zero"
        return (self.judgments.unshown or default) == "zero"

    @property
    def uses_position(self) -> bool:
        """Whether any ranker keeps the logged order."""
        return any(ranker.by_position for ranker in self.parsed_rankers)

    @cached_property
    def measures(self) -> tuple[Measure, ...]:
        """The measures, parsed, without repetition."""
        return tuple(Measure.parse(text) for text in self.evaluate.measures)

    @property
    def query_metrics(self) -> tables.Table:
        """The table of queries that this configuration gives."""
        return tables.query_metrics(
            self.evaluate.slice_columns, [measure.column_name for measure in self.measures]
        )

    def definition_id(self, measure: Measure) -> str:
        """16 hexadecimal digits of all that defines the value of a measure.

        Two rows of `metrics` may be compared only where these are equal. Rankers and variants are
        what is compared, so they are no part of it.
        """
        evaluate, columns = self.evaluate, self.input.columns
        semantics = [
            asdict(evaluate.options),
            evaluate.negative_grades,
            evaluate.tied_scores,
            evaluate.rank,
            self.judgments and self.judgments.model_dump(mode="json", by_alias=True),
            self.labels and self.labels.model_dump(mode="json", by_alias=True),
        ]
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
    """A whole configuration: a definition, its source and its output.

    >>> config = load("conf/obd-small.toml")
    >>> config.name, [str(measure) for measure in config.measures], config.evaluate.no_relevant
    ('obd-small', ['hit@3', 'mrr'], 'zero')
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    compare: Compare = Compare()
    output: Output

    @model_validator(mode="after")
    def _path_or_table(self) -> Self:
        self.input.require_place()
        return self

    @model_validator(mode="after")
    def _measures_with_a_role(self) -> Self:
        compare, known = self.compare, [str(measure) for measure in self.measures]
        for name in (*compare.primary, *compare.secondary, *compare.guardrails):
            if name not in known:
                raise ValueError(f"compare: unknown measure {_hint(name, known)}")
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

        >>> load("conf/obd-small.toml", ["output.path=/tmp/tables"]).output.path
        '/tmp/tables'

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
            action="correct it; the README lists all keys under Configuration",
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
    dates: Sequence[str] = (),
    start: str | None = None,
    end: str | None = None,
    lookback: int = 0,
    *,
    newest_first: bool = False,
) -> tuple[date, ...]:
    """The dates of a run: those listed, or every day of the half-open range.

    Args:
        dates: as YYYY-MM-DD.
        start: the first of a range.
        end: the one after its last.
        lookback: as many days before the first are in it too.
        newest_first: their order.

    Raises:
        ConfigError: no date, a date that is none, an end that is not after the start.
    """
    if bool(dates) == bool(start or end) or bool(start) != bool(end):
        raise ConfigError(
            expected="--date D (repeatable), or --start D and --end D",
            found=f"date={list(dates)}, start={start}, end={end}",
            action="give one of the two forms",
        )
    if lookback < 0:
        raise ConfigError(
            expected="--lookback 0 or more", found=str(lookback), action="give a number of days"
        )
    if dates:
        days = {_day(text, "--date") for text in dates}
        days |= {min(days) - timedelta(days=n + 1) for n in range(lookback)}
        return tuple(sorted(days, reverse=newest_first))
    first, last = _day(str(start), "--start"), _day(str(end), "--end")
    if last <= first:
        raise ConfigError(
            expected="an end after the start (the end itself is not included)",
            found=f"--start {first} --end {last}",
            action=f"for that one day use --end {first + timedelta(days=1)}",
        )
    range_ = range(-lookback, (last - first).days)
    return tuple(sorted((first + timedelta(days=n) for n in range_), reverse=newest_first))


def parse_share(text: str, flag: str) -> float:
    """A share above 0 and below 1, as 0.02 or 2%.

        >>> parse_share("2%", "--mde")
        0.02

    Raises:
        ConfigError: it is none.
    """
    digits = text.strip().removesuffix("%")
    try:
        share = float(digits) / (100 if digits != text.strip() else 1)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ConfigError(
            expected=f"a share for {flag}, such as 2% or 0.02",
            found=repr(text),
            action="write it so",
        )
    return share


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

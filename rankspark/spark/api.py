"""From a DataFrame of impressions to DataFrames of queries and of metrics, without tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pyspark.sql import DataFrame

from rankspark import config, tables
from rankspark.errors import ConfigError
from rankspark.spark import aggregate, audit, check, pipeline, read


@dataclass(frozen=True)
class Evaluation:
    """The metrics of a DataFrame of impressions.

        >>> result = rankspark.evaluate(impressions, ["mrr"], slices=["country"])
        >>> [(row.query_id, row.mrr) for row in result.queries.orderBy("query_id").collect()]
        [('q1', 1.0), ('q2', 0.5)]
        >>> result.rejects.select("reason", "n_rows").collect()
        [Row(reason='position_below_base', n_rows=1)]

    Attributes:
        impressions: the rows as they were given.
        definition: what is measured.
    """

    impressions: DataFrame
    definition: config.Definition

    @property
    def queries(self) -> DataFrame:
        """One row a query and ranker, as in `query_metrics`; computed when it is used."""
        scored = self._scored.where(f"n_items <= {self.definition.limits.max_list_length}")
        audit = {"dataset", "run_id", "computed_at"}
        table = self.definition.query_metrics
        return scored.select("experiment", *(n for n in table.column_names if n not in audit))

    @property
    def metrics(self) -> DataFrame:
        """One row an experiment, variant, ranker, slice value and measure; each use computes it."""
        units = aggregate.unit_sums(self.queries, self.definition)
        summed = aggregate.collected(aggregate.moments(units), self.definition)
        return self._frame(aggregate.metrics_rows(summed, self.definition), tables.METRICS)

    @property
    def rejects(self) -> DataFrame:
        """The rows that were rejected or repaired, by reason; each use counts them."""
        total, findings = check.census(self._rows, self.definition)
        findings += audit.too_long(self._scored, self.definition)
        rows = [vars(finding) | {"share": finding.n_rows / total} for finding in findings]
        return self._frame(rows, tables.REJECTS)

    @property
    def _scored(self) -> DataFrame:
        return pipeline.per_query(check.mark(self._rows, self.definition), self.definition)

    @property
    def _rows(self) -> DataFrame:
        return read.canonical(self.impressions, self.definition, day=None)

    def _frame(self, rows: list[dict[str, Any]], table: tables.Table) -> DataFrame:
        audit = ("dataset", "run_id", "computed_at", "is_final")
        columns = [column for column in table.columns if column.name not in audit]
        keys = [tables.Column(k, "STRING", "") for k in table.partition_by if k != "date"]
        schema = ", ".join(f"`{column.name}` {column.type}" for column in (*keys, *columns))
        data = [tuple(row[column.name] for column in (*keys, *columns)) for row in rows]
        return self.impressions.sparkSession.createDataFrame(data, schema)


def evaluate(
    impressions: DataFrame,
    measures: Sequence[str] = ("mrr", "ndcg@10"),
    *,
    columns: Mapping[str, str] | None = None,
    slices: Sequence[str] = (),
    rankers: Mapping[str, str] | None = None,
    quality: Mapping[str, Any] | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluate the rankings in a DataFrame of impressions, one row an impression.

        >>> result = rankspark.evaluate(impressions, ["ndcg_exp@2"], columns={"variant": "arm"})
        >>> result.metrics.first()["variant"]
        'A'

    Args:
        impressions: the rows.
        measures: their text forms.
        columns: Spark SQL expressions by canonical name; a canonical name that is not given is
            taken from the column of that name. Without an experiment or variant there is one,
            `all`.
        slices: columns to slice by.
        rankers: orderings of the items by name, such as `{"v2": "score_v2 desc"}`; default: the
            logged position.
        quality: of `[quality]`, what says which ids are none: sentinels, sentinel_values.
        options: those of `[evaluate]`: no_relevant, relevant_from, negative, rank.

    Raises:
        ConfigError: an unknown measure or option.
        InputError: a column does not resolve or has a wrong type; raised when a result is asked
            for.
    """
    names = {name.lower() for name in impressions.columns}
    given = {name: name for name in config.Columns.model_fields if name in names} | dict(
        columns or {}
    )
    given.setdefault("date", "current_date()")
    for name in ("query_id", "item_id", "relevance"):
        given.setdefault(name, name)
    if "assignments" not in given:
        given = {"experiment": "'all'", "variant": "'all'"} | given
    content: dict[str, Any] = {
        "input": {"columns": given},
        "evaluate": {"measures": tuple(measures), "slices": tuple(slices), **options},
    }
    if quality is not None:
        content["quality"] = dict(quality)
    if rankers is not None:
        content["rankers"] = dict(rankers)
    try:
        return Evaluation(impressions, config.Definition.model_validate(content))
    except ValidationError as error:
        raise ConfigError(
            expected="valid arguments of evaluate()",
            found="; ".join(config.describe(problem) for problem in error.errors()),
            action="correct them",
        ) from error

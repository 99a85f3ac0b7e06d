"""Per-query metrics -> metrics: means over queries with intervals over units.

Spark sums integers (billionths of one) by unit and then over units; only those sums, a row a
variant, ranker and slice value, reach the driver, where rankspark.stats turns them into means and
intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Definition
from rankspark.errors import QualityError
from rankspark.stats import RatioMoments, estimate

GROUP = ("experiment", "variant", "ranker", "slice_name", "slice_value")


def moments(queries: DataFrame, measure_columns: Sequence[str], slices: Sequence[str]) -> DataFrame:
    """Exact sums over units, by variant, ranker and slice value, overall first.

    Args:
        queries: rows of `query_metrics`.
        measure_columns: the measures' columns.
        slices: slice columns, and combinations of them such as `country*device`.

    Returns:
        A row a group: :data:`GROUP`, n_queries, n_no_relevant and, for measure number i, n_i,
        units_i, x_i, xx_i, xn_i, nn_i.
    """
    overall = F.struct(
        F.lit(tables.OVERALL[0]).alias("name"), F.lit(tables.OVERALL[1]).alias("value")
    )
    sliced = [
        F.struct(
            F.lit(name).alias("name"),
            F.concat_ws(
                "*", *(F.coalesce(c, F.lit(tables.NULL_SLICE)) for c in name.split("*"))
            ).alias("value"),
        )
        for name in slices
    ]
    # A query without a unit is a unit of its own; the letter keeps a user from being taken for it.
    unit = F.coalesce(F.concat(F.lit("u"), "unit_id"), F.concat(F.lit("q"), "query_id"))
    values = range(len(measure_columns))
    nano = [
        F.round(F.col(column) * tables.NANO).cast("bigint").alias(f"v{i}")
        for i, column in enumerate(measure_columns)
    ]
    by_unit = (
        queries.select(
            "experiment",
            "variant",
            "ranker",
            unit.alias("unit"),
            F.expr("cast(n_relevant = 0 as int)").alias("no_relevant"),
            *nano,
            F.explode(F.array(overall, *sliced)).alias("slice"),
        )
        .groupBy(
            "experiment",
            "variant",
            "ranker",
            F.col("slice.name").alias("slice_name"),
            F.col("slice.value").alias("slice_value"),
            "unit",
        )
        .agg(
            F.count(F.lit(1)).alias("n_queries"),
            F.sum("no_relevant").alias("n_no_relevant"),
            *(F.sum(f"v{i}").alias(f"x{i}") for i in values),
            *(F.count(f"v{i}").alias(f"n{i}") for i in values),
        )
    )

    def product(left: str, right: str, name: str) -> Any:
        return (
            F.expr(f"sum(cast({left} as decimal(19,0)) * cast({right} as decimal(19,0)))")
            .cast("decimal(38,0)")
            .alias(name)
        )

    sums: list[Any] = [
        F.sum("n_queries").alias("n_queries"),
        F.sum("n_no_relevant").alias("n_no_relevant"),
    ]
    for i in values:
        sums += [
            F.sum(f"n{i}").alias(f"n_{i}"),
            F.sum(F.expr(f"cast(n{i} > 0 as bigint)")).alias(f"units_{i}"),
            F.sum(f"x{i}").alias(f"x_{i}"),
            product(f"x{i}", f"x{i}", f"xx_{i}"),
            product(f"x{i}", f"n{i}", f"xn_{i}"),
            product(f"n{i}", f"n{i}", f"nn_{i}"),
        ]
    return by_unit.groupBy(*GROUP).agg(*sums)


def collected(summed: DataFrame, config: Definition) -> list[Row]:
    """The moments on the driver, whose memory they do not exceed whatever the log holds.

    Raises:
        QualityError: more groups than `limits.max_groups`, or a slice of too many values.
    """
    limit = config.limits.max_groups
    rows = summed.limit(limit + 1).collect()
    if len(rows) > limit:
        _refuse_wide_slices(rows, config)
        names = ("variant", "slice_value")
        most = max(names, key=lambda name: len({row[name] for row in rows}))
        raise QualityError(
            expected=f"at most {limit:,} groups of experiment, variant, ranker and slice value",
            found=f"more, with over {len({row[most] for row in rows}):,} values of {most}",
            action="correct input.columns, which seem to name something else, or raise"
            " limits.max_groups",
        )
    return rows


def metrics_rows(summed: Sequence[Row], config: Definition) -> list[dict[str, Any]]:
    """Rows of `metrics`, without the audit columns, from the collected moments.

    Raises:
        QualityError: a slice has more values than `limits.max_slice_values`.
    """
    _refuse_wide_slices(summed, config)
    rows = []
    for row in sorted(summed, key=lambda row: tuple(row[name] for name in GROUP)):
        group = {name: row[name] for name in GROUP}
        for i, measure in enumerate(config.measures):
            sums = RatioMoments(
                n_units=row[f"units_{i}"],
                sum_x=row[f"x_{i}"] or 0,
                sum_n=row[f"n_{i}"],
                sum_xx=int(row[f"xx_{i}"] or 0),
                sum_xn=int(row[f"xn_{i}"] or 0),
                sum_nn=int(row[f"nn_{i}"] or 0),
                scale=tables.NANO,
            )
            result = estimate(sums)
            rows.append(
                group
                | {
                    "measure": str(measure),
                    "definition_id": config.definition_id(measure),
                    "n_queries": row["n_queries"],
                    "n_scored": sums.sum_n,
                    "n_no_relevant": row["n_no_relevant"],
                    "n_units": sums.n_units,
                    "mean": result.mean,
                    "std_error": result.std_error,
                    "ci_low": result.ci_low,
                    "ci_high": result.ci_high,
                    "sum_nano": sums.sum_x,
                    "sum_xx": row[f"xx_{i}"],
                    "sum_xn": row[f"xn_{i}"],
                    "sum_nn": row[f"nn_{i}"],
                }
            )
    return rows


def _refuse_wide_slices(summed: Sequence[Row], config: Definition) -> None:
    values: dict[str, set[str]] = {}
    for row in summed:
        values.setdefault(row["slice_name"], set()).add(row["slice_value"])
    for name, found in sorted(values.items()):
        if len(found) > config.limits.max_slice_values:
            raise QualityError(
                expected=f"at most {config.limits.max_slice_values} values of slice {name!r}",
                found=f"{len(found)}",
                action="group its values in input.columns, or raise limits.max_slice_values",
            )

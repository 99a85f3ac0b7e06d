"""Per-query metrics -> sums over units -> metrics: means over queries with intervals over units.

Spark sums integers (billionths of one) by unit, which makes `unit_day`, and then over units; only
those sums, a row a variant, ranker, slice value and measure, reach the driver, where
rankspark.stats turns them into means and intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Definition
from rankspark.errors import QualityError
from rankspark.measures import Measure
from rankspark.stats import RatioMoments, estimate

GROUP = ("experiment", "variant", "ranker", "slice_name", "slice_value")


def product(left: str, right: str) -> Column:
    """The exact sum of the products of two integer columns, as DECIMAL(38,0)."""
    return F.expr(
        f"cast(sum(cast({left} as decimal(19,0)) * cast({right} as decimal(19,0)))"
        " as decimal(38,0))"
    )


def unit_sums(
    queries: DataFrame, config: Definition, slices: Sequence[str] | None = None
) -> DataFrame:
    """Rows of `unit_day`, without the audit columns, over all given rows.

    Args:
        queries: rows of `query_metrics`.
        config: the configuration.
        slices: slice columns, and combinations of them such as `country*device`; those of the
            configuration by default.
    """
    measures = config.measures
    unit_keys = (*GROUP, "unit")
    by_unit = (
        queries.select(
            "experiment",
            "variant",
            "ranker",
            _unit().alias("unit"),
            F.expr("cast(n_relevant = 0 as int)").alias("no_relevant"),
            *_nano(measures),
            exploded_slices(config.evaluate.slices if slices is None else slices),
        )
        .select(
            "*", F.col("slice.name").alias("slice_name"), F.col("slice.value").alias("slice_value")
        )
        .groupBy(*unit_keys)
        .agg(
            F.count(F.lit(1)).alias("n_queries"),
            F.sum("no_relevant").alias("n_no_relevant"),
            *(
                column
                for i, measure in enumerate(measures)
                for column in (
                    F.count(f"v{i}").alias(f"n{i}"),
                    F.sum(f"v{i}").alias(f"x{i}"),
                    product(f"v{i}", f"v{i}").alias(f"s2{i}"),
                    *(
                        F.count_if(F.col(f"v{i}") == round(tables.NANO / rank)).alias(
                            f"r{i}_{rank}"
                        )
                        for rank in _counted_ranks(measure, config)
                    ),
                )
            ),
        )
    )

    def ranks(i: int, measure: Measure) -> Column:
        counts = [F.col(f"r{i}_{rank}") for rank in _counted_ranks(measure, config)]
        return (F.array(*counts) if counts else F.lit(None)).cast("array<bigint>")

    of_measure = [
        F.struct(
            F.lit(str(measure)).alias("measure"),
            F.col(f"n{i}").alias("n"),
            F.col(f"x{i}").alias("s_nano"),
            F.col(f"s2{i}").alias("s2_nano"),
            ranks(i, measure).alias("first_ranks"),
        )
        for i, measure in enumerate(measures)
    ]
    return by_unit.select(
        *unit_keys, "n_queries", "n_no_relevant", F.explode(F.array(*of_measure)).alias("one")
    ).select(*unit_keys, "n_queries", "n_no_relevant", "one.*")


def _unit() -> Column:
    # A query without a unit is a unit of its own; the letter keeps a user from being taken for it.
    return F.coalesce(F.concat(F.lit("u"), "unit_id"), F.concat(F.lit("q"), "query_id"))


def _nano(measures: Sequence[Measure]) -> list[Column]:
    return [
        F.round(F.col(measure.column_name) * tables.NANO).cast("bigint").alias(f"v{i}")
        for i, measure in enumerate(measures)
    ]


def exploded_slices(slices: Sequence[str]) -> Column:
    """A struct `slice` of name and value: one row for the whole, one for each slice."""
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
    return F.explode(F.array(overall, *sliced)).alias("slice")


def _counted_ranks(measure: Measure, config: Definition) -> range:
    """The ranks that are counted of a measure; averaged over ties MRR is no reciprocal rank."""
    averaged = "average" in (config.evaluate.options.ties, dict(measure.params).get("ties"))
    if measure.name != "mrr" or averaged:
        return range(0)
    return range(1, tables.FIRST_RANKS + 1)


def moments(units: DataFrame) -> DataFrame:
    """Exact sums over units, by variant, ranker, slice value and measure.

    Args:
        units: rows of `unit_day` of one date, or of :func:`unit_sums`: one a unit and measure.

    Returns:
        A row a group: :data:`GROUP`, measure, n_queries, n_no_relevant, n, n_units, x, xx, xn, nn.
    """
    return units.groupBy(*GROUP, "measure").agg(
        F.sum("n_queries").alias("n_queries"),
        F.sum("n_no_relevant").alias("n_no_relevant"),
        F.sum("n").alias("n"),
        F.count_if(F.col("n") > 0).alias("n_units"),
        F.sum("s_nano").alias("x"),
        product("s_nano", "s_nano").alias("xx"),
        product("s_nano", "n").alias("xn"),
        product("n", "n").alias("nn"),
    )


def assignments(units: DataFrame, config: Definition) -> DataFrame:
    """Rows of `assignment`, without the audit columns, from those of `unit_day` of one date."""
    once = (
        (F.col("slice_name") == tables.OVERALL[0])
        & (F.col("measure") == str(config.measures[0]))
        & (F.col("ranker") == config.parsed_rankers[0].name)
    )
    return (
        units.where(once)
        .groupBy("experiment", "unit")
        .agg(F.min("variant").alias("variant"), F.count(F.lit(1)).alias("n_variants"))
    )


def paired_counts(queries: DataFrame, config: Definition) -> DataFrame | None:
    """Rows of `paired_counts`, without the audit columns; None with one ranker.

    Args:
        queries: rows of `query_metrics` of one date.
        config: the configuration.
    """
    rankers = sorted(ranker.name for ranker in config.parsed_rankers)
    if len(rankers) < 2:
        return None
    measures = config.measures
    columns = config.evaluate.slice_columns
    by_query = (
        queries.select("experiment", "variant", "query_id", "ranker", *columns, *_nano(measures))
        .groupBy("experiment", "variant", "query_id", *columns)
        .agg(
            *(
                F.max(F.when(F.col("ranker") == ranker, F.col(f"v{i}"))).alias(f"v{i}_{j}")
                for j, ranker in enumerate(rankers)
                for i in range(len(measures))
            )
        )
    )
    pairs = [
        F.struct(
            F.lit(rankers[a]).alias("ranker_a"),
            F.lit(rankers[b]).alias("ranker_b"),
            *(
                (F.col(f"v{i}_{b}") - F.col(f"v{i}_{a}")).alias(f"d{i}")
                for i in range(len(measures))
            ),
        )
        for a, b in combinations(range(len(rankers)), 2)
    ]
    keys = ("experiment", "ranker_a", "ranker_b", "slice_name", "slice_value")
    counted = (
        by_query.select("experiment", *columns, F.explode(F.array(*pairs)).alias("pair"))
        .select("experiment", "pair.*", exploded_slices(config.evaluate.slices))
        .select(
            "*", F.col("slice.name").alias("slice_name"), F.col("slice.value").alias("slice_value")
        )
        .groupBy(*keys)
        .agg(
            *(
                column
                for i in range(len(measures))
                for column in (
                    F.count_if(F.col(f"d{i}") > 0).alias(f"wins{i}"),
                    F.count_if(F.col(f"d{i}") == 0).alias(f"ties{i}"),
                    F.count_if(F.col(f"d{i}") < 0).alias(f"losses{i}"),
                    product(f"d{i}", f"d{i}").alias(f"dd{i}"),
                )
            )
        )
    )
    of_measure = [
        F.struct(
            F.lit(str(measure)).alias("measure"),
            F.col(f"wins{i}").alias("wins"),
            F.col(f"ties{i}").alias("ties"),
            F.col(f"losses{i}").alias("losses"),
            F.col(f"dd{i}").alias("sum_dd"),
        )
        for i, measure in enumerate(measures)
    ]
    return counted.select(*keys, F.explode(F.array(*of_measure)).alias("one")).select(
        *keys, "one.*"
    )


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
    order = {str(measure): (i, measure) for i, measure in enumerate(config.measures)}
    rows = []
    for row in sorted(
        summed, key=lambda row: (*(row[name] for name in GROUP), order[row["measure"]][0])
    ):
        sums = RatioMoments(
            n_units=row["n_units"],
            sum_x=row["x"] or 0,
            sum_n=row["n"],
            sum_xx=int(row["xx"] or 0),
            sum_xn=int(row["xn"] or 0),
            sum_nn=int(row["nn"] or 0),
            scale=tables.NANO,
        )
        result = estimate(sums)
        rows.append(
            {name: row[name] for name in (*GROUP, "measure", "n_queries", "n_no_relevant")}
            | {
                "definition_id": config.definition_id(order[row["measure"]][1]),
                "n_scored": sums.sum_n,
                "n_units": sums.n_units,
                "mean": result.mean,
                "std_error": result.std_error,
                "ci_low": result.ci_low,
                "ci_high": result.ci_high,
                "sum_nano": sums.sum_x,
                "sum_xx": row["xx"],
                "sum_xn": row["xn"],
                "sum_nn": row["nn"],
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

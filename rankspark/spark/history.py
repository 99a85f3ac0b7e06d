"""Stored sums of a range of dates -> exact moments over units.

`unit_day` is summed by unit over the range first, since users return; then over units. What reaches
the driver is a row a variant, slice value and measure, and the units of small variants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Config
from rankspark.errors import InputError
from rankspark.spark import publish, sinks
from rankspark.spark.aggregate import product
from rankspark.stats import CupedMoments, RatioMoments

#: The units of a variant are sent to the driver, to be left out one by one, up to this many; the
#: variance of more differs from the delta method's by less than a thousandth.
MAX_JACKKNIFE = 1000

#: Between a measure and a rank in the name of a row that counts the first relevant items there.
_AT = "#"

SLICE = ("slice_name", "slice_value", "measure")
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Range:
    """Dates, both included.

    Attributes:
        first: the first.
        last: the last.
    """

    first: date
    last: date

    @property
    def days(self) -> list[str]:
        """All of them, as in partitions."""
        count = (self.last - self.first).days + 1
        return [str(self.first + timedelta(days=n)) for n in range(count)]

    def before(self, days: int) -> Range:
        """The days that end where this begins."""
        return Range(self.first - timedelta(days=days), self.first - timedelta(days=1))

    @property
    def holds(self) -> Column:
        """Whether a row is of the range; dates of partitions sort as text."""
        return F.col("date").between(str(self.first), str(self.last))


@dataclass(frozen=True)
class Assigned:
    """The units of an experiment.

    Attributes:
        n_units: distinct units by variant, those mixed left out.
        n_mixed: units seen in two variants.
        unit: what they are: unit_id, query_id, or both.
    """

    n_units: dict[str, int]
    n_mixed: int
    unit: str


@dataclass(frozen=True)
class Group:
    """Moments of one variant, slice value and measure.

    Attributes:
        now: over units.
        squares: Σ value² over queries.
        heaviest: queries of the unit with most.
        pre: with the pre-period's, where there is one.
        before: the pre-period's alone, over the units with a query in it.
    """

    now: RatioMoments
    squares: int
    heaviest: int
    pre: CupedMoments | None = None
    before: RatioMoments | None = None


@dataclass(frozen=True)
class PairedGroup:
    """Moments of two rankers over the same units.

    Attributes:
        control: of one.
        treatment: of the other.
        differences: of the differences.
        n_unpaired: units left out because they have not the same queries under both.
        heaviest: queries of the unit with most.
    """

    control: RatioMoments
    treatment: RatioMoments
    differences: RatioMoments
    n_unpaired: int
    heaviest: int


@dataclass(frozen=True)
class Counts:
    """Two rankers query by query: `wins` of the treatment; `squares` of the differences."""

    wins: int
    ties: int
    losses: int
    squares: int


Estimand = Literal["ratio", "per_unit"]


def has(spark: SparkSession, config: Config, table: tables.Table) -> bool:
    """Whether a table was ever published."""
    root = publish.Root.open(config.output.path)
    return sinks.sink(spark, root, config.output).has(table.name)


def read(spark: SparkSession, config: Config, table: tables.Table) -> DataFrame:
    """A published table.

    Raises:
        InputError: it is not there.
    """
    if not has(spark, config, table):
        raise InputError(
            expected=f"the table {table.name} below {config.output.path}",
            found="none",
            action="run `rankspark evaluate` for the dates first",
        )
    return publish.read_table(spark, config.output.path, table.name)


def catalogue(spark: SparkSession, config: Config, dates: Range) -> list[Row]:
    """What was evaluated: date, experiment, variant, ranker, measure, definition_id."""
    names = ("date", "experiment", "variant", "ranker", "measure", "definition_id")
    metrics = read(spark, config, tables.METRICS)
    overall = F.col("slice_name") == tables.OVERALL[0]
    return metrics.where(dates.holds & overall).select(*names).distinct().collect()


def unit_days(
    spark: SparkSession, config: Config, experiment: str, dates: Range, *, ranks: bool = False
) -> DataFrame:
    """Rows of `unit_day`; with `ranks`, of the shares of first relevant items by rank too."""
    names = ("variant", "ranker", *SLICE, "unit", "date")
    rows = read(spark, config, tables.UNIT_DAY).where(
        dates.holds & (F.col("experiment") == experiment)
    )
    plain = rows.select(*names, "n", "s_nano", "s2_nano")
    if not ranks:
        return plain
    counted = rows.where((F.col("slice_name") == tables.OVERALL[0]) & F.expr("n > 0")).select(
        *names, "n", F.posexplode("first_ranks").alias("place", "count")
    )
    at_rank = F.concat("measure", F.lit(_AT), F.expr("cast(place + 1 as string)"))
    return plain.unionByName(
        counted.select(
            *(at_rank.alias(name) if name == "measure" else name for name in names),
            "n",
            F.col("count").alias("s_nano"),
            F.expr("cast(0 as decimal(38,0))").alias("s2_nano"),
        )
    )


def rank_of(measure: str) -> tuple[str, int] | None:
    """The measure and rank of a row of :func:`unit_days` that counts first relevant items.

    >>> rank_of("mrr@10#3"), rank_of("mrr@10")
    (('mrr@10', 3), None)
    """
    name, _, rank = measure.rpartition(_AT)
    return (name, int(rank)) if name else None


def assigned(rows: DataFrame) -> tuple[Assigned, DataFrame]:
    """The units of rows of `assignment`, and a frame of those that were seen in two variants."""
    by_unit = rows.groupBy("unit").agg(
        F.min("variant").alias("variant"),
        ((F.max("n_variants") > 1) | (F.min("variant") != F.max("variant"))).alias("mixed"),
    )
    counts = (
        by_unit.groupBy("variant", "mixed")
        .agg(F.count(F.lit(1)).alias("n"), F.count_if(F.expr("unit like 'u%'")).alias("named"))
        .collect()
    )
    total, named = (sum(row[name] for row in counts) for name in ("n", "named"))
    kind = {total: "unit_id", 0: "query_id"}.get(named, "unit_id or query_id")
    found = Assigned(
        {row["variant"]: row["n"] for row in counts if not row["mixed"]},
        sum(row["n"] for row in counts if row["mixed"]),
        kind,
    )
    return found, by_unit.where("mixed").select("unit")


def by_unit(
    rows: DataFrame, mixed: DataFrame | None, before: DataFrame | None, estimand: Estimand
) -> DataFrame:
    """A row a variant, slice value, measure and unit with a query: n, x, s2 and, before it, a, b.

    Args:
        rows: of :func:`unit_days`.
        mixed: units to leave out.
        before: rows of the pre-period.
        estimand: whether each query counts once, or each unit.
    """
    summed = rows.groupBy(*SLICE, "variant", "unit").agg(
        F.sum("n").alias("n"), F.sum("s_nano").alias("x"), F.sum("s2_nano").alias("s2")
    )
    units = summed.where("n > 0")
    if mixed is not None:
        units = units.join(mixed, "unit", "left_anti")
    if before is not None:
        was = before.groupBy(*SLICE, "unit").agg(
            F.sum("n").alias("b"), F.coalesce(F.sum("s_nano"), F.lit(0)).alias("a")
        )
        units = units.join(was, [*SLICE, "unit"], "left").fillna(0, ["a", "b"])
    if estimand == "per_unit":
        units = _each_once(units, "x", "n")
        units = units if before is None else _each_once(units, "a", "b")
    return units


def _each_once(units: DataFrame, x: str, n: str) -> DataFrame:
    # Rounded half up in integers; a sum of a measure is never below 0.
    mean = F.expr(f"if({n} > 0, (2 * {x} + {n}) div (2 * {n}), 0)")
    return units.withColumn(x, mean).withColumn(n, F.expr(f"cast({n} > 0 as bigint)"))


def groups(units: DataFrame, *, pre: bool) -> dict[tuple[str, Key], Group]:
    """Moments by variant and slice value and measure, from rows of :func:`by_unit`."""
    sums: list[Column] = [
        F.count(F.lit(1)).alias("k"),
        F.sum("x").alias("x"),
        F.sum("n").alias("n"),
        F.max("n").alias("heaviest"),
        F.sum("s2").alias("s2"),
        *_products(("x", "x"), ("x", "n"), ("n", "n")),
    ]
    if pre:
        pairs = ("a", "a"), ("a", "b"), ("b", "b"), ("x", "a"), ("x", "b"), ("n", "a"), ("n", "b")
        sums += [F.sum("a").alias("a"), F.sum("b").alias("b"), *_products(*pairs)]
        sums.append(F.count_if(F.expr("b > 0")).alias("k_before"))
    found = {}
    for row in units.groupBy(*SLICE, "variant").agg(*sums).collect():
        now = _moments(row, "x", "n", row["k"], row["measure"])
        cuped = before = None
        if pre:
            before = _moments(row, "a", "b", row["k_before"], row["measure"])
            everybody = _moments(row, "a", "b", row["k"], row["measure"])
            crossed = (int(row[name]) for name in ("xa", "xb", "na", "nb"))
            cuped = CupedMoments(now, everybody, *crossed)
        group = Group(now, int(row["s2"]), row["heaviest"], cuped, before)
        found[row["variant"], _key(row)] = group
    return found


def few_units(
    units: DataFrame, wanted: Iterable[tuple[str, Key]]
) -> dict[tuple[str, Key], tuple[list[int], list[int]]]:
    """The x and n of every unit of the given groups, which must be small."""
    names = ("variant", *SLICE)
    rows = [(variant, *key) for variant, key in wanted]
    if not rows:
        return {}
    schema = ", ".join(f"{name} STRING" for name in names)
    asked = units.sparkSession.createDataFrame(rows, schema)
    found: dict[tuple[str, Key], tuple[list[int], list[int]]] = {}
    for row in (
        units.join(F.broadcast(asked), list(names), "left_semi")
        .select(*names, "unit", "x", "n")
        .collect()
    ):
        x, n = found.setdefault((row["variant"], _key(row)), ([], []))
        x.append(row["x"])
        n.append(row["n"])
    return found


def paired_groups(
    rows: DataFrame, label: str, pairs: Sequence[tuple[str, str]], estimand: Estimand
) -> dict[tuple[tuple[str, str], Key], PairedGroup]:
    """Moments of pairs of rankers (or variants) over the units that both have.

    Args:
        rows: of :func:`unit_days`.
        label: what is compared: ranker or variant.
        pairs: control and treatment each.
        estimand: whether each query counts once, or each unit.
    """
    names = sorted({name for pair in pairs for name in pair})
    of = {name: i for i, name in enumerate(names)}
    summed = rows.groupBy(*SLICE, "unit").agg(
        *(
            F.coalesce(F.sum(F.when(F.col(label) == name, F.col(column))), F.lit(0)).alias(
                f"{short}{i}"
            )
            for name, i in of.items()
            for short, column in (("n", "n"), ("x", "s_nano"))
        )
    )
    both = [
        F.struct(
            F.lit(c).alias("control"),
            F.lit(t).alias("treatment"),
            F.col(f"x{of[c]}").alias("c"),
            F.col(f"x{of[t]}").alias("t"),
            F.col(f"n{of[c]}").alias("n"),
            F.col(f"n{of[t]}").alias("m"),
        )
        for c, t in pairs
    ]
    units = summed.select(*SLICE, F.explode(F.array(*both)).alias("pair")).select(*SLICE, "pair.*")
    units = units.where("n > 0 or m > 0").withColumn("paired", F.expr("n = m"))
    if estimand == "per_unit":
        units = units.withColumn("t", F.expr("if(n > 0, (2 * t + n) div (2 * n), 0)"))
        units = _each_once(units, "c", "n")
    found = {}
    columns = ("control", "treatment")
    zero = {name: F.expr(f"if(paired, {name}, 0)") for name in ("c", "t", "n")}
    units = units.withColumns(zero).withColumn("d", F.expr("t - c"))
    for row in (
        units.groupBy(*SLICE, *columns)
        .agg(
            F.count_if("paired").alias("k"),
            F.count_if(F.expr("not paired")).alias("n_unpaired"),
            F.max("n").alias("heaviest"),
            *(F.sum(name).alias(name) for name in ("c", "t", "d", "n")),
            *_products(
                ("c", "c"), ("c", "n"), ("t", "t"), ("t", "n"), ("d", "d"), ("d", "n"), ("n", "n")
            ),
        )
        .collect()
    ):
        control, treatment, differences = (
            _moments(row, x, "n", row["k"], row["measure"]) for x in ("c", "t", "d")
        )
        found[(row["control"], row["treatment"]), _key(row)] = PairedGroup(
            control, treatment, differences, row["n_unpaired"], row["heaviest"]
        )
    return found


def paired_counts(
    spark: SparkSession, config: Config, experiment: str, dates: Range
) -> dict[tuple[tuple[str, str], Key], Counts]:
    """Wins, ties and losses of all pairs of rankers, in both directions, from stored counts."""
    rows = read(spark, config, tables.PAIRED_COUNTS).where(
        dates.holds & (F.col("experiment") == experiment)
    )
    names = ("wins", "ties", "losses", "sum_dd")
    found = {}
    for row in (
        rows.groupBy(*SLICE, "ranker_a", "ranker_b")
        .agg(*(F.sum(name).alias(name) for name in names))
        .collect()
    ):
        wins, ties, losses, squares = (int(row[name] or 0) for name in names)
        a, b = row["ranker_a"], row["ranker_b"]
        found[(a, b), _key(row)] = Counts(wins, ties, losses, squares)
        found[(b, a), _key(row)] = Counts(losses, ties, wins, squares)
    return found


def counts_of_single_queries(
    rows: DataFrame, pairs: Sequence[tuple[str, str]]
) -> dict[tuple[tuple[str, str], Key], Counts]:
    """The same of variants whose units are queries: then a unit of a day is one query."""
    names = sorted({name for pair in pairs for name in pair})
    by_query = rows.groupBy(*SLICE, "unit", "date").agg(
        *(F.max(F.when(F.col("variant") == name, F.col("s_nano"))).alias(f"x{i}")
          for i, name in enumerate(names))
    )  # fmt: skip
    gaps = [
        F.struct(
            F.lit(control).alias("control"),
            F.lit(treatment).alias("treatment"),
            (F.col(f"x{names.index(treatment)}") - F.col(f"x{names.index(control)}")).alias("d"),
        )
        for control, treatment in pairs
    ]
    counted = (
        by_query.select(*SLICE, F.explode(F.array(*gaps)).alias("gap"))
        .select(*SLICE, "gap.*")
        .groupBy(*SLICE, "control", "treatment")
        .agg(
            F.count_if(F.expr("d > 0")).alias("wins"),
            F.count_if(F.expr("d = 0")).alias("ties"),
            F.count_if(F.expr("d < 0")).alias("losses"),
            product("d", "d").alias("squares"),
        )
    )
    names_of_counts = ("wins", "ties", "losses", "squares")
    return {
        ((row["control"], row["treatment"]), _key(row)): Counts(
            *(int(row[name] or 0) for name in names_of_counts)
        )
        for row in counted.collect()
    }


def new_units(rows: DataFrame) -> dict[str, int]:
    """Units by the first date on which they were seen, from rows of `assignment`."""
    first = rows.groupBy("unit").agg(F.min("date").alias("date"))
    return {row[0]: row[1] for row in first.groupBy("date").count().collect()}


def _products(*pairs: tuple[str, str]) -> list[Column]:
    return [product(left, right).alias(left + right) for left, right in pairs]


def _moments(row: Row, x: str, n: str, k: int, measure: str) -> RatioMoments:
    scale = 1 if rank_of(measure) else tables.NANO
    xx, xn, nn = (int(row[name] or 0) for name in (x + x, x + n, n + n))
    return RatioMoments(k, row[x] or 0, row[n] or 0, xx, xn, nn, scale)


def _key(row: Any) -> Key:
    return row["slice_name"], row["slice_value"], row["measure"]

"""A simulated log, said to be simulated, to see the whole of rankspark at work in a minute.

Two experiments of two variants for a week: in `rerank_v2` the treatment orders the same items better,
in `new_retrieval` nothing differs. Users return, and differ in how hard their queries are; clicks fall
off with the position; a few rows are broken in the ways that real logs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rankspark import config as configuration
from rankspark import tables
from rankspark.config import Config
from rankspark.spark import aggregate, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST_DAY = date(2026, 3, 2)
N_DAYS = 7
QUERIES_A_DAY = 2_400
USERS = 3_000
PAGE = 10

CONFIG = """\
# The demo's configuration. Its log is simulated.
name = "rankspark-demo"

[input]
path = "{log}"

[input.columns]
date = "date"
experiment = "experiment_name"
variant = "arm"
query_id = "request_id"
query_key = "query_text"
unit_id = "user_id"
item_id = "product_id"
position = "rank"
relevance = "case when purchased then 3 when clicked then 1 else 0 end"
country = "country"

[evaluate]
measures = ["mrr", "mrr@10", "ndcg@10", "recall@5", "hit@1"]
slices = ["country"]

[output]
path = "{output}"
"""

# How far a ranker's scores stray from the grades, in grades. Chosen so that MRR is 0.54 and 0.78.
_NOISE = {
    ("rerank_v2", "control"): 3.2,
    ("rerank_v2", "treatment"): 1.13,
    ("new_retrieval", "control"): 1.2,
    ("new_retrieval", "treatment"): 1.2,
}
_GRADES = np.array([0, 1, 2, 3])
_GRADE_SHARES = np.array([0.70, 0.18, 0.09, 0.03])
# Clicked where it is looked at, and purchased where it is clicked, by grade.
_ATTRACTS = np.array([0.02, 0.2, 0.5, 0.85])
_SELLS = np.array([0.0, 0.05, 0.15, 0.35])
# Looked at, by position: the position bias.
_LOOKED_AT = np.arange(1, PAGE + 1) ** -0.45


@dataclass(frozen=True)
class Facts:
    """What was written.

    Attributes:
        days: the dates.
        n_rows: rows in the log, the broken ones among them.
        n_queries: requests with at least one good row.
        broken: rows by what is wrong with them, in the names of the table `rejects`.
    """

    days: tuple[date, ...]
    n_rows: int
    n_queries: int
    broken: dict[str, int]


def simulate(path: Path, *, seed: int = 7) -> Facts:
    """Write the log: Parquet files below `date=D` folders, a row an impression.

    Args:
        path: the folder, which must not exist.
        seed: the same seed gives the same log.
    """
    random = np.random.default_rng(seed)
    # Few users make many of the queries.
    activity = random.gamma(0.5, size=USERS)
    activity /= activity.sum()
    difficulty = random.gamma(4.0, 0.25, size=USERS)
    days = tuple(FIRST_DAY + timedelta(days=n) for n in range(N_DAYS))
    broken: dict[str, int] = {}
    n_rows = n_queries = 0
    for number, day in enumerate(days):
        users = random.choice(USERS, QUERIES_A_DAY, p=activity)
        log = _day(random, day, users, difficulty[users], first_request=number * QUERIES_A_DAY)
        log, damage = _damaged(random, log)
        folder = path / f"date={day}"
        folder.mkdir(parents=True)
        pq.write_table(log, folder / "part-0.parquet", compression="zstd")
        n_rows, n_queries = n_rows + len(log), n_queries + QUERIES_A_DAY
        broken = {reason: broken.get(reason, 0) + n for reason, n in damage.items()}
    return Facts(days, n_rows, n_queries, broken)


def _day(
    random: np.random.Generator,
    day: date,
    users: NDArray[np.int64],
    difficulty: NDArray[np.float64],
    first_request: int,
) -> pa.Table:
    n = len(users)
    # A user is in one experiment, and always in the same variant.
    experiment = np.array(["rerank_v2", "new_retrieval"])[users % 2]
    variant = np.array(["control", "treatment"])[users // 2 % 2]
    noise = np.array([_NOISE[pair] for pair in zip(experiment, variant, strict=True)])

    grade = random.choice(_GRADES, size=(n, PAGE), p=_GRADE_SHARES)
    grade[:, 0] = 3  # each query has one item that answers it
    stray = random.normal(size=(n, PAGE)) * (noise * difficulty)[:, None]
    order = np.argsort(-(grade + stray), axis=1)
    grade = np.take_along_axis(grade, order, axis=1)
    clicked = random.random((n, PAGE)) < _LOOKED_AT * _ATTRACTS[grade]
    purchased = clicked & (random.random((n, PAGE)) < _SELLS[grade])

    # One page in twenty is short.
    length = np.where(random.random(n) < 0.05, random.integers(3, PAGE, n), PAGE)
    shown = np.arange(PAGE) < length[:, None]
    text = random.zipf(1.3, n) % 2_000
    product = text[:, None] * 40 + (np.arange(PAGE) * 3 + random.integers(0, 3, (n, PAGE)))
    product = np.take_along_axis(product, order, axis=1)
    second = np.sort(random.integers(0, 86_400, n))
    time = np.datetime64(day) + second.astype("timedelta64[s]").astype("timedelta64[us]")
    row = np.repeat(np.arange(n), length)

    def text_of(prefix: str, numbers: NDArray[np.int64]) -> pa.Array:
        return pa.array(np.char.add(prefix, numbers.astype(str)))

    return pa.table(
        {
            "event_time": pa.array(time[row], pa.timestamp("us", tz="UTC")),
            "experiment_name": pa.array(experiment[row]),
            "arm": pa.array(variant[row]),
            "request_id": text_of("r", (first_request + np.arange(n))[row]),
            "user_id": text_of("u", users[row]),
            "query_text": text_of("query ", text[row]),
            "country": pa.array(np.array(["de", "fr", "jp", "us"])[users % 7 % 4][row]),
            "product_id": text_of("p", product[shown]),
            "rank": pa.array((np.arange(PAGE) + np.zeros((n, 1), int) + 1)[shown], pa.int32()),
            "clicked": pa.array(clicked[shown]),
            "purchased": pa.array(purchased[shown]),
        }
    )


def _damaged(random: np.random.Generator, log: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Add rows that are broken, one reason each, copied from rows of the log."""
    damage = {
        "bad_query_id": ("request_id", None, 5),
        "bad_experiment": ("experiment_name", " ", 3),
        "bad_item_id": ("product_id", None, 3),
        "position_below_base": ("rank", 0, 4),
        "duplicate": (None, None, 6),
        "conflicting_duplicate": ("rank", PAGE + 5, 2),
    }
    parts = [log]
    # Different rows, so that no item is copied twice.
    chosen = random.choice(len(log), sum(n for _, _, n in damage.values()), replace=False)
    for column, value, n in damage.values():
        rows, chosen = log.take(pa.array(np.sort(chosen[:n]))), chosen[n:]
        if column is not None:
            kind = rows.schema.field(column).type
            index = rows.schema.get_field_index(column)
            rows = rows.set_column(index, column, pa.array([value] * n, kind))
        parts.append(rows)
    return pa.concat_tables(parts), {reason: n for reason, (_, _, n) in damage.items()}


def write_config(folder: Path, log: Path, output: Path) -> Config:
    """Write the demo's configuration beside its log, and read it as a user would."""
    file = folder / "demo.toml"
    file.write_text(CONFIG.format(log=log, output=output))
    return configuration.load(file)


@dataclass(frozen=True)
class Row:
    """A measure of one variant over the whole week."""

    experiment: str
    variant: str
    measure: str
    mean: float
    ci_low: float
    ci_high: float
    n_queries: int
    n_no_relevant: int
    n_units: int


def whole_week(spark: SparkSession, config: Config, measures: Sequence[str]) -> list[Row]:
    """Means over all days, from the published queries: users return, so days do not just add up."""
    queries = publish.read_table(spark, config.output.path, config.query_metrics.name)
    columns = [measure.column_name for measure in config.measures]
    rows = aggregate.metrics_rows(aggregate.moments(queries, columns, ()).collect(), config)
    names = [field for field in Row.__dataclass_fields__]
    return [
        Row(**{name: row[name] for name in names})
        for row in rows
        if row["measure"] in measures and row["slice_name"] == tables.OVERALL[0]
    ]

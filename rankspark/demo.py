"""A simulated log, said to be simulated, to see the whole of rankspark at work in a minute.

Two experiments of two variants for a week: in `rerank_v2` the treatment orders the same items
better, in `new_retrieval` nothing differs. Users return, and differ in how hard their queries are;
clicks fall off with the position; a few rows are broken in the ways that real logs are.
"""

from __future__ import annotations

import json
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
QUERIES_A_DAY = 4_500
USERS = 3_000
TEXTS = 2_000
# Items that are ever shown for one query text: PAGE places with CANDIDATES alternatives each.
CANDIDATES = 3
PAGE = 10

CONFIG = """\
# The demo's configuration. Its log is simulated.
name = "rankspark-demo"

[input]
path = {log}

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

[compare]
control = "control"

[output]
path = {output}
"""

# How far a ranker's scores stray from the grades, in grades. Chosen so that MRR is 0.54 and 0.78
# with the default seed; users differ so much that another seed moves it by about 0.01.
_NOISE = {
    ("rerank_v2", "control"): 3.65,
    ("rerank_v2", "treatment"): 1.09,
    ("new_retrieval", "control"): 1.2,
    ("new_retrieval", "treatment"): 1.2,
}
_GRADES = np.array([0, 1, 2, 3])
_GRADE_SHARES = np.array([0.70, 0.18, 0.09, 0.03])
_JUDGED_SHARE = 0.8
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


@dataclass(frozen=True)
class _World:
    """What stays the same over the days.

    Attributes:
        activity: each user's share of the queries.
        difficulty: how hard a user's queries are; 1 on average.
        popularity: each query text's share of the queries.
        grades: the grade of an item for a query text, [text, place, candidate].
        judged: whether somebody has looked at that pair, of the same shape.
    """

    activity: NDArray[np.float64]
    difficulty: NDArray[np.float64]
    popularity: NDArray[np.float64]
    grades: NDArray[np.int64]
    judged: NDArray[np.bool_]


def simulate(path: Path, *, seed: int = 7, queries_per_day: int = QUERIES_A_DAY) -> Facts:
    """Write the log: Parquet files below `date=D` folders, a row an impression.

    An earlier simulation there is replaced; nothing else in the folder is touched.

    Args:
        path: the folder.
        seed: the same seed gives the same log.
        queries_per_day: requests of each day, of about 9.8 rows each.
    """
    random = np.random.default_rng(seed)
    world = _world(random)
    days = tuple(FIRST_DAY + timedelta(days=n) for n in range(N_DAYS))
    broken: dict[str, int] = {}
    n_rows = 0
    for number, day in enumerate(days):
        log = _day(random, world, day, np.arange(queries_per_day) + number * queries_per_day)
        log, damage = _damaged(random, log)
        folder = path / f"date={day}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(log, folder / "simulated.parquet", compression="zstd")
        n_rows += len(log)
        broken = {reason: broken.get(reason, 0) + n for reason, n in damage.items()}
    return Facts(days, n_rows, queries_per_day * N_DAYS, broken)


def _world(random: np.random.Generator) -> _World:
    # Few users make many of the queries, and few texts are most of what is asked.
    activity = random.gamma(0.5, size=USERS)
    popularity = 1 / (np.arange(TEXTS) + 10)
    shape = (TEXTS, PAGE, CANDIDATES)
    grades = random.choice(_GRADES, size=shape, p=_GRADE_SHARES)
    grades[:, 0] = 3  # whichever candidate takes the first place, one item answers the query
    return _World(
        activity=activity / activity.sum(),
        difficulty=random.gamma(4.0, 0.25, size=USERS),
        popularity=popularity / popularity.sum(),
        grades=grades,
        judged=random.random(shape) < _JUDGED_SHARE,
    )


def _day(
    random: np.random.Generator, world: _World, day: date, requests: NDArray[np.int64]
) -> pa.Table:
    n = len(requests)
    users = random.choice(USERS, n, p=world.activity)
    # A user is in one experiment, and always in the same variant.
    experiment = np.array(["rerank_v2", "new_retrieval"])[users % 2]
    variant = np.array(["control", "treatment"])[users // 2 % 2]
    noise = np.array([_NOISE[pair] for pair in zip(experiment, variant, strict=True)])

    text = random.choice(TEXTS, n, p=world.popularity)
    place = np.arange(PAGE)
    candidate = random.integers(0, CANDIDATES, (n, PAGE))
    pair = (text[:, None], place, candidate)
    grade, judged = world.grades[pair], world.judged[pair]
    product = (text[:, None] * PAGE + place) * CANDIDATES + candidate
    stray = random.normal(size=(n, PAGE)) * (noise * world.difficulty[users])[:, None]
    order = np.argsort(-(grade + stray), axis=1)
    grade = np.take_along_axis(grade, order, axis=1)
    judged = np.take_along_axis(judged, order, axis=1)
    product = np.take_along_axis(product, order, axis=1)
    clicked = random.random((n, PAGE)) < _LOOKED_AT * _ATTRACTS[grade]
    purchased = clicked & (random.random((n, PAGE)) < _SELLS[grade])

    # One page in twenty is short.
    length = np.where(random.random(n) < 0.05, random.integers(3, PAGE, n), PAGE)
    shown = np.arange(PAGE) < length[:, None]
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
            "request_id": text_of("r", requests[row]),
            "user_id": text_of("u", users[row]),
            "query_text": text_of("query ", text[row]),
            "country": pa.array(np.array(["de", "fr", "jp", "us"])[users % 7 % 4][row]),
            "product_id": text_of("p", product[shown]),
            "rank": pa.array((np.arange(PAGE) + np.zeros((n, 1), int) + 1)[shown], pa.int32()),
            "clicked": pa.array(clicked[shown]),
            "purchased": pa.array(purchased[shown]),
            "grade": pa.array(grade[shown], pa.int32(), mask=~judged[shown]),
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
    # A JSON string is a TOML string too: quotes and backslashes of a path come through.
    quoted = {
        key: json.dumps(str(place), ensure_ascii=False)
        for key, place in {"log": log, "output": output}.items()
    }
    file.write_text(CONFIG.format(**quoted), encoding="utf-8")
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
    units = aggregate.unit_sums(queries, config, slices=())
    rows = aggregate.metrics_rows(aggregate.moments(units).collect(), config)
    names = list(Row.__dataclass_fields__)
    return [
        Row(**{name: row[name] for name in names})
        for row in rows
        if row["measure"] in measures and row["slice_name"] == tables.OVERALL[0]
    ]

"""Ranking metrics from logged impressions, on Spark.

    >>> import rankspark
    >>> result = rankspark.evaluate(impressions, ["mrr", "ndcg@10"])
    >>> {row.measure: round(row.mean, 4) for row in result.metrics.collect()}
    {'mrr': 0.75, 'ndcg@10': 0.8155}

The names are looked up when they are first used: executors import this package too, and they have
numpy, pandas, pyarrow and pyspark alone.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rankspark.config import Config
    from rankspark.config import load as load_config
    from rankspark.errors import RanksparkError
    from rankspark.measures import MEASURES, Measure, RankedLists
    from rankspark.measures import score as score_lists
    from rankspark.spark.api import Evaluation, evaluate
    from rankspark.spark.compare import compare
    from rankspark.spark.functions import register
    from rankspark.spark.pipeline import DateResult
    from rankspark.spark.pipeline import evaluate as run
    from rankspark.spark.publish import read_table
    from rankspark.spark.session import get_session

_HOME = {
    "Config": "rankspark.config:Config",
    "DateResult": "rankspark.spark.pipeline:DateResult",
    "Evaluation": "rankspark.spark.api:Evaluation",
    "MEASURES": "rankspark.measures:MEASURES",
    "Measure": "rankspark.measures:Measure",
    "RankedLists": "rankspark.measures:RankedLists",
    "RanksparkError": "rankspark.errors:RanksparkError",
    "compare": "rankspark.spark.compare:compare",
    "evaluate": "rankspark.spark.api:evaluate",
    "get_session": "rankspark.spark.session:get_session",
    "load_config": "rankspark.config:load",
    "read_table": "rankspark.spark.publish:read_table",
    "register": "rankspark.spark.functions:register",
    "run": "rankspark.spark.pipeline:evaluate",
    "score_lists": "rankspark.measures:score",
}

__all__ = [
    "MEASURES",
    "Config",
    "DateResult",
    "Evaluation",
    "Measure",
    "RankedLists",
    "RanksparkError",
    "compare",
    "evaluate",
    "get_session",
    "load_config",
    "read_table",
    "register",
    "run",
    "score_lists",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rankspark' has no attribute {name!r}")
    module, attribute = _HOME[name].split(":")
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Measures as SQL functions over an array of relevances: `SELECT ndcg(relevances, 10)`.

The array is one list in rank order, a null in it an unjudged item. For rows of impressions use
`rankspark.evaluate`, which also orders, checks and removes duplicates.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from pyspark.sql import Column, SparkSession
from pyspark.sql.pandas.functions import pandas_udf

from rankspark.measures import MEASURES, Measure, Options, RankedLists, score

#: SQL name -> measure, where SQL has a function of the measure's name already.
_RENAMED = {"map": "average_precision"}


def register(spark: SparkSession) -> list[str]:
    """Make each measure a function of a session's SQL: `name(relevances)` or `name(relevances, k)`.

        >>> "ndcg" in rankspark.register(spark)
        True
        >>> spark.sql("SELECT ndcg(array(0, 1), 10) AS ndcg, mrr(array(0, 1)) AS mrr").first()
        Row(ndcg=0.6309, mrr=0.5)

    A query without a relevant item counts 0; `map` is called `average_precision`, since `map` is
    SQL's.

    Args:
        spark: the session, classic or Connect.

    Returns:
        the names registered.
    """
    names = []
    for measure in MEASURES:
        name = _RENAMED.get(measure, measure)
        spark.udf.register(name, _function(measure))
        names.append(name)
    return names


def _function(measure: str) -> Callable[..., Column]:
    def evaluate(*columns: pd.Series) -> pd.Series:
        return _evaluate(measure, *columns)

    # pyspark's overloads know fixed numbers of columns only.
    function: Callable[..., Column] = pandas_udf(evaluate, "double")  # type: ignore[call-overload]
    return function


def _evaluate(measure: str, relevances: pd.Series, k: pd.Series | None = None) -> pd.Series:
    known = relevances.notna().to_numpy()
    arrays = [np.asarray(values, dtype=np.float64) for values in relevances[known]]
    lengths = np.array([len(values) for values in arrays], dtype=np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    lists = RankedLists(
        offsets=offsets,
        rank=np.arange(1, offsets[-1] + 1) - np.repeat(offsets[:-1], lengths),
        relevance=np.concatenate([np.empty(0), *arrays]),
    )
    result = np.full(len(relevances), np.nan)
    if k is None:
        wanted = Measure.parse(measure)
        result[known] = score(lists, [wanted], Options())[wanted]
        return pd.Series(result)
    # One column of cutoffs rarely holds more than one value.
    for cutoff in k[known].unique():
        wanted = Measure.parse(f"{measure}@{cutoff}")
        values = score(lists, [wanted], Options())[wanted]
        chosen = (k == cutoff).to_numpy() & known
        result[chosen] = values[chosen[known]]
    return pd.Series(result)

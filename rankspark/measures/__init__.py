"""What is measured: numpy only, without Spark and without pandas.

measure: a measure as a value, and its text form. ranking: shown items to ranked lists.
lists: ranked lists and the options. orders: what an order yields, ties averaged or not.
kernels: the measures and their registry.
"""

from rankspark.measures.kernels import MEASURES, PROFILES, Options, RankedLists, score, score_one
from rankspark.measures.measure import Measure, MeasureSpec, Param
from rankspark.measures.ranking import ShownItems

__all__ = [
    "MEASURES",
    "PROFILES",
    "Measure",
    "MeasureSpec",
    "Options",
    "Param",
    "RankedLists",
    "ShownItems",
    "score",
    "score_one",
]

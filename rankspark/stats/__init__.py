"""How sure we are: numpy and scipy only, no Spark."""

from rankspark.stats.ratio import RatioEstimate, RatioMoments, estimate

__all__ = ["RatioEstimate", "RatioMoments", "estimate"]

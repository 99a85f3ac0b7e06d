"""How sure we are: numpy and scipy only, no Spark.

Sums over units (`RatioMoments`) become exact means (`delta`, `jackknife`, `cuped`), two of them a
`Pair` (`independent`, `paired`), and a pair whatever is asked of it: `difference`, `fieller`,
`noninferiority`, `confidence_sequence`, `mde`.
"""

from rankspark.stats.by_rank import Decomposition, RankChange, decompose
from rankspark.stats.checks import (
    SampleRatio,
    design_effect,
    effect_size,
    max_unit_share,
    pre_period_p,
    queries_per_unit_p,
    sample_ratio,
)
from rankspark.stats.covariate import Cuped, CupedMoments, cuped
from rankspark.stats.families import Adjusted, adjust
from rankspark.stats.lift import Lift, fieller
from rankspark.stats.pair import (
    Contrast,
    Difference,
    Pair,
    contrast,
    difference,
    independent,
    independent_units,
    noninferiority,
    paired,
)
from rankspark.stats.power import mde, mde_ratio, planned_mde, required_units
from rankspark.stats.ratio import (
    Mean,
    RatioEstimate,
    RatioMoments,
    Status,
    delta,
    estimate,
    jackknife,
)
from rankspark.stats.resample import Bootstrap, Replicates, bootstrap, replicates
from rankspark.stats.sequence import AlwaysValid, confidence_sequence
from rankspark.stats.verdict import Evidence, Rules, Verdict, judge

__all__ = [
    "Adjusted",
    "AlwaysValid",
    "Bootstrap",
    "Contrast",
    "Cuped",
    "CupedMoments",
    "Decomposition",
    "Difference",
    "Evidence",
    "Lift",
    "Mean",
    "Pair",
    "RankChange",
    "RatioEstimate",
    "RatioMoments",
    "Replicates",
    "Rules",
    "SampleRatio",
    "Status",
    "Verdict",
    "adjust",
    "bootstrap",
    "confidence_sequence",
    "contrast",
    "cuped",
    "decompose",
    "delta",
    "design_effect",
    "difference",
    "effect_size",
    "estimate",
    "fieller",
    "independent",
    "independent_units",
    "jackknife",
    "judge",
    "max_unit_share",
    "mde",
    "mde_ratio",
    "noninferiority",
    "paired",
    "planned_mde",
    "pre_period_p",
    "queries_per_unit_p",
    "replicates",
    "required_units",
    "sample_ratio",
]

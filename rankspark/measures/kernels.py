"""The measures: a kernel and its registry entry each, over many lists at once.

A new measure is one function here. It gets a :class:`Batch` (what the measures share, computed when
first asked for) and the :class:`Measure`, and returns float64[n]; lists where the measure is
undefined are filled in by :func:`score`, at one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from rankspark.errors import ConfigError, GainOverflow
from rankspark.measures.batch import Batch
from rankspark.measures.lists import (
    DEFAULTS,
    PROFILES,
    Floats,
    Gain,
    Ints,
    Options,
    RankedLists,
    product_before,
    segment_count,
)
from rankspark.measures.measure import MEASURES, Measure, Param, register

__all__ = ["MEASURES", "PROFILES", "Batch", "Options", "RankedLists", "score", "score_one"]


def score(
    lists: RankedLists, measures: Sequence[Measure], options: Options = DEFAULTS
) -> dict[Measure, Floats]:
    """Score every list by every measure.

        >>> lists = RankedLists.from_grades([0, 1], [0, 0])
        >>> for measure, values in score(lists, [Measure.parse("mrr")]).items():
        ...     print(measure, values)
        mrr [0.5 0. ]

    Args:
        lists: n lists; nothing in them is changed.
        measures: what to compute; what they share is computed once.
        options: the conventions.

    Returns:
        float64[n] a measure. A list without a relevant item (for measures of gain: without a grade
        above 0) has 0, or NaN under `no_relevant="skip"`. Always NaN where nothing was found:
        `first_relevant_rank`; never NaN: `judged`, `n_relevant`. The same list gives the same
        doubles in any batch.

    Raises:
        ConfigError: ties are to be averaged for a measure that does not offer it.
        GainOverflow: a gain or a sum of gains is not finite, or a grade is above `max_grade`.
        ValueError: ties are to be averaged, and `lists.tied` is None.
    """
    for measure in measures:
        if options.ties == "average" and measure.spec.ties == "fixed":
            offered = sorted(name for name, spec in MEASURES.items() if spec.ties != "fixed")
            raise ConfigError(
                expected=f"with ties=average only {', '.join(offered)}",
                found=repr(str(measure)),
                action="leave the measure out, or order ties by item_id",
            )
    batch = Batch(lists, options)
    return {measure: _filled(batch, measure) for measure in measures}


def score_one(measure: str, grades: Sequence[float | None], options: Options = DEFAULTS) -> float:
    """The value of one list of grades in rank order, None = unjudged; NaN where undefined.

    >>> score_one("ndcg@2", [1, 3])
    0.7967075809905066
    """
    parsed = Measure.parse(measure)
    return float(score(RankedLists.from_grades(grades), [parsed], options)[parsed][0])


def _filled(batch: Batch, measure: Measure) -> Floats:
    spec = measure.spec
    values = spec.kernel(batch, measure)
    if spec.undefined == "never":
        return values
    pool = batch.pool
    missing = (pool.n_relevant if spec.undefined == "relevant" else pool.n_gainful) == 0
    as_null = spec.unscored_is_null or batch.options.no_relevant == "skip"
    # A kernel's own NaN: the ideal is 0 although there is a gain, so small that it vanishes.
    return np.where(missing | np.isnan(values), np.nan if as_null else 0.0, values)


@register("mrr", values="[0, 1]", cutoff="optional")
def mrr(batch: Batch, measure: Measure) -> Floats:
    """Reciprocal rank of the first relevant item; its mean over queries is the MRR.

    1 / r, r the rank of the first relevant item; 0 if there is none at ranks up to k.
    Kantor & Voorhees, "The TREC-5 Confusion Track", Information Retrieval 2 (2000); Voorhees, "The
    TREC-8 Question Answering Track Report" (1999). Range 0 to 1.

    >>> score_one("mrr", [0, 1])
    0.5
    """
    return batch.order(measure).reciprocal_first(measure.cutoff)


@register("ndcg", values="[0, 1]", cutoff="optional", undefined="gain", uses_threshold=False)
def ndcg(batch: Batch, measure: Measure) -> Floats:
    """DCG with the grade as gain, divided by the DCG of the ideal order.

    DCG@k / ideal DCG@k, with DCG@k = sum of relevance / log2(rank + 1) over ranks up to k. The
    ideal sorts all grades of the list (or all judged ones), those below k too, and cuts at k.
    Järvelin & Kekäläinen, "Cumulated Gain-Based Evaluation of IR Techniques", TOIS 20(4) (2002),
    with the discount of trec_eval's `ndcg` and `ndcg_cut`. Range 0 to 1.

    >>> round(score_one("ndcg@2", [1, 3]), 6)
    0.796708
    """
    return _normalised(batch, measure, batch.options.gain)


@register("ndcg_exp", values="[0, 1]", cutoff="optional", undefined="gain", uses_threshold=False)
def ndcg_exp(batch: Batch, measure: Measure) -> Floats:
    """DCG with the gain 2^relevance - 1, divided by the DCG of the ideal order.

    As `ndcg`, with the gain of Burges et al., "Learning to Rank using Gradient Descent", ICML 2005.
    Range 0 to 1.

    >>> round(score_one("ndcg_exp@2", [1, 3]), 6)
    0.70981
    """
    return _normalised(batch, measure, "exponential")


@register("dcg", values="[0, inf)", cutoff="optional", undefined="gain", uses_threshold=False)
def dcg(batch: Batch, measure: Measure) -> Floats:
    """Discounted cumulative gain with the grade as gain.

    Sum of relevance / log2(rank + 1) over ranks up to k. Järvelin & Kekäläinen, TOIS 20(4) (2002).
    Range 0 and up.

    >>> round(score_one("dcg@2", [1, 3]), 6)
    2.892789
    """
    return batch.order(measure).dcg(batch.options.gain, measure.cutoff)


@register("dcg_exp", values="[0, inf)", cutoff="optional", undefined="gain", uses_threshold=False)
def dcg_exp(batch: Batch, measure: Measure) -> Floats:
    """Discounted cumulative gain with the gain 2^relevance - 1.

    Sum of (2^relevance - 1) / log2(rank + 1) over ranks up to k. Burges et al., ICML 2005. Range 0
    and up.

    >>> round(score_one("dcg_exp@2", [1, 3]), 6)
    5.416508
    """
    return batch.order(measure).dcg("exponential", measure.cutoff)


@register("precision", values="[0, 1]", cutoff="required")
def precision(batch: Batch, measure: Measure) -> Floats:
    """Share of the first k ranks that hold a relevant item.

    Relevant items at ranks up to k, divided by k even where fewer were shown, as in trec_eval's
    `P`. Kent et al., "Machine literature searching VIII", American Documentation 6(2) (1955).
    Range 0 to 1.

    >>> score_one("precision@10", [1, 1])
    0.2
    """
    return batch.order(measure).relevant_within(_k(measure)) / _k(measure)


@register("recall", values="[0, 1]", cutoff="required")
def recall(batch: Batch, measure: Measure) -> Floats:
    """Share of all relevant items that stand at ranks up to k.

    Relevant items at ranks up to k / all relevant items of the list (or all judged ones): 1 / 20 at
    most where k is 1 and 20 are relevant. Kent et al., American Documentation 6(2) (1955). Range 0
    to 1.

    >>> score_one("recall@1", [1, 1])
    0.5
    """
    return _ratio(batch.order(measure).relevant_within(_k(measure)), batch.pool.n_relevant)


@register("hit", values="[0, 1]", cutoff="required")
def hit(batch: Batch, measure: Measure) -> Floats:
    """Whether a relevant item stands at a rank up to k: 1 or 0.

    trec_eval's `success`, ranx's `hit_rate`; under ties=average the chance of it. Craswell &
    Hawking, "Overview of the TREC-2004 Web Track" (success@n). Range 0 to 1.

    >>> score_one("hit@1", [0, 1]), score_one("hit@2", [0, 1])
    (0.0, 1.0)
    """
    return batch.order(measure).any_relevant_within(_k(measure))


@register("f1", values="[0, 1]", cutoff="required")
def f1(batch: Batch, measure: Measure) -> Floats:
    """Harmonic mean of precision@k and recall@k.

    2 P R / (P + R), which is 2 c / (k + all relevant items) with c relevant items at ranks up to k;
    so under ties=average it is the expected F1 itself. van Rijsbergen, "Information Retrieval",
    2nd ed. (1979), chapter 7. Range 0 to 1.

    >>> round(score_one("f1@1", [1, 1]), 6)
    0.666667
    """
    within = batch.order(measure).relevant_within(_k(measure))
    return 2.0 * within / (batch.pool.n_relevant + _k(measure))


@register("map", values="[0, 1]", cutoff="optional")
def average_precision(batch: Batch, measure: Measure) -> Floats:
    """Average precision; its mean over queries is the MAP.

    Sum of the precision at the rank of each relevant item (at ranks up to k) / all relevant items
    of the list (or all judged ones), as in trec_eval's `map` and `map_cut`. Under
    `map_denominator="cutoff"` map@k divides by min(relevant, k), as in MLlib. Buckley & Voorhees,
    "Evaluating Evaluation Measure Stability", SIGIR 2000. Range 0 to 1.

    >>> score_one("map", [0, 1]), score_one("map@1", [1, 1])
    (0.5, 0.5)
    """
    divisor = batch.pool.n_relevant
    if batch.options.map_denominator == "cutoff" and measure.cutoff is not None:
        divisor = np.minimum(divisor, measure.cutoff)
    return _ratio(batch.order(measure).precision_sum(measure.cutoff), divisor)


@register("r_precision", values="[0, 1]", cutoff="forbidden")
def r_precision(batch: Batch, measure: Measure) -> Floats:
    """Precision at rank R, where R items of the list are relevant.

    Relevant items at ranks up to R / R; trec_eval's `Rprec`. Buckley & Voorhees, "Retrieval System
    Evaluation", in TREC: Experiment and Evaluation in Information Retrieval (2005). Range 0 to 1.

    >>> score_one("r_precision", [0, 1])
    0.0
    """
    return _ratio(
        batch.order(measure).relevant_within(batch.pool.n_relevant), batch.pool.n_relevant
    )


@register("bpref", values="[0, 1]", cutoff="forbidden", ties="fixed")
def bpref(batch: Batch, _measure: Measure) -> Floats:
    """How rarely judged irrelevant items stand before relevant ones; unjudged items do not count.

    1 / R * sum of (1 - min(n, R) / min(N, R)) over the relevant items shown, where n judged
    irrelevant items stand before the item, N are judged irrelevant in all, and R relevant; an item
    with n = 0 adds 1. trec_eval's `bpref`. Buckley & Voorhees, "Retrieval Evaluation with
    Incomplete Information", SIGIR 2004. Range 0 to 1.

    >>> score_one("bpref", [None, 1]), score_one("bpref", [0, 1])
    (1.0, 0.0)
    """
    relevant, pool = batch.relevant, batch.pool
    judged_before = batch.judged_before[relevant.index] - batch.judged_before[relevant.heads]
    before = judged_before - (relevant.number - 1)
    r = pool.n_relevant[relevant.list_index]
    most = np.minimum(pool.n_judged - pool.n_relevant, pool.n_relevant)[relevant.list_index]
    # most is 0 only where no judged item is irrelevant, and then before is 0 as well.
    preferred = 1.0 - np.minimum(before, r) / np.maximum(most, 1)
    return _ratio(relevant.total(preferred), pool.n_relevant)


@register(
    "err",
    values="[0, 1]",
    cutoff="optional",
    undefined="gain",
    ties="fixed",
    params={"max_grade": Param(4.0, above=0.0, below=1024.0)},
    uses_threshold=False,
)
def err(batch: Batch, measure: Measure) -> Floats:
    """Expected reciprocal rank: where a reader who may be satisfied by each item stops.

    Sum over ranks up to k of R_i / rank_i * product of (1 - R_j) over the items before, with
    R = (2^relevance - 1) / 2^max_grade. `max_grade` (default 4, as gdeval has it) is the top of the
    scale, not the largest grade of the data, so that lists compare. Chapelle, Metzler, Zhang &
    Grinspan, "Expected Reciprocal Rank for Graded Relevance", CIKM 2009. Range 0 to 1.

    >>> score_one("err(max_grade=1)", [1, 1])
    0.625
    """
    gainful, top = batch.gainful, float(measure.param("max_grade"))
    grades = gainful.relevance
    if grades.max(initial=0.0) > top:
        raise GainOverflow(
            expected=f"relevances up to {top:g} for {measure}",
            found=f"a relevance of {grades.max():g}",
            action="give the top of the scale, as in err@10(max_grade=5)",
        )
    stops = (np.exp2(grades) - 1.0) / 2.0**top
    arrives = product_before(1.0 - stops, gainful.number)
    return gainful.total(stops * arrives / gainful.rank, measure.cutoff)


@register(
    "rbp", values="[0, 1]", cutoff="forbidden", params={"p": Param(0.8, above=0.0, below=1.0)}
)
def rbp(batch: Batch, measure: Measure) -> Floats:
    """Rank-biased precision: of a reader who goes on to the next rank with chance p.

    (1 - p) * sum of p^(rank - 1) over the relevant items. Moffat & Zobel, "Rank-Biased Precision
    for Measurement of Retrieval Effectiveness", TOIS 27(1) (2008); default p = 0.8. Range 0 to 1.

    >>> score_one("rbp(p=0.5)", [0, 1])
    0.25
    """
    p = float(measure.param("p"))
    graded = batch.options.rbp_gain == "grade"
    return (1.0 - p) * batch.order(measure).persistence_sum(p, graded=graded)


@register(
    "judged",
    values="[0, 1]",
    cutoff="required",
    undefined="never",
    ties="fixed",
    uses_threshold=False,
)
def judged(batch: Batch, measure: Measure) -> Floats:
    """Share of the first k ranks that hold a judged item.

    Items with a known relevance at ranks up to k, divided by k; defined without relevant items
    too. As `Judged` of MacAvaney, Macdonald & Ounis, "Streamlining Evaluation with ir-measures",
    ECIR 2022. Range 0 to 1.

    >>> score_one("judged@2", [0, None])
    0.5
    """
    inside = batch.judged & (batch.lists.rank <= _k(measure))
    return segment_count(inside, batch.lists.offsets) / _k(measure)


@register(
    "first_relevant_rank",
    values="[1, inf)",
    cutoff="forbidden",
    ties="fixed",
    unscored_is_null=True,
)
def first_relevant_rank(batch: Batch, _measure: Measure) -> Floats:
    """Rank of the first relevant item; null where none was shown.

    Its mean is of found items only and its reciprocal is not the MRR. Range 1 and up.

    >>> score_one("first_relevant_rank", [0, 1])
    2.0
    """
    bounds, result = batch.relevant.bounds, np.full(len(batch.lists), np.nan)
    found = np.flatnonzero(bounds[1:] > bounds[:-1])
    result[found] = batch.relevant.rank[bounds[found]]
    return result


@register(
    "n_relevant", values="[0, inf)", cutoff="forbidden", undefined="never", ties="indifferent"
)
def n_relevant(batch: Batch, _measure: Measure) -> Floats:
    """Number of relevant items of the list, or of all judged ones where given.

    trec_eval's `num_rel`. Range 0 and up.

    >>> score_one("n_relevant", [3, 1])
    2.0
    """
    return batch.pool.n_relevant.astype(np.float64)


def _normalised(batch: Batch, measure: Measure, gain: Gain) -> Floats:
    value = _ratio(
        batch.order(measure).dcg(gain, measure.cutoff), batch.pool.ideal_dcg(gain, measure.cutoff)
    )
    if batch.options.ideal == "given":
        return value
    # The two sums round differently, so equal orders may come out an ulp above 1; more than that
    # (grades shown that are not among the judged ones) must stay in sight.
    return np.where((value > 1.0) & (value < 1.0 + 1e-9), 1.0, value)


def _ratio(part: Floats, whole: Floats | Ints) -> Floats:
    """The quotient, NaN where `whole` is 0."""
    result = np.full(len(part), np.nan)
    np.divide(part, whole, out=result, where=whole != 0)
    return result


def _k(measure: Measure) -> int:
    return cast("int", measure.cutoff)  # the registry requires one

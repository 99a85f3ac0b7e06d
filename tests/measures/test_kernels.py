"""The measures against literals, loops straight from the definitions, and published values."""

from __future__ import annotations

import csv
import doctest
import functools
import gzip
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankspark.errors import ConfigError, GainOverflow
from rankspark.measures import (
    MEASURES,
    PROFILES,
    Measure,
    Options,
    RankedLists,
    kernels,
    score,
    score_one,
)

SHARED = Path(__file__).resolve().parents[3] / "shared"
OURS = Options()
Grade = float | None


def seeded(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Case:
    """One list: grades in rank order, their ranks, which are tied to the one before, judgments."""

    grades: tuple[Grade, ...]
    ranks: tuple[int, ...]
    tied: tuple[bool, ...]
    judged: tuple[float, ...] | None = None


def case(
    grades: Sequence[Grade],
    ranks: Sequence[int] | None = None,
    judged: Sequence[float] | None = None,
) -> Case:
    return Case(
        grades=tuple(grades),
        ranks=tuple(ranks or range(1, len(grades) + 1)),
        tied=(False,) * len(grades),
        judged=None if judged is None else tuple(judged),
    )


def flat(values: Sequence[Sequence[Grade]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    offsets = np.array([0, *itertools.accumulate(map(len, values))], dtype=np.int64)
    return offsets, np.array([v for row in values for v in row], dtype=np.float64)


def ranked(cases: Sequence[Case]) -> RankedLists:
    """The cases as one batch, in arrays that nobody may write to."""
    offsets, relevance = flat([c.grades for c in cases])
    rank = np.array([r for c in cases for r in c.ranks], dtype=np.int64)
    tied = np.array([t for c in cases for t in c.tied], dtype=np.bool_)
    judged = None
    if cases and cases[0].judged is not None:
        judged = flat([c.judged or () for c in cases])
    for array in (offsets, relevance, rank, tied, *(judged or ())):
        array.setflags(write=False)
    return RankedLists(offsets, rank, relevance, tied=tied, judged=judged)


def table(
    texts: Sequence[str], cases: Sequence[Case], options: Options = OURS
) -> dict[str, list[float]]:
    """The value of each list, by measure."""
    measures = {text: Measure.parse(text) for text in texts}
    result = score(ranked(cases), list(measures.values()), options)
    assert all(array.dtype == np.float64 for array in result.values())
    return {text: result[measure].tolist() for text, measure in measures.items()}


def values(text: str, cases: Sequence[Case], options: Options = OURS) -> list[float]:
    return table([text], cases, options)[text]


# ------------------------------------------------------------------ by hand: ../shared/cases
@pytest.mark.parametrize(
    ("source", "text", "expected", "given_case"),
    [
        ("M01", "ndcg@3", 0.461997, case([4, 1, 0, 0, 7])),
        ("M01", "ndcg@5", 0.732153, case([4, 1, 0, 0, 7])),
        ("M01", "ndcg_exp@3", 0.114124, case([4, 1, 0, 0, 7])),
        ("M02", "ndcg@5", 0.33916, case([1], judged=[1, 1, 1, 1, 1])),
        ("M02", "precision@5", 0.2, case([1], judged=[1, 1, 1, 1, 1])),
        ("M02", "recall@5", 0.2, case([1], judged=[1, 1, 1, 1, 1])),
        ("M02", "ndcg@5", 1.0, case([1])),
        ("M02", "recall@5", 1.0, case([1])),
        ("M04", "mrr", 0.5, case([0, 1, 0])),
        ("M04", "ndcg@3", 0.63093, case([0, 1, 0])),
        ("M05", "mrr", 0.25, case([0, 0, 0, 1])),
        ("M05", "ndcg", 0.430677, case([0, 0, 0, 1])),
        ("M06", "ndcg@3", 0.919721, case([1, 0, 1])),
        ("M06", "ndcg@3", 0.0, case([0, 0, 0])),
        ("M10", "mrr", 1.0, case([1, 0, 0, 0])),
        ("M10", "mrr", 0.25, case([0, 0, 0, 1])),
        ("M12", "mrr@10", 0.0, case([0] * 11 + [1])),
        ("M14", "mrr@10", 0.142857, case([0, 0, 1], [1, 3, 7])),
        ("M14", "mrr@3", 0.0, case([0, 0, 1], [1, 3, 7])),
        ("M14", "precision@3", 0.0, case([0, 0, 1], [1, 3, 7])),
        ("M14", "ndcg@10", 0.333333, case([0, 0, 1], [1, 3, 7])),
        ("M14", "ndcg@10", 0.5, case([0, 0, 1])),
        ("M15", "ndcg@6", 0.785002, case([3, 2, 3, 0, 1, 2], judged=[3, 2, 3, 0, 1, 2, 3, 2])),
        ("M15", "ndcg_exp@6", 0.751083, case([3, 2, 3, 0, 1, 2], judged=[3, 2, 3, 0, 1, 2, 3, 2])),
        ("M15", "ndcg@6", 0.960808, case([3, 2, 3, 0, 1, 2])),
        ("M15", "ndcg_exp@6", 0.948811, case([3, 2, 3, 0, 1, 2])),
        ("M16", "ndcg@3", 0.789998, case([1, 2, 3])),
        ("M16", "ndcg_exp@3", 0.680606, case([1, 2, 3])),
        ("M17", "ndcg_exp@2", 1.0, case([3, 1], judged=[1, 3])),
        ("M20", "ndcg@3", 0.63093, case([-1, 2, 0])),
        ("M20", "ndcg@3", 0.5, case([-2, -1, 1])),
        ("M21", "ndcg@3", 0.631022, case([0, 1100, 1])),
        ("M23", "precision@10", 0.1, case([1, 0])),
        ("M24", "mrr@1", 1.0, case([1] * 20)),
        ("M24", "recall@1", 0.05, case([1] * 20)),
        ("M25", "recall@1", 0.5, case([1, 1, 0])),
        ("M25", "recall@2", 1.0, case([1, 1, 0])),
        ("M25", "precision@1", 1.0, case([1, 1, 0])),
        ("M25", "precision@3", 0.666667, case([1, 1, 0])),
        ("M26", "map@2", 0.2, case([1, 0, 1], judged=[1] * 5)),
        ("M26", "map", 0.333333, case([1, 0, 1], judged=[1] * 5)),
        ("M27", "ndcg@2", 0.613147, case([1, 0], judged=[1, 0, 1, 1])),
        ("M27", "ndcg", 0.469279, case([1, 0], judged=[1, 0, 1, 1])),
        ("M29", "ndcg@2", 0.386853, case([0, 1, 1])),
        ("M29", "ndcg@3", 0.693426, case([0, 1, 1])),
        ("M30", "dcg@4", 1.930677, case([1, 0, 1, 1])),
        ("M30", "ndcg@4", 0.906025, case([1, 0, 1, 1])),
        ("M31", "ndcg@4", 1.0, case([1, 0, 0, 0])),
        ("M31", "ndcg@4", 0.63093, case([0, 1, 0, 0])),
        ("M31", "ndcg@4", 0.5, case([0, 0, 1, 0])),
        ("M31", "ndcg@4", 0.430677, case([0, 0, 0, 1])),
        ("M37", "ndcg@3", 0.796708, case([1, 3, 0])),
        ("M37", "ndcg_exp@3", 0.70981, case([1, 3, 0])),
        ("M37", "ndcg@1", 0.333333, case([1, 3, 0])),
        ("M37", "ndcg_exp@1", 0.142857, case([1, 3, 0])),
        ("M38", "ndcg", 0.859719, case([1, 2, 0])),
        ("M38", "ndcg_exp@3", 0.796708, case([1, 2, 0])),
    ],
)
def test_cases_from_the_field_give_their_published_values(
    source: str, text: str, expected: float, given_case: Case
) -> None:
    assert values(text, [given_case]) == [pytest.approx(expected, abs=1e-6)], source


@pytest.mark.parametrize(
    ("text", "expected"),
    [("mrr", 0.5), ("precision@2", 0.5), ("recall@2", 1), ("ndcg@2", 0.859719)],
)
def test_a_threshold_touches_binary_measures_only(text: str, expected: float) -> None:
    """M33."""
    options = Options(relevant_from=2)
    assert score_one(text, [1, 2], options) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("profile", "text", "expected", "given_case"),
    [
        ("mllib", "ndcg@2", 1.408828, case([3, 1], judged=[1, 3])),  # M17
        ("mllib", "ndcg_exp@2", 1.408828, case([3, 1], judged=[1, 3])),
        ("mllib", "ndcg@2", 1.0, case([3, 1], judged=[3, 1])),
        # Its ideal walks the label of grade 0 as well: (2^3 - 1) / log2(3) is all there is of it.
        ("mllib", "ndcg@2", math.log2(3), case([3, 0], judged=[0, 3])),
        ("mllib", "map@2", 0.5, case([1, 0, 1], judged=[1] * 5)),  # M26
        ("mllib", "map", 0.333333, case([1, 0, 1], judged=[1] * 5)),
        ("sklearn", "ndcg@5", 1.0, case([1], judged=[1] * 5)),  # M02, among shown items
        ("trec", "ndcg@5", 0.33916, case([1], judged=[1] * 5)),
        ("trec", "map@2", 0.2, case([1, 0, 1], judged=[1] * 5)),
        ("trec", "rbp(p=0.5)", 0.625, case([3, 0, 1])),
        ("ranx", "rbp(p=0.5)", 1.625, case([3, 0, 1])),
    ],
)
def test_a_profile_gives_the_value_of_its_tool(
    profile: str, text: str, expected: float, given_case: Case
) -> None:
    result = values(text, [given_case], PROFILES[profile])
    assert result == [pytest.approx(expected, abs=1e-6)]


# ------------------------------------------------------------------ from the definitions, in loops
def log2_dcg(gains: Sequence[float], ranks: Sequence[int], k: float) -> float:
    return sum(g / math.log2(r + 1) for g, r in zip(gains, ranks, strict=True) if r <= k)


def naive(text: str, c: Case, relevant_from: float | None = None) -> float | None:
    """The value of one list in plain Python; None = undefined."""
    measure = Measure.parse(text)
    k = measure.cutoff or math.inf
    pool = [g for g in (c.grades if c.judged is None else c.judged) if g is not None]

    def relevant(grade: Grade) -> bool:
        return grade is not None and grade > 0 and grade >= (relevant_from or 0)

    n_relevant = sum(map(relevant, pool))
    hits = [rank for grade, rank in zip(c.grades, c.ranks, strict=True) if relevant(grade)]
    inside = [rank for rank in hits if rank <= k]

    if measure.name in ("ndcg", "ndcg_exp", "dcg", "dcg_exp"):

        def gain(grade: Grade) -> float:
            grade = max(grade or 0, 0)
            return 2**grade - 1 if measure.name.endswith("_exp") else grade

        best = sorted(map(gain, pool), reverse=True)
        ideal = log2_dcg(best, range(1, len(best) + 1), k)
        value = log2_dcg([gain(g) for g in c.grades], c.ranks, k)
        if ideal == 0:
            return None
        return value / ideal if measure.name.startswith("n") else value
    if measure.name == "err":
        value, arrives = 0.0, 1.0
        for grade, rank in zip(c.grades, c.ranks, strict=True):
            stops = (2 ** max(grade or 0, 0) - 1) / 2 ** float(measure.param("max_grade"))
            value += arrives * stops / rank if rank <= k else 0
            arrives *= 1 - stops
        return value if any(grade > 0 for grade in pool) else None
    if measure.name == "judged":
        pairs = zip(c.grades, c.ranks, strict=True)
        return sum(grade is not None and rank <= k for grade, rank in pairs) / k
    if measure.name == "n_relevant":
        return n_relevant
    if measure.name == "first_relevant_rank":
        return min(hits, default=None)
    if n_relevant == 0:
        return None
    if measure.name == "mrr":
        return 1 / inside[0] if inside else 0
    if measure.name == "precision":
        return len(inside) / k
    if measure.name == "recall":
        return len(inside) / n_relevant
    if measure.name == "hit":
        return 1 if inside else 0
    if measure.name == "f1":
        p, r = len(inside) / k, len(inside) / n_relevant
        return 2 * p * r / (p + r) if inside else 0
    if measure.name == "map":
        return sum(i / rank for i, rank in enumerate(inside, 1)) / n_relevant
    if measure.name == "r_precision":
        return sum(rank <= n_relevant for rank in hits) / n_relevant
    if measure.name == "rbp":
        p = float(measure.param("p"))
        return (1 - p) * sum(p ** (rank - 1) for rank in hits)
    assert measure.name == "bpref"
    n_irrelevant, before, value = len(pool) - n_relevant, 0, 0.0
    for grade in c.grades:
        if relevant(grade):
            worst = min(n_irrelevant, n_relevant)
            value += 1 - min(before, n_relevant) / worst if before else 1
        elif grade is not None:
            before += 1
    return value / n_relevant


TEXTS = [
    "mrr", "mrr@3", "ndcg", "ndcg@1", "ndcg@4", "ndcg_exp", "ndcg_exp@3", "dcg", "dcg@4",
    "dcg_exp", "dcg_exp@2", "precision@1", "precision@4", "recall@1", "recall@5", "hit@1", "hit@3",
    "f1@3", "map", "map@4", "r_precision", "bpref", "err", "err@3", "err@4(max_grade=3)", "rbp",
    "rbp(p=0.3)", "judged@1", "judged@4", "first_relevant_rank", "n_relevant",
]  # fmt: skip
WITHIN_ONE = {name for name, spec in MEASURES.items() if spec.range == "[0, 1]"}
AVERAGED = [text for text in TEXTS if "ties" in Measure.parse(text).spec.params]

GRADES = {
    "graded": st.sampled_from([0, 0, 0, 1, 2, 3, 0.5, None]),
    "none relevant": st.sampled_from([0, None]),
    "all relevant": st.sampled_from([1, 2, 3]),
    "clicks": st.sampled_from([0, 0, 0, 1]),
    # Not smaller: 2^grade - 1 loses its digits, here and in the definition, each its own.
    "any": st.floats(0.01, 3),
}


@st.composite
def one_case(draw: st.DrawFn, *, judged: bool = False, longest: int = 12) -> Case:
    grades = draw(st.lists(GRADES[draw(st.sampled_from(sorted(GRADES)))], max_size=longest))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 5])) for _ in grades]
    tied = [i > 0 and draw(st.booleans()) for i in range(len(grades))]
    pool = None
    if judged:
        known = [grade for grade in grades if grade is not None]
        unseen = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, 3.0]), max_size=4))
        pool = tuple(draw(st.permutations(known + unseen)))
    return Case(tuple(grades), tuple(itertools.accumulate(steps)), tuple(tied), pool)


batches = st.booleans().flatmap(
    lambda judged: st.lists(one_case(judged=judged), min_size=1, max_size=5)
)


@seeded(250)
@given(cases=batches, relevant_from=st.sampled_from([None, None, 1, 2]), skip=st.booleans())
def test_a_measure_is_its_definition(
    cases: list[Case], relevant_from: float | None, skip: bool
) -> None:
    options = Options(relevant_from=relevant_from, no_relevant="skip" if skip else "zero")
    for text, scored in table(TEXTS, cases, options).items():
        name = Measure.parse(text).name
        for value, c in zip(scored, cases, strict=True):
            expected = naive(text, c, relevant_from)
            if expected is None and (skip or name == "first_relevant_rank"):
                assert math.isnan(value), text
            else:
                assert value == pytest.approx(expected or 0, rel=1e-12, abs=1e-15), text
                assert name not in WITHIN_ONE or 0 <= value <= 1, text
                assert math.copysign(1, value) == 1, text


@pytest.mark.parametrize("text", TEXTS)
def test_a_list_of_ten_thousand_items_is_no_exception(text: str) -> None:
    random = np.random.default_rng(7)
    levels = np.array([0, 0, 0, 0, 1, 2, 3, np.nan])
    drawn = [None if np.isnan(g) else float(g) for g in random.choice(levels, 10_000)]
    # Ranks with gaps run past 16,384, beyond which weights are not looked up.
    long = case(drawn, np.cumsum(random.integers(1, 4, 10_000)).tolist())
    [value] = values(text, [long])
    assert value == pytest.approx(naive(text, long), rel=1e-9)


@pytest.mark.parametrize("text", TEXTS)
def test_a_long_list_that_is_all_relevant_is_no_exception(text: str) -> None:
    long = case([1.0] * 3000)
    [value] = values(text, [long])
    assert value == pytest.approx(naive(text, long), rel=1e-9)


@seeded(60)
@given(one_case(longest=30))
def test_the_ideal_order_has_an_ndcg_of_exactly_one(c: Case) -> None:
    best = sorted((grade or 0 for grade in c.grades), reverse=True)
    expected = 1.0 if any(best) else 0.0
    for text in ("ndcg", "ndcg@3", "ndcg_exp", "ndcg_exp@3"):
        assert values(text, [case(best)]) == [expected]
        assert values(text, [case(best, judged=best[::-1])]) == [expected]


def test_an_order_worse_by_less_than_rounding_stays_within_one() -> None:
    near = case([1.0, 1.0 + 2**-52] * 20)
    assert values("ndcg", [near])[0] <= 1.0


# ------------------------------------------------------------------ what must not matter
@seeded(40)
@given(batches.filter(lambda cases: len(cases) > 1), st.sampled_from(["zero", "skip"]))
def test_a_list_has_the_same_doubles_in_any_batch(cases: list[Case], no_relevant: str) -> None:
    options = Options(no_relevant=no_relevant)  # type: ignore[arg-type]
    texts = [*TEXTS, *(with_ties(text) for text in AVERAGED)]
    measures = [Measure.parse(text) for text in texts]
    together = score(ranked(cases), measures, options)
    for i, c in enumerate(cases):
        alone = score(ranked([c]), measures, options)
        for measure in measures:
            assert alone[measure].tobytes() == together[measure][i : i + 1].tobytes(), measure


def test_long_lists_have_the_same_doubles_in_any_batch() -> None:
    random = np.random.default_rng(3)
    lengths = [10_000, 1, 0, 37, 9_999, 0, 128]
    cases = [
        replace(
            case(np.round(random.exponential(1, n), 3).clip(0, 4).tolist()),
            tied=tuple(bool(t) for t in random.random(n) < 0.3),
        )
        for n in lengths
    ]
    texts = [*TEXTS, *(with_ties(text) for text in AVERAGED)]
    texts = [text for text in texts if "max_grade=3" not in text]
    measures = [Measure.parse(text) for text in texts]
    together = score(ranked(cases), measures)
    for i, c in enumerate(cases):
        alone = score(ranked([c]), measures)
        for measure in measures:
            assert alone[measure].tobytes() == together[measure][i : i + 1].tobytes(), measure


def test_order_and_repetition_of_measures_do_not_matter() -> None:
    """M29."""
    lists = RankedLists.from_grades([0, 1, 1], [3, 0, 1])
    for texts in (["ndcg@2", "ndcg@3", "ndcg@3", "ndcg@2"], ["ndcg@3", "dcg", "ndcg@2"]):
        measures = [Measure.parse(text) for text in texts]
        for _ in range(2):
            result = score(lists, measures)
            assert list(result) == list(dict.fromkeys(measures))
            assert result[Measure("ndcg", 2)][0] == pytest.approx(0.386853, abs=1e-6)
            assert result[Measure("ndcg", 3)][0] == pytest.approx(0.693426, abs=1e-6)


def test_a_result_may_be_written_to_without_harm_to_another() -> None:
    measures = [Measure.parse(text) for text in TEXTS]
    lists = RankedLists.from_grades([0, 1, 1], [3, 0, 1])
    fresh, spoiled = score(lists, measures), score(lists, measures)
    for measure in measures:
        spoiled[measure][:] = -1
        others = [m for m in measures if spoiled[m][0] != -1]
        assert all((spoiled[m] == fresh[m]).all() for m in others)


def test_no_lists_and_empty_lists_are_fine() -> None:
    for text in [*TEXTS, *(with_ties(text) for text in AVERAGED)]:
        assert values(text, []) == []
        empty = values(text, [case([]), case([])])
        assert all(math.isnan(v) if text == "first_relevant_rank" else v == 0 for v in empty)


# ------------------------------------------------------------------ undefined
@pytest.mark.parametrize("text", TEXTS)
def test_a_list_without_relevant_items_is_zero_or_skipped(text: str) -> None:
    cases = [case([0, None]), case([2, 0])]
    zero, scored = values(text, cases)
    skipped, same = values(text, cases, Options(no_relevant="skip"))
    assert scored == same
    if text == "first_relevant_rank":
        assert math.isnan(zero)
    elif not text.startswith("judged"):
        assert zero == 0
    always_defined = text.startswith(("judged", "n_relevant"))
    assert skipped == zero if always_defined else math.isnan(skipped)


@pytest.mark.parametrize("text", ["mrr", "ndcg@5", "recall@5", "map", "r_precision"])
def test_relevant_items_that_were_never_shown_make_a_list_defined(text: str) -> None:
    """Missed is 0, undefined is null (M12)."""
    missed = case([0, 0], judged=[0, 0, 1])
    assert values(text, [missed], Options(no_relevant="skip")) == [0]


# ------------------------------------------------------------------ ties
def with_ties(text: str) -> str:
    head, _, params = text.partition("(")
    return f"{head}(ties=average{',' if params else ')'}{params}"


def orders(c: Case) -> Iterator[Case]:
    """Every arrangement of the items of each tie; the ranks stay."""
    ties: list[list[Grade]] = []
    for grade, tied in zip(c.grades, c.tied, strict=True):
        if not tied:
            ties.append([])
        ties[-1].append(grade)
    for arrangement in itertools.product(*(itertools.permutations(tie) for tie in ties)):
        yield replace(c, grades=tuple(itertools.chain.from_iterable(arrangement)))


@seeded(60)
@given(
    cases=st.booleans().flatmap(
        lambda judged: st.lists(one_case(judged=judged, longest=5), min_size=1, max_size=3)
    ),
    relevant_from=st.sampled_from([None, 2]),
)
def test_averaged_ties_are_the_mean_over_every_order(
    cases: list[Case], relevant_from: float | None
) -> None:
    options = Options(relevant_from=relevant_from)
    asked = table([with_ties(text) for text in AVERAGED], cases, options)
    by_option = table(AVERAGED, cases, replace(options, ties="average"))
    arrangements = [list(orders(c)) for c in cases]
    for text in AVERAGED:
        assert asked[with_ties(text)] == by_option[text]
        for value, each in zip(by_option[text], arrangements, strict=True):
            mean = sum(naive(text, order, relevant_from) or 0 for order in each) / len(each)
            assert value == pytest.approx(mean, rel=1e-12, abs=1e-15), text
            assert Measure.parse(text).name not in WITHIN_ONE or 0 <= value <= 1, text


@seeded(60)
@given(batches)
def test_without_ties_averaging_gives_the_very_same_doubles(cases: list[Case]) -> None:
    untied = [replace(c, tied=(False,) * len(c.grades)) for c in cases]
    averaged = table(AVERAGED, untied, Options(ties="average"))
    assert averaged == table(AVERAGED, untied)


def test_a_tie_never_reaches_into_the_list_before() -> None:
    cases = [replace(case([0, 1]), tied=(False, False)), replace(case([1, 0]), tied=(True, False))]
    assert values("mrr(ties=average)", cases) == [0.5, 1.0]


def test_ties_that_are_unknown_or_not_offered_are_refused() -> None:
    lists = RankedLists.from_grades([0, 1])
    with pytest.raises(ValueError, match="tied"):
        score(lists, [Measure.parse("ndcg(ties=average)")])
    for text in ("bpref", "err@10", "judged@10", "first_relevant_rank"):
        with pytest.raises(ConfigError, match=r"with ties=average only dcg, .*found '" + text):
            values(text, [case([0, 1])], Options(ties="average"))


# ------------------------------------------------------------------ refused
@pytest.mark.parametrize(
    ("text", "grades"),
    [
        ("ndcg_exp@3", [0, 1100, 1]),  # M21
        ("ndcg_exp@1", [0, 1100, 1]),
        ("dcg_exp@3", [0, 1024, 1]),
        ("dcg_exp@3", [1023.9, 1023.9, 1023.9]),
        ("dcg", [1e308, 1e308, 1e308]),
        ("ndcg", [0, math.inf]),
        ("rbp(ties=average)", None),
        ("err@10", [0, 5]),
    ],
)
def test_a_gain_that_overflows_is_an_error_in_one_line(
    text: str, grades: list[Grade] | None
) -> None:
    options = OURS
    if grades is None:
        grades, options = [math.inf, 1], Options(rbp_gain="grade")
    for tied in (False, True):
        with pytest.raises(GainOverflow) as caught:
            values(text, [replace(case(grades), tied=(tied,) * len(grades))], options)
        assert "\n" not in str(caught.value)


def test_a_huge_grade_is_no_matter_to_measures_that_do_not_raise_two_to_it() -> None:
    assert score_one("mrr", [0, 1100]) == 0.5
    assert score_one("dcg_exp", [1023.0]) == 2.0**1023
    assert score_one("err@10(max_grade=5)", [5]) == 31 / 32


@pytest.mark.parametrize("threshold", [0, -1, math.nan, math.inf])
def test_a_threshold_that_is_no_number_above_zero_is_refused(threshold: float) -> None:
    with pytest.raises(ConfigError, match="relevant_from"):
        Options(relevant_from=threshold)


def test_arrays_that_do_not_fit_together_are_refused() -> None:
    good = ranked([case([0, 1], judged=[0, 1])])
    short = np.zeros(1)
    for changes in (
        {"offsets": np.array([0, 3])},
        {"offsets": np.array([1, 2])},
        {"offsets": np.zeros(0, dtype=np.int64)},
        {"relevance": short},
        {"rank": np.array([1])},
        {"tied": np.array([False])},
        {"judged": (np.array([0]), short)},
        {"judged": (np.array([0, 2]), short)},
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            replace(good, **changes)


def test_every_measure_shows_its_value_on_an_example_that_is_true() -> None:
    for name, spec in MEASURES.items():
        assert ">>> " in (spec.kernel.__doc__ or ""), name
    assert doctest.testmod(kernels).failed == 0


# ------------------------------------------------------------------ published values
#: Their name -> ours. Values of one meaning, `../shared/reference/README.md`.
NAMES = {
    "recip_rank": "mrr", "ndcg": "ndcg", "ndcg_exp": "ndcg_exp", "ap": "map", "p": "precision",
    "recall": "recall", "success": "hit", "rprec": "r_precision", "bpref": "bpref", "err": "err",
    "num_rel": "n_relevant", "rbp_p0.8": "rbp", "rbp_p0.95": "rbp(p=0.95)",
    "rbp_rawgrade_p0.8": "rbp", "rbp_rawgrade_p0.95": "rbp(p=0.95)",
}  # fmt: skip
#: Quantities that are none of our measures.
NOT_OURS = {"num_ret", "num_rel_ret", "ap_over_retrieved_relevant"}

Scored = list[tuple[str, float]]  # item, score


def by_id_descending(items: Scored) -> Scored:
    return sorted(sorted(items, reverse=True), key=lambda item: -item[1])


def in_file_order(items: Scored) -> Scored:
    return sorted(items, key=lambda item: -item[1])


#: How each library orders tied scores. ranx and sklearn(ignore_ties) leave it open.
TIE_ORDER = {
    "pytrec_eval": by_id_descending,
    "ir_measures/pytrec_eval": by_id_descending,
    "ir_measures/gdeval": by_id_descending,
    "ir_measures/msmarco": in_file_order,
    "ir_measures/cwl_eval": in_file_order,
    "sklearn": in_file_order,
}


def lightgbm() -> tuple[dict[str, dict[str, Scored]], dict[str, dict[str, float]]]:
    folder = SHARED / "data" / "lightgbm-lambdarank"
    runs: dict[str, dict[str, Scored]] = {"feature_91": {}, "feature_12": {}}
    qrels: dict[str, dict[str, float]] = {}
    lines = enumerate((folder / "rank.test").read_text().splitlines())
    for group, size in enumerate((folder / "rank.test.query").read_text().split(), 1):
        qrels[str(group)] = {}
        for number, line in itertools.islice(lines, int(size)):
            grade, *features = line.split()
            raw = dict(feature.split(":") for feature in features)
            qrels[str(group)][f"{number:04}"] = float(grade)
            for system, run in runs.items():
                value = float(raw.get(system.removeprefix("feature_"), 0))
                run.setdefault(str(group), []).append((f"{number:04}", value))
    return runs, qrels


def dl19() -> tuple[dict[str, dict[str, Scored]], dict[str, dict[str, float]]]:
    folder = SHARED / "data" / "trec-dl19-passage"
    qrels: dict[str, dict[str, float]] = defaultdict(dict)
    for line in (folder / "qrels.dl19-passage.txt").read_text().splitlines():
        query, _, item, grade = line.split()
        qrels[query][item] = float(grade)
    run: dict[str, Scored] = defaultdict(list)
    [path] = folder.glob("run.*.gz")
    with gzip.open(path, "rt") as lines:
        for line in lines:
            query, _, item, _, value, _ = line.split()
            run[query].append((item, float(value)))
    return {"bm25-default": run}, qrels


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")
@pytest.mark.parametrize(
    ("file", "load", "covered"),
    [("lightgbm_rank_test.csv", lightgbm, 7_000), ("trec_dl19_passage.csv", dl19, 6_000)],
)
def test_published_values_come_out(
    file: str,
    load: Callable[[], tuple[dict[str, dict[str, Scored]], dict[str, dict[str, float]]]],
    covered: int,
) -> None:
    runs, qrels = load()
    wanted: dict[tuple[str, str, str, str], dict[str, float]] = defaultdict(dict)
    with (SHARED / "reference" / file).open() as rows:
        for row in csv.DictReader(rows):
            if row["query_id"] in qrels and row["metric"].partition("(")[0] not in NOT_OURS:
                key = (row["system"], row["library"], row["metric"], row["k"])
                wanted[key][row["query_id"]] = float(row["value"])

    judged = {query: tuple(grades.values()) for query, grades in qrels.items()}

    @functools.cache
    def ordered(system: str, library: str, query: str) -> Case:
        items = TIE_ORDER.get(library, in_file_order)(runs[system][query])
        grades = tuple(qrels[query].get(item) for item, _ in items)
        tied = (False, *(a[1] == b[1] for a, b in itertools.pairwise(items)))
        return Case(grades, tuple(range(1, len(items) + 1)), tied, judged[query])

    checked = 0
    for (system, library, metric, k), expected in wanted.items():
        by_query = {query: ordered(system, library, query) for query in expected}
        if library not in TIE_ORDER:
            by_query = {query: c for query, c in by_query.items() if not any(c.tied)}
        name, _, level = metric.partition("(rel>=")
        options = replace(
            PROFILES["sklearn" if library == "sklearn" else "trec"],
            relevant_from=float(level.rstrip(")")) if level else None,
            rbp_gain="grade" if "rawgrade" in name else "binary",  # profile ranx
        )
        text = f"{NAMES[name]}@{k}" if k else NAMES[name]
        np.testing.assert_allclose(
            values(text, list(by_query.values()), options),
            [expected[query] for query in by_query],
            rtol=0,
            atol=1e-5 if library == "ir_measures/gdeval" else 1e-9,  # gdeval prints 5 decimals
            err_msg=f"{text} of {library} on {system}, queries {list(by_query)}",
        )
        checked += len(by_query)
    assert checked >= covered

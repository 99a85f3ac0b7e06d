"""A measure as a value: its text form, its column name, and what is refused."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankspark.errors import ConfigError
from rankspark.measures import MEASURES, Measure

CUTOFFS = {"required", "optional"}


@st.composite
def measures(draw: st.DrawFn) -> Measure:
    name = draw(st.sampled_from(sorted(MEASURES)))
    spec = MEASURES[name]
    cutoff = draw(st.integers(1, 2**31 - 1)) if spec.cutoff in CUTOFFS else None
    if spec.cutoff == "optional" and draw(st.booleans()):
        cutoff = None
    params: list[tuple[str, float | str]] = []
    for key, param in spec.params.items():
        if draw(st.booleans()):
            if param.words:
                params.append((key, draw(st.sampled_from(param.words))))
            else:
                between = st.floats(param.above, param.below, exclude_min=True, exclude_max=True)
                params.append((key, draw(between)))
    return Measure(name, cutoff, tuple(params))


@given(measures())
def test_the_text_of_a_measure_parses_back_to_it(measure: Measure) -> None:
    assert Measure.parse(str(measure)) == measure
    assert (
        Measure.parse(f"  {str(measure).upper().replace('(', ' ( ').replace('@', ' @ ')} ")
        == measure
    )
    assert pickle.loads(pickle.dumps(measure)) == measure


@given(measures(), measures())
def test_two_measures_share_a_column_name_only_if_they_are_equal(a: Measure, b: Measure) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", a.column_name)
    assert (a.column_name == b.column_name) == (a == b)


def test_column_names_of_neighbouring_measures_differ() -> None:
    texts = [
        "ndcg", "ndcg@1", "ndcg@10", "ndcg_exp", "ndcg_exp@10", "ndcg@10(ties=average)",
        "ndcg_exp@10(ties=average)", "dcg@10", "dcg_exp@10", "rbp", "rbp(p=0.08)", "rbp(p=0.81)",
        "rbp(p=1e-8)", "rbp(p=1e-18)", "rbp(p=0.81,ties=average)", "err", "err(max_grade=3)",
        "err(max_grade=3.5)", "err@3", "err(max_grade=35)", "map@3", "mrr@3",
    ]  # fmt: skip
    assert len({Measure.parse(text).column_name for text in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "canonical", "column"),
    [
        ("ndcg@10", "ndcg@10", "ndcg_at_10"),
        (" nDCG @ 010 ", "ndcg@10", "ndcg_at_10"),
        ("mrr", "mrr", "mrr"),
        ("mrr()", "mrr", "mrr"),
        ("rbp(p=0.8)", "rbp", "rbp"),
        ("rbp( p = .95 )", "rbp(p=0.95)", "rbp_p_0_95"),
        ("rbp(p=1e-5)", "rbp(p=1e-05)", "rbp_p_1em05"),
        ("rbp(ties=average, p=0.5)", "rbp(p=0.5,ties=average)", "rbp_p_0_5_ties_average"),
        ("ndcg@10(ties=order)", "ndcg@10", "ndcg_at_10"),
        ("ndcg@10(ties=average)", "ndcg@10(ties=average)", "ndcg_at_10_ties_average"),
        ("err@20(max_grade=3.0)", "err@20(max_grade=3)", "err_at_20_max_grade_3"),
        ("r_precision", "r_precision", "r_precision"),
    ],
)
def test_a_text_has_one_canonical_form_and_column(text: str, canonical: str, column: str) -> None:
    measure = Measure.parse(text)
    assert (str(measure), measure.column_name) == (canonical, column)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ndgc@10", "did you mean 'ndcg'?"),
        ("xyz", "one of bpref, dcg"),
        ("ndcg@0", "a whole number from 1"),
        ("ndcg@1.5", "a whole number from 1"),
        ("ndcg@-1", "a whole number from 1"),
        ("ndcg@", "a whole number from 1"),
        ("ndcg@ten", "a whole number from 1"),
        ("ndcg@2147483648", "2147483647"),
        ("ndcg@" + "9" * 5000, "a whole number from 1"),
        ("ndcg@\u0661", "a whole number from 1"),
        ("precision", "write precision@10"),
        ("bpref@5", "leave @5 out"),
        ("rbp(q=0.8)", "the parameter 'q'"),
        ("rbp(tie=average)", "did you mean 'ties'?"),
        ("n_relevant(p=1)", "no parameter"),
        ("bpref(ties=average)", "the parameter 'ties'"),
        ("rbp(p=0)", "a number above 0 and below 1"),
        ("rbp(p=1)", "a number above 0 and below 1"),
        ("rbp(p=-0.5)", "p=-0.5"),
        ("rbp(p=nan)", "p=nan"),
        ("rbp(p=0_5)", "p=0_5"),
        ("rbp(p=0.5,p=0.6)", "p=0.6 a second time"),
        ("err(max_grade=1e9)", "below 1024"),
        ("ndcg@10(ties=random)", "order or average"),
        ("rbp(p)", "name=value"),
        ("rbp(=1)", "name=value"),
        ("rbp(p=0.5", "name@k(param=value)"),
        ("ndcg@10)", "found 'ndcg@10)'"),
        ("ndcg@10 ndcg@5", "name@k(param=value)"),
        ("", "name@k(param=value)"),
    ],
)
def test_what_is_no_measure_is_refused_in_one_line_that_helps(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Measure.parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cutoff", [0, -3, 2.5, True, "10"])
def test_a_measure_made_without_parsing_is_checked_as_well(cutoff: object) -> None:
    with pytest.raises(ConfigError, match="a whole number from 1"):
        Measure("ndcg", cutoff)  # type: ignore[arg-type]


def test_measures_that_measure_the_same_are_equal_and_hash_alike() -> None:
    default = Measure("rbp", None, (("ties", "order"), ("p", 0.8)))
    assert default == Measure.parse("rbp")
    assert len({default, Measure.parse("rbp(p=0.80)"), Measure("rbp")}) == 1
    assert Measure("err", 10, (("max_grade", 3),)) == Measure.parse("err@10(max_grade=3.0)")


def test_the_registry_says_what_a_listing_of_the_measures_needs() -> None:
    assert set(MEASURES) == {
        "mrr", "ndcg", "ndcg_exp", "dcg", "dcg_exp", "precision", "recall", "hit", "f1", "map",
        "r_precision", "bpref", "err", "rbp", "judged", "first_relevant_rank", "n_relevant",
    }  # fmt: skip
    for name, spec in MEASURES.items():
        assert len(spec.definition.split()) >= 4, name
        assert "\n" not in spec.definition, name
        assert re.fullmatch(r"\[[01], (1\]|inf\))", spec.range), name

"""Adjusted p-values against naive versions; their intervals against the p-values."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankspark.stats import RatioMoments, adjust, difference, independent

seeded = settings(max_examples=100, deadline=None, derandomize=True)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def holm_rejects(p: list[float], alpha: float) -> set[int]:
    """The procedure itself: from the smallest p on, until one does not make it."""
    rejected: set[int] = set()
    for i in sorted(range(len(p)), key=p.__getitem__):
        if not p[i] * (len(p) - len(rejected)) < alpha:
            break
        rejected.add(i)
    return rejected


def benjamini_hochberg_rejects(p: list[float], alpha: float) -> set[int]:
    """The procedure itself: all up to the last one that makes it."""
    order = sorted(range(len(p)), key=p.__getitem__)
    last = [r for r, i in enumerate(order) if len(p) * p[i] / (r + 1) < alpha]
    return set(order[: max(last, default=-1) + 1])


@seeded
@given(p_values, st.sampled_from([0.01, 0.05, 0.3]))
def test_what_is_below_alpha_is_what_the_procedure_rejects(p: list[float], alpha: float) -> None:
    for method, naive in (
        ("holm", holm_rejects),
        ("benjamini_hochberg", benjamini_hochberg_rejects),
    ):
        adjusted = adjust(p, method, alpha=alpha)
        assert {i for i, one in enumerate(adjusted) if one.p < alpha} == naive(p, alpha)
        assert all(one.p >= raw and one.p <= 1 for one, raw in zip(adjusted, p, strict=True))


@seeded
@given(p_values, st.sampled_from(["holm", "benjamini_hochberg", "none"]))
def test_an_interval_at_the_level_excludes_0_exactly_when_the_adjusted_p_is_small(p, method):
    for one, raw in zip(adjust(p, method), p, strict=True):
        if not math.isclose(raw, one.alpha, rel_tol=1e-12):
            assert (raw < one.alpha) == (one.p < 0.05)
        assert 0.05 / len(p) <= one.alpha * (1 + 1e-12)
        assert one.alpha <= 0.05


def test_the_adjusted_interval_of_a_difference() -> None:
    a, b = RatioMoments.of([0, 1, 0, 1], [1] * 4), RatioMoments.of([2, 3, 2, 3], [1] * 4)
    pair = independent(a, b)
    first, _ = adjust([difference(pair).p, 0.9], "holm")
    plain, wide = difference(pair), difference(pair, alpha=first.alpha)
    assert first.alpha == 0.025
    assert 0 < wide.ci_low < plain.ci_low
    assert wide.p == plain.p


def test_holm_by_hand() -> None:
    # 4 · .01, then max(.04, 3 · .02), then max(.06, 2 · .03), then max(.06, .04).
    assert [one.p for one in adjust([0.02, 0.01, 0.04, 0.03], "holm")] == pytest.approx(
        [0.06, 0.04, 0.06, 0.06]
    )
    # One is rejected at .05 / 4, and the procedure stopped at .05 / 3.
    levels = [one.alpha for one in adjust([0.02, 0.01, 0.04, 0.03], "holm")]
    assert levels == pytest.approx([0.05 / 3, 0.05 / 4, 0.05 / 3, 0.05 / 3])


def test_benjamini_hochberg_by_hand() -> None:
    # 4 p / rank: .04 .04 .0533 .6; the third and the fourth are not rejected: 2 of 4 are.
    found = adjust([0.6, 0.01, 0.02, 0.04], "benjamini_hochberg")
    assert [one.p for one in found] == pytest.approx([0.6, 0.04, 0.04, 0.16 / 3])
    assert {one.alpha for one in found} == {0.025}


def test_what_could_not_be_computed_stays_none_and_is_not_counted() -> None:
    first, second, third = adjust([0.01, None, 0.02], "holm")
    assert (first.p, second.p, third.p) == (0.02, None, 0.02)
    assert (second.alpha, second.family_size) == (None, 2)
    assert adjust([], "holm") == []
    assert adjust([None], "benjamini_hochberg")[0].family_size == 0

"""The parts of a change of MRR against the change itself."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankspark.stats import RatioMoments, decompose, difference, independent, paired

seeded = settings(max_examples=50, deadline=None, derandomize=True)
# A unit is the ranks of the first relevant item of its queries; 0: none within the cutoff.
group = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=2, max_size=12)


def shares(units: list[list[int]]) -> dict[int, RatioMoments]:
    n = [len(ranks) for ranks in units]
    return {r: RatioMoments.of([u.count(r) for u in units], n) for r in range(1, 6)}


def mrr(units: list[list[int]]) -> RatioMoments:
    # 60 is a multiple of every rank, so this is exact.
    x = [sum(60 // rank for rank in ranks if rank) for ranks in units]
    return RatioMoments.of(x, [len(ranks) for ranks in units], scale=60)


@seeded
@given(group, group)
def test_the_parts_add_up_to_the_change_of_mrr(a, b) -> None:
    pairs = {r: independent(shares(a)[r], shares(b)[r]) for r in range(1, 6)}
    found = decompose(pairs)
    whole = difference(independent(mrr(a), mrr(b)))
    assert found.total == whole.effect
    exact = sum((pairs[r].treatment.mean - pairs[r].control.mean) / r for r in pairs)
    assert float(exact) == found.total
    assert sum(part.contribution for part in found.ranks) == pytest.approx(found.total, abs=1e-15)


@seeded
@given(group)
def test_so_do_those_of_paired_rankers(units) -> None:
    other = [[(rank + 1) % 6 for rank in ranks] for ranks in units]
    n = [len(ranks) for ranks in units]
    pairs = {}
    for r in range(1, 6):
        gaps = [q.count(r) - p.count(r) for p, q in zip(units, other, strict=True)]
        pairs[r] = paired(shares(units)[r], shares(other)[r], RatioMoments.of(gaps, n))
    effect = difference(independent(mrr(units), mrr(other))).effect
    assert decompose(pairs).total == effect


def test_a_part_is_a_difference_of_shares_over_its_rank() -> None:
    a, b = shares([[1, 2], [3, 2], [2, 0]]), shares([[1, 1], [3, 1], [2, 2]])
    pair = independent(a[2], b[2])
    (part,) = decompose({2: pair}, alpha=0.1).ranks
    whole = difference(pair, alpha=0.1)
    assert (part.share_c, part.share_t) == (0.5, float(Fraction(1, 3)))
    assert part.contribution == float(Fraction(-1, 12))
    assert (part.se, part.ci_low, part.ci_high) == (
        whole.se / 2,
        whole.ci_low / 2,
        whole.ci_high / 2,
    )
    assert part.p == whole.p


def test_a_rank_at_which_nothing_varies_has_a_part_without_an_interval() -> None:
    flat = shares([[1, 2], [1, 2]])
    found = decompose({1: independent(flat[1], flat[1])})
    assert (found.total, found.ranks[0].contribution) == (0.0, 0.0)
    assert (found.ranks[0].se, found.ranks[0].ci_low, found.ranks[0].p) == (None, None, None)


def test_without_queries_there_is_no_change() -> None:
    empty, some = RatioMoments.of([], []), RatioMoments.of([1, 0], [1, 1])
    found = decompose({1: independent(empty, some)})
    assert (found.total, found.ranks[0].contribution) == (None, None)
    assert decompose({}).total is None
    with pytest.raises(ValueError, match="from 1"):
        decompose({0: independent(some, some)})

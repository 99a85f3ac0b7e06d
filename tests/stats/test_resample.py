"""The deterministic bootstrap against one unit and one replicate at a time."""

import hashlib

import numpy as np
import pytest
from scipy import stats

import rankspark.stats.resample as module
from rankspark.stats import RatioMoments, bootstrap, difference, independent, replicates
from rankspark.stats.resample import Replicates, poisson_weights, seeds

IDS = [f"unit-{i}" for i in range(60)]


def naive_weight(unit: str, replicate: int) -> int:
    mask = 2**64 - 1
    digest = hashlib.sha256(f"rankspark|bootstrap|1|{unit}".encode()).digest()
    z = (int.from_bytes(digest[:8], "big") + (replicate + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    u = ((z ^ (z >> 31)) >> 11) * 2.0**-53
    return int(stats.poisson.ppf(u, 1)) if u > stats.poisson.cdf(0, 1) else 0


def test_the_weights_are_poisson_quantiles_of_the_unit_s_own_stream() -> None:
    found = poisson_weights(seeds(IDS[:20]), 0, 40)
    assert found.tolist() == [[naive_weight(unit, b) for b in range(40)] for unit in IDS[:20]]
    assert (
        poisson_weights(seeds(IDS), 17, 23) == poisson_weights(seeds(IDS), 0, 40)[:, 17:23]
    ).all()


def test_the_weights_have_the_poisson_distribution() -> None:
    found = poisson_weights(seeds([str(i) for i in range(500)]), 0, 400).ravel()
    counts = np.bincount(found, minlength=6)[:6]
    assert (
        stats.chisquare(
            [*counts, len(found) - counts.sum()],
            len(found) * np.array([*stats.poisson.pmf(range(6), 1), stats.poisson.sf(5, 1)]),
        ).pvalue
        > 1e-4
    )


def test_the_thresholds_are_the_distribution_to_the_last_bit_of_a_double() -> None:
    ours, theirs = module._QUANTILES / 2.0**53, stats.poisson.cdf(range(18), 1)
    assert ours.tolist() == pytest.approx(theirs.tolist(), abs=3e-16)


def test_any_partitioning_order_and_chunk_gives_the_same_sums(monkeypatch) -> None:
    x, n = list(range(60)), [1 + i % 5 for i in range(60)]
    whole = replicates(IDS, x, n, count=50)
    parts = [replicates(IDS[i::7], x[i::7], n[i::7], count=50) for i in range(7)]
    added = sum(parts[1:], parts[0])
    monkeypatch.setattr(module, "_CELLS", 100)
    chunked = replicates(IDS[::-1], x[::-1], n[::-1], count=50)
    for other in (added, chunked):
        assert (other.x == whole.x).all()
        assert (other.n == whole.n).all()


def test_a_replicate_is_the_weighted_sum() -> None:
    found = replicates(["a", "b"], [10, 1], [3, 2], count=30)
    for b in range(30):
        w = [naive_weight(unit, b) for unit in ("a", "b")]
        assert (found.x[b], found.n[b]) == (10 * w[0] + w[1], 3 * w[0] + 2 * w[1])


def test_rankers_over_the_same_units_stay_paired() -> None:
    # The treatment is better by 1 for each unit: every replicate shows just that.
    n = [1] * 60
    a, b = replicates(IDS, list(range(60)), n), replicates(IDS, list(range(1, 61)), n)
    found = bootstrap(a, b)
    assert (found.ci_low, found.ci_high) == pytest.approx((1, 1))
    assert found.se == pytest.approx(0, abs=1e-12)
    assert found.se_c > 1


def test_its_standard_error_is_near_the_delta_method_s() -> None:
    random = np.random.default_rng(5)
    ids = [f"v{i}" for i in range(1200)]
    n = random.integers(1, 8, 1200)
    x = random.binomial(n, random.beta(2, 2, 1200))
    halves = slice(0, 600), slice(600, 1200)
    a, b = (replicates(ids[h], x[h], n[h]) for h in halves)
    exact = difference(independent(*(RatioMoments.of(x[h], n[h]) for h in halves)))
    found = bootstrap(a, b)
    assert found.n_replicates == 1000
    assert found.se == pytest.approx(exact.se, rel=0.1)
    assert found.se == pytest.approx(np.hypot(found.se_c, found.se_t), rel=0.1)
    assert (found.ci_low, found.ci_high) == pytest.approx((exact.ci_low, exact.ci_high), abs=0.01)


def test_replicates_without_a_query_are_left_out_and_counted() -> None:
    lone, other = (
        replicates(["a"], [1], [2], count=40),
        replicates(IDS, [1] * 60, [2] * 60, count=40),
    )
    empty = sum(naive_weight("a", b) == 0 for b in range(40))
    assert bootstrap(lone, other).n_replicates == 40 - empty
    none = Replicates(np.zeros(5, np.int64), np.zeros(5, np.int64))
    assert bootstrap(none, none) == module.Bootstrap(0)
    assert bootstrap(replicates([], [], [], count=5), none).se is None


def test_a_control_of_zero_has_no_lift() -> None:
    n = [2] * 60
    found = bootstrap(replicates(IDS, [0] * 60, n), replicates(IDS, [1] * 60, n))
    assert (found.lift_ci_low, found.lift_ci_high) == (None, None)
    assert found.ci_low == 0.5


def test_units_and_sums_of_two_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 units"):
        replicates(["a", "b"], [1], [1])

"""Every entry of the shared reference values, each by the functions that the package offers.

`CHECKED` says how an entry is computed, `LEFT_OUT` and `FIELDS_LEFT_OUT` why not. An entry without
a place fails, and so does a place without its entries. Values are rounded to billionths, as the
tables keep them.
"""

from __future__ import annotations

import csv
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankspark.stats import (
    CupedMoments,
    Pair,
    RatioMoments,
    adjust,
    bootstrap,
    confidence_sequence,
    contrast,
    cuped,
    delta,
    difference,
    effect_size,
    fieller,
    independent,
    jackknife,
    noninferiority,
    paired,
    planned_mde,
    queries_per_unit_p,
    replicates,
    required_units,
    sample_ratio,
)
from rankspark.stats.resample import poisson_weights, seeds, splitmix64

NANO = 10**9
MEASURES = ("rr10", "ndcg10", "hit1")
RERANKERS = ("rerank_a", "rerank_b")
RANKERS = ("bm25", "ltr", "bi_encoder", "cross_encoder")
PAIRS = [(a, b) for i, a in enumerate(RANKERS) for b in RANKERS[i + 1 :]]

#: Keys, and why nothing here computes them.
LEFT_OUT = {
    r"slate\..*": "off-policy estimates of slates: no part of the comparison",
    r"position\.harvest_pivot1": "examination propensities: no part of the comparison",
    r"trap\.position_raw_ctr_ratio": "nothing here estimates a propensity, rightly or wrongly",
    r"srm\.tea\.srm_bad": "an exact binomial test; the specification asks for chi-square",
    r"paired\.tukey_twoway\..*": "Tukey's test is not offered; all pairs are adjusted by Holm",
    r"ab\.multiple\.bonferroni\.6": "Bonferroni is not offered; Holm rejects all that it does",
}
ROUNDED = r"paired\.query\.ndcg10\.bi_encoder\.cross_encoder"
#: Fields of keys, and why.
FIELDS_LEFT_OUT = {
    (r"(ab|range)\.tea\..*", "lift_ci_log"): "Fieller's interval is offered instead",
    (r"ab\.gbstats\.relative\..*", "se ci p"): "a relative test that can contradict the absolute",
    (r"ab\.meterstick\.jackknife\..*", "lift_percent_se"): "no standard error of a lift is offered",
    (ROUNDED, "wins ties"): "it counts 0.9999999999999999 against 1.0 as a win: see the test below",
}


# ------------------------------------------------------------------ the data, as units
class Units:
    """Sums of the units of one variant, in billionths."""

    def __init__(self) -> None:
        self.n: dict[str, int] = defaultdict(int)
        self.x: dict[str, dict[str, int]] = {m: defaultdict(int) for m in MEASURES}
        self.squares = dict.fromkeys(MEASURES, 0)
        self.pre: dict[str, tuple[int, int]] = {}

    def add(self, unit: str, row: dict[str, str]) -> None:
        self.n[unit] += 1
        for measure in MEASURES:
            value = round(float(row[measure]) * NANO)
            self.x[measure][unit] += value
            self.squares[measure] += value**2
        self.pre[unit] = (round(float(row["pre_rr10_sum"]) * NANO), int(row["pre_queries"]))

    def arrays(self, measure: str) -> tuple[list[int], list[int]]:
        return [self.x[measure][u] for u in self.n], list(self.n.values())

    def moments(self, measure: str) -> RatioMoments:
        return RatioMoments.of(*self.arrays(measure), scale=NANO)

    def with_pre(self) -> CupedMoments:
        a, b = zip(*(self.pre[u] for u in self.n), strict=True)
        return CupedMoments.of(*self.arrays("rr10"), a, b, scale=NANO)


@lru_cache
def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


@lru_cache
def expected(folder: Path) -> dict[str, dict[str, Any]]:
    return json.loads((folder / "expected.json").read_text())["values"]


def user(row: dict[str, str]) -> str:
    return row["user_id"]


@lru_cache
def variants(
    folder: Path,
    experiment: str = "rerank_v1",
    unit: Callable[[dict[str, str]], str] = user,
    dates: tuple[str, str] = ("", "9"),
    leave_out: frozenset[str] = frozenset(),
) -> dict[str, Units]:
    found: dict[str, Units] = defaultdict(Units)
    for row in rows(folder, "ab_queries.csv"):
        if row["user_id"] in leave_out or not dates[0] <= row["date"] <= dates[1]:
            continue
        if row["experiment"] == experiment:
            found[row["variant"]].add(unit(row), row)
    return found


def ab(units: dict[str, Units], measure: str, treatment: str) -> Pair:
    return independent(units["control"].moments(measure), units[treatment].moments(measure))


def report(pair: Pair) -> dict[str, Any]:
    """What the entries call a result."""
    found, lift = difference(pair), fieller(pair)
    return {
        "control": found.mean_c,
        "treatment": found.mean_t,
        "effect": found.effect,
        "se": found.se,
        "df": found.df,
        "t": found.t,
        "p": found.p,
        "ci": [found.ci_low, found.ci_high],
        "lift": lift.lift,
        "lift_ci_fieller": [lift.ci_low, lift.ci_high],
        "fieller_g": fieller_g(pair),
        "n_units": [pair.control.n_units, pair.treatment.n_units],
    }


def fieller_g(pair: Pair) -> float:
    found = difference(pair)
    q = (found.ci_high - found.effect) / found.se
    return q**2 * float(pair.control.variance) / found.mean_c**2


class Compared:
    """Two rankers on the same queries: differences by unit, and over single queries."""

    def __init__(self, folder: Path, unit: str, measure: str, a: str, b: str) -> None:
        sums = {name: defaultdict(int) for name in (a, b)}
        values: dict[str, dict[str, int]] = {name: {} for name in (a, b)}
        n: dict[str, int] = defaultdict(int)
        for row in rows(folder, "paired_rankers.csv"):
            if row["ranker"] in values:
                value = round(float(row[measure]) * NANO)
                sums[row["ranker"]][row[unit]] += value
                values[row["ranker"]][row["query_id"]] = value
                n[row[unit]] += row["ranker"] == a
        self.gaps = [values[b][q] - values[a][q] for q in values[a]]
        x_a, x_b = ([sums[name][u] for u in n] for name in (a, b))
        queries = list(n.values())
        self.differences = RatioMoments.of(
            [q - p for p, q in zip(x_a, x_b, strict=True)], queries, scale=NANO
        )
        first, second = (RatioMoments.of(x, queries, scale=NANO) for x in (x_a, x_b))
        self.pair = paired(first, second, self.differences)


@lru_cache
def compared(folder: Path, unit: str, measure: str, a: str, b: str) -> Compared:
    return Compared(folder, unit, measure, a, b)


# ------------------------------------------------------------------ how each entry is computed
def delta_method(f: Path, measure: str, treatment: str) -> Any:
    return report(ab(variants(f), measure, treatment))


def in_range(f: Path, _how: str) -> Any:
    return report(ab(variants(f, dates=("2024-05-07", "2024-05-09")), "rr10", "rerank_a"))


def in_buckets(f: Path) -> Any:
    def bucket(row: dict[str, str]) -> str:
        return str(zlib.crc32(row["user_id"].encode()) % 64)

    return report(ab(variants(f, unit=bucket), "rr10", "rerank_a"))


def unmixed(f: Path) -> Any:
    seen: dict[str, set[str]] = defaultdict(set)
    for row in rows(f, "ab_queries.csv"):
        if row["experiment"] == "mixed_users":
            seen[row["user_id"]].add(row["variant"])
    mixed = frozenset(unit for unit, names in seen.items() if len(names) > 1)
    pair = ab(variants(f, "mixed_users", leave_out=mixed), "rr10", "treatment")
    share = len(mixed) / (len(mixed) + pair.n_units)
    return report(pair) | {"n_units_mixed": len(mixed), "share_mixed": share}


def least_squares(f: Path, correction: str, treatment: str) -> Any:
    pair = ab(variants(f), "rr10", treatment)
    v = sum(m.variance * (m.n_units - 1) / m.n_units for m in (pair.control, pair.treatment))
    if correction == "1":  # statsmodels' own: g/(g-1) · (n-1)/(n-2), g clusters and n rows
        g = pair.n_units
        n = sum(variants(f)[name].moments("rr10").sum_n for name in ("control", treatment))
        v = v * g / (g - 1) * (n - 1) / (n - 2)
    return {"effect": difference(pair).effect, "se": math.sqrt(v)}


def leave_one_out(f: Path, treatment: str) -> Any:
    units = variants(f)
    pair = Pair(*(jackknife(*units[v].arrays("rr10"), scale=NANO) for v in ("control", treatment)))
    return difference(pair).se


def leave_one_out_of_both(f: Path, treatment: str) -> Any:
    pair = ab(variants(f), "rr10", treatment)
    return {
        "effect": difference(pair).effect,
        "lift_percent": 100 * fieller(pair).lift,
        "se": leave_one_out(f, treatment),
    }


def absolute(f: Path, treatment: str) -> Any:
    return report(ab(variants(f), "rr10", treatment))


def relative(f: Path, treatment: str) -> Any:
    return {"effect": fieller(ab(variants(f), "rr10", treatment)).lift}


def sequential(f: Path, planned: str, treatment: str) -> Any:
    pair = ab(variants(f), "rr10", treatment)
    found = difference(pair)
    looked = confidence_sequence(found, pair.n_units, planned=int(planned))
    assert planned != "5000" or looked == confidence_sequence(found, pair.n_units)
    return {"effect": found.effect, "ci": [looked.ci_low, looked.ci_high], "p": looked.p}


def not_worse(f: Path, treatment: str, margin: str) -> Any:
    return noninferiority(ab(variants(f), "rr10", treatment), float(margin))


def adjusted_by_pre_period(f: Path, treatment: str) -> Any:
    found = cuped(variants(f)["control"].with_pre(), variants(f)[treatment].with_pre())
    return report(found.pair) | {"variance_reduction": found.variance_reduction}


def smallest_found(f: Path, treatment: str) -> Any:
    both = variants(f)["control"].moments("rr10") + variants(f)[treatment].moments("rr10")
    units = [both.n_units, 2 * both.n_units]
    effects = [planned_mde(delta(both), n) for n in units]
    mean = float(delta(both).mean)
    return {"n_obs": units, "effect": effects, "rel_effect": [e / mean for e in effects]}


def units_needed(f: Path, treatment: str) -> Any:
    both = variants(f)["control"].moments("rr10") + variants(f)[treatment].moments("rr10")
    return required_units(delta(both), 0.05)


def family(names: list[str], p: list[float], method: str) -> Any:
    how = {"holm": "holm", "fdr_bh": "benjamini_hochberg"}[method]
    return {name: one.p for name, one in zip(names, adjust(p, how), strict=True)}


def six_tests(f: Path, method: str) -> Any:
    names = [(m, a) for m in MEASURES for a in RERANKERS]
    p = [difference(ab(variants(f), m, a)).p for m, a in names]
    return family([f"{m}.{a}" for m, a in names], p, method)


def primary_only(f: Path) -> Any:
    p = [difference(ab(variants(f), "rr10", a)).p for a in RERANKERS]
    return family(list(RERANKERS), p, "holm")


def mean_of_units(f: Path, treatment: str) -> Any:
    def one_each(name: str) -> RatioMoments:
        x, n = variants(f)[name].arrays("rr10")
        means = [round(a / b) for a, b in zip(x, n, strict=True)]
        return RatioMoments.of(means, [1] * len(n), scale=NANO)

    return report(independent(one_each("control"), one_each(treatment)))


def denominators(f: Path, treatment: str) -> Any:
    control, other = (variants(f)[name].moments("rr10") for name in ("control", treatment))
    found = report(independent(control.counts, other.counts))
    assert found["p"] == queries_per_unit_p(control, other)
    return found


def resampled(f: Path) -> dict[str, Any]:
    def sums(name: str) -> Any:
        units = variants(f)[name]
        return replicates(list(units.n), *units.arrays("rr10"))

    found = bootstrap(sums("control"), sums("rerank_a"), scale=NANO)
    return {
        "effect": difference(ab(variants(f), "rr10", "rerank_a")).effect,
        "se": found.se,
        "ci_percentile": [found.ci_low, found.ci_high],
        "lift_ci_percentile": [found.lift_ci_low, found.lift_ci_high],
    }


def generator(f: Path) -> Any:
    return [str(z) for z in splitmix64(np.array([1234567], dtype=np.uint64), 0, 3)[0]]


def weights(f: Path) -> Any:
    return poisson_weights(seeds(["u0000"]), 0, 12)[0].tolist()


def rankers(f: Path, unit: str, measure: str, a: str, b: str) -> Any:
    found = compared(f, f"{unit}_id", measure, a, b)
    size = effect_size(
        difference(found.pair).effect, (found.differences, sum(gap**2 for gap in found.gaps))
    )
    return report(found.pair) | {
        "wins": sum(gap > 0 for gap in found.gaps),
        "ties": sum(gap == 0 for gap in found.gaps),
        "losses": sum(gap < 0 for gap in found.gaps),
        "cohen_dz": size,
    }


def rankers_p(f: Path, unit: str, a: str, b: str) -> Any:
    return difference(compared(f, f"{unit}_id", "rr10", a, b).pair).p


def rankers_p_by_query(f: Path, _test: str, a: str, b: str) -> Any:
    return rankers_p(f, "query", a, b)


def all_pairs(f: Path, unit: str, measure: str, method: str) -> Any:
    p = [difference(compared(f, f"{unit}_id", measure, a, b).pair).p for a, b in PAIRS]
    return family([f"{a}.{b}" for a, b in PAIRS], p, method)


def with_baseline(f: Path, unit: str, measure: str) -> Any:
    pairs = [(a, b) for a, b in PAIRS if a == "bm25"]
    p = [difference(compared(f, f"{unit}_id", measure, a, b).pair).p for a, b in pairs]
    return family([f"{a}.{b}" for a, b in pairs], p, "holm")


def split(f: Path, experiment: str) -> Any:
    names = ("control", *RERANKERS) if experiment == "rerank_v1" else ("control", "treatment")
    observed = [len(variants(f, experiment)[name].n) for name in names]
    found = sample_ratio(observed)
    return {"observed": observed, "chi2": found.chi2, "p": found.p}


def split_p(f: Path, _library: str, experiment: str) -> Any:
    return split(f, experiment)["p"]


_M, _T = "(rr10|ndcg10|hit1)", "(rerank_a|rerank_b)"
_AB = r"\.".join(["(bm25|ltr|bi_encoder)", "(ltr|bi_encoder|cross_encoder)"])
CHECKED: dict[str, tuple[Callable[..., Any], int]] = {
    rf"ab\.delta\.{_M}\.{_T}": (delta_method, 6),
    rf"ab\.tea\.{_M}\.{_T}": (delta_method, 6),
    r"range\.(delta|tea)\.rr10\.rerank_a": (in_range, 2),
    r"ab\.bucket64\.rr10\.rerank_a": (in_buckets, 1),
    r"mixed_users\.excluded": (unmixed, 1),
    rf"ab\.clustered_ols_cr([01])\.rr10\.{_T}": (least_squares, 4),
    rf"ab\.jackknife\.rr10\.{_T}\.se": (leave_one_out, 2),
    rf"ab\.meterstick\.jackknife\.rr10\.{_T}": (leave_one_out_of_both, 2),
    rf"ab\.gbstats\.absolute\.rr10\.{_T}": (absolute, 2),
    rf"ab\.gbstats\.relative\.rr10\.{_T}": (relative, 2),
    rf"ab\.gbstats\.sequential(\d+)\.rr10\.{_T}": (sequential, 4),
    rf"ab\.(?:tea\.)?noninferior\.rr10\.{_T}\.margin(0\.0\d*)": (not_worse, 8),
    rf"ab\.tea\.cuped\.rr10\.{_T}": (adjusted_by_pre_period, 2),
    rf"ab\.tea\.mde\.rr10\.{_T}": (smallest_found, 2),
    rf"ab\.tea\.n_for_5pct\.rr10\.{_T}": (units_needed, 2),
    r"ab\.multiple\.(holm|fdr_bh)\.6": (six_tests, 2),
    r"ab\.multiple\.holm\.rr10_only": (primary_only, 1),
    rf"ab\.per_user_mean\.rr10\.{_T}": (mean_of_units, 2),
    rf"ab\.queries_per_unit\.{_T}": (denominators, 2),
    r"bootstrap\.rr10\.rerank_a\.B1000": (resampled, 1),
    r"ab\.meterstick\.poisson_bootstrap\.rr10\.rerank_a": (resampled, 1),
    r"bootstrap\.splitmix64\.seed1234567": (generator, 1),
    r"bootstrap\.weights\.u0000_first12": (weights, 1),
    rf"paired\.(query|user)\.{_M}\.{_AB}": (rankers, 24),
    # A randomization test asks the same question; their Monte Carlo error is in the tolerance.
    rf"paired\.randomization\.(query|user)\.rr10\.{_AB}": (rankers_p, 12),
    rf"paired\.ranx\.(fisher|student)\.rr10\.{_AB}": (rankers_p_by_query, 12),
    rf"paired\.(query|user)\.{_M}\.all_pairs\.(holm|fdr_bh)": (all_pairs, 8),
    rf"paired\.(query|user)\.{_M}\.vs_bm25\.holm": (with_baseline, 4),
    r"srm\.(rerank_v1|srm_bad)": (split, 2),
    r"srm\.(gbstats|spotify)\.(rerank_v1|srm_bad)": (split_p, 3),
}
#: A number that must not come out, the right counterpart of it, and the mistake that gives it.
TRAPS = (
    "trap.daily_moments_added.se.rr10.rerank_a",
    "trap.query_level_welch.p.rr10.rerank_b",
    "trap.tukey_independent.rr10",
    "trap.tukey_independent.ndcg10",
)
#: Where the entry's own source says how close another estimator of the same error comes.
TOLERANCES = {(r"ab\.meterstick\.jackknife\..*", "se"): 1e-3}


# ------------------------------------------------------------------ the walk
@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "reference" / "compare"


def misses(ours: Any, theirs: Any, rtol: float, atol: float) -> bool:
    if isinstance(theirs, list):
        return len(ours) != len(theirs) or any(
            misses(a, b, rtol, atol) for a, b in zip(ours, theirs, strict=True)
        )
    if theirs is None or isinstance(theirs, str):
        return bool(ours != theirs)
    return ours is None or abs(ours - theirs) > atol + rtol * abs(theirs)


def excused(key: str, field: str) -> bool:
    return any(
        re.fullmatch(pattern, key) and field in fields.split()
        for pattern, fields in FIELDS_LEFT_OUT
    )


@pytest.mark.parametrize("pattern", CHECKED)
def test_our_numbers_are_those_of_the_libraries(folder: Path, pattern: str) -> None:
    compute, count = CHECKED[pattern]
    keys = [key for key in expected(folder) if re.fullmatch(pattern, key)]
    assert len(keys) == count
    for key in keys:
        entry = expected(folder)[key]
        ours = compute(folder, *re.fullmatch(pattern, key).groups())
        theirs, rtol, atol = entry["value"], entry["rtol"], entry["atol"]
        if not isinstance(theirs, dict):
            ours, theirs = {"": ours}, {"": theirs}
        for field, value in theirs.items():
            if excused(key, field):
                continue
            loose = [
                tol for (p, f), tol in TOLERANCES.items() if f == field and re.fullmatch(p, key)
            ]
            found = ours[field]
            assert not misses(found, value, max([rtol, *loose]), atol), (key, field, found, value)


@pytest.mark.parametrize("key", TRAPS)
def test_our_numbers_are_not_those_of_a_known_mistake(folder: Path, key: str) -> None:
    entry = expected(folder)[key]
    tolerance = entry["rtol"], entry["atol"]
    if key.startswith("trap.daily"):
        right = difference(ab(variants(folder), "rr10", "rerank_a")).se
        days = variants(folder, unit=lambda row: row["user_id"] + row["date"])
        wrong = difference(ab(days, "rr10", "rerank_a")).se
    elif key.startswith("trap.query"):
        right = difference(ab(variants(folder), "rr10", "rerank_b")).p
        queries = variants(folder, unit=lambda row: row["query_id"])
        wrong = difference(ab(queries, "rr10", "rerank_b")).p
    else:
        measure = key.rpartition(".")[2]
        for unit in ("query", "user"):
            for name, p in all_pairs(folder, unit, measure, "holm").items():
                assert misses(p, entry["value"][name], *tolerance), (unit, name)
        return
    assert misses(right, entry["value"], *tolerance)
    # The mistake does give the trap's number: so the line above can fail.
    assert not misses(wrong, entry["value"], *tolerance)


def test_every_entry_has_a_place_and_every_place_an_entry(folder: Path) -> None:
    keys = set(expected(folder))
    for key in keys:
        places = [p for p in [*CHECKED, *LEFT_OUT] if re.fullmatch(p, key)]
        assert len(places) + (key in TRAPS) == 1, (key, places)
    for pattern in LEFT_OUT:
        assert any(re.fullmatch(pattern, key) for key in keys), pattern
    assert set(TRAPS) <= keys
    for pattern, fields in FIELDS_LEFT_OUT:
        values = [expected(folder)[key]["value"] for key in keys if re.fullmatch(pattern, key)]
        found = {field for value in values if isinstance(value, dict) for field in value}
        assert set(fields.split()) <= found, pattern


def test_a_win_by_a_rounding_error_is_a_tie(folder: Path) -> None:
    ours = rankers(folder, "query", "ndcg10", "bi_encoder", "cross_encoder")
    theirs = expected(folder)[ROUNDED.replace("\\", "")]["value"]
    assert (ours["wins"], ours["ties"]) == (theirs["wins"] - 1, theirs["ties"] + 1)
    values = {
        row["ranker"]: float(row["ndcg10"])
        for row in rows(folder, "paired_rankers.csv")
        if row["query_id"] == "p0071"
    }
    assert 0 < values["cross_encoder"] - values["bi_encoder"] < 1e-15


def test_the_fixture_s_odd_experiments_have_a_status_not_a_result(folder: Path) -> None:
    flat = ab(variants(folder, "zero_variance"), "rr10", "treatment")
    lone = ab(variants(folder, "one_unit"), "rr10", "treatment")
    for pair, status in ((flat, "zero_variance"), (lone, "few_units")):
        found = difference(pair)
        assert (found.status, found.se, found.p, found.ci_low) == (status, None, None, None)
        assert found.mean_c is not None
    gone = difference(Pair(lone.control, delta(RatioMoments.of([], []))))
    assert (gone.status, gone.effect, gone.p) == ("no_queries", None, None)
    assert contrast(flat).variance == 0

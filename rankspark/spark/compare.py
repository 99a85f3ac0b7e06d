"""Comparisons of variants or rankers over any range of dates, from stored sums alone.

Spark gives moments (:mod:`rankspark.spark.history`), rankspark.stats the numbers; here they meet:
what may be compared, the families of tests, the checks and the decision. A run adds a file to
`comparisons` and replaces none: the table is the ledger of looks, and earlier ones must stay.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from rankspark import tables
from rankspark.config import Compare, Config
from rankspark.errors import ConfigError, InputError
from rankspark.measures import Measure
from rankspark.spark import history, publish, session, sinks
from rankspark.spark.history import Assigned, Counts, Group, Key, PairedGroup, Range
from rankspark.stats import (
    AlwaysValid,
    Decomposition,
    Difference,
    Evidence,
    Mean,
    Pair,
    RatioMoments,
    Rules,
    adjust,
    confidence_sequence,
    cuped,
    decompose,
    delta,
    design_effect,
    difference,
    effect_size,
    fieller,
    independent,
    jackknife,
    judge,
    max_unit_share,
    mde,
    mde_ratio,
    noninferiority,
    paired,
    pre_period_p,
    queries_per_unit_p,
    required_units,
    sample_ratio,
)
from rankspark.stats.pair import SMALL

_NOTHING = RatioMoments(0, 0, 0, 0, 0, 0, tables.NANO)
_LOWER_IS_BETTER = {"first_relevant_rank"}
_OVERALL = tables.OVERALL


@dataclass(frozen=True)
class Change:
    """Where the change of an MRR came from.

    Attributes:
        experiment: its experiment.
        measure: mrr or mrr@k.
        control: compared with.
        treatment: compared.
        split: rank by rank.
    """

    experiment: str
    measure: str
    control: str
    treatment: str
    split: Decomposition


@dataclass(frozen=True)
class Comparison:
    """What was compared in one run.

    Attributes:
        run_id: the run.
        rows: as in the table `comparisons`, with experiment.
        changes: of each MRR, over all queries.
    """

    run_id: str
    rows: list[dict[str, Any]]
    changes: list[Change]


@dataclass(frozen=True)
class Power:
    """How long an experiment must run.

    Attributes:
        measure: the measure.
        lift: the relative difference to be found with 80% power.
        mean: the control's mean in the stored history.
        units: units of both variants that are needed; None where it cannot be said.
        units_seen: distinct units of the history.
        days_seen: days of the history.
        new_units_a_day: units never seen before, a day, over the last 7 days of the history.
        days: that are needed at this traffic.
    """

    measure: str
    lift: float
    mean: float | None
    units: int | None
    units_seen: int
    days_seen: int
    new_units_a_day: float
    days: int | None


@dataclass
class _Test:
    """A comparison in the making."""

    pair: Pair
    found: Difference
    sequence: AlwaysValid
    row: dict[str, Any]
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Scope:
    """One experiment in a range."""

    experiment: str
    dates: Range
    days_present: int
    definitions: dict[str, str]
    label: str
    control: str
    treatments: tuple[str, ...]
    names: tuple[str, ...]
    ranker: str | None

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(self.control, treatment) for treatment in self.treatments]


def compare(
    spark: SparkSession, config: Config, start: date, end: date, *, write: bool = True
) -> Comparison:
    """Compare what `[compare]` names over a range of evaluated dates; impressions are not read.

    Args:
        spark: the session; its options are restored afterwards.
        config: the configuration; its `output` holds the tables.
        start: the first date.
        end: the date after the last.
        write: whether the result is added to `comparisons`.

    Raises:
        ConfigError: no such experiment, control or measure.
        InputError: a date was not evaluated, two definitions, nothing to compare.
    """
    dates = Range(start, end - timedelta(days=1))
    root = publish.Root.open(config.output.path)
    root.refuse_other(config.name, config.output.format)
    sink = sinks.sink(spark, root, config.output)
    started = datetime.now(UTC)
    run_id = f"{started:%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
    rows: list[dict[str, Any]] = []
    changes: list[Change] = []
    with session.options(spark, timezone=config.input.timezone):
        for scope in _scopes(spark, config, dates):
            found, split = _compared(spark, config, scope)
            rows += found
            changes += split
        stamp = {
            "dataset": config.name,
            "run_id": run_id,
            "computed_at": started,
            "config_hash": config.config_hash,
        }
        rows = [row | stamp for row in rows]
        if write:
            sink.extend(run_id, rows, tables.COMPARISONS)
    return Comparison(run_id, rows, changes)


def power(
    spark: SparkSession,
    config: Config,
    measure: str,
    lift: float,
    start: date | None = None,
    end: date | None = None,
) -> Power:
    """The days that an experiment needs to find a lift, from the stored history of its traffic.

    The mean and variance are the control's over the history; units accumulate as they did in it
    and, beyond it, as in its last 7 days.

    Args:
        spark: the session.
        config: the configuration.
        measure: its text form.
        lift: 0.02 is two percent.
        start: the first date of the history; all stored ones by default.
        end: the date after its last.

    Raises:
        ConfigError: an unknown measure, or no such experiment.
        InputError: nothing is stored.
    """
    name = str(Measure.parse(measure))
    if config.compare.design != "ab":
        raise ConfigError(
            expected="compare.design = 'ab', for which units are split",
            found=config.compare.design,
            action="leave it out; rankers on the same queries need no new traffic",
        )
    dates = Range(start or date.min, (end or date.max) - timedelta(days=1))
    with session.options(spark, timezone=config.input.timezone):
        scopes = _scopes(spark, config, dates, whole=False)
        if name not in scopes[0].definitions:
            raise _unknown_measures([name], scopes[0].definitions)
        scope = scopes[0]
        rows = history.unit_days(spark, config, scope.experiment, scope.dates).where(
            (F.col("measure") == name)
            & (F.col("slice_name") == _OVERALL[0])
            & (F.col("variant") == scope.control)
        )
        rows = rows.where(F.col("ranker") == F.lit(scope.ranker))
        units = history.by_unit(rows, None, None, config.compare.estimand)
        groups = history.groups(units, pre=False)
        group = groups.get((scope.control, (*_OVERALL, name)), Group(_NOTHING, 0, 0))
        seen = history.new_units(_assignment(spark, config, scope))
        # Also the days on which nobody came for the first time.
        stored = {row[0] for row in rows.select("date").distinct().collect()}
    baseline = delta(group.now)
    weights = config.compare.split or dict.fromkeys(scope.names, 1.0)
    both = weights.get(scope.control, 1.0) + weights.get(scope.treatments[0], 1.0)
    share = weights.get(scope.treatments[0], 1.0) / both
    needed = required_units(baseline, lift, share=share, alpha=config.compare.alpha)
    days = sorted(stored | set(seen))
    # Of all units seen, those of these two variants count.
    part = both / sum(weights.values())
    span = Range(date.fromisoformat(days[0]), date.fromisoformat(days[-1])).days
    curve = [part * seen.get(day, 0) for day in span]
    rate = sum(curve[-7:]) / min(7, len(curve))
    return Power(
        name,
        lift,
        None if baseline.mean is None else float(baseline.mean),
        needed,
        sum(seen.values()),
        len(span),
        rate,
        None if needed is None else _days_until(needed, curve, rate),
    )


def _days_until(needed: int, curve: Sequence[float], rate: float) -> int | None:
    reached = 0.0
    for n, new in enumerate(curve, start=1):
        reached += new
        if reached >= needed:
            return n
    return len(curve) + math.ceil((needed - reached) / rate) if rate else None


# ------------------------------------------------------------------ what may be compared
def _scopes(
    spark: SparkSession, config: Config, dates: Range, *, whole: bool = True
) -> list[_Scope]:
    wanted = config.compare
    found = history.catalogue(spark, config, dates)
    present = {row["date"] for row in found}
    if whole:
        _refuse_missing(dates, present)
    elif present:
        days = sorted(map(date.fromisoformat, present))
        dates = Range(days[0], days[-1])
    experiments = sorted({row["experiment"] for row in found})
    unknown = [name for name in wanted.experiments if name not in experiments]
    if unknown or not experiments:
        raise ConfigError(
            expected=f"compare.experiments out of {', '.join(experiments) or '(none evaluated)'}",
            found=", ".join(unknown) or "none",
            action="correct compare.experiments, or evaluate the dates of that experiment",
        )
    scopes = []
    for experiment in wanted.experiments or experiments:
        rows = [row for row in found if row["experiment"] == experiment]
        label = "variant" if wanted.design == "ab" or wanted.between == "variants" else "ranker"
        names = sorted({row[label] for row in rows})
        control = _control(wanted, experiment, label, names)
        rankers = sorted({row["ranker"] for row in rows})
        scopes.append(
            _Scope(
                experiment,
                dates,
                len({row["date"] for row in rows}),
                _definitions(config, experiment, rows),
                label,
                control,
                tuple(name for name in names if name != control),
                tuple(names),
                _ranker(config, rankers) if label == "variant" else None,
            )
        )
    return scopes


def _refuse_missing(dates: Range, present: Iterable[str]) -> None:
    missing = sorted(set(dates.days) - set(present))
    if missing:
        raise InputError(
            expected=f"every date from {dates.first} to {dates.last} evaluated",
            found=f"{len(missing)} not: {', '.join(missing[:5])}{', ...' * (len(missing) > 5)}",
            action="run `rankspark evaluate` for them, or compare another range",
        )


def _control(wanted: Compare, experiment: str, label: str, names: list[str]) -> str:
    listed = ", ".join(names)
    if len(names) < 2:
        raise InputError(
            expected=f"at least two {label}s of experiment {experiment!r}",
            found=listed,
            action="compare an experiment that has a control and a treatment",
        )
    if wanted.control is None or wanted.control not in names:
        raise ConfigError(
            expected=f"compare.control, one of the {label}s of {experiment!r}: {listed}",
            found=repr(wanted.control) if wanted.control else "none",
            action="name the control",
        )
    return wanted.control


def _ranker(config: Config, rankers: list[str]) -> str:
    first = next((r.name for r in config.parsed_rankers if r.name in rankers), rankers[0])
    name = config.compare.ranker or first
    if name not in rankers:
        raise ConfigError(
            expected=f"compare.ranker out of {', '.join(rankers)}",
            found=repr(name),
            action="correct it",
        )
    return name


def _definitions(config: Config, experiment: str, rows: Sequence[Any]) -> dict[str, str]:
    """definition_id by stored measure, in the order of the configuration."""
    ids: dict[str, set[str]] = {}
    for row in rows:
        ids.setdefault(row["measure"], set()).add(row["definition_id"])
    wanted = config.compare
    named = [*wanted.primary, *wanted.secondary, *wanted.guardrails]
    unknown = [name for name in named if name not in ids]
    if unknown:
        raise _unknown_measures(unknown, ids)
    for name, several in sorted(ids.items()):
        if len(several) > 1:
            raise InputError(
                expected=f"one definition of {name} in the range of experiment {experiment!r}",
                found=f"{len(several)}: {', '.join(sorted(several))}",
                action="evaluate the range again with one configuration, or compare a part of it",
            )
    order = [str(measure) for measure in config.measures]
    known = sorted(ids, key=lambda name: (order.index(name) if name in order else 999, name))
    return {name: next(iter(ids[name])) for name in known}


def _unknown_measures(names: Sequence[str], known: Iterable[str]) -> ConfigError:
    return ConfigError(
        expected=f"a measure that was evaluated: {', '.join(sorted(known))}",
        found=", ".join(names),
        action="correct it, or evaluate the range with that measure",
    )


# ------------------------------------------------------------------ one experiment
def _compared(
    spark: SparkSession, config: Config, scope: _Scope
) -> tuple[list[dict[str, Any]], list[Change]]:
    wanted = config.compare
    by_rank = wanted.estimand == "ratio" and any(
        Measure.parse(name).name == "mrr" for name in scope.definitions
    )
    rows = history.unit_days(spark, config, scope.experiment, scope.dates, ranks=by_rank)
    if scope.ranker is not None:
        rows = rows.where(F.col("ranker") == F.lit(scope.ranker))
    assigned, mixed = history.assigned(_assignment(spark, config, scope))
    if wanted.design == "ab":
        tests, pairs = _ab(spark, config, scope, rows, assigned, mixed)
    else:
        tests, pairs = _paired(spark, config, scope, rows, assigned)
    looks = _looks(spark, config, scope)
    common = {
        "experiment": scope.experiment,
        "date_from": str(scope.dates.first),
        "date_to": str(scope.dates.last),
        "design": wanted.design,
        "unit": assigned.unit,
        "ranker": scope.ranker,
        "estimand": wanted.estimand,
        "n_looks": looks,
        "days_present": scope.days_present,
        "alpha": wanted.alpha,
    }
    _adjust(tests, wanted)
    blank = dict.fromkeys((*tables.COMPARISONS.column_names, *tables.COMPARISONS.partition_by))
    finished = [blank | common | _decided(test, common, wanted) for test in tests]
    return finished, _changes(scope, pairs, wanted.alpha)


def _assignment(spark: SparkSession, config: Config, scope: _Scope) -> DataFrame:
    rows = history.read(spark, config, tables.ASSIGNMENT)
    return rows.where(scope.dates.holds & (F.col("experiment") == scope.experiment))


def _ab(
    spark: SparkSession,
    config: Config,
    scope: _Scope,
    rows: DataFrame,
    assigned: Assigned,
    mixed: DataFrame,
) -> tuple[list[_Test], dict[tuple[str, str, str], Pair]]:
    wanted = config.compare
    before = _before(spark, config, scope)
    units = history.by_unit(rows, mixed if assigned.n_mixed else None, before, wanted.estimand)
    groups = history.groups(units, pre=before is not None)
    keys = sorted({key for _, key in groups})
    measured = [key for key in keys if key[2] in scope.definitions]
    small = {
        (name, key)
        for key in measured
        for treatment in scope.treatments
        if min(_size(groups, name, key) for name in (scope.control, treatment)) < SMALL
        for name in (scope.control, treatment)
        if 2 <= _size(groups, name, key) <= history.MAX_JACKKNIFE
    }
    few = history.few_units(units, small)
    split_p = _split_p(wanted, scope, assigned)
    tests = []
    for control, treatment in scope.pairs:
        for key in _ordered(measured, scope):
            both = [groups.get((name, key)) for name in (control, treatment)]
            first, second = (group or Group(_NOTHING, 0, 0) for group in both)
            pair = independent(first.now, second.now)
            if min(first.now.n_units, second.now.n_units) < SMALL:
                pair = Pair(
                    _left_out(few, (control, key)) or pair.control,
                    _left_out(few, (treatment, key)) or pair.treatment,
                )
            test = _test(config, scope, key, (control, treatment), pair)
            if first.pre and second.pre:
                adjusted = cuped(first.pre, second.pre)
                if adjusted.status == "ok":
                    test = _test(config, scope, key, (control, treatment), adjusted.pair)
                    test.row["theta"] = adjusted.theta
                    test.row["variance_reduction"] = adjusted.variance_reduction
            test.row |= _sums("c", first) | _sums("t", second)
            singles = ((first.now, first.squares), (second.now, second.squares))
            _sizes(test, singles, wanted)
            test.evidence |= {
                "n_units": (first.now.n_units, second.now.n_units),
                "n_mixed": assigned.n_mixed,
                "srm_p": split_p,
                "queries_per_unit_p": queries_per_unit_p(first.now, second.now)
                if wanted.estimand == "ratio" and assigned.unit != "query_id"
                else None,
                "pre_period_p": pre_period_p(first.before, second.before)
                if first.before and second.before
                else None,
                "max_unit_share": max_unit_share(
                    (first.heaviest, second.heaviest), (first.now.sum_n, second.now.sum_n)
                ),
            }
            tests.append(test)
    by_rank = {
        (control, treatment, key[2]): independent(
            *(
                groups[name, key].now if (name, key) in groups else replace(_NOTHING, scale=1)
                for name in (control, treatment)
            )
        )
        for control, treatment in scope.pairs
        for key in keys
        if history.rank_of(key[2])
    }
    return tests, by_rank


def _before(spark: SparkSession, config: Config, scope: _Scope) -> DataFrame | None:
    wanted = config.compare
    if not wanted.pre_period:
        return None
    dates = scope.dates.before(wanted.pre_period)
    found = history.catalogue(spark, config, dates)
    _refuse_missing(dates, {row["date"] for row in found})
    experiment = wanted.pre_experiment or scope.experiment
    for row in found:
        known = scope.definitions.get(row["measure"], row["definition_id"])
        if row["experiment"] == experiment and row["definition_id"] != known:
            raise InputError(
                expected=f"the definition of {row['measure']} in the pre-period to be {known}",
                found=f"{row['definition_id']} on {row['date']}",
                action="evaluate the pre-period again, or set compare.pre_period = 0",
            )
    rows = history.unit_days(spark, config, experiment, dates)
    return rows.where(F.col("ranker") == F.lit(scope.ranker))


def _size(groups: dict[tuple[str, Key], Group], name: str, key: Key) -> int:
    return groups[name, key].now.n_units if (name, key) in groups else 0


def _left_out(
    few: dict[tuple[str, Key], tuple[list[int], list[int]]], group: tuple[str, Key]
) -> Mean | None:
    return jackknife(*few[group], scale=tables.NANO) if group in few else None


def _split_p(wanted: Compare, scope: _Scope, assigned: Assigned) -> float | None:
    if wanted.split and set(wanted.split) != set(scope.names):
        raise ConfigError(
            expected=f"compare.split with a weight for each of {', '.join(scope.names)}",
            found=", ".join(sorted(wanted.split)),
            action="give the weights by which units were assigned",
        )
    if assigned.unit != "unit_id":
        return None  # queries of one user come together, so their split proves nothing
    observed = [assigned.n_units.get(name, 0) for name in scope.names]
    return sample_ratio(observed, [wanted.split.get(name, 1.0) for name in scope.names]).p


def _paired(
    spark: SparkSession, config: Config, scope: _Scope, rows: DataFrame, assigned: Assigned
) -> tuple[list[_Test], dict[tuple[str, str, str], Pair]]:
    wanted = config.compare
    if scope.label == "variant" and assigned.unit != "query_id":
        raise ConfigError(
            expected="compare.between = 'variants' of a log without unit_id, query by query",
            found=f"units by {assigned.unit}",
            action="compare rankers, or use design = 'ab'",
        )
    pairs = scope.pairs
    if wanted.all_pairs:
        others = scope.treatments
        pairs += [(a, b) for i, a in enumerate(others) for b in others[i + 1 :]]
    groups = history.paired_groups(rows, scope.label, pairs, wanted.estimand)
    for control, treatment in pairs:
        if not any(
            group.differences.n_units for (pair, _), group in groups.items()
            if pair == (control, treatment)
        ):  # fmt: skip
            raise InputError(
                expected=f"queries that both {control} and {treatment} answered",
                found="none",
                action=f"compare {scope.label}s over the same queries",
            )
    if scope.label == "ranker":
        counts = history.paired_counts(spark, config, scope.experiment, scope.dates)
    else:
        counts = history.counts_of_single_queries(rows, pairs)
    keys = sorted({key for _, key in groups})
    tests = []
    for pair in pairs:
        for key in _ordered([key for key in keys if key[2] in scope.definitions], scope):
            group = groups.get((pair, key)) or PairedGroup(_NOTHING, _NOTHING, _NOTHING, 0, 0)
            means = paired(group.control, group.treatment, group.differences)
            test = _test(config, scope, key, pair, means)
            test.row |= _paired_sums(group, counts.get((pair, key)))
            if group.n_unpaired == 0 and (pair, key) in counts:
                _sizes(test, ((group.differences, counts[pair, key].squares),), wanted)
            else:
                _sizes(test, (), wanted)
            test.evidence |= {
                "n_units": (group.differences.n_units,),
                "max_unit_share": max_unit_share([group.heaviest], [group.differences.sum_n]),
            }
            tests.append(test)
    by_rank = {
        (*pair, key[2]): paired(group.control, group.treatment, group.differences)
        for (pair, key), group in groups.items()
        if history.rank_of(key[2])
    }
    return tests, by_rank


def _ordered(keys: Iterable[Key], scope: _Scope) -> list[Key]:
    order = list(scope.definitions)
    return sorted(keys, key=lambda key: (order.index(key[2]), key[:2] != _OVERALL, key[:2]))


def _test(config: Config, scope: _Scope, key: Key, names: tuple[str, str], pair: Pair) -> _Test:
    wanted, measure = config.compare, key[2]
    found = difference(pair, alpha=wanted.alpha)
    lift = fieller(pair, alpha=wanted.alpha)
    sequence = confidence_sequence(
        found, pair.n_units, planned=wanted.planned_units, alpha=wanted.alpha
    )
    higher = Measure.parse(measure).name not in _LOWER_IS_BETTER
    margin = wanted.guardrails.get(measure)
    ni_p = None if margin is None else noninferiority(pair, margin, higher_is_better=higher)
    role = wanted.role(measure, list(scope.definitions))
    row = {
        "definition_id": scope.definitions[measure],
        "measure": measure,
        "role": role,
        "control": names[0],
        "treatment": names[1],
        "slice_name": key[0],
        "slice_value": key[1],
        "lift": lift.lift,
        "lift_ci_low": lift.ci_low,
        "lift_ci_high": lift.ci_high,
        "seq_p": sequence.p,
        "seq_ci_low": sequence.ci_low,
        "seq_ci_high": sequence.ci_high,
        "n_planned": sequence.n_planned,
        "ni_margin": margin,
        "ni_p": ni_p,
        "mde": mde(found, alpha=wanted.alpha),
        "mde_ratio": mde_ratio(found, alpha=wanted.alpha),
        # Of the difference first: without one there is nothing relative to it.
        "status": found.status if found.status != "ok" else lift.status,
    }
    for name in ("mean_c", "mean_t", "effect", "se", "se_method", "df", "t", "p", "ci_low",
                 "ci_high"):  # fmt: skip
        row[name] = getattr(found, name)
    evidence = {
        "role": role,
        "status": found.status,
        "effect": found.effect,
        "ni_p": ni_p,
        "higher_is_better": higher,
        "lift": lift.lift,
        "mde_ratio": row["mde_ratio"],
        "sequential": wanted.sequential,
    }
    return _Test(pair, found, sequence, row, evidence)


def _sizes(test: _Test, singles: Sequence[tuple[RatioMoments, int]], wanted: Compare) -> None:
    # Where each unit counts once there is no single query to compare with.
    if not singles or wanted.estimand != "ratio":
        return
    test.row["design_effect"] = design_effect(*singles)
    if test.found.effect is not None:
        test.row["effect_size"] = effect_size(test.found.effect, *singles)


def _sums(arm: str, group: Group) -> dict[str, Any]:
    now = group.now
    row: dict[str, Any] = {
        f"n_units_{arm}": now.n_units,
        f"n_queries_{arm}": now.sum_n,
        f"sum_x_{arm}": now.sum_x,
        f"sum_xx_{arm}": now.sum_xx,
        f"sum_xn_{arm}": now.sum_xn,
        f"sum_nn_{arm}": now.sum_nn,
        f"sum_s2_{arm}": group.squares,
    }
    if group.pre is not None:
        pre = group.pre.pre
        row |= {
            f"pre_a_{arm}": pre.sum_x,
            f"pre_b_{arm}": pre.sum_n,
            f"pre_aa_{arm}": pre.sum_xx,
            f"pre_ab_{arm}": pre.sum_xn,
            f"pre_bb_{arm}": pre.sum_nn,
            f"pre_xa_{arm}": group.pre.sum_xa,
            f"pre_xb_{arm}": group.pre.sum_xb,
            f"pre_na_{arm}": group.pre.sum_na,
            f"pre_nb_{arm}": group.pre.sum_nb,
        }
    return row


def _paired_sums(group: PairedGroup, counts: Counts | None) -> dict[str, Any]:
    row = {
        name: value
        for arm, moments in (("c", group.control), ("t", group.treatment))
        for name, value in _sums(arm, Group(moments, 0, 0)).items()
        if not name.startswith("sum_s2")
    }
    gaps = group.differences
    row |= {"sum_d": gaps.sum_x, "sum_dd": gaps.sum_xx, "sum_dn": gaps.sum_xn}
    row["n_unpaired"] = group.n_unpaired
    if counts is not None:
        row |= {"wins": counts.wins, "ties": counts.ties, "losses": counts.losses}
        row["sum_d2"] = counts.squares
    return row


def _adjust(tests: Sequence[_Test], wanted: Compare) -> None:
    """Adjust each family: the tests of a role over all queries; those of a slice apart.

    Slices are looked through, not decided on: a wide one must not cost the whole its power.
    """
    families: dict[tuple[str, str], list[_Test]] = {}
    for test in tests:
        families.setdefault((test.row["role"], test.row["slice_name"]), []).append(test)
    for (role, _), family in families.items():
        method = "holm" if role == "primary" or wanted.all_pairs else "benjamini_hochberg"
        method = "none" if role == "guardrail" else method
        values = [test.sequence.p if wanted.sequential else test.found.p for test in family]
        adjusted = adjust(values, method, alpha=wanted.alpha)  # type: ignore[arg-type]
        for test, one in zip(family, adjusted, strict=True):
            test.row |= {
                "p_adj": one.p,
                "adjust_method": method,
                "family_size": one.family_size,
            }
            test.evidence["p"] = one.p
            if one.alpha is None:
                continue
            wide: Difference | AlwaysValid = difference(test.pair, alpha=one.alpha)
            if wanted.sequential:
                planned = wanted.planned_units
                wide = confidence_sequence(
                    test.found, test.pair.n_units, planned=planned, alpha=one.alpha
                )
            test.row |= {"ci_adj_low": wide.ci_low, "ci_adj_high": wide.ci_high}


def _decided(test: _Test, common: dict[str, Any], wanted: Compare) -> dict[str, Any]:
    rules = Rules(alpha=wanted.alpha, override=wanted.override_invalid)
    evidence = Evidence(
        **test.evidence, n_looks=common["n_looks"], days_present=common["days_present"]
    )
    verdict = judge(evidence, rules)
    checks = ("srm_p", "queries_per_unit_p", "pre_period_p", "max_unit_share", "n_mixed")
    return (
        test.row
        | {name: test.evidence.get(name) for name in checks}
        | {
            "share_mixed": evidence.share_mixed if "n_mixed" in test.evidence else None,
            "flags": list(verdict.flags),
            "decision": verdict.decision,
        }
    )


def _changes(scope: _Scope, pairs: dict[tuple[str, str, str], Pair], alpha: float) -> list[Change]:
    found: dict[tuple[str, str, str], dict[int, Pair]] = {}
    for (control, treatment, name), pair in pairs.items():
        measure, rank = history.rank_of(name) or ("", 0)
        cutoff = Measure.parse(measure).cutoff
        if cutoff is None or rank <= cutoff:
            found.setdefault((measure, control, treatment), {})[rank] = pair
    return [
        Change(scope.experiment, *names, decompose(by_rank, alpha=alpha))
        for names, by_rank in sorted(found.items())
    ]


def _looks(spark: SparkSession, config: Config, scope: _Scope) -> int:
    """Distinct ends of this range that were looked at, with this one: a retry is no new look."""
    ends = {str(scope.dates.last)}
    if history.has(spark, config, tables.COMPARISONS):
        rows = history.read(spark, config, tables.COMPARISONS).where(
            (F.col("experiment") == scope.experiment)
            & (F.col("date_from") == str(scope.dates.first))
            & (F.col("design") == config.compare.design)
            & (F.col("control") == scope.control)
        )
        ends |= {row[0] for row in rows.select("date_to").distinct().collect()}
    return len(ends)

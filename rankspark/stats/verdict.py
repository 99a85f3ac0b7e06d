"""From a comparison's numbers to a decision and the reasons to doubt it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rankspark.stats.pair import SMALL
from rankspark.stats.ratio import Status

Role = Literal["primary", "secondary", "guardrail"]
Outcome = Literal["better", "worse", "no_worse", "inconclusive", "invalid"]
Flag = Literal[
    "SAMPLE_RATIO_MISMATCH",
    "MIXED_UNITS",
    "LOW_UNITS",
    "PEEKED",
    "QUERIES_PER_UNIT_MOVED",
    "PRE_IMBALANCE",
    "HEAVY_UNIT",
    "SUSPICIOUS_LIFT",
    "UNDERPOWERED",
    "PARTIAL_WEEK",
]


@dataclass(frozen=True)
class Rules:
    """When a comparison is decided, doubted or refused.

    Attributes:
        alpha: of the two-sided test and of non-inferiority.
        srm_alpha: invalid below it.
        max_share_mixed: invalid above this share of units seen in two variants.
        flag_share_mixed: flagged above this share...
        flag_n_mixed: ... and above this many.
        low_units: flagged below this many in a variant.
        queries_per_unit_alpha: flagged below it.
        pre_period_alpha: flagged below it.
        heavy_unit: flagged above this share of a variant's queries.
        suspicious_lift: flagged above it, in either direction.
        week: a range of days that is no multiple of it is flagged.
        override: decide even what is invalid; the flags stay.
    """

    alpha: float = 0.05
    srm_alpha: float = 0.001
    max_share_mixed: float = 0.10
    flag_share_mixed: float = 0.01
    flag_n_mixed: int = 10
    low_units: int = SMALL
    queries_per_unit_alpha: float = 0.01
    pre_period_alpha: float = 0.001
    heavy_unit: float = 0.05
    suspicious_lift: float = 0.50
    week: int = 7
    override: bool = False


DEFAULT_RULES = Rules()


@dataclass(frozen=True)
class Evidence:
    """What a decision rests on; None for what could not be computed or was not asked for.

    Attributes:
        role: of the measure.
        status: of the result.
        effect: treatment minus control.
        p: the p that decides: adjusted for its family, always-valid where the test is sequential.
        ni_p: of non-inferiority; guardrails are decided by it.
        higher_is_better: the direction of the measure.
        lift: relative.
        mde_ratio: |effect| / MDE.
        n_units: distinct units by variant, those mixed left out.
        n_mixed: units seen in two variants.
        srm_p: of the split.
        queries_per_unit_p: of the denominators.
        pre_period_p: of the time before the start.
        max_unit_share: the heaviest unit's share of a variant's queries.
        n_looks: how often this comparison was computed.
        sequential: whether `p` is always-valid.
        days_present: days of the range.
    """

    role: Role
    status: Status
    effect: float | None = None
    p: float | None = None
    ni_p: float | None = None
    higher_is_better: bool = True
    lift: float | None = None
    mde_ratio: float | None = None
    n_units: tuple[int, ...] = ()
    n_mixed: int = 0
    srm_p: float | None = None
    queries_per_unit_p: float | None = None
    pre_period_p: float | None = None
    max_unit_share: float | None = None
    n_looks: int = 1
    sequential: bool = False
    days_present: int | None = None

    @property
    def share_mixed(self) -> float:
        """Of all distinct units."""
        return self.n_mixed / max(1, self.n_mixed + sum(self.n_units))


@dataclass(frozen=True)
class Verdict:
    """A decision and what to doubt it for.

    Attributes:
        decision: "better" and "worse" by the two-sided test, "no_worse" by non-inferiority,
            "inconclusive" also where there is no result, "invalid" where the split or mixed units
            forbid one.
        flags: in a fixed order.
    """

    decision: Outcome
    flags: tuple[Flag, ...] = ()


def judge(evidence: Evidence, rules: Rules = DEFAULT_RULES) -> Verdict:
    """Decide a comparison.

    A guardrail is no_worse where non-inferiority holds, else worse where the two-sided test says
    so; nothing makes it better. UNDERPOWERED: the effect is below what the test would find with
    80% power, so it may be luck, and is exaggerated if it is not.

        >>> judge(Evidence("primary", "ok", effect=0.01, p=0.003, n_units=(900, 300), srm_p=1e-9))
        Verdict(decision='invalid', flags=('SAMPLE_RATIO_MISMATCH',))

    Args:
        evidence: the numbers.
        rules: the limits.
    """
    flags = _flags(evidence, rules)
    broken = "SAMPLE_RATIO_MISMATCH" in flags or evidence.share_mixed > rules.max_share_mixed
    if broken and not rules.override:
        return Verdict("invalid", flags)
    return Verdict(_outcome(evidence, rules), flags)


def _outcome(e: Evidence, rules: Rules) -> Outcome:
    if e.role == "guardrail" and _below(e.ni_p, rules.alpha):
        return "no_worse"
    if e.status != "ok" or not e.effect or not _below(e.p, rules.alpha):
        return "inconclusive"
    if (e.effect > 0) != e.higher_is_better:
        return "worse"
    return "inconclusive" if e.role == "guardrail" else "better"


def _flags(e: Evidence, rules: Rules) -> tuple[Flag, ...]:
    raised: dict[Flag, bool] = {
        "SAMPLE_RATIO_MISMATCH": _below(e.srm_p, rules.srm_alpha),
        "MIXED_UNITS": e.share_mixed > rules.max_share_mixed
        or (e.share_mixed > rules.flag_share_mixed and e.n_mixed > rules.flag_n_mixed),
        "LOW_UNITS": min(e.n_units, default=rules.low_units) < rules.low_units,
        "PEEKED": e.n_looks > 1 and not e.sequential,
        "QUERIES_PER_UNIT_MOVED": _below(e.queries_per_unit_p, rules.queries_per_unit_alpha),
        "PRE_IMBALANCE": _below(e.pre_period_p, rules.pre_period_alpha),
        "HEAVY_UNIT": (e.max_unit_share or 0.0) > rules.heavy_unit,
        "SUSPICIOUS_LIFT": abs(e.lift or 0.0) > rules.suspicious_lift,
        "UNDERPOWERED": _below(e.mde_ratio, 1.0),
        "PARTIAL_WEEK": e.days_present is not None and e.days_present % rules.week != 0,
    }
    return tuple(flag for flag, is_raised in raised.items() if is_raised)


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit

"""Decisions and flags, a row of the table a rule."""

from dataclasses import replace

import pytest

from rankspark.stats import Evidence, Rules, judge

GOOD = Evidence(
    role="primary",
    status="ok",
    effect=0.01,
    p=0.01,
    ni_p=0.001,
    lift=0.02,
    mde_ratio=1.2,
    n_units=(1000, 1000),
    srm_p=0.4,
    queries_per_unit_p=0.5,
    pre_period_p=0.5,
    max_unit_share=0.01,
    days_present=14,
)


@pytest.mark.parametrize(
    ("changes", "decision"),
    [
        ({}, "better"),
        ({"effect": -0.01}, "worse"),
        ({"higher_is_better": False}, "worse"),
        ({"effect": -0.01, "higher_is_better": False}, "better"),
        ({"p": 0.05}, "inconclusive"),
        ({"p": None, "status": "zero_variance", "effect": 0.0}, "inconclusive"),
        ({"p": None, "status": "few_units"}, "inconclusive"),
        ({"p": None, "status": "no_queries", "effect": None}, "inconclusive"),
        ({"role": "secondary"}, "better"),
        ({"role": "guardrail"}, "no_worse"),
        ({"role": "guardrail", "effect": -0.01}, "no_worse"),  # within the margin
        ({"role": "guardrail", "effect": -0.01, "ni_p": 0.3}, "worse"),
        ({"role": "guardrail", "ni_p": 0.3}, "inconclusive"),
        ({"role": "guardrail", "ni_p": None, "p": None}, "inconclusive"),
        ({"p": 0.2}, "inconclusive"),  # a primary measure is not decided by non-inferiority
    ],
)
def test_a_decision_follows_from_role_direction_and_p(changes, decision: str) -> None:
    assert judge(replace(GOOD, **changes)).decision == decision


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({}, ()),
        ({"srm_p": 0.0009}, ("SAMPLE_RATIO_MISMATCH",)),
        ({"srm_p": 0.001}, ()),
        ({"srm_p": None}, ()),
        ({"n_mixed": 10, "n_units": (400, 400)}, ()),  # above 1%, but not above 10 units
        ({"n_mixed": 11, "n_units": (400, 400)}, ("MIXED_UNITS",)),
        ({"n_mixed": 11}, ()),  # below 1%
        ({"n_units": (1000, 199)}, ("LOW_UNITS",)),
        ({"n_units": (200, 200)}, ()),
        ({"n_looks": 2}, ("PEEKED",)),
        ({"n_looks": 2, "sequential": True}, ()),
        ({"queries_per_unit_p": 0.009}, ("QUERIES_PER_UNIT_MOVED",)),
        ({"pre_period_p": 0.0009}, ("PRE_IMBALANCE",)),
        ({"max_unit_share": 0.051}, ("HEAVY_UNIT",)),
        ({"max_unit_share": 0.05}, ()),
        ({"lift": 0.51}, ("SUSPICIOUS_LIFT",)),
        ({"lift": -0.51}, ("SUSPICIOUS_LIFT",)),
        ({"lift": None, "mde_ratio": None, "days_present": None}, ()),
        ({"mde_ratio": 0.99}, ("UNDERPOWERED",)),
        ({"days_present": 13}, ("PARTIAL_WEEK",)),
        ({"n_looks": 3, "lift": 0.9}, ("PEEKED", "SUSPICIOUS_LIFT")),
    ],
)
def test_a_flag_is_raised_at_its_limit(changes, flags: tuple[str, ...]) -> None:
    assert judge(replace(GOOD, **changes)).flags == flags


def test_a_broken_split_or_many_mixed_units_decide_nothing_unless_overridden() -> None:
    for changes in ({"srm_p": 1e-9}, {"n_mixed": 112, "n_units": (500, 500)}):
        broken = replace(GOOD, **changes)
        assert judge(broken).decision == "invalid"
        assert judge(broken, Rules(override=True)).decision == "better"
        assert judge(broken).flags == judge(broken, Rules(override=True)).flags != ()
    assert judge(replace(GOOD, n_mixed=111, n_units=(500, 499))).decision == "better"


def test_few_mixed_units_of_few_invalidate_and_say_so() -> None:
    # 6 of 54: above 10%, and below 10 units.
    verdict = judge(replace(GOOD, n_mixed=6, n_units=(24, 24)))
    assert verdict.decision == "invalid"
    assert "MIXED_UNITS" in verdict.flags

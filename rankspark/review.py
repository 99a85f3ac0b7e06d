"""Comparisons in words: text to paste into a launch review, Markdown, or JSON.

Rows are those of the table `comparisons`; nothing is computed here but how they are written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rankspark import tables
from rankspark.stats import Decomposition

Row = Mapping[str, Any]
#: Experiment, measure, control, treatment.
Changes = Mapping[tuple[str, str, str, str], Decomposition]

_STATUS = {
    "no_queries": "a variant has no query here",
    "few_units": "a variant has fewer than two units, so nothing can be tested",
    "zero_variance": "nothing varies, so nothing can be tested",
    "control_near_zero": "the control may be 0, so there is no relative lift",
}
_FLAGS = {
    "SAMPLE_RATIO_MISMATCH": "units are not split as configured (p {srm_p:.2g}): something lost or"
    " moved them, and it may be what is seen here",
    "MIXED_UNITS": "{n_mixed:,} units ({share_mixed:.1%}) were seen in two variants and left out",
    "LOW_UNITS": "fewer than 200 units in a variant: the interval is a rough one",
    "PEEKED": "{n_looks} looks at this range: a fixed test is too sure of itself, trust the"
    " always-valid p",
    "QUERIES_PER_UNIT_MOVED": "units issue more or fewer queries than the control's"
    " (p {queries_per_unit_p:.2g}): the treatment moved the denominator",
    "PRE_IMBALANCE": "the variants differed before the start (p {pre_period_p:.2g})",
    "HEAVY_UNIT": "one unit issued {max_unit_share:.0%} of a variant's queries",
    "SUSPICIOUS_LIFT": "a lift this large is more often an error than an improvement",
    "UNDERPOWERED": "the test was too small for an effect like this one (it finds"
    " {mde:.4f} with 80% power): if it is real, it is exaggerated",
    "PARTIAL_WEEK": "{days_present} days are no whole weeks: weekdays do not weigh the same",
}


def text(rows: Sequence[Row], changes: Changes) -> str:
    """A few lines a measure, overall; then the slices; then where each MRR's change came from.

    Args:
        rows: of `comparisons`, with `experiment`.
        changes: of each MRR.
    """
    lines: list[str] = []
    for head, members in _grouped(rows):
        lines += [_title(members[0]), ""]
        whole = [row for row in members if row["slice_name"] == tables.OVERALL[0]]
        for row in whole:
            lines += [f"  {row['measure']} ({row['role']}): {_verdict(row)}"]
            lines += [f"    {line}" for line in _result(row)]
            lines += [f"    ! {line}" for line in warnings(row)]
            change = changes.get((head[0], row["measure"], *head[1:]))
            lines += [f"    {line}" for line in _ranks(row, change)]
            lines.append("")
        sliced = [row for row in members if row["slice_name"] != tables.OVERALL[0]]
        if sliced:
            lines += ["  slices (adjusted within each):"]
            lines += [f"    {_slice(row)}" for row in sliced]
            lines.append("")
    return "\n".join(lines).rstrip()


def markdown(rows: Sequence[Row], changes: Changes) -> str:
    """The same as tables and lists."""
    lines: list[str] = []
    names = (
        "measure", "role", "slice", "control", "treatment", "effect", "lift", "p", "adjusted p",
        "decision",
    )  # fmt: skip
    for head, members in _grouped(rows):
        lines += [f"### {_title(members[0])}", "", f"| {' | '.join(names)} |"]
        lines.append("|" + "---|" * len(names))
        for row in members:
            where = f"{row['slice_name']} = {row['slice_value']}"
            cells = (
                row["measure"], row["role"],
                "all" if row["slice_name"] == tables.OVERALL[0] else where,
                _number(row["mean_c"]), _number(row["mean_t"]), _interval(row, "effect", "ci"),
                _interval(row, "lift", "lift_ci"), _p(row["p"]), _p(row["p_adj"]), _verdict(row),
            )  # fmt: skip
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
        for row in members:
            if row["slice_name"] == tables.OVERALL[0]:
                change = changes.get((head[0], row["measure"], *head[1:]))
                said = [*_worth(row), *warnings(row), *_ranks(row, change)]
                lines += [f"- {row['measure']}: {line.strip()}" for line in said]
        lines.append("")
    return "\n".join(lines).rstrip()


def as_json(rows: Sequence[Row], changes: Changes) -> str:
    """All columns of all rows, and the changes rank by rank."""
    content = {
        "comparisons": [dict(row) for row in rows],
        "changes": [
            dict(zip(("experiment", "measure", "control", "treatment"), names, strict=True))
            | {"total": split.total, "ranks": [vars(one) for one in split.ranks]}
            for names, split in changes.items()
        ],
    }
    return json.dumps(content, indent=2, default=str)


def warnings(row: Row) -> list[str]:
    """What to doubt a result for, in words.

    >>> warnings({"status": "few_units", "flags": ["PARTIAL_WEEK"], "days_present": 3})[1]
    '3 days are no whole weeks: weekdays do not weigh the same'
    """
    said = [_STATUS[row["status"]]] if row["status"] in _STATUS else []
    said += [_FLAGS[flag].format(**row) for flag in row["flags"]]
    if row.get("n_mixed") and "MIXED_UNITS" not in row["flags"]:
        said.append(f"{row['n_mixed']:,} units were seen in two variants and left out")
    if row.get("n_unpaired"):
        said.append(f"{row['n_unpaired']:,} units without the same queries under both left out")
    return said


def _grouped(rows: Sequence[Row]) -> list[tuple[tuple[str, str, str], list[Row]]]:
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        names = (row["experiment"], row["control"], row["treatment"])
        found.setdefault(names, []).append(row)
    return list(found.items())


def _title(row: Row) -> str:
    how = {
        "unit_id": "over units by unit_id",
        "query_id": "each query its own unit, as no unit_id was logged",
    }.get(row["unit"], "over units by unit_id, queries without one being their own")
    paired = " on the same queries" * (row["design"] == "paired")
    means = ", each unit counting once" * (row["estimand"] == "per_unit")
    return (
        f"{row['experiment']}: {row['treatment']} against {row['control']}{paired}, "
        f"{row['date_from']} to {row['date_to']}, {row['days_present']} days; {how}{means}"
    )


def _verdict(row: Row) -> str:
    return str(row["decision"]).replace("_", " ").upper()


def _result(row: Row) -> list[str]:
    if row["effect"] is None:
        return []
    level = f"{1 - row['alpha']:.4g}".removeprefix("0.")
    adjusted = " (adjusted by CUPED)" if row["theta"] is not None else ""
    means = (
        f"{row['control']} {_number(row['mean_c'])}, {row['treatment']} {_number(row['mean_t'])}"
    )
    effect, lift = _interval(row, "effect", "ci"), _interval(row, "lift", "lift_ci")
    lines = [f"{means}{adjusted}: {effect} at {level.ljust(2, '0')}%, lift {lift}"]
    if row["p"] is not None:
        family = f"{row['adjust_method'].replace('_', '-')} of {row['family_size']}"
        lines.append(
            f"p {_p(row['p'])}, adjusted {_p(row['p_adj'])} ({family}),"
            f" always-valid {_p(row['seq_p'])}"
        )
    if row["ni_margin"] is not None:
        lines.append(f"not worse by {row['ni_margin']:.2%}: p {_p(row['ni_p'])}")
    if row["variance_reduction"] is not None:
        lines.append(f"CUPED removed {row['variance_reduction']:.0%} of the variance")
    if row["wins"] is not None:
        lines.append(f"{row['wins']:,} wins, {row['ties']:,} ties, {row['losses']:,} losses")
    return [*lines, *_worth(row)]


def _worth(row: Row) -> list[str]:
    if row["n_queries_t"] is None:
        return []
    # Paired rankers share their queries.
    both = row["design"] == "ab"
    queries, units = (
        row[f"{name}_t"] + both * (row[f"{name}_c"] or 0) for name in ("n_queries", "n_units")
    )
    factor = row["design_effect"]
    said = f"{queries:,} queries of {units:,} units"
    if not factor or round(factor, 2) == 1:
        return [said]
    worth = f"{queries:,} queries are worth about {round(queries / factor):,}"
    return [said, f"{worth}: users repeat"] if factor > 1 else [said, worth]


def _ranks(row: Row, change: Decomposition | None) -> list[str]:
    if change is None or change.total is None or row["p"] is None or row["theta"] is not None:
        return []
    lines = ["where it came from, by rank of the first relevant item:"]
    lines += [
        f"  rank {one.rank}: share {one.share_c:.1%} to {one.share_t:.1%},"
        f" {one.contribution:+.4f}" + ("" if one.ci_low is None or one.ci_high is None else
        f" ({one.ci_low:+.4f} to {one.ci_high:+.4f})")
        for one in change.ranks
        if one.contribution is not None and (one.share_c or one.share_t)
    ]  # fmt: skip
    rest = row["effect"] - change.total
    if abs(rest) > 1e-8:
        lines.append(f"  beyond rank {max(one.rank for one in change.ranks)}: {rest:+.4f}")
    return lines


def _slice(row: Row) -> str:
    where = f"{row['measure']}, {row['slice_name']} = {row['slice_value']}"
    if row["p"] is None:
        return f"{where}: {_STATUS.get(row['status'], row['status'])}"
    effect = _interval(row, "effect", "ci")
    return f"{where}: {effect}, adjusted p {_p(row['p_adj'])}, {row['decision']}"


def _interval(row: Row, name: str, ends: str) -> str:
    value, low, high = row[name], row[f"{ends}_low"], row[f"{ends}_high"]
    if value is None:
        return "none"
    form = "{:+.2%}" if name == "lift" else "{:+.4f}"
    said = form.format(value)
    return said if low is None else f"{said} ({form.format(low)} to {form.format(high)})"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4f}"


def _p(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}"

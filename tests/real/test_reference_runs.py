"""TREC runs under the profile `trec`: every query's value is the reference libraries'."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from rankspark import config
from rankspark.spark import pipeline
from tests.tables import read

DAY = dt.date(2026, 1, 1)

#: The reference's names of our measures; those with a cutoff get it from its column k.
NAMES = {
    "recip_rank": "mrr",
    "ndcg": "ndcg",
    "ndcg_exp": "ndcg_exp",
    "ap": "map",
    "p": "precision",
    "recall": "recall",
    "success": "hit",
    "rprec": "r_precision",
    "bpref": "bpref",
    "err": "err",
    "rbp_p0.8": "rbp(p=0.8)",
    "rbp_p0.95": "rbp(p=0.95)",
    "num_rel": "n_relevant",
}
#: Not reproduced, by design: counts that are no measures (`num_ret`, `num_rel_ret`), cwl_eval's AP
#: over the relevant items retrieved, and ranx's RBP of raw grades, which has a profile of its own.
LEFT_OUT = {
    "num_ret",
    "num_rel_ret",
    "ap_over_retrieved_relevant",
    "rbp_rawgrade_p0.8",
    "rbp_rawgrade_p0.95",
}
#: These order tied scores by id descending, as trec_eval; the others by what is first in the file.
AS_TREC_EVAL = ("pytrec_eval", "ir_measures/pytrec_eval", "ir_measures/gdeval")


@dataclass(frozen=True)
class Case:
    data: str
    runs: tuple[str, ...]
    qrels: str
    reference: str
    systems: dict[str, str]  # our variant, the run's tag: the reference's system
    relevant_from: float | None = None
    skip: frozenset[str] = frozenset()


ROBUST = (
    "MU03rob01", "NLPR03vb10", "UIUC03Rd1", "aplrob03a", "humR03dc", "pircRBa1", "rutcor03100",
    "uic0301",
)  # fmt: skip
DL19 = "run.msmarco-v1-passage.bm25-default.dl19.txt.gz"
CASES = {
    "trec-eval-test": Case(
        "trec-eval-test", ("results.test",), "qrels.test", "trec_eval_test.csv",
        {"STANDARD": "results.test"},
    ),
    "trec-eval-truncated": Case(
        "trec-eval-test", ("results.trunc",), "qrels.test", "trec_eval_test.csv",
        {"STANDARD": "results.trunc"},
    ),
    # gdeval's ERR knows grades up to 4 only, and these go up to 6.
    "trec-eval-graded": Case(
        "trec-eval-test", ("results.test",), "qrels.rel_level", "trec_eval_test.csv",
        {"STANDARD": "results.test+qrels.rel_level"}, skip=frozenset({"err"}),
    ),
    "trec-eval-graded-from-2": Case(
        "trec-eval-test", ("results.test",), "qrels.rel_level", "trec_eval_test.csv",
        {"STANDARD": "results.test+qrels.rel_level"}, relevant_from=2, skip=frozenset({"err"}),
    ),
    "trec-eval-comments": Case(
        "trec-eval-test", ("results.comment.test.gz",), "qrels.comment.test.gz",
        "trec_eval_comment_test.csv", {"comment.test": "comment.test"},
    ),
    "dl19": Case(
        "trec-dl19-passage", (DL19,), "qrels.dl19-passage.txt", "trec_dl19_passage.csv",
        {"Anserini": "bm25-default"},
    ),
    "dl19-from-2": Case(
        "trec-dl19-passage", (DL19,), "qrels.dl19-passage.txt", "trec_dl19_passage.csv",
        {"Anserini": "bm25-default"}, relevant_from=2,
    ),
    "trec-covid": Case(
        "beir-trec-covid", ("run.beir.bm25-flat.trec-covid.txt.gz",),
        "qrels.beir-v1.0.0-trec-covid.test.txt.gz", "beir_trec_covid.csv", {"Anserini":
        "bm25-flat"},
    ),
    "robust03": Case(
        "trec-robust03", tuple(f"input.{name}.gz" for name in ROBUST),
        "robust03_qrels.txt.gz", "trec_robust03.parquet",
        {name: name for name in ROBUST},
    ),
}  # fmt: skip


def references(file: Path, case: Case) -> pd.DataFrame:
    """The values that the case covers: system, query_id, library, measure, value."""
    if file.suffix == ".parquet":
        frame = pd.read_parquet(file)
    else:
        frame = pd.read_csv(file, dtype={"query_id": str})
    frame = frame[frame.system.isin(case.systems.values())]
    frame = frame[~frame.query_id.isin(["all", "all_complete"])]
    suffix = f"(rel>={case.relevant_from:g})" if case.relevant_from else ""
    with_gains = frame.metric.isin(["ndcg", "ndcg_exp", "err"])
    plain = with_gains | (suffix != "") | ~frame.metric.str.contains("rel>=")
    chosen = frame[frame.metric.str.endswith(suffix) & plain]
    metric = chosen.metric.str.removesuffix(suffix)
    assert set(metric) <= {*NAMES, *LEFT_OUT}
    chosen = chosen.assign(metric=metric)[~metric.isin(LEFT_OUT | case.skip)]
    cutoff = chosen.k.map(lambda k: "" if pd.isna(k) else f"@{int(k)}")
    return chosen.assign(measure=chosen.metric.map(NAMES) + cutoff)


def tied_topics(files: list[Path]) -> set[tuple[str, str]]:
    """The (tag, topic) pairs in which two items have one score."""
    tied: set[tuple[str, str]] = set()
    for file in files:
        types = {0: str, 5: str}
        run = pd.read_csv(file, sep=r"\s+", header=None, usecols=[0, 4, 5], dtype=types, quoting=3)
        again = run.duplicated([0, 4])
        tied |= set(zip(run[5][again], run[0][again], strict=True))
    return tied


@pytest.mark.parametrize("name", CASES)
def test_every_value_of_the_reference_comes_out(
    spark, shared: Path, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    folder = shared / "data" / case.data
    runs = [folder / run for run in case.runs]
    expected = references(shared / "reference" / case.reference, case)
    job = config.from_dict(
        {
            "name": name,
            "input": {"path": [str(run) for run in runs], "format": "trec"},
            "judgments": {"path": str(folder / case.qrels), "format": "trec"},
            "evaluate": {
                "profile": "trec",
                "measures": sorted(expected.measure.unique()),
                **({"relevant_from": case.relevant_from} if case.relevant_from else {}),
            },
            "output": {"path": str(tmp_path / "out")},
        }
    )
    result = pipeline.evaluate(spark, job, [DAY])[0]
    assert result.error is None
    columns = {measure.column_name: str(measure) for measure in job.measures}
    queries = read(tmp_path / "out", "query_metrics").rename(columns=columns)
    ours = queries.melt(["variant", "query_id"], list(columns.values()), "measure", "ours")
    ours["system"] = ours.variant.map(case.systems)
    spelled = {
        text: str(measure)
        for text in expected.measure.unique()
        for measure in [config.Measure.parse(text)]
    }
    expected["measure"] = expected.measure.map(spelled)
    joined = expected.merge(ours, on=["system", "query_id", "measure"], how="left")
    tied = tied_topics(runs)
    in_tie = [pair in tied for pair in zip(joined.variant, joined.query_id, strict=True)]
    joined = joined[joined.library.isin(AS_TREC_EVAL) | ~pd.Series(in_tie, joined.index)]
    assert set(joined.measure) >= set(expected[expected.library.isin(AS_TREC_EVAL)].measure)
    assert not joined.ours.isna().any()
    difference = (joined.value - joined.ours).abs()
    rounded = joined.library == "ir_measures/gdeval"  # prints five decimals
    worst = joined.assign(difference=difference).sort_values("difference").tail(5)
    assert difference[~rounded].max() < 1e-6, worst.to_string()
    assert not rounded.any() or difference[rounded].max() <= 5.0001e-6, worst.to_string()


#: trec_eval's names of our measures, those with a cutoff below. It prints others that rankspark
#: does not have: interpolated precision, gm_map, gm_bpref, 11pt_avg, infAP, Rndcg, ndcg_rel,
#: relative and set measures, G, binG, utility, Rprec_mult, rbp, ndcg with gains of one's own.
#: Of its files aqcM (-M100: the first 100 items only) and aqZ (z-scores) are not compared.
PRINTED = {
    "map": "map",
    "Rprec": "r_precision",
    "bpref": "bpref",
    "recip_rank": "mrr",
    "ndcg": "ndcg",
    "num_rel": "n_relevant",
}
WITH_CUTOFF = {
    "P": "precision",
    "recall": "recall",
    "ndcg_cut": "ndcg",
    "map_cut": "map",
    "success": "hit",
}


def measure_of(printed: str) -> str | None:
    name, _, cutoff = printed.rpartition("_")
    if name in WITH_CUTOFF and cutoff.isdigit():
        return f"{WITH_CUTOFF[name]}@{cutoff}"
    return PRINTED.get(printed)


@pytest.mark.parametrize(
    ("printed", "run", "qrels", "evaluate", "unshown"),
    [
        ("out.test.aq", "results.test", "qrels.test", {}, "leave_out"),
        ("out.test.a", "results.test", "qrels.test", {}, "leave_out"),
        ("out.test", "results.test", "qrels.test.with-comments", {}, "leave_out"),
        ("out.test.aql", "results.test", "qrels.rel_level", {"relevant_from": 2}, "leave_out"),
        ("out.test.meas_params", "results.test", "qrels.test", {}, "leave_out"),
        ("out.test.aqc", "results.trunc", "qrels.test", {}, "zero"),
        ("out.comment.test", "results.comment.test.gz", "qrels.comment.test.gz", {}, "leave_out"),
    ],
)
def test_what_trec_eval_prints_comes_out(
    spark, shared: Path, tmp_path: Path, printed: str, run: str, qrels: str, evaluate, unshown: str
) -> None:
    folder = shared / "data" / "trec-eval-test"
    lines = [line.split() for line in (folder / printed).read_text().splitlines()]
    expected = {(w[0], w[1]): float(w[2]) for w in lines if measure_of(w[0])}
    measures = sorted({str(measure_of(name)) for name, _ in expected})
    job = config.from_dict(
        {
            "name": "printed",
            "input": {"path": str(folder / run), "format": "trec"},
            "judgments": {"path": str(folder / qrels), "format": "trec", "unshown": unshown},
            "evaluate": {"profile": "trec", "measures": measures, **evaluate},
            "output": {"path": str(tmp_path / "out")},
        }
    )
    result = pipeline.evaluate(spark, job, [DAY])[0]
    assert result.error is None
    queries = read(tmp_path / "out", "query_metrics").set_index("query_id")
    means = {row["measure"]: row["mean"] for row in result.metrics}
    for (name, topic), value in expected.items():
        measure = config.Measure.parse(str(measure_of(name)))
        if topic != "all":
            ours = queries.loc[topic, measure.column_name]
        else:
            # trec_eval adds the num_ measures up.
            ours = means[str(measure)] * (len(queries) if name.startswith("num_") else 1)
        assert abs(ours - value) <= 5.01e-5, (name, topic, ours, value)
    assert len(expected) >= 14

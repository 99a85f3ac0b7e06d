"""The commands, as a scheduler and a person call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from rankspark import cli
from rankspark.spark import session
from tests.tables import read

CONFIG = """
name = "cli"
[input]
path = "{log}"
[input.columns]
date = "date"
experiment = "'e'"
variant = "'A'"
query_id = "q"
item_id = "i"
position = "p"
relevance = "r"
[output]
path = "{out}"
"""


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> dict[str, str]:
    log, out = tmp_path / "log", tmp_path / "out"
    spark.createDataFrame(
        [
            ("2024-03-10", "q1", "a", 1, 0),
            ("2024-03-10", "q1", "b", 2, 1),
            ("2024-03-11", "q2", "b", 1, 1),
        ],
        "date STRING, q STRING, i STRING, p INT, r INT",
    ).write.parquet(str(log))
    config = tmp_path / "job.toml"
    config.write_text(CONFIG.format(log=log, out=out))
    return {"config": str(config), "out": str(out), "result": str(tmp_path / "result.json")}


def run(files: dict[str, str], *arguments: str) -> int:
    return cli.main(["evaluate", "--config", files["config"], *arguments])


def test_a_range_of_dates_is_published_and_told(files, capsys) -> None:
    code = run(
        files, "--start", "2024-03-10", "--end", "2024-03-12", "--result-file", files["result"]
    )
    assert code == 0
    printed = capsys.readouterr()
    assert "2024-03-10 published: 2 rows read, 2 scored in 1 queries" in printed.out
    assert "2024-03-11 score" in printed.err
    told = json.loads(Path(files["result"]).read_text())
    assert [entry["date"] for entry in told] == ["2024-03-10", "2024-03-11"]
    assert [entry["exit_code"] for entry in told] == [0, 0]
    assert told[0]["counts"]["n_rows_read"] == 2


def test_a_dry_run_shows_the_plan_and_writes_nothing(files, capsys) -> None:
    assert run(files, "--date", "2024-03-10", "--dry-run") == 0
    printed = capsys.readouterr().out
    assert "date: 2024-03-10" in printed
    assert '"no_relevant": "zero"' in printed
    assert "would replace: nothing" in printed
    assert "MapInArrow" in printed
    assert not Path(files["out"]).exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--date", "2024-03-09"], 3, "no row of that date"),
        (["--date", "{{ ds }}"], 2, "render its template"),
        (["--start", "2024-03-12", "--end", "2024-03-10"], 2, "after the start"),
        (
            ["--date", "2024-03-10", "--set", "input.columns.position=rank"],
            3,
            "input.columns.position",
        ),
        (["--date", "2024-03-10", "--set", "input.path=/nowhere"], 3, "/nowhere"),
        (["--date", "2024-03-10", "--set", "evaluate.measurs=['mrr']"], 2, "did you mean"),
        (["--date", "2024-03-10", "--set", "evaluate.measures=['ndcg@0']"], 2, "ndcg@0"),
    ],
)
def test_bad_input_ends_with_its_code_one_line_and_nothing_written(
    files, capsys, arguments, code, said
) -> None:
    assert run(files, *arguments) == code
    errors = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("rankspark: error")
    ]
    assert len(errors) == 1
    assert said in errors[0]
    assert not Path(files["out"]).exists()


def test_the_worst_date_gives_the_exit_code_and_the_others_are_published(files, capsys) -> None:
    assert run(files, "--date", "2024-03-09", "--date", "2024-03-10") == 3
    assert "2024-03-10 published" in capsys.readouterr().out


def test_an_unexpected_error_is_one_line_too_and_a_trace_on_request(
    files, capsys, monkeypatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr(cli, "get_session", broken)
    assert run(files, "--date", "2024-03-10") == 1
    assert capsys.readouterr().err == (
        "rankspark: error: unexpected ZeroDivisionError: first line; see --verbose\n"
    )
    assert run(files, "--date", "2024-03-10", "--verbose") == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_job_runs_under_spark_submit_from_another_folder(files, tmp_path: Path) -> None:
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    job = Path(__file__).resolve().parents[1] / "jobs" / "evaluate.py"
    away = tmp_path / "away"
    away.mkdir()
    arguments = [
        "--config",
        files["config"],
        "--date",
        "2024-03-10",
        "--result-file",
        files["result"],
    ]
    with session._environment(session._java_environment()):
        done = subprocess.run(
            [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", job, *arguments],
            cwd=away,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "2024-03-10 published: 2 rows read" in done.stdout
    assert json.loads(Path(files["result"]).read_text())[0]["status"] == "published"
    assert set(read(Path(files["out"]), "metrics").date) == {"2024-03-10"}


@pytest.fixture
def experiment(spark: SparkSession, files: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The same configuration over a log of two variants, evaluated."""
    rows = [
        (
            "2024-03-10",
            f"q{n}",
            item,
            place,
            int(place == n // 7 % 3),
            f"u{n % 16}",
            "AB"[n % 16 % 2],
        )
        for n in range(48)
        for place, item in enumerate("abc", start=1)
    ]
    log = str(tmp_path / "units")
    names = "date STRING, q STRING, i STRING, p INT, r INT, u STRING, v STRING"
    spark.createDataFrame(rows, names).write.parquet(log)
    text = Path(files["config"]).read_text().replace("\"'A'\"", '"v"').replace("/log", "/units")
    text = text.replace('position = "p"', 'position = "p"\nunit_id = "u"')
    Path(files["config"]).write_text(text + '[compare]\ncontrol = "A"\n')
    assert run(files, "--date", "2024-03-10") == 0
    return files


def test_a_comparison_is_printed_and_a_wrong_one_is_one_line(experiment, capsys) -> None:
    common = ["--config", experiment["config"]]
    dates = ["--start", "2024-03-10", "--end", "2024-03-11"]
    assert cli.main(["compare", *common, *dates]) == 0
    told = capsys.readouterr().out
    assert "e: B against A, 2024-03-10 to 2024-03-10, 1 days; over units by unit_id" in told
    assert "mrr (primary): INCONCLUSIVE" in told
    assert "48 queries of 16 units" in told
    out = Path(experiment["out"])
    assert len(list((out / "comparisons").rglob("*.parquet"))) == 1

    assert cli.main(["compare", *common, *dates, "--format", "json", "--dry-run"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert {row["measure"] for row in content["comparisons"]} == {"mrr", "ndcg@10"}
    assert len(list((out / "comparisons").rglob("*.parquet"))) == 1

    wrong = ["--set", "compare.control=C"]
    assert cli.main(["compare", *common, *dates, *wrong]) == 2
    assert "variants of 'e': A, B" in capsys.readouterr().err
    assert cli.main(["compare", *common, "--start", "2024-03-09", "--end", "2024-03-11"]) == 3
    assert "2024-03-09" in capsys.readouterr().err

    assert cli.main(["power", *common, "--measure", "mrr", "--mde", "2%"]) == 0
    assert "days at this traffic" in capsys.readouterr().out
    assert cli.main(["power", *common, "--measure", "mrr", "--mde", "much"]) == 2


def test_check_shows_a_log_as_text_and_as_json_and_writes_nothing(files, capsys) -> None:
    assert cli.main(["check", "--config", files["config"], "--date", "2024-03-10"]) == 0
    printed = capsys.readouterr().out
    assert "2024-03-10: 2 rows, 1 queries" in printed
    assert "positions seem to count from: 1" in printed
    zero = ["--set", "input.position_base=0", "--format", "json"]
    assert cli.main(["check", "--config", files["config"], *zero]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["day"], told["n_rows"], told["n_rows_of_other_dates"]) == ("2024-03-11", 1, 2)
    assert "input.position_base = 1" in told["advice"][0]
    assert not Path(files["out"]).exists()


def test_a_gate_that_fails_ends_with_4_and_tells_what_was_found(files, capsys) -> None:
    gate = ["--set", "quality.no_relevant={fail=0.001}", "--set", "input.columns.relevance='0'"]
    assert run(files, "--date", "2024-03-10", *gate) == 4
    printed = capsys.readouterr()
    assert "1 of 1 are queries without a relevant item, 100.0% (limit 0.001)" in printed.err
    assert "2 rows read" in printed.out
    assert not Path(files["out"]).exists()

"""The command line: arguments in, the pipeline's results out as text. No logic of its own."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date, timedelta
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

import rankspark
from rankspark import config as configuration
from rankspark import demo, review, tables
from rankspark.errors import ConfigError, QualityError, RanksparkError
from rankspark.measures import MEASURES
from rankspark.spark import compare as comparing
from rankspark.spark import pipeline, profile
from rankspark.spark.pipeline import DateResult
from rankspark.spark.session import get_session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code (DESIGN section 7)."""
    options = _parser().parse_args(arguments)
    caught: BaseException
    try:
        return int(options.command(options))
    except RanksparkError as error:
        caught, line, code = error, str(error), error.exit_code
    except KeyboardInterrupt as error:
        caught, line, code = error, "interrupted; the published tables are as they were", 130
    except Exception as error:  # noqa: BLE001  the last stop: one line for the scheduler
        text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        caught, line, code = error, f"unexpected {type(error).__name__}: {text}; see --verbose", 1
    if options.verbose:
        traceback.print_exception(caught)
    print(f"rankspark: error: {line}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rankspark", description="Ranking metrics from logged impressions, on Spark."
    )
    parser.add_argument("--version", action="version", version=rankspark.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    evaluate = commands.add_parser(
        "evaluate", help="evaluate dates of a log and publish their tables"
    )
    add_evaluate_arguments(evaluate)
    compared = commands.add_parser(
        "compare", help="compare variants or rankers over a range of evaluated dates"
    )
    add_compare_arguments(compared)
    planned = commands.add_parser("power", help="the days an experiment needs to find a lift")
    _add_common(planned)
    planned.add_argument("--measure", required=True, metavar="M", help="such as mrr@10")
    planned.add_argument(
        "--mde", required=True, metavar="LIFT", help="relative lift to find, such as 2%% or 0.02"
    )
    planned.set_defaults(command=_power)
    checked = commands.add_parser(
        "check", help="show what is in a log and what evaluate would do to it; write nothing"
    )
    checked.add_argument("--config", required=True, metavar="FILE", help="TOML configuration")
    checked.add_argument("--date", metavar="D", help="YYYY-MM-DD; default: the last in the log")
    checked.add_argument("--format", choices=("text", "json"), default="text")
    checked.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override a key of the configuration",
    )  # fmt: skip
    checked.add_argument("--verbose", action="store_true", help="show the trace of an error")
    checked.set_defaults(command=_check)
    listed = commands.add_parser("measures", help="list the measures and their parameters")
    listed.set_defaults(command=_measures, verbose=False)
    schema = commands.add_parser("schema", help="print the columns of the published tables")
    schema.add_argument("table", nargs="?", metavar="TABLE", help="one of them; default: all")
    schema.add_argument("--config", metavar="FILE", help="for the columns of its measures, slices")
    schema.add_argument("--format", choices=["ddl", "markdown", "json"], default="markdown")
    schema.set_defaults(command=_schema, verbose=False)
    shown = commands.add_parser("demo", help="evaluate a simulated log and show what comes out")
    shown.add_argument("--directory", type=Path, help="where it goes; default: a new folder")
    shown.add_argument("--verbose", action="store_true", help="show the trace of an error")
    shown.set_defaults(command=_demo)
    return parser


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `evaluate`, shared with jobs/evaluate.py."""
    _add_common(parser)
    parser.add_argument(
        "--date", action="append", default=[], metavar="D", help="YYYY-MM-DD; repeatable"
    )
    parser.add_argument(
        "--lookback", type=int, default=0, metavar="N",
        help="also the N days before the first date, to restate them with late labels",
    )  # fmt: skip
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--only-missing", action="store_true", help="dates not published yet")
    chosen.add_argument("--only-failed", action="store_true", help="dates whose last run failed")
    parser.add_argument(
        "--skip-unchanged", action="store_true",
        help="leave dates whose input files, configuration and code are those of the last run",
    )  # fmt: skip
    parser.add_argument(
        "--allow-empty", action="store_true", help="publish a date without any row as empty"
    )
    parser.add_argument("--newest-first", action="store_true", help="begin with the last date")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="dates worked on at once; default 1"
    )
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS",
        help="wait for another run of a date; default: end with 75 at once",
    )  # fmt: skip
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would happen; write nothing"
    )
    parser.add_argument(
        "--result-file", type=Path, metavar="FILE", help="write the outcome as JSON"
    )
    parser.set_defaults(command=_evaluate)


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `compare`, shared with jobs/compare.py."""
    _add_common(parser)
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--dry-run", action="store_true", help="do not add to `comparisons`")
    parser.set_defaults(command=_compare)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML configuration")
    parser.add_argument("--start", metavar="D", help="first date of a range")
    parser.add_argument("--end", metavar="D", help="the date after the last of the range")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="override a key of the configuration, such as output.path=/tmp/x",
    )  # fmt: skip
    parser.add_argument("--verbose", action="store_true", help="show the trace of an error")


def _evaluate(options: argparse.Namespace) -> int:
    config = configuration.load(options.config, options.overrides)
    dates = configuration.parse_dates(
        options.date,
        options.start,
        options.end,
        options.lookback,
        newest_first=options.newest_first,
    )
    if options.jobs < 1:
        raise ConfigError(expected="--jobs 1 or more", found=str(options.jobs), action="correct it")
    spark = get_session()
    if options.only_missing or options.only_failed:
        dates = pipeline.wanted(spark, config, dates, failed=options.only_failed)
        if not dates:
            print("rankspark: nothing to do: no such date in the range")
            return 0
    if options.dry_run:
        for plan in pipeline.plan(spark, config, dates):
            print(f"date: {plan.date}\nconfiguration: {config.canonical_json()}")
            print(
                f"would replace: {', '.join(plan.replaces) or 'nothing'}\nplan:\n{plan.physical}\n"
            )
        return 0
    with _progress(len(dates)) as progress:
        results = pipeline.evaluate(
            spark, config, dates, progress,
            wait=options.wait, jobs=options.jobs, skip_unchanged=options.skip_unchanged,
            allow_empty=options.allow_empty,
        )  # fmt: skip
    if options.result_file:
        options.result_file.write_text(
            json.dumps([result.summary() for result in results], indent=2)
        )
    for result in results:
        _report(result)
        if config.input.format == "trec":
            _print_like_trec_eval(result)
    return max(result.exit_code for result in results)


def _compare(options: argparse.Namespace) -> int:
    config = configuration.load(options.config, options.overrides)
    dates = configuration.parse_dates((), options.start, options.end)
    end = dates[-1] + timedelta(days=1)
    write = not options.dry_run
    found = comparing.compare(get_session(), config, dates[0], end, write=write)
    changes = {(c.experiment, c.measure, c.control, c.treatment): c.split for c in found.changes}
    forms = {"text": review.text, "markdown": review.markdown, "json": review.as_json}
    print(forms[options.format](found.rows, changes))
    return 0


def _power(options: argparse.Namespace) -> int:
    config = configuration.load(options.config, options.overrides)
    given: tuple[date, ...] = ()
    if options.start or options.end:
        given = configuration.parse_dates((), options.start, options.end)
    first, last = (given[0], given[-1] + timedelta(days=1)) if given else (None, None)
    lift = configuration.parse_share(options.mde, "--mde")
    found = comparing.power(get_session(), config, options.measure, lift, first, last)
    mean = "no mean" if found.mean is None else f"mean {found.mean:.4f}"
    print(
        f"{found.measure}: {mean}, {found.units_seen:,} units in {found.days_seen} days of history"
    )
    if found.units is None or found.days is None:
        print("the history does not say: the measure does not vary, or no new unit arrives")
        return 0
    print(
        f"a lift of {found.lift:.2%} needs {found.units:,} units of both variants (80% power):"
        f" {found.days:,} days at this traffic, {found.new_units_a_day:,.0f} new units a day"
    )
    return 0


def _report(result: DateResult) -> None:
    if result.error is not None:
        print(f"rankspark: error: {result.date}: {result.error}", file=sys.stderr)
    for warning in result.warnings:
        print(f"rankspark: warning: {result.date}: {warning}", file=sys.stderr)
    if result.error is not None and result.exit_code != QualityError.exit_code:
        return
    if not result.counts:
        return
    if result.status == "unchanged":
        print(f"{result.date} unchanged: the published tables are of the same input and code")
        return
    counts = result.counts
    print(
        f"{result.date} {result.status}: {counts['n_rows_read']:,} rows read,"
        f" {counts['n_rows_scored']:,} scored in {counts['n_queries']:,} queries,"
        f" {counts['n_rows_duplicate']:,} duplicates, {counts['n_rows_rejected']:,} rejected"
    )
    for finding in result.findings:
        print(f"  {finding.kind}: {finding.reason} {finding.n_rows:,}")


def _print_like_trec_eval(result: DateResult) -> None:
    """Measure, `all` and value in trec_eval's columns, run by run."""
    overall = [row for row in result.metrics if row["slice_name"] == tables.OVERALL[0]]
    for variant in sorted({row["variant"] for row in overall}):
        rows = [row for row in overall if row["variant"] == variant]
        print(f"{'runid':<22}\tall\t{variant}")
        print(f"{'num_q':<22}\tall\t{rows[0]['n_queries']}")
        for row in rows:
            mean = "null" if row["mean"] is None else f"{row['mean']:.4f}"
            print(f"{row['measure']:<22}\tall\t{mean}")


def _check(options: argparse.Namespace) -> int:
    config = configuration.load(options.config, options.overrides)
    day = configuration.parse_dates([options.date])[0] if options.date else None
    found = profile.profile(get_session(), config, day)
    if options.format == "json":
        print(json.dumps(found.summary(), indent=2))
    else:
        _print_profile(found)
    return 0


def _print_profile(found: profile.Profile) -> None:
    print(f"{found.day or 'no date'}: {found.n_rows:,} rows, {found.n_queries:,} queries")
    if found.dates is not None:
        print(
            f"log: {found.dates[0]} to {found.dates[1]}, {found.n_rows_of_other_dates:,} rows of"
            f" other dates, {found.n_rows_without_date:,} without a date"
        )
    if found.n_queries:
        share = found.n_queries_no_relevant / found.n_queries
        print(f"queries without a relevant item: {found.n_queries_no_relevant:,} ({share:.1%})")
    print("list lengths: " + ", ".join(f"{q} {n:,}" for q, n in found.lengths.items()))
    print("longest lists: " + ", ".join(found.longest[:3]))
    base = "not clear" if found.position_base is None else found.position_base
    print(f"positions seem to count from: {base}")
    if found.empty_positions:
        print("positions without a row: " + ", ".join(map(str, found.empty_positions)))
    _print_table(
        ("position", "rows", "judged", "relevant"),
        [(str(p.position), f"{p.n_rows:,}", _share(p.judged), _share(p.relevant))
         for p in found.positions[:20]],
    )  # fmt: skip
    _print_table(
        ("experiment", "variant", "queries"), [(e, v, f"{n:,}") for e, v, n in found.variants]
    )
    for finding in found.findings:
        share = finding.n_rows / found.n_rows if found.n_rows else 0.0
        queries = "" if finding.n_queries is None else f" in {finding.n_queries:,} queries"
        print(f"{finding.kind}: {finding.reason} {finding.n_rows:,} ({share:.1%}){queries}")
        for example in finding.examples[:3]:
            print(f"  {example}")
    for advice in found.advice:
        print(f"advice: {advice}")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in ("experiment", "variant") else "right")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)


def _measures(_: argparse.Namespace) -> int:
    table = Table(box=None, pad_edge=False)
    for name in ("measure", "range", "parameters", "definition"):
        table.add_column(name)
    suffix = {"required": "@k", "optional": "[@k]", "forbidden": ""}
    for name, spec in MEASURES.items():
        params = ", ".join(f"{key}={param.default}" for key, param in spec.params.items())
        # Square brackets would be markup.
        row = (name + suffix[spec.cutoff], spec.range, params, spec.definition)
        table.add_row(*(Text(cell) for cell in row))
    _console().print(table)
    return 0


def _schema(options: argparse.Namespace) -> int:
    queries = tables.query_metrics((), ("ndcg_at_10",))
    if options.config:
        queries = configuration.load(options.config).query_metrics
    every = {table.name: table for table in (queries, *tables.FIXED)}
    if options.table not in (None, *every):
        raise ConfigError(
            expected=f"one of {', '.join(every)}", found=options.table, action="name one, or none"
        )
    wanted = [table for name, table in every.items() if options.table in (None, name)]
    if options.format == "json":
        content = [
            {"version": tables.SCHEMA_VERSION, **asdict(table), "partition_by": table.partition_by}
            for table in wanted
        ]
        print(json.dumps(content, indent=2))
        return 0
    form = tables.ddl if options.format == "ddl" else tables.markdown
    print("\n\n".join(form(table) for table in wanted))
    return 0


def _console() -> Console:
    # Where there is no terminal nothing is cut off.
    return Console(width=None if sys.stdout.isatty() else 160)


def _demo(options: argparse.Namespace) -> int:
    folder = options.directory or Path(tempfile.mkdtemp(prefix="rankspark-demo-"))
    log, output = folder / "impressions", folder / "tables"
    print("This log is simulated: no real user or item is in it.")
    facts = demo.simulate(log)
    config = demo.write_config(folder, log, output)
    dates = facts.days
    with _progress(len(dates)) as progress:
        progress(dates[0], "start Spark")
        spark = get_session()
        results = pipeline.evaluate(spark, config, dates, progress)
    failed = [result for result in results if result.error is not None]
    for result in failed:
        _report(result)
    if failed:
        return max(result.exit_code for result in failed)
    shown = ("mrr", "ndcg@10")
    print(f"\nAll {len(dates)} days, {dates[0]} to {dates[-1]}; intervals are 95%, over users.")
    _print_metrics(demo.whole_week(spark, config, shown))
    _print_findings(results)
    print(
        f"\nTables (Parquet, by date and experiment): {output}"
        "\n  query_metrics, metrics, unit_day, assignment, rejects, runs"
    )
    print(f"Configuration: {folder / 'demo.toml'}")
    return 0


def _print_metrics(rows: list[demo.Row]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("experiment", "variant", "measure"):
        table.add_column(name)
    for name in ("mean", "95% interval", "queries", "no relevant", "users"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.experiment, row.variant, row.measure, f"{row.mean:.4f}",
            f"{row.ci_low:.4f} to {row.ci_high:.4f}",
            f"{row.n_queries:,}", f"{row.n_no_relevant:,}", f"{row.n_units:,}",
        )  # fmt: skip
    _console().print(table)


def _print_findings(results: list[DateResult]) -> None:
    totals: dict[tuple[str, str], int] = {}
    for result in results:
        for finding in result.findings:
            key = (finding.kind, finding.reason)
            totals[key] = totals.get(key, 0) + finding.n_rows
    read = sum(result.counts["n_rows_read"] for result in results)
    print(f"\n{read:,} rows read; not taken as they were:")
    for (kind, reason), n_rows in sorted(totals.items()):
        print(f"  {kind}: {reason} {n_rows:,}")


@contextmanager
def _progress(n_dates: int) -> Iterator[pipeline.Progress]:
    """A bar on a terminal, a plain line a stage elsewhere; on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda day, stage: print(f"rankspark: {day} {stage}", file=sys.stderr, flush=True)
        return
    columns = (
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(),
        MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=n_dates)
        seen: list[date] = []

        def show(day: date, stage: str) -> None:
            if day not in seen:
                seen.append(day)
            bar.update(task, description=f"{day} {stage}", completed=len(seen) - 1)

        yield show

"""Delta Lake and Iceberg through their own libraries.

They run where RANKSPARK_TEST_LAKES names the packages for the Spark in use (see CONTRIBUTING.md).
"""

from __future__ import annotations

import datetime as dt
import os
from typing import Any

import pytest
from pyspark.sql import DataFrame

from rankspark import tables
from rankspark.errors import PublishError
from rankspark.spark import compare, pipeline, publish, sinks
from rankspark.spark.publish import Root
from tests.spark.conftest import items

pytestmark = pytest.mark.skipif(
    not os.environ.get("RANKSPARK_TEST_LAKES"), reason="RANKSPARK_TEST_LAKES names no packages"
)
DAY = dt.date(2024, 3, 10)
NEXT = DAY + dt.timedelta(days=1)
#: What differs between two runs of one comparison.
_OF_A_RUN = {"run_id", "computed_at", "config_hash"}
ODD = ["007", "1.000", "a/b", "a=b", "%", "ÄÖ", "2024-01-01", "Case", "case"]


@pytest.fixture(
    params=[
        {"output__format": "delta"},
        {"output__format": "delta", "output__catalog": "lake"},
        {"output__format": "iceberg", "output__catalog": "ice.lake"},
        {"output__format": "iceberg", "output__catalog": "ice.lake", "output__audit_branch": True},
    ],
    ids=["delta path", "delta catalog", "iceberg", "iceberg branch"],
)
def output(request, spark):
    """Options of a lake, and no table in it before or after."""
    catalog = request.param.get("output__catalog")
    if catalog:
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}")
    yield request.param
    if catalog:
        for row in spark.sql(f"SHOW TABLES IN {catalog}").collect():
            spark.sql(f"DROP TABLE {catalog}.{row.tableName}")


def queries(spark: Any, config: Any) -> DataFrame:
    return publish.read_table(spark, config.output.path, "query_metrics")


def values(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.select("date", "experiment", "query_id", "mrr").collect()))


def test_a_date_is_replaced_whole_and_the_publication_before_is_still_there(
    spark, write_log, make_config, output
) -> None:
    rows = [*items("q1", 1), *items("q2", 0, 1, experiment="renamed later")]
    other = items("q9", 0, 1, date=str(NEXT))
    config = make_config(write_log([*rows, *other]), **output)
    first = pipeline.evaluate(spark, config, [DAY, NEXT], jobs=2)
    assert [result.error for result in first] == [None, None]
    before = values(queries(spark, config))
    assert before == [
        ("2024-03-10", "e1", "q1", 1.0),
        ("2024-03-10", "renamed later", "q2", 0.5),
        ("2024-03-11", "e1", "q9", 0.5),
    ]
    write_log([*items("q1", 0, 1), *other])
    (result,) = pipeline.evaluate(spark, config, [DAY])
    assert result.error is None
    assert "query_metrics/date=2024-03-10/experiment=renamed later" in result.replaced
    after = queries(spark, config)
    assert values(after) == [("2024-03-10", "e1", "q1", 0.5), ("2024-03-11", "e1", "q9", 0.5)]
    name = sinks.Lake(spark, Root.open(config.output.path), config.output)._name("query_metrics")
    if config.output.format == "delta":
        versions = [r[0] for r in spark.sql(f"DESCRIBE HISTORY {name}").select("version").collect()]
        past = spark.sql(f"SELECT * FROM {name} VERSION AS OF {max(versions) - 1}")
    else:
        ids = spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()
        past = spark.sql(f"SELECT * FROM {name} VERSION AS OF {ids[-2][0]}")
    assert values(past) == before
    runs = publish.read_table(spark, config.output.path, "runs")
    assert runs.count() == 3
    assert runs.where("date = '2024-03-10'").select("run_id").distinct().count() == 2


def test_comments_stay_and_new_columns_come_at_the_end(
    spark, write_log, make_config, output
) -> None:
    log = write_log(items("q1", 0, 1))
    config = make_config(log, **output)
    pipeline.evaluate(spark, config, [DAY])
    more = make_config(log, evaluate__measures=["mrr", "ndcg@10", "hit@1"], **output)
    (result,) = pipeline.evaluate(spark, more, [DAY])
    assert result.error is None
    name = sinks.Lake(spark, Root.open(config.output.path), config.output)._name("query_metrics")
    found = spark.table(name)
    assert [c for c in found.columns if c not in ("date", "experiment")][-1] == "hit_at_1"
    comments = {row.col_name: row.comment for row in spark.sql(f"DESCRIBE {name}").collect()}
    assert comments["n_items"] == "items scored, after duplicates were dropped"
    assert comments["hit_at_1"] == "measure hit_at_1; null = undefined"
    assert found.select("hit_at_1").collect() == [(0.0,)]


def test_odd_experiments_come_back_as_they_went_in(spark, write_log, make_config, output) -> None:
    rows = [row for name in ODD for row in items(f"q-{name}", 1, experiment=name)]
    config = make_config(write_log(rows), **output)
    (result,) = pipeline.evaluate(spark, config, [DAY])
    assert result.error is None
    assert {row[1] for row in values(queries(spark, config))} == set(ODD)


def test_an_emptied_date_and_an_unchanged_one(spark, write_log, make_config, output) -> None:
    config = make_config(write_log([*items("q1", 1), *items("q1", 1, date=str(NEXT))]), **output)
    for status in ("published", "unchanged"):
        results = pipeline.evaluate(spark, config, [DAY, NEXT], skip_unchanged=True)
        assert [(result.status, result.error) for result in results] == [(status, None)] * 2
    write_log(items("q1", 1, date=str(NEXT)))
    (result,) = pipeline.evaluate(spark, config, [DAY], allow_empty=True)
    assert result.error is None
    assert {row[0] for row in values(queries(spark, config))} == {str(NEXT)}


def test_a_comparison_reads_a_lake_and_is_kept_there(
    spark, write_log, make_config, output, tmp_path
) -> None:
    # u0, u2 ... see A, the others B, which is right one time in two more.
    rows = [
        one
        for n in range(40)
        for day in (DAY, NEXT)
        for one in items(
            f"{day}-q{n}", n % 2 or n % 4, 1, date=str(day), variant="AB"[n % 2], unit_id=f"u{n}"
        )
    ]
    found = []
    folders = {"output__path": str(tmp_path / "warehouse-of-files")}
    for name, options in (("lake", output), ("files", folders)):
        compared = {"control": "A", "primary": ["mrr"]}
        config = make_config(write_log(rows, name=name), compare=compared, **options)
        results = pipeline.evaluate(spark, config, [DAY, NEXT])
        assert [result.error for result in results] == [None, None]
        told = compare.compare(spark, config, DAY, NEXT + dt.timedelta(days=1))
        found.append([{k: v for k, v in row.items() if k not in _OF_A_RUN} for row in told.rows])
        kept = publish.read_table(spark, config.output.path, "comparisons")
        names = ["treatment", "measure", "n_units_c", "effect", "p"]
        stored = sorted(tuple(row) for row in kept.select(*names).collect())
        assert stored == sorted(tuple(row[n] for n in names) for row in told.rows)
    assert found[0] == found[1]
    effect = next(row["effect"] for row in found[0] if row["measure"] == "mrr")
    # A: 1/2 or 1 by turns; B: always 1.
    assert effect == pytest.approx(0.25)


def test_a_run_killed_between_two_commits_is_finished_by_the_next(
    spark, write_log, make_config, output, monkeypatch
) -> None:
    config = make_config(write_log(items("q1", 1)), **output)
    pipeline.evaluate(spark, config, [DAY])
    write_log(items("q1", 0, 1))
    commit, left = sinks.Lake._commit, [1]

    def dies(self: Any, staged: Any, table: tables.Table, *rest: Any) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        commit(self, staged, table, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(sinks.Lake, "_commit", dies)
        # A killed process cleans nothing up.
        patch.setattr(publish, "_is_folder", lambda *_: False)
        with pytest.raises(KeyboardInterrupt):
            pipeline.evaluate(spark, config, [DAY])
    assert values(queries(spark, config))[0][3] == 0.5
    metrics = publish.read_table(spark, config.output.path, "metrics").where("measure = 'mrr'")
    assert metrics.select("mean").collect() == [(1.0,)]
    root = Root.open(config.output.path)
    sink = sinks.sink(spark, root, config.output)
    with publish.staging(root, "next", DAY, sink.finish):
        metrics = publish.read_table(spark, config.output.path, "metrics")
        assert metrics.where("measure = 'mrr'").select("mean").collect() == [(0.5,)]
        assert publish.read_table(spark, config.output.path, "runs").count() == 2


def test_a_commit_that_cannot_be_made_is_an_error_of_one_line(
    spark, write_log, make_config, output
) -> None:
    if "output__catalog" not in output:
        pytest.skip("a table that is a path cannot be dropped by SQL")
    config = make_config(write_log(items("q1", 1)), **output)
    pipeline.evaluate(spark, config, [DAY])
    name = sinks.Lake(spark, Root.open(config.output.path), config.output)._name("rejects")
    spark.sql(f"DROP TABLE {name}")
    spark.sql(f"CREATE TABLE {name} (date STRING, run_id BIGINT) USING {config.output.format}")
    (result,) = pipeline.evaluate(spark, config, [DAY])
    assert result.exit_code == PublishError.exit_code
    done = "query_metrics, metrics, unit_day, assignment, paired_counts"
    assert f"{done} already have the new date" in str(result.error)

"""Sources and columns that are not there: one line that names them, before any job."""

from __future__ import annotations

import datetime as dt

import pytest

from rankspark.errors import InputError
from rankspark.spark import read
from tests.spark.conftest import items

DAY = dt.date(2024, 3, 10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"input__columns__position": "rnk"},
            ["input.columns.position = 'rnk'", "query_id, item_id", "rnk"],
        ),
        ({"input__columns__relevance": "case when"}, ["input.columns.relevance"]),
        (
            {"input__columns__relevance": "array(1)"},
            ["a number from input.columns.relevance", "array<int>"],
        ),
        ({"input__columns__query_id": "relevance"}, ["an id", "input.columns.query_id", "double"]),
        ({"input__columns__date": "position"}, ["a DATE", "input.columns.date", "int"]),
        ({"input__columns__unit_id": "map('a', 1)"}, ["input.columns.unit_id"]),
        ({"input__where": "colour = 'red'"}, ["input.where", "colour"]),
        ({"evaluate__slices": ["city"]}, ["input.columns.city"]),
        ({"rankers": {"v2": "score_v2 desc"}}, ["rankers.v2", "score_v2"]),
        ({"input__items": {"column": "item_id"}}, ["an array of structs", "string"]),
    ],
)
def test_a_column_that_does_not_resolve_is_named_with_what_the_source_has(
    spark, write_log, make_config, change, said: list[str]
) -> None:
    config = make_config(write_log(items("q1", 1)), **change)
    with pytest.raises(InputError) as caught:
        read.read(spark, config, DAY)
    for text in said:
        assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


def test_an_absent_path_and_an_absent_table_are_named(spark, make_config, tmp_path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        read.read(spark, make_config(str(tmp_path / "nowhere")), DAY)
    with pytest.raises(InputError, match="no_such_table"):
        read.read(spark, make_config(None, input__table="no_such_table"), DAY)


@pytest.mark.parametrize("sensitive", ["true", "false"])
def test_names_that_differ_only_by_case_are_refused_by_name(
    spark, make_config, tmp_path, sensitive
) -> None:
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        spark.sql("SELECT 1 AS position, 2 AS Position").write.orc(str(tmp_path / "log"))
        spark.conf.set("spark.sql.caseSensitive", sensitive)
        with pytest.raises(InputError, match=r"(?i)position.*Position|Position"):
            read.read(spark, make_config(str(tmp_path / "log"), input__format="orc"), DAY)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_whole_numbers_beyond_2_to_the_53_stay_distinct_ids(spark, make_config, tmp_path) -> None:
    path = str(tmp_path / "log")
    spark.sql(
        "SELECT '2024-03-10' AS date, 'e' AS experiment, 'A' AS variant, 'q' AS query_id,"
        " 'u' AS unit_id,"
        " id AS item_id, n AS position, 0 AS relevance"
        " FROM VALUES (9007199254740992L, 1), (9007199254740993L, 2), (NULL, 3) AS t(id, n)"
    ).write.parquet(path)
    rows = read.read(spark, make_config(path), DAY).select("item_id").collect()
    assert {row[0] for row in rows} == {"9007199254740992", "9007199254740993", None}


def test_only_the_columns_that_are_used_are_read(spark, write_log, make_config, capsys) -> None:
    read.read(spark, make_config(write_log(items("q1", 1))), DAY).explain()
    plan = capsys.readouterr().out
    assert "country" not in plan
    assert "PushedFilters" in plan

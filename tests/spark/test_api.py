"""The functions for notebooks: DataFrames in, DataFrames out."""

from __future__ import annotations

import pytest

import rankspark
from rankspark.errors import ConfigError


@pytest.fixture
def impressions(spark):
    return spark.createDataFrame(
        [
            ("q1", "b", 1, 1.0, 0.1),
            ("q1", "a", 2, 0.0, 0.9),
            ("q2", "a", 1, 0.0, 0.2),
            ("q2", "b", 2, 1.0, 0.8),
        ],
        "query_id STRING, item_id STRING, position INT, relevance DOUBLE, model DOUBLE",
    )


def test_three_lines_from_impressions_to_metrics(impressions) -> None:
    result = rankspark.evaluate(impressions, ["mrr"])
    assert result.metrics.first()["mean"] == 0.75
    assert {row.query_id: row.mrr for row in result.queries.collect()} == {"q1": 1.0, "q2": 0.5}


def test_another_ordering_of_the_same_items_is_a_ranker(impressions) -> None:
    result = rankspark.evaluate(
        impressions, ["mrr"], rankers={"logged": "position", "model": "model desc"}
    )
    found = {(row.ranker, row.query_id): row.mrr for row in result.queries.collect()}
    assert found == {
        ("logged", "q1"): 1.0,
        ("logged", "q2"): 0.5,
        ("model", "q1"): 0.5,
        ("model", "q2"): 1.0,
    }


def test_a_list_beyond_the_limit_has_no_metrics_and_is_said_to_be_rejected(spark) -> None:
    rows = spark.range(20_003).selectExpr(
        "if(id < 20001, 'bot', 'q') AS query_id", "concat('i', id) AS item_id",
        "int(if(id < 20001, id, id - 20001)) + 1 AS position", "double(id = 20001) AS relevance",
    )  # fmt: skip
    result = rankspark.evaluate(rows, ["mrr"])
    assert [(row.query_id, row.mrr) for row in result.queries.collect()] == [("q", 1.0)]
    (found,) = result.rejects.collect()
    assert (found.kind, found.reason, found.n_rows) == ("rejected", "list_too_long", 20_001)
    assert '"bot"' in found.examples[0]


def test_wrong_arguments_are_refused_by_name(impressions) -> None:
    with pytest.raises(ConfigError, match="no_relevnt"):
        rankspark.evaluate(impressions, no_relevnt="skip")
    with pytest.raises(ConfigError, match="mmr"):
        rankspark.evaluate(impressions, ["mmr"])


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("ndcg(array(3, 2, 3, 0, 1, 2), 6)", 0.960808),
        ("ndcg_exp(array(3, 2, 3, 0, 1, 2), 6)", 0.948811),
        ("mrr(array(0, 0, 1))", 1 / 3),
        ("mrr(array(0, 0, 1), 2)", 0.0),
        ("average_precision(array(1, 0, 1))", (1 + 2 / 3) / 2),
        ("recall(array(1, 1, 0, 1), 2)", 2 / 3),
        ("precision(array(1, 1, 0, 1), 10)", 0.3),
        ("hit(array(0, 1), 1)", 0.0),
        ("ndcg(array(), 10)", 0.0),
        ("ndcg(array(null, 1), 10)", 0.630930),
        ("ndcg(cast(null as array<double>), 10)", None),
        ("aggregate(array(1, 2), 0, (s, x) -> s + x) + element_at(map('a', 1), 'a')", 4),
    ],
)
def test_measures_are_functions_of_sql(spark, sql: str, value: float | None) -> None:
    rankspark.register(spark)
    found = spark.sql(f"SELECT {sql}").first()[0]
    assert found == (None if value is None else pytest.approx(value, abs=1e-6))


def test_the_cutoff_may_be_a_column(spark) -> None:
    rankspark.register(spark)
    rows = spark.sql(
        "SELECT k, hit(array(0, 1, 0), k) FROM VALUES (1), (2), (3) AS t(k) ORDER BY k"
    ).collect()
    assert [row[1] for row in rows] == [0.0, 1.0, 1.0]


def test_the_public_names_are_about_a_dozen_and_all_there() -> None:
    assert len(rankspark.__all__) <= 15
    for name in rankspark.__all__:
        assert getattr(rankspark, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        rankspark.nothing_of_the_kind  # noqa: B018

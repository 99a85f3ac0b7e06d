"""One Spark session for all tests, the shared data, and a few impressions."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import rankspark
from rankspark import config
from rankspark.spark import pipeline
from rankspark.spark.session import get_session

SHARED = Path(__file__).resolve().parents[2] / "shared"

IMPRESSION = {
    "query_id": "q1",
    "item_id": "a",
    "position": 1,
    "relevance": 0.0,
    "unit_id": "u1",
    "country": "fr",
    "arm": "A",
}
IMPRESSION_SCHEMA = (
    "query_id STRING, item_id STRING, position INT, relevance DOUBLE, "
    "unit_id STRING, country STRING, arm STRING"
)


def lake_settings(scratch: Path) -> dict[str, str]:
    """Delta Lake and Iceberg, where RANKSPARK_TEST_LAKES has their Maven coordinates."""
    packages = os.environ.get("RANKSPARK_TEST_LAKES")
    if not packages:
        return {}
    iceberg, ivy = "org.apache.iceberg.spark", os.environ.get("RANKSPARK_TEST_IVY")
    return {
        "spark.jars.packages": packages,
        **({"spark.jars.ivy": ivy} if ivy else {}),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
        f"{iceberg}.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalog.ice": f"{iceberg}.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(scratch / "ice"),
    }


def pytest_configure(config: pytest.Config) -> None:
    # Fixtures of a conftest reach what lies beside and below it; the doctests lie in rankspark/.
    config.pluginmanager.register(Everywhere(), "rankspark-everywhere")


class Everywhere:
    """Fixtures for the tests and for the doctests of the package."""

    @pytest.fixture(scope="session")
    @staticmethod
    def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
        """On two cores; through Spark Connect where RANKSPARK_TEST_REMOTE names a server."""
        scratch = tmp_path_factory.mktemp("spark")
        remote = os.environ.get("RANKSPARK_TEST_REMOTE")
        session = get_session(
            "rankspark-tests",
            settings={
                **({"spark.remote": remote} if remote else {"spark.master": "local[2]"}),
                "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.shuffle.partitions": "4",
                "spark.sql.warehouse.dir": str(scratch / "warehouse"),
                **lake_settings(scratch),
            },
        )
        yield session
        session.stop()

    @pytest.fixture
    @staticmethod
    def make_impressions(spark: SparkSession) -> Callable[..., DataFrame]:
        """From rows of what differs from IMPRESSION, a DataFrame of them."""

        def make(*rows: dict[str, Any]) -> DataFrame:
            data = [tuple((IMPRESSION | row).values()) for row in rows]
            return spark.createDataFrame(data, IMPRESSION_SCHEMA)

        return make

    @pytest.fixture
    @staticmethod
    def impressions(make_impressions: Callable[..., DataFrame]) -> DataFrame:
        """Two queries with reciprocal ranks 1 and 1/2, and a row with an impossible position."""
        return make_impressions(
            {"relevance": 1.0},
            {"item_id": "b", "position": 2},
            {"query_id": "q2", "unit_id": "u2"},
            {"query_id": "q2", "unit_id": "u2", "item_id": "b", "position": 2, "relevance": 1.0},
            {"query_id": "q2", "unit_id": "u2", "item_id": "c", "position": 0},
        )

    @pytest.fixture
    @staticmethod
    def job(impressions: DataFrame, tmp_path: Path) -> config.Config:
        """The configuration for those impressions, written as a log of one date."""
        impressions.selectExpr("*", "'2024-03-10' AS day").write.parquet(str(tmp_path / "log"))
        constants = {"date": "day", "experiment": "'007'", "variant": "arm"}
        names = {name: name for name in ("query_id", "item_id", "position", "relevance", "unit_id")}
        return config.from_dict(
            {
                "name": "doctest",
                "input": {"path": str(tmp_path / "log"), "columns": constants | names},
                "output": {"path": str(tmp_path / "tables")},
            }
        )

    @pytest.fixture
    @staticmethod
    def published(spark: SparkSession, job: config.Config) -> str:
        """The root of the tables of those impressions, as of experiment 007."""
        (result,) = pipeline.evaluate(spark, job, [dt.date(2024, 3, 10)])
        assert result.status == "published", result.error
        return job.output.path

    @pytest.fixture(autouse=True)
    @staticmethod
    def _names_of_doctests(
        request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]
    ) -> None:
        """Give an example the names that it uses: one of numpy alone must not start Spark."""
        if isinstance(request.node, pytest.DoctestItem):
            source = "".join(example.source for example in request.node.dtest.examples)
            doctest_namespace["rankspark"] = rankspark
            for name in ("spark", "impressions", "job", "published"):
                if name in source:
                    doctest_namespace[name] = request.getfixturevalue(name)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and reference values beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"there is no {SHARED}")
    return SHARED

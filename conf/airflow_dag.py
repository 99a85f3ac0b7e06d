"""An Airflow DAG that evaluates each day's log; needs apache-airflow-providers-apache-spark.

Airflow renders `{{ ds }}` in `application_args` before spark-submit sees it; rankspark refuses a
date that was not rendered. Exit code 75 (another run holds the date) is retried like any other
failure.
"""

from datetime import UTC, datetime, timedelta

from airflow import DAG
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

with DAG(
    dag_id="rankspark_web_search",
    schedule="@daily",
    start_date=datetime(2026, 3, 1, tzinfo=UTC),
    catchup=True,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=30)},
) as dag:
    SparkSubmitOperator(
        task_id="evaluate",
        application="jobs/evaluate.py",
        application_args=["--config", "conf/web-search.toml", "--date", "{{ ds }}"],
        properties_file="conf/spark-defaults.conf",
    )

"""Why pushed shuffles are refused: what the installed Spark makes of its guard where it may push (SPARK-54959)."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, sys
from pyspark.sql import SparkSession
from airflow_logio.errors import ConfigurationError
from airflow_logio.spark.determinism import check_safety
from airflow_logio.spark.session_safety import SHUFFLE_SAFETY

builder = SparkSession.builder.master("local[1]")
for name, value in {**SHUFFLE_SAFETY, **json.loads(sys.argv[1])}.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()

def exchange(plan):
    if plan.getClass().getSimpleName() == "ShuffleExchangeExec":
        return plan
    children = plan.children()
    found = (exchange(children.apply(number)) for number in range(children.size()))
    return next((one for one in found if one is not None), None)

shuffle = exchange(session.range(9).repartition(3)._jdf.queryExecution().executedPlan()).shuffleDependency()
try:
    check_safety(session)
    said = ""
except ConfigurationError as error:
    said = str(error)
print(json.dumps({"retries": shuffle.checksumMismatchFullRetryEnabled(), "said": said}))
session.stop()
"""
LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
}
AS_ON_YARN = {
    "spark.shuffle.push.enabled": "true",
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    # With YARN's shuffle service it would be so without this.
    "spark.driver.extraJavaOptions": "-Dspark.testing=true",
    "spark.driver.memory": "600m",
}


def test_where_spark_may_push_it_does_not_retry_and_the_driver_refuses_its_session() -> None:
    """With `LOCAL` alone, it retries."""
    conf = {**LOCAL, **AS_ON_YARN}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(conf)], stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["retries"] is False
    assert found["said"].startswith("spark.shuffle.push.enabled=true: with it, Spark does not notice")

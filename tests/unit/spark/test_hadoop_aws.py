"""Spark reads ``s3a://`` by Hadoop's own client, beside what Arrow has put: what a payload store in a bucket rests upon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.faulty_store import SLOW_DOWN, faulty_store, named
from tests.support.hadoop_aws import s3a_classes, s3a_settings, why_no_hadoop_aws
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.spark]

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
settings, url = json.loads(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for name, value in json.loads(sys.argv[3]).items():
    spark.conf.set(name, value)
print(spark.read.parquet(url).groupBy().sum("a").first()[0])

from airflow_logio import FolderSource
source = FolderSource(sys.argv[4], files_per_event=2)
action = source.action({})
plan = action["plan"]
while action is not None:
    print(source.frame(spark, {}, action["start"], action["end"]).groupBy().sum("a").first()[0])
    action = source.next_action({}, {**action, "plan": plan})
spark.stop()
"""


@pytest.mark.parametrize("store", ["objects", "proxied_objects"])
def test_spark_reads_what_arrow_has_put(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """By settings of the session, which the process has not, past errors that pass; and a `FolderSource`
    by options of its reader alone, in a bucket of its own: Hadoop keeps a client for each bucket."""
    if why := why_no_hadoop_aws():
        pytest.skip(why)
    objects: ObjectStore = request.getfixturevalue(store)
    bucket, other = objects.new_bucket(), objects.new_bucket()
    with reached(objects), faulty_store(objects.port) as way:
        pq.write_table(pa.table({"a": range(1_000)}), f"{bucket}/t/é x.parquet", filesystem=objects.files())
        for number in range(3):
            table = pa.table({"a": [10**number, 2 * 10**number]})
            pq.write_table(table, f"{other}/é x/{number}.parquet", filesystem=objects.files())
        query = f"scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1&consistent=yes"
        fault = way.fail(named("GetObject"), SLOW_DOWN, times=2)
        at_launch = {**s3a_classes(tmp_path / "s3a"), "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
        in_session = s3a_settings(objects.through(way.port), bucket)
        command = [sys.executable, "-c", PROGRAM, json.dumps(at_launch), f"s3a://{bucket}/t/é x.parquet"]
        done = subprocess.run(
            [*command, json.dumps(in_session), f"s3://{other}/é x?{query}"],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, **objects.variables},
            timeout=300,
            check=False,
        )
        assert done.stdout.split() == [str(sum(range(1_000))), "33", "300"], done.stderr[-3_000:]
        assert fault.met == 2
        by_name = [request for request in way.requests if request.bucket == bucket]
        assert sum(request.operation == "ListObjectsV2" for request in by_name) <= 1, (
            "it asks for the object by its name"
        )

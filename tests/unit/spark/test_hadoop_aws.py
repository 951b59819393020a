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

from airflow_logio.spark.store_probe import CLOSED_BUCKET
from tests.support.faulty_store import (
    BROKEN,
    DENIED,
    EXPIRED_403,
    SLOW_DOWN,
    Cut,
    Effect,
    Fault,
    FaultyStore,
    Request,
    Torn,
    by_hadoop,
    faulty_store,
    named,
)
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


READER = """
import json, sys
from pyspark.sql import SparkSession
from airflow_logio.driver.spark_jobs.faults import store_fault
from airflow_logio.spark.dataset_jobs import frame_of, materialized
from airflow_logio.systems.payloads import Payloads
builder = SparkSession.builder.master("local[2]")
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
epoch = Payloads(sys.argv[2]).epoch("run", "g", 1, 0)
written = spark.range(0, 100000, 1, 2).selectExpr("id", "sha2(string(id), 256) AS noise")
for purpose in sys.argv[3:]:
    frame = frame_of(spark, materialized(epoch, purpose, purpose, written))
    try:
        found = frame.selectExpr("count(*)", "sum(id)", "count(distinct noise)", "count_if(noise <> sha2(string(id), 256))")
        said = list(found.first())
    except Exception as error:
        said = [store_fault(error), str(error)]
    print(json.dumps([purpose, said]), flush=True)
spark.stop()
"""
EXACT = [100_000, sum(range(100_000)), 100_000, 0]


@pytest.mark.timeout(900)
def test_a_store_that_fails_in_the_middle_of_a_read_of_spark(objects: ObjectStore, tmp_path: Path) -> None:
    """Behind the first of two files: the rest is read again, or the store is said to be unavailable, or closed. No row is
    wrong, and no operator is blamed."""
    if why := why_no_hadoop_aws():
        pytest.skip(why)
    quickly = {
        "spark.hadoop.fs.s3a.attempts.maximum": "2",
        "spark.hadoop.fs.s3a.retry.limit": "2",
        "spark.hadoop.fs.s3a.retry.interval": "20ms",
        "spark.hadoop.fs.s3a.retry.throttle.limit": "4",
        "spark.hadoop.fs.s3a.retry.throttle.interval": "20ms",
    }
    at_launch = {
        **s3a_classes(tmp_path / "s3a"),
        **quickly,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    with reached(objects), faulty_store(objects.port) as way:
        bucket = objects.new_bucket()
        root = f"s3://{bucket}/lake?scheme=http&endpoint_override=127.0.0.1:{way.port}&region=us-east-1"
        faults = {
            "busy": _in_the_middle(way, "busy", SLOW_DOWN, 1),
            "torn": _in_the_middle(way, "torn", Torn(), 3),
            "gone": _in_the_middle(way, "gone", SLOW_DOWN, 10**6),
            "late": _in_the_middle(way, "late", EXPIRED_403, 10**6),
            "ill": _in_the_middle(way, "ill", BROKEN, 10**6),
            "cut": _in_the_middle(way, "cut", Cut(), 10**6),
            "denied": _in_the_middle(way, "denied", DENIED, 10**6),
        }
        done = subprocess.run(
            [sys.executable, "-c", READER, json.dumps(at_launch), root, *faults],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, **objects.variables, "PYSPARK_PYTHON": sys.executable},
            timeout=800,
            check=False,
        )
    said = dict(map(json.loads, done.stdout.splitlines()))
    assert {name: fault.met > 0 for name, fault in faults.items()} == dict.fromkeys(faults, True), done.stderr[-3_000:]
    assert said.pop("busy") == EXACT, done.stderr[-3_000:]
    refused, because = said.pop("denied")
    assert refused is None and CLOSED_BUCKET.search(because), because
    for name, found in said.items():  # Hadoop 3.5 does not read the rest of an answer that was torn
        assert found == EXACT or (len(found) == 2 and found[0]), f"{name} is taken for a fault of the operator: {found}"
    assert said["gone"][0] in ("SlowDown", "AWSServiceThrottledException")
    assert faults["gone"].met <= 400, "it does not ask as fast as it can"


def _in_the_middle(way: FaultyStore, key: str, effect: Effect, times: int) -> Fault:
    """From the second read of Spark's reader on: it has begun with one of two files."""
    before = [0]

    def wanted(request: Request) -> bool:
        if not by_hadoop(request) or f"/{key}" not in request.key or not request.key.endswith(".parquet"):
            return False
        before[0] += 1
        return before[0] > 1

    return way.fail(wanted, effect, times)

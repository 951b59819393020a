"""A Delta table in a bucket that Spark reads by Hadoop's client, past errors that pass; compared with what was written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_logio.dataflow.sources.delta_frames import EXTENSION
from tests.support.faulty_store import SLOW_DOWN, faulty_store, named
from tests.support.hadoop_aws import s3a_classes, why_no_hadoop_aws
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore
from tests.unit.dataflow.test_delta_source_in_buckets import DAYS, append

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
VERSIONS = 3


@pytest.mark.parametrize("store", ["objects", "proxied_objects"])
def test_spark_reads_the_ranges_of_a_table_in_a_bucket(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Where the store is, its URL says alone; some requests are refused in the middle of the reads. The session names Delta's
    extension, and has not its jar: of that, Spark only warns."""
    if why := why_no_hadoop_aws():
        pytest.skip(why)
    objects: ObjectStore = request.getfixturevalue(store)
    url = f"s3://{objects.new_bucket()}/a lake/orders"
    with reached(objects), faulty_store(objects.port) as way:
        for version in range(VERSIONS):
            append(url, version, way.port)
        faults = [way.fail(named("GetObject", key=".parquet"), SLOW_DOWN, times=2)]
        faults.append(way.fail(named("GetObject", "HeadObject", key="_delta_log"), SLOW_DOWN, times=2))
        settings = {
            **s3a_classes(tmp_path / "s3a"),
            "spark.sql.extensions": EXTENSION,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
        }
        at = f"{url}?region=us-east-1&scheme=http&endpoint_override=127.0.0.1:{way.port}"
        known = {name: value for name, value in objects.variables.items() if name != "AWS_ENDPOINT_URL"}
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.delta_of_bucket", json.dumps(settings), at, str(tmp_path / "found")],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **known, "PYSPARK_PYTHON": sys.executable},
            timeout=840,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
        assert [fault.met for fault in faults] == [2, 2]
    written = [{str(2 * version + n): DAYS[version % 3 + n] for n in range(2)} for version in range(VERSIONS)]
    whole = {key: day for one in written for key, day in one.items()}
    found = json.loads((tmp_path / "found").read_text())
    refused = found.pop("refused")
    assert found == {"versions": written, "snapshot": [whole], "feed": [whole]}
    assert re.search(r"the session has not its jar .*: start drivers with the package io\.delta:delta-spark_", refused)

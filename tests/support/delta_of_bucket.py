"""A program with Hadoop's client of S3: what `DeltaSource` has of a table in a bucket, as JSON.

``python -m tests.support.delta_of_bucket SETTINGS URL FILE``: SETTINGS are Spark's, as JSON. Into FILE come ``versions`` (of
each event, id → day), ``snapshot`` and ``feed`` (of all), and ``refused``: what ``reader="delta"`` says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow_logio import DeltaSource
from airflow_logio.errors import ConfigurationError
from tests.unit.dataflow.test_delta_source import ranges


def rows(spark: Any, source: DeltaSource) -> list[dict[int, str | None]]:
    """Of each event, id → day; asked for as a driver does."""
    found = []
    for start, end in ranges(source):
        source.observed({}, start, end)
        frame = source.frame(spark, {}, start, end)
        some = frame.select("id", "day").collect()
        source.observed({}, start, end)
        found.append({row.id: row.day for row in some})
        assert len(found[-1]) == len(some)
    return found


def main(settings: dict[str, str], url: str, into: Path) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found: dict[str, Any] = {
        "versions": rows(spark, DeltaSource(url)),
        "snapshot": rows(spark, DeltaSource(url, snapshot=True)),
        "feed": rows(spark, DeltaSource(url, changes=True, versions_per_event=9)),
    }
    try:
        rows(spark, DeltaSource(url, snapshot=True, reader="delta"))
    except ConfigurationError as error:
        found["refused"] = str(error)
    into.write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))

"""A Spark application that loads the classes that drivers load: what `.ci/quick-java` makes its archive of."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def main() -> None:
    spark = SparkSession.builder.config("spark.sql.execution.arrow.localRelationThreshold", "0").getOrCreate()
    records = {"id": list(range(1_000)), "day": [f"2017-08-{1 + number % 9:02}" for number in range(1_000)]}
    frame = spark.createDataFrame(pa.table(records)).withColumn("drawn", F.rand())
    with tempfile.TemporaryDirectory() as folder:
        there = str(Path(folder) / "there")
        frame.repartition(2).sortWithinPartitions("id").write.partitionBy("day").parquet(there)
        again = spark.read.schema(frame.schema).parquet(there).select("*", "_metadata.file_name")
        days = again.filter("id % 2 = 0").groupBy("day", F.window(F.col("day").cast("timestamp"), "1 day")).count()
        lines = days.join(again, "day").select("day", "id").mapInArrow(same, "day string, id long")
        if lines.orderBy("id").toArrow().num_rows == 0:
            sys.exit("the records have not come back")
    spark.stop()


main()

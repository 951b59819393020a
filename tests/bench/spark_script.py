"""What the chain of DataFrames is measured against: PySpark scripts as people write them, started by spark-submit.

``synced`` writes a folder per batch, syncs its files and folders, and moves them into place. ``windowed`` keeps a batch so,
reads it again, and publishes sums of its hours, a file for each as LOG.io has it; ``summed`` publishes the same in one plan
per batch, with nothing in between. ``plain`` is one read and one write.
``streaming`` is Structured Streaming with ``availableNow``, and ``streaming_hours`` sums up hours there, behind a watermark.
Each prints one line of JSON: seconds from the first read to the last file, Spark warm before, and CPU seconds of script, JVM
and workers in that time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession

sys.path.append(str(Path(__file__).parents[2]))

from airflow_logio.driver.spark_session import warm_up
from tests.bench.cpu import cpu_seconds
from tests.bench.pipelines.orders import cleanse, per_store, with_department

CODEC = {"compression": "zstd", "parquet.compression.codec.zstd.level": "1"}
"""As the files of datasets are compressed."""


def chained(orders: DataFrame, products: str) -> DataFrame:
    return with_department(cleanse(orders), products)


def batches(session: Any, wanted: dict[str, Any]) -> Iterator[tuple[int, DataFrame]]:
    """The chain over as many files at a time as an event has, numbered."""
    files = sorted(str(path) for path in Path(wanted["orders"]).glob("*.parquet"))
    schema = session.read.parquet(files[0]).schema
    step = wanted["files_per_event"]
    for number, begin in enumerate(range(0, len(files), step)):
        yield number, chained(session.read.schema(schema).parquet(*files[begin : begin + step]), wanted["products"])


def synced(session: Any, wanted: dict[str, Any]) -> None:
    for number, made in batches(session, wanted):
        keep(made, wanted, number, Path(wanted["target"]))


def windowed(session: Any, wanted: dict[str, Any]) -> None:
    """A batch has whole hours, so that none is open between two."""
    for number, made in batches(session, wanted):
        kept = Path(wanted["target"]) / f"_kept-{number}"
        kept.mkdir()
        keep(made, wanted, number, kept)
        publish_sums(session.read.parquet(str(kept)), wanted, number)
        for file in kept.iterdir():
            file.unlink()


def summed(session: Any, wanted: dict[str, Any]) -> None:
    """As `windowed`, and no batch is kept: what fails begins with the orders again."""
    for number, made in batches(session, wanted):
        publish_sums(made, wanted, number)


def keep(made: DataFrame, wanted: dict[str, Any], number: int, target: Path) -> None:
    batch = Path(wanted["target"]) / f"_batch-{number}"
    made.write.options(**CODEC).parquet(str(batch))
    settle(batch, target, number)


def publish_sums(batch: DataFrame, wanted: dict[str, Any], number: int) -> None:
    """A file for each hour."""
    made = Path(wanted["target"]) / f"_sums-{number}"
    sums_of(batch).repartition("at").write.partitionBy("at").options(**CODEC).parquet(str(made))
    settle(made, Path(wanted["target"]), number)


def sums_of(batch: DataFrame) -> DataFrame:
    """Per hour and store; ``at`` is the hour as a name of a folder."""
    from pyspark.sql import functions as F

    hours = batch.withColumn("hour", F.date_trunc("hour", "ordered_at"))
    return per_store(hours, "hour").withColumn("at", F.date_format("hour", "yyyyMMddHH"))


def settle(batch: Path, target: Path, number: int) -> None:
    """Make the files of a batch durable, and then move them into place."""
    written = sorted(batch.rglob("part-*.parquet"))
    for file in written:
        sync(file)
    for folder in {file.parent for file in written} | {batch}:
        sync(folder)
    for index, file in enumerate(written):
        os.replace(file, target / f"{number:06d}-{index:05d}.parquet")
    sync(target)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(session: Any, wanted: dict[str, Any]) -> None:
    orders = session.read.parquet(wanted["orders"])
    chained(orders, wanted["products"]).write.options(**CODEC).mode("append").parquet(wanted["target"])


def streaming(session: Any, wanted: dict[str, Any]) -> None:
    stream(chained(arriving(session, wanted), wanted["products"]), wanted)


def streaming_hours(session: Any, wanted: dict[str, Any]) -> None:
    """An hour leaves when the watermark has passed its end. The last ones never would: a late record, in the last file, moves
    the watermark past them, and its own hour stays open."""
    from pyspark.sql import functions as F

    # Partitions of state are as many as cores, so that no batch has more tasks than it needs.
    session.conf.set("spark.sql.shuffle.partitions", "2")
    instants = arriving(session, wanted).withColumn("ordered_at", F.col("ordered_at").cast("timestamp"))
    orders = instants.withWatermark("ordered_at", "0 seconds")  # it takes no wall times
    hours = chained(orders, wanted["products"]).withColumn("hour", F.window("ordered_at", "1 hour"))
    stream(per_store(hours, "hour").withColumn("hour", F.col("hour.start").cast("timestamp_ntz")), wanted)


def arriving(session: Any, wanted: dict[str, Any]) -> DataFrame:
    """The orders as a stream, as many files per trigger as an event has."""
    schema = session.read.parquet(wanted["orders"]).schema
    orders = session.readStream.schema(schema).option("maxFilesPerTrigger", wanted["files_per_event"])
    return orders.parquet(wanted["orders"])


def stream(result: DataFrame, wanted: dict[str, Any]) -> None:
    """All that is there, into files."""
    written = result.writeStream.options(**CODEC).outputMode("append")
    written = written.option("checkpointLocation", wanted["target"] + ".checkpoint").trigger(availableNow=True)
    written.format("parquet").start(wanted["target"]).awaitTermination()


Kind = Callable[[Any, dict[str, Any]], None]
KINDS: dict[str, Kind] = {
    "synced": synced,
    "plain": plain,
    "streaming": streaming,
    "streaming_hours": streaming_hours,
    "summed": summed,
    "windowed": windowed,
}


def main(arguments: Sequence[str], kinds: Mapping[str, Kind], warm: Kind = lambda session, _: warm_up(session)) -> None:
    """Run one of these kinds, as a file of settings says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    wanted = json.loads(parser.parse_args(arguments).config.read_text())
    session = SparkSession.builder.appName("script").getOrCreate()
    warm(session, wanted)
    tree = psutil.Process(os.getppid())  # spark-submit's JVM
    cpu, began = cpu_seconds(tree), time.monotonic()
    kinds[wanted["kind"]](session, wanted)
    seconds = time.monotonic() - began
    print("MEASURED " + json.dumps({"seconds": seconds, "cpu": cpu_seconds(tree) - cpu}), flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:], KINDS)

"""The same scripts with a store instead of a folder, a bucket (``s3a://``) or HDFS, as people write them.

``written`` has a folder for each batch there, ``plain`` one write for all. ``summed_up`` keeps each batch there, reads it
again, and publishes sums of its hours, there too or in a local folder. ``copied`` keeps each batch there, and brings its
files into a local folder, with sync: what is done on HDFS, where nothing is published. What a store has is as durable as it
makes it. `main` of ``spark_script`` says what each of them prints.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

sys.path.append(str(Path(__file__).parents[2]))

from tests.bench.spark_script import CODEC, Kind, batches, main, plain, publish_sums, settle, sums_of


def written(session: Any, wanted: dict[str, Any]) -> None:
    for number, made in batches(session, wanted):
        made.write.options(**CODEC).parquet(f"{wanted['target']}/batch-{number}")


def summed_up(session: Any, wanted: dict[str, Any]) -> None:
    """A batch has whole hours, so that none is open between two."""
    for number, made in batches(session, wanted):
        kept = f"{wanted['kept']}/{number}"
        made.write.options(**CODEC).parquet(kept)
        publish(session.read.parquet(kept), wanted, number)
        remove(session, kept)


def publish(batch: DataFrame, wanted: dict[str, Any], number: int) -> None:
    """A file for each hour."""
    if "://" in wanted["target"]:
        sums = sums_of(batch).repartition("at").write.partitionBy("at").options(**CODEC)
        sums.parquet(f"{wanted['target']}/sums-{number}")
    else:
        publish_sums(batch, wanted, number)


def copied(session: Any, wanted: dict[str, Any]) -> None:
    target = Path(wanted["target"])
    for number, made in batches(session, wanted):
        kept, batch = f"{wanted['kept']}/{number}", target / f"_batch-{number}"
        made.write.options(**CODEC).parquet(kept)
        files, path = file_system(session, kept)
        files.copyToLocalFile(False, path, session._jvm.org.apache.hadoop.fs.Path(str(batch)), True)
        settle(batch, target, number)
        remove(session, kept)


def remove(session: Any, folder: str) -> None:
    files, path = file_system(session, folder)
    files.delete(path, True)


def file_system(session: Any, url: str) -> tuple[Any, Any]:
    """That of Hadoop, and the path."""
    path = session._jvm.org.apache.hadoop.fs.Path(url)
    return path.getFileSystem(session._jsc.hadoopConfiguration()), path


KINDS: dict[str, Kind] = {"written": written, "summed_up": summed_up, "copied": copied, "plain": plain}

if __name__ == "__main__":
    main(sys.argv[1:], KINDS)

"""The files of a whole DataFrame, by Spark's own writer: less work than by Arrow; its records are counted (ADR-95)."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import LogUnavailable
from airflow_logio.runtime.payloads import EpochPayloads, task_files
from airflow_logio.runtime.payloads.manifests import DataFile
from airflow_logio.runtime.payloads.sealing import sealed

WRITER_SAFETY: dict[str, str] = {
    # Hadoop's committer: its version 1 moves what tasks have written when all have committed, version 2 task by task.
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.parquet.output.committer.class": "org.apache.parquet.hadoop.ParquetOutputCommitter",
    # Times as every reader understands them, and dates as they are.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
}
"""Settings of the session that decide what is written, and how it is committed: no option of one write does."""
_OPTIONS = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.page.write-checksum.enabled": "true",
}
_SUFFIX = ".parquet"
_COUNT_SECONDS = 60.0
"""Within which Spark says how many records a job has written: usually 0.01 s, unless its listeners were overrun."""


def written(payloads: EpochPayloads, purpose: str, frame: SparkFrame, mode: int) -> list[DataFile]:
    """Run the job that writes the records of a DataFrame into a new folder, and one that makes the files durable.

    They are as many as the DataFrame has partitions with records, in no order, and have `mode`, less the umask. Their records
    are counted on the way into them, and again from their footers. Raises what the jobs raise, and `LogUnavailable` if the
    counts differ: then something is missing, and everything is to be written again.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    folder = payloads.new_folder(purpose)
    crash_here(CrashPoint.BEFORE_DATASET_JOB)
    counted = Observation()
    rows = frame.observe(counted, F.count(F.lit(1)).alias("records"))
    rows.write.mode("append").options(**_OPTIONS).parquet(f"file://{os.path.join(payloads.root, folder)}")
    files = seal(frame.sparkSession, payloads, folder, _records(payloads, counted), mode)
    crash_here(CrashPoint.AFTER_DATASET_JOB)
    return files


def seal(session: Any, payloads: EpochPayloads, folder: str, records: int, mode: int) -> list[DataFile]:
    """Make the files of a folder of the payload store durable; they must have so many records. Raises as `written`."""
    names = _listed(payloads, folder)
    files = _made_durable(session, payloads.root, names, mode) if names else []
    if (found := sum(file.records for file in files)) != records:
        raise LogUnavailable(
            f"the payload store {payloads.root}: tasks of Spark have written {records:,} records into {folder}, and the "
            f"driver sees {len(files):,} files with {found:,}. Driver and executors need one view of that folder"
        )
    payloads.settle(folder)
    return files


def _listed(payloads: EpochPayloads, folder: str) -> list[str]:
    """Paths of the data files, below the root. Checksums that Hadoop writes beside them are removed: pages have their own."""
    names = sorted(os.listdir(os.path.join(payloads.root, folder)))
    for name in names:
        if name.endswith(".crc"):
            with suppress(OSError):  # the sweep finds it
                os.unlink(os.path.join(payloads.root, folder, name))
    return [f"{folder}/{name}" for name in names if name.endswith(_SUFFIX)]


def _made_durable(session: Any, root: str, paths: Sequence[str], mode: int) -> list[DataFile]:
    import pyarrow as pa

    tasks = min(len(paths), max(1, session.sparkContext.defaultParallelism))
    listed = session.createDataFrame(pa.table({"path": paths})).repartition(tasks)
    lines = listed.mapInArrow(partial(sealed, root, mode), task_files.RESULT).toArrow().to_pylist()
    return [DataFile(line["path"], line["size"], line["records"], line["footer"]) for line in lines]


def _records(payloads: EpochPayloads, counted: Any) -> int:
    """What Spark has counted. It tells that by its listeners, which may lose something; who waits for it waits for ever."""
    found: list[int] = []
    waiting = threading.Thread(
        target=lambda: found.append(int(counted.get["records"])), name="logio-count", daemon=True
    )
    waiting.start()
    waiting.join(_COUNT_SECONDS)
    if not found:
        raise LogUnavailable(f"the payload store {payloads.root}: Spark does not say how many records were written")
    return found[0]

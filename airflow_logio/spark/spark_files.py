"""The files of a whole DataFrame, by Spark's own writer: less work than by Arrow; its records are counted (ADR-95)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.errors import LogioError, LogUnavailable, OperatorFailed
from airflow_logio.spark.engine import task_slots
from airflow_logio.spark.schemas import bad_text
from airflow_logio.spark.session_safety import WRITER_SAFETY
from airflow_logio.systems.payloads import EpochPayloads, task_files
from airflow_logio.systems.payloads.manifests import DataFile
from airflow_logio.systems.payloads.task_files import PROBE, lines_of, sealed

log = logging.getLogger(__name__)

_OPTIONS = {
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.page.write-checksum.enabled": "true",
    "parquet.summary.metadata.level": "NONE",
    # Of the heap of an executor, per task that writes; what Spark gives each by default does not fit into a small one.
    "parquet.block.size": str(32 * 2**20),
    "maxRecordsPerFile": "0",
}
_SUFFIX = ".parquet"
_DRIVER_SEALS = 32
"""So many files are sealed by the driver: a job of Spark would take longer."""
_COUNT_SECONDS = 60.0
"""Within which Spark says how many records a job has written: usually 0.01 s, unless its listeners were overrun."""
_LOOK_SECONDS = 0.25


def written(payloads: EpochPayloads, purpose: str, frame: SparkFrame, mode: int) -> list[DataFile] | None:
    """Run the job that writes the records of a DataFrame into a new folder, and make the files durable.

    They are as many as the DataFrame has partitions with records, in no order, and have `mode`, less the umask. Their records
    are counted on the way into them, and again from their footers; those with text that is not UTF-8 as well. None if Spark
    does not say how many there were. Raises what the jobs raise, `OperatorFailed` for such text, by column, and
    `LogUnavailable` if the counts differ: then something is missing. Where all is to be written again, nothing is left of it.
    """
    folder = payloads.new_folder(purpose)
    crash_here(CrashPoint.BEFORE_DATASET_JOB)
    try:
        files = _written(payloads, folder, frame, mode)
    except Exception:
        payloads.drop_folder(folder)
        raise
    if files is None:
        payloads.drop_folder(folder)
    crash_here(CrashPoint.AFTER_DATASET_JOB)
    return files


def _written(payloads: EpochPayloads, folder: str, frame: SparkFrame, mode: int) -> list[DataFile] | None:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    counted, bad = Observation(), bad_text(frame)
    told = [F.count(F.lit(1)).alias("records"), F.count_if(F.lit(False) if bad is None else bad).alias("bad")]
    rows = frame.observe(counted, *told)
    for name, value in WRITER_SAFETY.items():
        frame.sparkSession.conf.set(name, value)
    rows.write.mode("append").options(**_OPTIONS).parquet(payloads.files.spark_path(folder))
    found = _counts(payloads, counted)
    if found is None:
        return None
    if found["bad"]:
        raise _not_text(payloads, folder, found["bad"])
    return seal(frame.sparkSession, payloads, folder, found["records"], mode)


def _not_text(payloads: EpochPayloads, folder: str, count: int) -> OperatorFailed:
    """Which column has text that is not UTF-8, from the files."""
    import pyarrow.parquet as pq

    for name in _listed(payloads, folder):
        with payloads.files.open(name) as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches():
                try:
                    task_files.check_text(batch)
                except task_files.NotText as error:
                    return OperatorFailed(f"{count:,} record(s) of the DataFrame have text that is none: {error}")
    return OperatorFailed(f"{count:,} record(s) of the DataFrame have text that is not UTF-8")


def seal(session: Any, payloads: EpochPayloads, folder: str, records: int, mode: int) -> list[DataFile]:
    """Make the files of a folder of the payload store durable; they must have so many records. Raises as `written`."""
    names = _listed(payloads, folder)
    files = _made_durable(payloads, session, names, mode) if names else []
    if (found := sum(file.records for file in files)) != records:
        raise LogUnavailable(
            f"the payload store {payloads.root}: tasks of Spark have written {records:,} records into {folder}, and the "
            f"driver sees {len(files):,} files with {found:,}. Driver and executors need one view of that folder"
        )
    if any(file.partition for file in files):
        raise LogUnavailable(
            f"{folder} in the payload store {payloads.root} has dates or times of an old form: a function has changed the "
            "session while Spark began to write. Everything is written again"
        )
    payloads.drop(file.path for file in files if not file.records)  # of a DataFrame's first partition
    payloads.settle(folder)
    return [file for file in files if file.records]


def _listed(payloads: EpochPayloads, folder: str) -> list[str]:
    """Paths of the data files, below the root. Checksums that Hadoop writes beside them, and probes of tasks that
    were killed, are removed: pages have their own."""
    names = sorted(path for path in payloads.find(folder) if path.rpartition("/")[0] == folder)
    with suppress(LogioError):  # the sweep finds it
        payloads.drop(name for name in names if name.endswith(".crc") or name.rpartition("/")[2].startswith(PROBE))
    return [name for name in names if name.endswith(_SUFFIX)]


def _made_durable(payloads: EpochPayloads, session: Any, paths: Sequence[str], mode: int) -> list[DataFile]:
    if len(paths) <= _DRIVER_SEALS:
        lines = lines_of(payloads.sealed(mode, paths))
    else:
        import pyarrow as pa

        tasks = min(len(paths), task_slots(session))
        listed = session.createDataFrame(pa.table({"path": paths})).repartition(tasks)
        lines = listed.mapInArrow(partial(sealed, payloads.root, mode), task_files.RESULT).toArrow()
    return [
        DataFile(line["path"], line["size"], line["records"], line["footer"], tuple(filter(None, [line["partition"]])))
        for line in lines.to_pylist()
    ]


def _counts(payloads: EpochPayloads, counted: Any) -> Mapping[str, int] | None:
    """What Spark has counted. Its listeners tell it; they may be slow or lose something, and then `get` waits for ever.

    Raises what Spark raises, and `LogUnavailable` if the epoch ends meanwhile.
    """
    answers: SimpleQueue[Mapping[str, int] | BaseException] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put({name: int(value) for name, value in counted.get.items()})
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=ask, name="logio-count", daemon=True).start()
    deadline = time.monotonic() + _COUNT_SECONDS
    while time.monotonic() < deadline:
        if payloads.is_stopped():
            raise LogUnavailable("the epoch has ended before Spark said how many records were written")
        with suppress(Empty):
            answer = answers.get(timeout=_LOOK_SECONDS)
            if isinstance(answer, BaseException):
                raise answer
            return answer
    log.warning(
        "Spark does not say within %.0f s how many records it has written: its listeners are slow", _COUNT_SECONDS
    )
    return None

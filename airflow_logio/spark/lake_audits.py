"""Audits of a day in a lake: asked of the held records, as a DataFrame, before a file of theirs is in the folder.

No file and no record of the day changes meanwhile. What is asked runs on executors, as jobs of the writer's group.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import unquote

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.query_text import bare
from airflow_logio.dataflow.writers.audits import SHOWN, Audit, told
from airflow_logio.errors import LogioError, OperatorFailed, WriteRefused, authored_frames
from airflow_logio.spark.dataset_jobs import frame_of_all
from airflow_logio.spark.schemas import parsed
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.task_files import NULL

RECORDS = "records"
"""The name by which a query finds the records."""
Ask = Callable[[Audit, Callable[[Any], str]], str]
"""Does in a session of Spark what an audit asks for, and says what it has found, in words; empty if nothing is wrong.

Errors are told apart: those of Spark and its surroundings from those of the author.
"""


def ask(audits: Iterable[Audit], datasets: Sequence[Dataset], ask_one: Ask) -> Iterator[tuple[str, str]]:
    """Each audit that finds something in the records: its name, and what it says. Raises what `ask_one` raises."""
    for audit in audits:
        if faults := ask_one(audit, partial(_asked, audit, datasets)):
            yield audit.name, faults
        crash_here(CrashPoint.IN_AUDIT)


def _asked(audit: Audit, datasets: Sequence[Dataset], session: Any) -> str:
    records = frame_of_parts(session, datasets)
    if audit.query is None:
        return audit.asked(records)
    with _named(records) as view:
        query = f"WITH {RECORDS} AS (SELECT * FROM {view}) SELECT * FROM (\n{bare(audit.query)}\n) AS faults"
        return told(session.sql(query, args=dict(audit.params)).limit(SHOWN + 1).toArrow().to_pylist())


@contextmanager
def _named(records: SparkFrame) -> Iterator[str]:
    """A view of a name that no other thread has: groups share their session with all their writers."""
    view = f"logio_records_{uuid.uuid4().hex}"
    records.createTempView(view)
    try:
        yield view
    finally:
        with suppress(Exception):  # the session may be lost
            records.sparkSession.catalog.dropTempView(view)


def error_of(audit: Audit, error: Exception) -> LogioError:
    """What an error of Spark, or of the author, means that no waiting mends."""
    if audit.query is not None:
        return WriteRefused(f"Spark refused audit {audit.name!r}: {_first(error)}. It was: {audit.query}")
    is_of_spark = type(error).__module__.startswith("pyspark.")
    cause = f"{type(error).__name__}: {_first(error) if is_of_spark else error}"
    cause = str(error) if isinstance(error, OperatorFailed) else cause
    return OperatorFailed(f"audit {audit.name!r}: {cause}{authored_frames(error)}")


def _first(error: Exception) -> str:
    """Without the plan that Spark adds, or the stack of its JVM."""
    return str(error).strip().partition("\n")[0].partition(";")[0]


# --- the columns that are in the names of folders ---------------------------------------------------------------------


def frame_of_parts(session: Any, datasets: Sequence[Dataset]) -> SparkFrame:
    """The records of datasets of one writer, also the columns that are in the names of folders, which come last.

    Raises as `frame_of_all`. Columns of a dataset that was made by an earlier version are texts there.
    """
    from pyspark.sql import functions as F

    frame = frame_of_all(session, datasets[0].manifest.schema, datasets)
    fields = _fields(datasets)
    whose = {file.path.rpartition("/")[2]: file.partition for one in datasets for file in one.manifest.files}
    texts = {partition: _texts(partition) for partition in {*whose.values()}}
    if len(texts) <= 1:
        only = next(iter(texts.values()), (None,) * len(fields))
        columns = [F.lit(text).cast(kind).alias(name) for (name, kind), text in zip(fields, only, strict=True)]
        return frame.select("*", *columns)
    keys = [f"_place_{number}" for number in range(len(fields) + 1)]
    while {key.lower() for key in keys} & {name.lower() for name in frame.columns}:
        keys = [f"_{key}" for key in keys]
    rows = [(name, *texts[partition]) for name, partition in whose.items()]
    places = session.createDataFrame(rows, ", ".join(f"{key} string" for key in keys))
    named = frame.select("*", frame.metadataColumn("_metadata")["file_name"].alias(keys[0]))
    columns = [F.col(key).cast(kind).alias(name) for key, (name, kind) in zip(keys[1:], fields, strict=True)]
    return named.join(F.broadcast(places), keys[0]).select(*frame.columns, *columns)


def _fields(datasets: Sequence[Dataset]) -> Sequence[tuple[str, Any]]:
    """Name and type of each column that is in the names of folders, in their order."""
    from pyspark.sql.types import StringType, StructType

    if all(one.manifest.places for one in datasets):
        kept = StructType.fromJson(parsed(datasets[0].manifest.places))
        return [(field.name, field.dataType) for field in kept.fields]
    first = next((file.partition for one in datasets for file in one.manifest.files), ())
    return [(unquote(folder.partition("=")[0]), StringType()) for folder in first]


def _texts(partition: Sequence[str]) -> tuple[str | None, ...]:
    """What the names of a file's folders say."""
    values = [folder.partition("=")[2] for folder in partition]
    return tuple(None if value == NULL else unquote(value) for value in values)

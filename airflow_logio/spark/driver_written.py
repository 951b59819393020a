"""Datasets whose files the driver writes, a batch at a time: of records that it has, or that executors cannot reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.errors import LogUnavailable, OperatorFailed
from airflow_logio.spark.dataset_jobs import (
    arrow_schema_of,
    check_columns,
    data_file,
    frame_of_table,
    in_utc,
    schema_of,
)
from airflow_logio.systems.payloads import EpochPayloads, task_files
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import Manifest, in_order

BYTES_PER_FILE = 64 * 2**20
"""Files are that large: each may be read by a task."""


def written_by_driver(
    session: Any, payloads: EpochPayloads, where: str, purpose: str, tables: Iterable[pa.Table]
) -> Dataset:
    """The records of one table or more, of one schema; files and manifest are durable when this returns. Holds one of them.

    A time without a zone becomes an instant, in UTC. Raises what `tables` raises, `LogUnavailable`, and `OperatorFailed` for
    columns that cannot be written.
    """
    given = iter(tables)
    first = next(given)
    empty = frame_of_table(session, first.schema.empty_table())
    check_columns(empty)
    folder = payloads.new_folder(purpose)
    batches = _batches(in_utc(first.schema), chain([first], given))
    try:
        lines = list(task_files.written(payloads.root, folder, (), batches, BYTES_PER_FILE))
    except (ConnectionError, TimeoutError):  # of where the records come from
        raise
    except OSError as error:
        raise LogUnavailable(f"{payloads}: {type(error).__name__}: {error}") from error
    files = in_order([data_file(line) for batch in lines for line in batch.to_pylist()])
    return payloads.put(where, purpose, Manifest(schema_of(empty), arrow_schema_of(empty), files))


def _batches(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in tables:
        if table.schema.names != schema.names:
            raise OperatorFailed(
                f"records with the columns {schema.names} are followed by some with {table.schema.names}"
            )
        yield from table.cast(schema).to_batches()
        crash_here(CrashPoint.IN_STORE)

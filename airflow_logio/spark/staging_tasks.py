"""What tasks of Spark do to load a staging table, on executors (ADR-86). They need this package, and reach the database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.errors import LogioError
from airflow_logio.spark.database_tasks import warehouse_of
from airflow_logio.systems.payloads.payload_store import Payloads
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.table_names import TableName
from airflow_logio.systems.warehouse import Warehouse

RESULT = "file long, attempt string, records long, error string, said string"
"""The schema of what a loading task returns."""


@dataclass(frozen=True)
class Loading:
    """What is loaded, and where to: part of the job, so there is no secret in it."""

    root: str
    """The folder of the payload store."""
    url: str
    """Reference of the file that has the URL of the connection."""
    connection: str
    table: TableName
    writer: TableWriter
    action: WriteAction
    """With the reference of its dataset."""
    where: str
    """What the dataset is the body of, for errors."""


def loaded(loading: Loading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Load the files whose numbers come, one after the other; a line for each.

    The first one that cannot be loaded is the last one: what is wrong with it is in its line, as Spark would try a task that
    raises again. The numbers behind it are read all the same, because Spark waits for that.
    """
    warehouse: Warehouse | None = None
    has_failed = False
    try:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            if has_failed:
                continue
            try:
                warehouse = warehouse or warehouse_of(loading.root, loading.connection, loading.url)
                yield _line(number, *_load(loading, warehouse, number))
            except LogioError as error:
                has_failed = True
                yield _line(number, error=type(error).__name__, said=str(error))
    finally:
        if warehouse is not None:
            warehouse.close()


def _load(loading: Loading, warehouse: Warehouse, number: int) -> tuple[str, int]:
    dataset = Payloads(loading.root).dataset(loading.where, str(loading.action.dataset))
    return StagingTables(warehouse).load(loading.table, loading.writer, loading.action, dataset, number)


def _line(number: int, attempt: str = "", records: int = 0, error: str = "", said: str = "") -> pa.RecordBatch:
    return pa.record_batch(
        {
            "file": pa.array([number], pa.int64()),
            "attempt": pa.array([attempt], pa.string()),
            "records": pa.array([records], pa.int64()),
            "error": pa.array([error], pa.string()),
            "said": pa.array([said], pa.string()),
        }
    )

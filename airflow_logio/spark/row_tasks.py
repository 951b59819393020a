"""What tasks of Spark do to read rows of a table, on executors (ADR-93). They need this package, and reach the database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.dataflow.event_stream import uniform
from airflow_logio.errors import LogioError
from airflow_logio.spark.database_tasks import told, warehouse_of
from airflow_logio.systems.shared_snapshots import StoredAs, check_stored_as, imported_snapshot
from airflow_logio.systems.table_reads import KEYS, in_portions, pieces
from airflow_logio.systems.warehouse import Warehouse

_UNREAD = re.compile(r'\bUnread: (\["\w+", ".*"\])')


class Unread(Exception):
    """What a task has found. Spark hands on its text only: a list in JSON, of the name of an error and of what it says."""


@dataclass(frozen=True)
class RowsPart:
    """What one task reads."""

    where: str
    """The table, and which part of it, in words."""
    statement: sa.Select[Any]


@dataclass(frozen=True)
class RowsReading:
    """What is read, and where from: part of the job, so there is no secret in it."""

    root: str
    """The folder of the payload store."""
    url: str
    """Reference of the file that has the URL of the connection."""
    connection: str
    snapshot: str
    """The id under which the driver has exported it."""
    stored: StoredAs
    parts: Sequence[RowsPart]
    kinds: dict[str, ColumnType]
    schema: pa.Schema
    """What the records are, as Spark has them."""
    keys_per_query: int = 0
    """Where keys are looked up; 0 for all of them."""


def rows(reading: RowsReading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the parts whose numbers come, each part by a cursor of the server. Raises `Unread`."""
    try:
        with closing(warehouse_of(reading.root, reading.connection, reading.url)) as warehouse:
            for number in (number for batch in batches for number in batch.column(0).to_pylist()):
                for table in _tables(reading, warehouse, reading.parts[number]):
                    yield from table.cast(reading.schema).to_batches()
    except LogioError as error:
        raise Unread(json.dumps([type(error).__name__, str(error)])) from None


def looked_up(reading: RowsReading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the only part whose keys come, in one transaction, by statements of some keys each. Raises `Unread`."""
    (part,) = reading.parts
    taken = list(batches)
    if not any(batch.num_rows for batch in taken):
        return
    keys = uniform(pa.Table.from_batches(taken)).column(0)
    statements = ({KEYS: some} for some in in_portions(keys, reading.keys_per_query or len(keys)))
    try:
        with closing(warehouse_of(reading.root, reading.connection, reading.url)) as warehouse:
            for table in _tables(reading, warehouse, part, statements):
                yield from table.cast(reading.schema).to_batches()
    except LogioError as error:
        raise Unread(json.dumps([type(error).__name__, str(error)])) from None


def _tables(
    reading: RowsReading, warehouse: Warehouse, part: RowsPart, statements: Iterable[dict[str, Any]] = ({},)
) -> Iterator[pa.Table]:
    """What the statement of a part finds, with each of these values."""
    before, is_checked = 0, False
    with imported_snapshot(warehouse, reading.snapshot, part.where) as connection:
        for values in statements:
            found = pieces(connection, part.where, part.statement, reading.kinds, values, first_row=before)
            first = next(found, None)
            if not is_checked:
                check_stored_as(connection, part.where, reading.stored)
                is_checked = True
            for table in found if first is None else chain([first], found):
                yield table
                before += table.num_rows


def unread(error: BaseException) -> LogioError | None:
    """What a task has found, of what Spark says of its job; None if the job failed for another reason."""
    found = _UNREAD.search(str(error))
    return None if found is None else told(*json.loads(found[1]))

"""Records of a write action that are in files, as a table gets them: bit by bit, or from a staging table (ADR-86)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.writers.action_writers import EVENT, WriteAction
from airflow_logio.dataflow.writers.owned_days import SHOWN
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable
from airflow_logio.systems.databases.postgres import arrived
from airflow_logio.systems.databases.table_inserts import found_types
from airflow_logio.systems.databases.table_names import TableName, quoted
from airflow_logio.systems.databases.table_upserts import Rows


class StoredRecords(Protocol):
    """What is asked of a dataset (`payloads.dataset.Dataset`)."""

    def counts(self) -> Sequence[int]:
        """The records of each file."""
        ...

    def empty(self) -> pa.Table:
        """No records, of the types that `batches` gives."""
        ...

    def batches(self, number: int | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Tables of bounded size, each with the number of records before it; of file `number` only, if one is given."""
        ...


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Where executors have put the records of a write action."""

    table: TableName
    attempts: Mapping[int, str]
    """Number of a file → the attempt that has loaded it, and that the job has named."""


@dataclass(frozen=True, slots=True)
class RecordsInFiles:
    """The records of one write action."""

    records: StoredRecords
    staged: StagedFiles | None = None
    """None: they pass through the driver."""


@dataclass(frozen=True, slots=True)
class StagedActions:
    """The records of several write actions, in one staging table."""

    files: StagedFiles
    numbers: frozenset[int]
    """The write actions."""
    counts: Sequence[int]
    """The records of each file, those of the first action first."""
    columns: Sequence[str]


@dataclass(frozen=True, slots=True)
class HeldFiles:
    """Held write actions whose records are in files."""

    records: Mapping[int, StoredRecords]
    """By the number of the action."""
    staged: StagedActions | None = None
    """What executors have loaded; the others pass through the driver."""


NO_HELD_FILES = HeldFiles({})
NO_CONSTANTS: Mapping[str, int] = MappingProxyType({})


def parts(
    writer: TableWriter, action: WriteAction, stored: StoredRecords, number: int | None = None
) -> Iterator[WriteAction]:
    """A write action of a dataset as actions of some of its records each, as the writer would have logged them."""
    for first, table in stored.batches(number):
        yield _part(writer, action, first, table)


def no_part(writer: TableWriter, action: WriteAction, stored: StoredRecords) -> WriteAction:
    """As `parts`, without records."""
    return _part(writer, action, 0, stored.empty())


def _part(writer: TableWriter, action: WriteAction, first: int, table: pa.Table) -> WriteAction:
    event = InputEvent(writer.inputs[0], int(action.description.get(EVENT, 0)), table)
    return replace(action, records=writer.records(event), first_row=first, dataset=None)


# --- in a staging table: moved inside the transaction of the marker ---------------------------------------------------

FILE, ATTEMPT = "logio_file", "logio_attempt"
"""Columns that a staging table has beside those of the target."""
_TIE = "logio_tie"
_NAMED = f"({FILE}, {ATTEMPT}) IN (SELECT * FROM unnest(%s::integer[], %s::text[]))"


def check_there(connection: Connection, table: TableName) -> None:
    """Raises `ExternalUnavailable` if a staging table was dropped: by a successor, which refuses this driver, or by hand."""
    asked = connection.execute(sa.text("SELECT to_regclass(:name)"), {"name": table.as_value()})
    if asked.scalar_one() is None:
        raise ExternalUnavailable(f"the staging table {table} is gone; another one is loaded")


def check_whole(
    connection: Connection, target: TableName, columns: Sequence[str], staged: StagedFiles, counts: Sequence[int]
) -> None:
    """Raises `ExternalUnavailable` unless the staging table has what the job has said.

    `counts` are the records of each file. Nothing is moved then, and the next attempt stages again.
    """
    table = staged.table
    where = f"the staging table {table}"
    check_there(connection, table)
    query = f"SELECT {FILE}, count(*) FROM {table.quoted(connection)} WHERE {_NAMED} GROUP BY {FILE}"
    found = {file: count for file, count in connection.exec_driver_sql(query, _pairs(staged))}
    check_counts(table, found, counts)
    here, there = found_types(connection, table) or {}, found_types(connection, target) or {}
    if changed := [column for column in columns if here.get(column) != there.get(column)]:
        raise ExternalUnavailable(
            f"{target}, column {changed[0]!r} was {here.get(changed[0])} when {where} was made, and is "
            f"{there.get(changed[0])} now; it is loaded again"
        )


def check_counts(table: TableName, found: Mapping[int, int], counts: Sequence[int]) -> None:
    """`found` are the records of each file that are in the staging table. As `check_whole`."""
    for file, count in enumerate(counts):
        if found.get(file, 0) != count:
            raise ExternalUnavailable(
                f"the staging table {table} has {found.get(file, 0):,} records of file {file}, {count:,} were loaded (it is "
                "empty after the server has crashed); it is loaded again"
            )


def move(
    connection: Connection,
    target: TableName,
    columns: Sequence[str],
    staged: StagedFiles,
    file: int | None = None,
    constants: Mapping[str, int] = NO_CONSTANTS,
) -> int:
    """Move the rows that the job has named; of one file only, if it is given. How many have arrived.

    `constants` has, by their columns, what each of them gets beside what it has.
    """
    names = ", ".join(quoted(connection, column) for column in columns)
    into = ", ".join([names, *(quoted(connection, column) for column in constants)])
    values = ", ".join([names, *map(str, constants.values())])
    statement = (
        f"INSERT INTO {target.quoted(connection)} ({into}) SELECT {values} FROM {staged.table.quoted(connection)} "
        f"WHERE {_NAMED}"
    )
    return arrived(connection, target, lambda on: on.exec_driver_sql(statement, _pairs(staged, file)).rowcount)


def named_rows(connection: Connection, columns: Sequence[str], staged: StagedFiles) -> Rows:
    """The rows that the job has named."""
    names = ", ".join(quoted(connection, column) for column in columns)
    found = f"SELECT {names}, ctid AS {_TIE} FROM {staged.table.quoted(connection)} WHERE {_NAMED}"
    return Rows(f"({found})", _TIE, _pairs(staged))


def other_values(
    connection: Connection, staged: StagedFiles, column: str, value: object
) -> tuple[int, int, Sequence[str | None]]:
    """Of the rows that the job has named: how many do not have the value in a column, how many values they have there, and
    some of these as texts."""
    named = quoted(connection, column)
    query = (
        f"SELECT CAST({named} AS text), sum(count(*)) OVER (), count(*) OVER () FROM {staged.table.quoted(connection)} "
        f"WHERE {_NAMED} AND {named} IS DISTINCT FROM %s GROUP BY {named} ORDER BY count(*) DESC, {named} LIMIT {SHOWN}"
    )
    found = connection.exec_driver_sql(query, (*_pairs(staged), value)).all()
    return (int(found[0][1]), int(found[0][2]), [row[0] for row in found]) if found else (0, 0, [])


def _pairs(staged: StagedFiles, file: int | None = None) -> tuple[list[int], list[str]]:
    files = sorted(staged.attempts) if file is None else [file]
    return files, [staged.attempts[one] for one in files]

"""The transaction in which the rows of a run take the place of those that it owns in a table (design, "Days")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.databases import cause_of, kept_open, savepoint
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import LogInconsistent, WriteRefused
from airflow_logio.protocol.external_rules import Contender
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems import day_audits, stored_records, warehouse_rows
from airflow_logio.systems.databases import table_inserts
from airflow_logio.systems.databases.conversions import row_of
from airflow_logio.systems.databases.table_inserts import check_arrived
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.owned_rows import OwnedRows
from airflow_logio.systems.stored_records import NO_HELD_FILES, HeldFiles, parts
from airflow_logio.systems.table_days import rows_of
from airflow_logio.systems.table_transaction import ALIVE_SECONDS, insert_records

T = TypeVar("T")
_END = object()


class ClosingTransaction:
    """The held write actions `group` of a writer, all of them, on a connection whose transaction is open.

    `pages` have all but the closing one, in order. They are read while the transaction is open. `files` has the records that
    are in files.
    """

    def __init__(
        self,
        name: TableName,
        marker: Marker,
        writer: TableWriter,
        group: HeldGroup,
        pages: Iterable[Sequence[WriteAction]],
        contender: Contender,
        scope: ScopeContender,
        files: HeldFiles = NO_HELD_FILES,
    ) -> None:
        self._name = name
        self._marker = marker
        self._writer = writer
        self._group = group
        self._pages = pages
        self._contender = contender
        self._scope = scope
        self._files = files
        self._refused_row = ""

    def apply(self, connection: Connection) -> None:
        """Switch the day and advance the marker, unless that is done.

        Raises `WriteRefused`, `Fenced`, `LogInconsistent`, and what reading the pages raises.
        """
        before = warehouse_rows.lock_marker(connection, self._marker)
        if not self._marker.applies(self._group, *before):
            return
        self._check_claim(connection)
        rows = rows_of(connection, self._writer, self._name, self._scope)
        self._scope.check_records(held=self._group.records, is_filled=rows.is_filled())
        if (staged := self._files.staged) is not None:  # before anything is deleted
            stored_records.check_whole(connection, self._name, staged.columns, staged.files, staged.counts)
            rows.check_staged(staged.files, staged.counts)
        rows.delete()
        crash_here(CrashPoint.IN_DAY_SWITCH)
        self._insert(connection, rows)
        self._check_count(rows.count())
        scope = self._scope
        day_audits.ask_queries(connection, self._writer.audits, scope)
        warehouse_rows.close_scope(connection, self._name, scope.key, scope.mine, self._group.last)
        crash_here(CrashPoint.IN_WAREHOUSE_TRANSACTION)
        warehouse_rows.advance_marker(connection, self._marker, before, self._group.last)

    def refused(self, error: sa.exc.DBAPIError) -> str:
        """Where a refusal of the database has its cause, in words, as far as it does not say so itself."""
        told, column = cause_of(error), self._writer.run_column
        if not isinstance(error, sa.exc.IntegrityError) or column is None or column in told:
            return self._refused_row
        return f"{self._refused_row}if it is a key, it lacks {column!r}, so that rows of two runs meet in it: "

    def _check_claim(self, connection: Connection) -> None:
        self._contender.check_owner(warehouse_rows.read_owner(connection, self._name, for_share=True))
        given_up = warehouse_rows.read_given_up(connection, self._name, self._marker.run_uid)
        self._contender.check_not_given_up(given_up)
        self._scope.check_close(warehouse_rows.lock_scope(connection, self._name, self._scope.key))

    def _insert(self, connection: Connection, rows: OwnedRows) -> None:
        inserted = self._move(connection, rows)
        for page in _kept(connection, self._pages):
            for is_stored, actions in groupby(page, self._is_stored):
                if not is_stored:
                    inserted += self._insert_some(connection, rows.labelled(list(actions)))
                    continue
                inserted += sum(self._insert_stored(connection, rows, action) for action in actions)
        if inserted != self._group.records:
            numbers = f"{self._group.first} to {self._group.last}"
            raise LogInconsistent(
                f"write actions {numbers} of {self._marker.operator!r} have {self._group.records:,} records, and the log has "
                f"given {inserted:,} of them"
            )

    def _insert_some(self, connection: Connection, actions: Sequence[WriteAction]) -> int:
        """How many rows. PostgreSQL names a key that is there already, SQLite only its columns."""
        if connection.dialect.name != "sqlite":
            return insert_records(connection, self._writer, self._name, actions)
        try:
            with savepoint(connection):
                return insert_records(connection, self._writer, self._name, actions)
        except sa.exc.IntegrityError as error:
            self._refused_row = self._row_of(connection, actions, cause_of(error))
            raise

    def _row_of(self, connection: Connection, actions: Sequence[WriteAction], told: str) -> str:
        filled = [action for action in actions if action.records.num_rows]
        into = table_inserts.prepared(connection, self._writer, self._name, filled)
        records = into.converted(filled)
        row = table_inserts.first_refused(connection, records, into)
        if row is None:
            return ""
        columns = [name for name in records.column_names if f".{name}," in f"{told},"] or records.column_names
        values = ", ".join(f"{name}={records.column(name)[row].as_py()}" for name in columns)
        return f"table {self._writer.table!r}, {row_of(row, filled)}, with {values}: "

    def _is_stored(self, action: WriteAction) -> bool:
        return action.number in self._files.records

    def _move(self, connection: Connection, rows: OwnedRows) -> int:
        """What executors have loaded; how many rows."""
        if (staged := self._files.staged) is None:
            return 0
        moved = stored_records.move(connection, self._name, staged.columns, staged.files, constants=rows.constants)
        check_arrived(self._writer.table, sum(staged.counts), moved)
        return moved

    def _insert_stored(self, connection: Connection, rows: OwnedRows, action: WriteAction) -> int:
        """Bit by bit, unless they are moved; how many rows."""
        staged = self._files.staged
        if staged is not None and action.number in staged.numbers:
            return 0
        inserted = 0
        for part in _kept(connection, parts(self._writer, action, self._files.records[action.number])):
            rows.check_part(part)
            inserted += self._insert_some(connection, rows.labelled([part]))
        return inserted

    def _check_count(self, found: int) -> None:
        if found == self._group.records:
            return
        raise WriteRefused(
            f"table {self._writer.table!r}: {self._group.records:,} rows of {self._scope.scope} were put in place of those "
            f"that were there, and it has {found:,} of them now; nothing is changed. A trigger or a rule of the table "
            "changes the rows, or another program inserts rows of that day at the same time: change that, then retry"
        )


def _kept(connection: Connection, read: Iterable[T]) -> Iterator[T]:
    """What is read while the transaction is open: that may take longer than the server lets one stand still."""
    items, is_server = iter(read), connection.dialect.name == "postgresql"
    while True:
        with kept_open(connection, ALIVE_SECONDS) if is_server else nullcontext():
            item = next(items, _END)
        if item is _END:
            return
        yield cast(T, item)

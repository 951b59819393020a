"""The transaction that applies a group of write actions to a table and advances their marker."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.write_actions import Marker, WriteAction
from airflow_logio.protocol.warehouse_rules import Contender, MarkerRow, Owner
from airflow_logio.runtime.systems import table_inserts, warehouse_rows
from airflow_logio.runtime.systems.conversions import row_of
from airflow_logio.runtime.systems.table_names import TableName


class TableTransaction:
    """One gapless group of write actions of a writer, on a connection whose transaction is open."""

    def __init__(
        self,
        connection: str,
        name: TableName,
        marker: Marker,
        writer: TableWriter,
        actions: Sequence[WriteAction],
        *,
        is_fresh: bool,
    ) -> None:
        self._name = name
        self._marker = marker
        self._writer = writer
        self._actions = actions
        mine = Owner(marker.run_uid, marker.started_at)
        self._contender = Contender(writer.table, connection, marker.operator, mine, writer.on_new_run, is_fresh)

    def apply(self, connection: Connection) -> None:
        """Apply what is not applied yet, and advance the marker."""
        before, pending = self._open(connection)
        if not pending:
            return
        if prepared := self._prepared(connection, pending):
            table_inserts.insert(connection, *prepared)
        crash_here(CrashPoint.IN_WAREHOUSE_TRANSACTION)
        warehouse_rows.advance_marker(connection, self._marker, before, pending[-1].number)

    def refused_row(self, connection: Connection) -> str:
        """The first row that the database refuses, in words for an error; empty if it refuses none by itself.

        By halves, each in a savepoint: what is accepted stays, so that a row is found that is refused for one before it.
        Everything is rolled back.
        """
        with connection.begin() as transaction:
            _, pending = self._open(connection)
            prepared = self._prepared(connection, pending)
            row = None if prepared is None else _first_refused(connection, *prepared)
            transaction.rollback()
        if row is None:
            return ""
        return f"table {self._writer.table!r}, {row_of(row, _with_records(pending))}: "

    def _open(self, connection: Connection) -> tuple[MarkerRow, Sequence[WriteAction]]:
        """Lock and check marker and owner; begin the run if that is asked for. What the marker holds, and what is left."""
        before = warehouse_rows.lock_marker(connection, self._marker)
        pending = self._marker.unapplied(self._actions, *before)
        if pending:
            if pending[0].is_opening:
                self._begin(connection)
            self._contender.check_owner(warehouse_rows.read_owner(connection, self._name, for_share=True))
        return before, pending

    def _begin(self, connection: Connection) -> None:
        """The first write action of a run: take the table over or join, make it, treat what is in it as declared."""
        warehouse_rows.lock_takeover(connection, self._name)
        # Locked before anything is looked at or deleted: any writer that may write has committed, or will be refused.
        owner = warehouse_rows.read_owner(connection, self._name, for_update=True)
        takes_over = self._contender.takes_over(owner)
        table = table_inserts.target_table(connection, self._writer, self._name)
        if not takes_over:
            return  # another writer of the run, or another slot of this one, has begun: its rows stay; or the run joins
        is_filled = connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None
        if self._contender.empties(is_filled=is_filled):
            connection.execute(sa.delete(table))
        warehouse_rows.store_owner(connection, self._name, self._contender)

    def _prepared(
        self, connection: Connection, pending: Sequence[WriteAction]
    ) -> tuple[pa.Table, table_inserts.Insert] | None:
        return table_inserts.prepared(connection, self._writer, self._name, _with_records(pending))


def _with_records(actions: Sequence[WriteAction]) -> list[WriteAction]:
    return [action for action in actions if action.records.num_rows]


def _first_refused(connection: Connection, records: pa.Table, into: table_inserts.Insert) -> int | None:
    """The place of the row; None if the rows are refused by nothing that happens before the commit."""
    first, last = 0, records.num_rows
    while first < last:
        middle = max(first + 1, (first + last) // 2)
        try:
            with connection.begin_nested():
                table_inserts.insert(connection, records.slice(first, middle - first), into)
        except sa.exc.DBAPIError:
            if middle - first == 1:
                return first
            last = middle
        else:
            first = middle
    return None

"""The transaction in which the rows of a run take the place of those that have its day (design, "Days")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.databases import kept_open
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import LogInconsistent, WriteRefused
from airflow_logio.protocol.external_rules import Contender
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems import day_audits, warehouse_rows
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.table_days import DayRows
from airflow_logio.systems.table_transaction import ALIVE_SECONDS, insert_records


class ClosingTransaction:
    """The held write actions `group` of a writer, all of them, on a connection whose transaction is open.

    `pages` have all but the closing one, in order. They are read while the transaction is open.
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
    ) -> None:
        self._name = name
        self._marker = marker
        self._writer = writer
        self._group = group
        self._pages = pages
        self._contender = contender
        self._scope = scope

    def apply(self, connection: Connection) -> None:
        """Switch the day and advance the marker, unless that is done.

        Raises `WriteRefused`, `Fenced`, `LogInconsistent`, and what reading the pages raises.
        """
        before = warehouse_rows.lock_marker(connection, self._marker)
        if not self._marker.applies(self._group, *before):
            return
        self._check_claim(connection)
        rows = DayRows(connection, self._writer, self._name)
        self._scope.check_records(held=self._group.records, is_filled=rows.is_filled())
        rows.delete()
        crash_here(CrashPoint.IN_DAY_SWITCH)
        self._insert(connection)
        self._check_count(rows.count())
        scope = self._scope
        day_audits.ask_queries(connection, self._writer.audits, scope)
        warehouse_rows.close_scope(connection, self._name, scope.scope, scope.mine, self._group.last)
        crash_here(CrashPoint.IN_WAREHOUSE_TRANSACTION)
        warehouse_rows.advance_marker(connection, self._marker, before, self._group.last)

    def _check_claim(self, connection: Connection) -> None:
        self._contender.check_owner(warehouse_rows.read_owner(connection, self._name, for_share=True))
        given_up = warehouse_rows.read_given_up(connection, self._name, self._marker.run_uid)
        self._contender.check_not_given_up(given_up)
        self._scope.check_close(warehouse_rows.lock_scope(connection, self._name, self._scope.scope))

    def _insert(self, connection: Connection) -> None:
        inserted = 0
        for actions in self._read(connection):
            inserted += insert_records(connection, self._writer, self._name, actions)
        if inserted != self._group.records:
            numbers = f"{self._group.first} to {self._group.last}"
            raise LogInconsistent(
                f"write actions {numbers} of {self._marker.operator!r} have {self._group.records:,} records, and the log has "
                f"given {inserted:,} of them"
            )

    def _read(self, connection: Connection) -> Iterator[Sequence[WriteAction]]:
        """The pages. To read one may take longer than the server lets a transaction stand still."""
        pages = iter(self._pages)
        while True:
            alive = connection.dialect.name == "postgresql"
            with kept_open(connection, ALIVE_SECONDS) if alive else nullcontext():
                page = next(pages, None)
            if page is None:
                return
            yield page

    def _check_count(self, found: int) -> None:
        if found == self._group.records:
            return
        raise WriteRefused(
            f"table {self._writer.table!r}: {self._group.records:,} rows of {self._scope.scope} were put in place of those "
            f"that were there, and it has {found:,} of them now; nothing is changed. A trigger or a rule of the table "
            "changes the rows, or another program inserts rows of that day at the same time: change that, then retry"
        )

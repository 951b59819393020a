"""The transaction that applies a group of write actions to a table and advances their marker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.databases import kept_open, savepoint
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ProtocolViolation, RowsDropped, WriteRefused
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.systems import stored_records, table_days, table_runs, warehouse_rows
from airflow_logio.systems.databases import kept_rows, table_inserts
from airflow_logio.systems.databases.conversions import row_of
from airflow_logio.systems.databases.table_inserts import check_arrived, first_refused
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.databases.table_upserts import Upsertion
from airflow_logio.systems.stored_records import RecordsInFiles, no_part, parts
from airflow_logio.systems.table_days import DayRows

MANY_RECORDS = 10_000
ALIVE_SECONDS = 1.0
"""How often a server hears of a client that converts many records: more often than it ends one that stands still."""
NOTHING_STORED: Mapping[int, RecordsInFiles] = MappingProxyType({})


class TableTransaction:
    """One gapless group of write actions of a writer, on a connection whose transaction is open.

    `stored` has, by the number of the action, the records that are in files. `scope` is what a run owns by value: then the
    opening action is the only one that is applied so, unless the run fills it at once.
    """

    def __init__(
        self,
        name: TableName,
        marker: Marker,
        writer: TableWriter,
        actions: Sequence[WriteAction],
        stored: Mapping[int, RecordsInFiles],
        contender: Contender,
        scope: ScopeContender | None,
    ) -> None:
        self._name = name
        self._marker = marker
        self._writer = writer
        self._actions = actions
        self._stored = stored
        self._contender = contender
        self._scope = scope

    def apply(self, connection: Connection) -> None:
        """Apply what is not applied yet, and advance the marker."""
        before, pending = self._open(connection)
        if not pending:
            return
        for is_stored, actions in groupby(pending, self._is_stored):
            if self._writer.upserts:
                self._upsert(connection, list(actions), only=len(self._stored) == 0 or len(pending) == 1)
            elif is_stored:
                for action in actions:
                    self._insert_stored(connection, action)
            else:
                insert_records(connection, self._writer, self._name, list(actions))
        crash_here(CrashPoint.IN_WAREHOUSE_TRANSACTION)
        warehouse_rows.advance_marker(connection, self._marker, before, pending[-1].number)

    def refused_row(self, connection: Connection) -> str:
        """The first row that the database refuses or drops, in words for an error; empty if it does so to none by itself.

        Found by trying (`first_refused`). Everything is rolled back.
        """
        with connection.begin() as transaction:
            _, pending = self._open(connection)
            found = next(
                filter(None, (self._refused(connection, part) for part in self._tried(connection, pending))), ""
            )
            transaction.rollback()
        return f"table {self._writer.table!r}, {found}: " if found else ""

    def _open(self, connection: Connection) -> tuple[MarkerRow, Sequence[WriteAction]]:
        """Lock and check marker and owner; begin the run if that is asked for. What the marker holds, and what is left."""
        before = warehouse_rows.lock_marker(connection, self._marker)
        pending = self._marker.unapplied(self._actions, *before)
        holds = self._scope is not None and not self._scope.fills_at_once
        if holds and any(not action.is_opening for action in pending):
            raise ProtocolViolation(f"a write action of {self._marker.operator!r} is applied before its closing one")
        if pending:
            if pending[0].is_opening:
                self._begin(connection)
            owner = warehouse_rows.read_owner(connection, self._name, for_share=True)
            self._contender.check_owner(owner)
            if owner is not None and self._contender.is_beside_runs(owner):
                table_runs.check_none_written(f"table {self._writer.table!r}", owner.of_runs, self._names(pending))
            given_up = warehouse_rows.read_given_up(connection, self._name, self._marker.run_uid)
            self._contender.check_not_given_up(given_up)
            if (scope := self._scope) is not None and not pending[0].is_opening:
                scope.check_fill(warehouse_rows.lock_scope(connection, self._name, scope.key, for_share=True))
        return before, pending

    def _begin(self, connection: Connection) -> None:
        """The first write action of a run: take the table over or join, make it, treat what is in it as declared."""
        contender = self._contender
        if self._scope is not None:
            table_days.begin_day(connection, self._name, self._writer, contender, self._scope, self._marker)
            return
        for run_uid in contender.given_up:  # before the owner is locked, for which their drivers wait with a marker
            warehouse_rows.fence_markers(connection, run_uid)
        warehouse_rows.lock_takeover(connection, self._name)
        # Locked before anything is looked at or deleted: any writer that may write has committed, or will be refused.
        owner = self._lock_owner(connection)
        pipelines = warehouse_rows.pipelines_in_scopes(connection, self._name) if owner and owner.is_shared else ()
        takes_over = contender.takes_over(owner, pipelines)
        table_inserts.add_columns(connection, self._writer, self._name)
        table = table_inserts.target_table(connection, self._writer, self._name)
        youngest = warehouse_rows.read_appending(connection, self._name)
        # Otherwise another writer of the run, or another slot of this one, has begun: its rows stay. Or the run joins.
        if takes_over:
            if contender.empties(is_filled=_is_filled(connection, table), youngest=youngest):
                self._empty(connection, table)
            warehouse_rows.store_owner(connection, self._name, contender)
            if owner is not None and owner.is_shared:
                warehouse_rows.remove_scopes(connection, self._name)
        if contender.is_youngest(youngest):
            warehouse_rows.store_appending(connection, self._name, contender.mine)
        for run_uid in contender.given_up:
            warehouse_rows.store_given_up(connection, self._name, run_uid, contender.mine)

    def _lock_owner(self, connection: Connection) -> Owner | None:
        """Where runs own rows, one that appends is beside them, and waits for none of them."""
        for how in ({}, {"for_share": True}):
            owner = warehouse_rows.read_owner(connection, self._name, **how)
            if owner is None or not self._contender.is_beside_runs(owner):
                return warehouse_rows.read_owner(connection, self._name, for_update=True)
        return owner

    def _empty(self, connection: Connection, table: sa.Table) -> None:
        """Delete all rows. Again, if some are left: others may have committed some since. Raises `WriteRefused`."""
        kept_rows.check_replaced(connection, self._writer, self._name)
        kept_rows.delete_all(connection, sa.delete(table), lambda: _is_filled(connection, table))
        if _is_filled(connection, table):
            left = connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            raise WriteRefused(
                f"table {self._writer.table!r} still has {left:,} rows after all were deleted, as on_new_run='replace' says; "
                "nothing is written. A trigger or a rule of the table keeps them: change it, or choose 'append'"
            )

    def _names(self, pending: Sequence[WriteAction]) -> Iterator[str]:
        """The columns of what is to be written."""
        yield from self._writer.columns or ()
        for action in pending:
            stored = self._stored.get(action.number)
            names = action.records.column_names
            yield from names if stored is None else no_part(self._writer, action, stored.records).records.column_names

    # --- records in files ---------------------------------------------------------------------------------------------

    def _is_stored(self, action: WriteAction) -> bool:
        return action.number in self._stored

    def _insert_stored(self, connection: Connection, action: WriteAction) -> None:
        """What executors have staged is moved; anything else is inserted bit by bit."""
        records, staged = self._stored[action.number].records, self._stored[action.number].staged
        day = None if self._scope is None else DayRows(connection, self._writer, self._name)
        if staged is not None:
            columns = no_part(self._writer, action, records).records.column_names
            stored_records.check_whole(connection, self._name, columns, staged, records.counts())
            if day is not None:
                day.check_staged(staged, records.counts())
            moved = stored_records.move(connection, self._name, columns, staged)
            check_arrived(self._writer.table, sum(records.counts()), moved)
            return
        into: table_inserts.Insertion | None = None
        for part in parts(self._writer, action, records):
            if day is not None:
                day.check_part(part)
            into = into or table_inserts.prepared(connection, self._writer, self._name, [part])
            into.insert(connection, into.converted([part]))

    # --- by their keys ------------------------------------------------------------------------------------------------

    def _upsert(self, connection: Connection, actions: Sequence[WriteAction], *, only: bool) -> None:
        """Those of all actions at once where versions decide; else one action after the other, and the last one wins."""
        filled = [action for action in actions if self._is_stored(action) or action.records.num_rows]
        at_once = self._writer.version is not None and not self._is_stored(actions[0])
        for group in [filled] if at_once and filled else [[action] for action in filled]:
            self._upsert_group(connection, group, only=only)

    def _upsert_group(self, connection: Connection, actions: Sequence[WriteAction], *, only: bool) -> None:
        like = actions[0]
        stored = self._stored.get(like.number)
        if stored is not None:
            like = no_part(self._writer, like, stored.records)
        into = Upsertion(connection, self._writer, self._name, like, only=only)
        if stored is None:
            into.load(_converted(connection, into, actions))
            into.merge()
        elif stored.staged is None:
            for part in parts(self._writer, actions[0], stored.records):
                into.load(_converted(connection, into, [part]))
            into.merge()
        else:
            columns = like.records.column_names
            stored_records.check_whole(connection, self._name, columns, stored.staged, stored.records.counts())
            into.merge(stored_records.named_rows(connection, columns, stored.staged))
        into.end()

    # --- which row is refused -----------------------------------------------------------------------------------------

    def _tried(self, connection: Connection, pending: Sequence[WriteAction]) -> Iterator[Sequence[WriteAction]]:
        """The actions as they are tried, one after the other: in groups, or bit by bit where the records are in files."""
        for is_stored, actions in groupby(pending, self._is_stored):
            if not is_stored:
                filled = [action for action in actions if action.records.num_rows]
                is_one_by_one = self._writer.upserts and self._writer.version is None
                yield from ([action] for action in filled) if is_one_by_one else [filled]
                continue
            for action in actions:
                for file in self._refused_files(connection, action):
                    yield from (
                        [part] for part in parts(self._writer, action, self._stored[action.number].records, file)
                    )

    def _refused_files(self, connection: Connection, action: WriteAction) -> Iterator[int | None]:
        """The file with a staged row that is refused: others are moved. None for all files, if none is staged."""
        records, staged = self._stored[action.number].records, self._stored[action.number].staged
        if staged is None or self._writer.upserts:
            yield None
            return
        columns = no_part(self._writer, action, records).records.column_names
        for file in sorted(staged.attempts):
            try:
                with savepoint(connection):
                    moved = stored_records.move(connection, self._name, columns, staged, file)
                    check_arrived(self._writer.table, records.counts()[file], moved)
            except (sa.exc.DBAPIError, RowsDropped):
                yield file

    def _refused(self, connection: Connection, actions: Sequence[WriteAction]) -> str:
        if not actions:
            return ""
        if self._writer.upserts:
            upsertion = Upsertion(connection, self._writer, self._name, actions[0], only=False)
            row = first_refused(connection, upsertion.converted(actions), upsertion.as_insertion())
            upsertion.end()
        else:
            into = table_inserts.prepared(connection, self._writer, self._name, actions)
            row = first_refused(connection, into.converted(actions), into)
        return "" if row is None else row_of(row, actions)


def insert_records(connection: Connection, writer: TableWriter, name: TableName, actions: Sequence[WriteAction]) -> int:
    """Insert the records of the actions; how many there were. Raises `WriteRefused`, `RowsDropped`."""
    filled = [action for action in actions if action.records.num_rows]
    if filled:
        into = table_inserts.prepared(connection, writer, name, filled)
        into.insert(connection, _converted(connection, into, filled))
    return sum(action.records.num_rows for action in filled)


def _is_filled(connection: Connection, table: sa.Table) -> bool:
    return connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None


def _converted(
    connection: Connection, into: table_inserts.Insertion | Upsertion, actions: Sequence[WriteAction]
) -> pa.Table:
    """The records as the table takes them. To look at many takes longer than the server lets a session stand still that has
    locked a marker; one that is alive may."""
    many = sum(action.records.num_rows for action in actions) >= MANY_RECORDS
    if many and connection.dialect.name == "postgresql":
        with kept_open(connection, ALIVE_SECONDS):
            return into.converted(actions)
    return into.converted(actions)

"""The rows of one day in a table, and how a run claims its part of a table with its first write action (design, "Days").

Locks are taken in one order, here and in `closing_transaction`: marker, owner of the table, scope. The owner is shared by
all runs that own days there, so that they do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.databases import savepoint
from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.owned_days import OwnedDay
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import OperatorFailed, WriteRefused
from airflow_logio.protocol.external_rules import Contender
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.systems import table_runs, warehouse_rows
from airflow_logio.systems.databases import postgres, table_inserts
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.owned_rows import OwnedRows
from airflow_logio.systems.stored_records import StagedFiles, other_values

_DIGIT = "[0-9]"
_STORED_DAY = ("0000-00-00",)
_STORED_HOURS = (
    "0000-00-00T00Z",
    *("0000-00-00T00[1-9]0Z", "0000-00-00T000[1-9]Z"),
    *("0000-00-00T0000[1-9]0Z", "0000-00-00T00000[1-9]Z"),
)
_STORED_INSTANT = ("0000-00-00 00:00:00.000000",)
"""How a value is stored, a digit for each 0. An hour has minutes, and seconds, only where they are not 00."""
_QUARTERS = (0, 15, 30, 45)
"""The minutes of UTC at which hours start, in zones of today."""


class DayRows(OwnedRows):
    """The rows of a table that have the day of a run. The table is there.

    Raises `WriteRefused` if days of it cannot be owned.
    """

    def __init__(self, connection: Connection, writer: TableWriter, name: TableName) -> None:
        assert writer.owned is not None, "the day of a writer is known when a run begins"
        super().__init__(connection, writer, name, writer.owned.column)
        self._owned: OwnedDay = writer.owned
        self._is_sqlite = connection.dialect.name == "sqlite"
        self._kind = self._kind_of_column(writer, name)

    @property
    def _is_mine(self) -> sa.ColumnElement[bool]:
        return self._column == self._value()

    def check_staged(self, staged: StagedFiles, counts: Sequence[int]) -> None:
        """Raises `WriteRefused` if executors have loaded records of another day, or of none, with their count and values.

        `counts` are the records of each file.
        """
        wrong, distinct, shown = other_values(self._connection, staged, self._owned.column, self._plain_value())
        if wrong:
            said = self._owned.of_others(self._where, wrong, sum(counts), shown, distinct)
            raise WriteRefused(self._logged(said))

    def check_part(self, part: WriteAction) -> None:
        """The same for records that pass through the driver."""
        try:
            self._owned.check_records(f"{self._where}, write action {part.number}", part.records)
        except OperatorFailed as error:
            raise WriteRefused(self._logged(str(error))) from error

    def _logged(self, said: str) -> str:
        return f"{said}. The log has them, so that a retry would find them again: `logio again --partition {self._owned.key}`"

    def check_stored(self) -> None:
        """Before days are owned by value for the first time. Raises `WriteRefused` for a value that looks like a day, and is
        stored in another form: no run would replace it."""
        if self._kind.name == "timestamptz":
            self._check_hours()
        if self._kind.name != "text" and not self._is_sqlite:
            return
        forms = _STORED_DAY if self._owned.is_day else _STORED_HOURS if self._kind.name == "text" else _STORED_INSTANT
        is_stored = sa.or_(*(self._has_form(form) for form in forms))
        if self._is_sqlite:
            is_stored = sa.and_(sa.func.typeof(self._column) == "text", is_stored)
        query = sa.select(self._column).where(self._column.is_not(None), sa.not_(is_stored)).limit(1)
        if (found := self._connection.execute(query).first()) is not None:
            raise WriteRefused(
                f"{self._where} has {found[0]!r} in column {self._owned.column!r}, by which runs are to own its rows. Values "
                f"are compared as they are stored, such as {self._stored_value()!r}, so no run would replace that row: "
                "change it, and all that are like it, first"
            )

    def _check_hours(self) -> None:
        """Raises `WriteRefused` for an instant at which no hour starts, in any zone of today."""
        if self._owned.start.minute % 15 or self._owned.start.second:  # in a zone of long ago
            return
        if self._is_sqlite:
            quarters = [f"{minute:02}:00.000000" for minute in _QUARTERS]
            is_inside = sa.and_(self._has_form(_STORED_INSTANT[0]), sa.func.substr(self._column, 15).not_in(quarters))
        else:
            minute = sa.func.date_trunc("minute", self._column)
            is_inside = sa.or_(minute != self._column, sa.extract("minute", self._column).not_in(_QUARTERS))
        if (found := self._connection.execute(sa.select(self._column).where(is_inside).limit(1)).first()) is not None:
            raise WriteRefused(
                f"{self._where} has {str(found[0])!r} in column {self._owned.column!r}, by which runs are to own its rows. "
                f"No hour starts there, so no run would replace that row: let the column have the starts of hours, such as "
                f"{self._stored_value()!r} (in UTC), in all rows, first"
            )

    def _has_form(self, form: str) -> sa.ColumnElement[bool]:
        if self._is_sqlite:
            return self._column.op("GLOB", is_comparison=True)(form.replace("0", _DIGIT))
        return self._column.op("~", is_comparison=True)(f"^{form.replace('0', _DIGIT).replace('.', chr(92) + '.')}$")

    def _kind_of_column(self, writer: TableWriter, name: TableName) -> ColumnType:
        """The type of the column in the database. Raises `WriteRefused` for one that holds no days."""
        column = self._owned.column
        nothing = WriteAction("", "", "", 0, 0, pa.table({column: pa.array([], pa.string())}))
        found = table_inserts.found_types(self._connection, name) or {}
        kind = table_inserts.prepared(self._connection, writer, name, [nothing]).targets[column].kind
        if not self._is_sqlite and kind is not None:
            kind = postgres.kind_of(found[column])
        if self._is_sqlite and kind is not None and kind.name == "timestamp":  # it stores both alike
            kind = ColumnType("timestamptz")
        takes = ("date", "text") if self._owned.is_day else ("timestamptz", "text")
        if kind is None or kind.name not in takes:
            raise WriteRefused(
                f"{self._where}, column {column!r}, by which the run owns its rows, has the type "
                f"{kind or found.get(column)} and must be {' or '.join(takes)}"
            )
        return kind

    def _value(self) -> sa.ColumnElement[Any]:
        """The day as the column has it."""
        if self._is_sqlite or self._kind.name == "text":
            return sa.literal(self._stored_value(), sa.Text())
        return sa.literal(self._plain_value(), sa.Date() if self._kind.name == "date" else sa.DateTime(timezone=True))

    def _plain_value(self) -> str | date | datetime:
        """As PostgreSQL gets it."""
        if self._kind.name == "date":
            return date.fromisoformat(self._owned.key)
        return self._owned.start if self._kind.name == "timestamptz" else self._owned.key

    def _stored_value(self) -> str:
        return f"{self._owned.start:%Y-%m-%d %H:%M:%S}.000000" if self._kind.name == "timestamptz" else self._owned.key


def rows_of(connection: Connection, writer: TableWriter, name: TableName, scope: ScopeContender) -> OwnedRows:
    """The rows that a run owns, whose scope is locked. Raises `WriteRefused` if such rows cannot be owned there."""
    if scope.of_runs:
        return table_runs.RunRows(connection, writer, name, scope)
    return DayRows(connection, writer, name)


def begin_day(
    connection: Connection,
    name: TableName,
    writer: TableWriter,
    contender: Contender,
    scope: ScopeContender,
    marker: Marker,
) -> None:
    """The first write action of a run that owns a part of a table: `marker` is locked. Nothing of the table is changed,
    unless the run fills its day at once: then what is there is deleted.

    Raises `WriteRefused`.
    """
    for run_uid in contender.given_up:  # before the owner is locked, for which their drivers wait with a marker
        warehouse_rows.fence_markers(connection, run_uid)
    if not _shares(connection, name, contender):
        _take_over(connection, name, writer, contender)
    if table_inserts.found_types(connection, name) is None:  # it was dropped
        warehouse_rows.lock_making(connection)
    table_inserts.target_table(connection, writer, name)
    if scope.of_runs:
        table_runs.check_run_column(connection, writer, name)
        table_runs.make_scope(connection, name, writer, scope)
    else:
        warehouse_rows.make_scope(connection, name, scope.key, scope.mine)
    before = warehouse_rows.lock_scope(connection, name, scope.key)
    scope.check_claim(before)
    warehouse_rows.claim_scope(connection, name, scope.key, scope.mine)
    table_inserts.add_columns(connection, writer, name)
    rows = rows_of(connection, writer, name, scope)
    if scope.fills_at_once and scope.clears(before, has_begun=warehouse_rows.has_begun_elsewhere(connection, marker)):
        rows.delete()
        warehouse_rows.close_scope(connection, name, scope.key, scope.mine, FIRST_EVENT_ID)
        crash_here(CrashPoint.IN_DAY_SWITCH)
    for run_uid in contender.given_up:
        warehouse_rows.store_given_up(connection, name, run_uid, contender.mine)


def adopt(
    connection: Connection,
    name: TableName,
    writer: TableWriter,
    contender: Contender,
    scope: ScopeContender,
    condition: str,
    expected: int | None,
) -> int:
    """Rows of no run that fulfil a person's condition become those of a scope, if they are as many as `expected`; how many
    they are. Raises `WriteRefused`."""
    if not _shares(connection, name, contender):
        _take_over(connection, name, writer, contender)
    table_inserts.target_table(connection, writer, name)
    table_runs.check_run_column(connection, writer, name)
    table_runs.make_scope(connection, name, writer, scope)
    row = warehouse_rows.lock_scope(connection, name, scope.key)
    assert row is not None, "it was just made, or is there"
    scope.check_adopts(row)
    return table_runs.RunRows(connection, writer, name, scope).adopt(condition, expected)


def _shares(connection: Connection, name: TableName, contender: Contender) -> bool:
    """Whether parts are owned there so already; then the owner's row is locked, and others may share it.

    If not, nothing is locked: of two that both held the row, neither could take the table over.
    """
    if warehouse_rows.read_owner(connection, name) != contender.claimed:
        return False
    with savepoint(connection) as look:
        if warehouse_rows.read_owner(connection, name, for_share=True) == contender.claimed:
            return True
        look.rollback()
    return False


def _take_over(connection: Connection, name: TableName, writer: TableWriter, contender: Contender) -> None:
    """From now on parts are owned there. What earlier runs of other kinds call theirs is owned by its value, or is of no
    run."""
    warehouse_rows.lock_takeover(connection, name)
    owner = warehouse_rows.read_owner(connection, name, for_update=True)
    if not contender.takes_over(owner, warehouse_rows.pipelines_in_scopes(connection, name)):
        return
    table_inserts.target_table(connection, writer, name)
    if contender.run_column:  # what is appended beside it stays, and what runs owned before is theirs again
        table_runs.check_run_column(connection, writer, name)
        warehouse_rows.store_owner(connection, name, contender)
        warehouse_rows.remove_scopes(connection, name, of_days=True)
        return
    table_inserts.add_columns(connection, writer, name)
    DayRows(connection, writer, name).check_stored()
    warehouse_rows.store_owner(connection, name, contender)
    warehouse_rows.remove_appending(connection, name)
    warehouse_rows.remove_scopes(connection, name)

"""Staging tables of PostgreSQL: executors load them, the driver moves their rows into the target (ADR-86).

A staging table is noted in ``logio_staging``, in the default schema of the connection, by the transaction that makes it; the
one that drops it removes the note.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.database_errors import is_lasting
from airflow_logio.databases import savepoint
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import LogioError
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems import warehouse_rows
from airflow_logio.systems.databases.conversions import row_of
from airflow_logio.systems.databases.table_inserts import Insertion, first_refused, prepared
from airflow_logio.systems.databases.table_names import TableName, quoted, table_name
from airflow_logio.systems.stored_records import ATTEMPT, FILE, StoredRecords, check_there, no_part, parts
from airflow_logio.systems.warehouse import Warehouse

log = logging.getLogger(__name__)

noted = sa.Table(
    "logio_staging",
    sa.MetaData(),
    sa.Column("table_schema", sa.String(63), primary_key=True),
    sa.Column("table_name", sa.String(63), primary_key=True),
    sa.Column("run_uid", sa.String(32), nullable=False, index=True),
    sa.Column("operator", sa.String(250), nullable=False),
    sa.Column("connection", sa.String(250), nullable=False),
    sa.Column("slot", sa.Integer, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("write_action", sa.BigInteger, nullable=False),
)
"""Which staging tables there are, and whose."""

_DROP_LOCK_TIMEOUT = "5s"
_MAY_MAKE_TABLES = sa.text("SELECT has_schema_privilege(current_schema(), 'CREATE')")
_IS_NOTED_HERE = sa.text("SELECT to_regclass('logio_staging') IS NOT NULL")
_MAY_NOTE = sa.text("""
    SELECT bool_and(has_table_privilege(CAST(to_regclass('logio_staging') AS oid), privilege))
    FROM unnest(ARRAY['SELECT', 'INSERT', 'DELETE']) AS privilege
""")
"""Null if nothing was ever staged here; false for a user who cannot have staged anything."""
_END_SESSIONS = sa.text("""
    SELECT pg_terminate_backend(a.pid)
    FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
    WHERE l.relation = CAST(to_regclass(:table) AS oid)
        AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND a.pid <> pg_backend_pid() AND a.usename = current_user AND a.backend_type = 'client backend'
""")
"""Sessions of the same user only: others may not be ended, and a vacuum gives way by itself."""


class StagingTables:
    """The staging tables of one warehouse, which is a PostgreSQL. Used by one thread at a time."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def make(
        self,
        marker: Marker,
        writer: TableWriter,
        action: WriteAction,
        stored: StoredRecords,
        held: HeldGroup | None = None,
    ) -> TableName | None:
        """A staging table for the records of an action; of all of `held`, if it is one of these.

        None if there is nothing to stage: the action was applied, or the user may make no table, or the target has columns
        that are named like those of staging tables. Raises as `Warehouse.apply`, for records of other columns as well.
        """
        engine = self._warehouse.engine
        with self._warehouse.translated(), engine.begin() as connection:
            if not connection.execute(_MAY_MAKE_TABLES).scalar_one():
                return None
            if not connection.execute(_IS_NOTED_HERE).scalar_one():
                warehouse_rows.lock_making(connection)
                noted.create(connection, checkfirst=True)
            if not connection.execute(_MAY_NOTE).scalar_one():
                return None
        with self._warehouse.translated(), engine.begin() as connection:
            before = warehouse_rows.lock_marker(connection, marker)
            if not (marker.unapplied([action], *before) if held is None else marker.applies(held, *before)):
                return None
            target, none = table_name(connection, writer.table), no_part(writer, action, stored)
            prepared(connection, writer, target, [none]).converted([none])
            if {FILE, ATTEMPT} & set(none.records.column_names):
                return None
            return _make(connection, target, none.records.column_names, marker, action.number)

    def load(
        self,
        table: TableName,
        writer: TableWriter,
        action: WriteAction,
        stored: StoredRecords,
        number: int,
        file: int | None = None,
    ) -> tuple[str, int]:
        """Load one file, in one transaction: the name of this attempt, and its records. Called on executors.

        In the table it is number `file`, where that has files of several actions. Raises as `Warehouse.apply`.
        """
        attempt = uuid.uuid4().hex
        place = [""]
        settings = {f"logio.{FILE}": str(number if file is None else file), f"logio.{ATTEMPT}": attempt}
        with (
            self._warehouse.translated(lambda _: place[0]),
            self._connected(settings) as connection,
            connection.begin(),
        ):
            check_there(connection, table)
            into: Insertion | None = None
            records = 0
            for part in parts(writer, action, stored, number):
                into = into or prepared(connection, writer, table, [part])
                _load(connection, writer, part, into, place)
                records += part.records.num_rows
        return attempt, records

    def drop(self, tables: Sequence[TableName]) -> Sequence[TableName]:
        """Drop staging tables that are not needed any more, and end the sessions that hold them.

        Returns those that cannot be dropped now: they stay noted.
        """
        left = []
        for table in tables:
            try:
                self._drop_one(table)
            except LogioError as error:
                self._say_left(table, error)
                left.append(table)
        return left

    def sweep(self, marker: Marker) -> None:
        """Shut out drivers of the writer with lower tokens, and drop the staging tables that they have left.

        So are those of earlier epochs of this driver: no thread of theirs is left. Sessions that hold such a table are ended
        first, as one may hold the marker. Raises `Fenced` if this driver was replaced, `ExternalUnavailable`.
        """
        earlier = self._noted(marker)
        if earlier is None:
            return
        self._end_sessions(earlier)
        self._shut_out(marker)
        self.drop(self._noted(marker) or ())

    def of_run(self, run_uid: str) -> Sequence[TableName]:
        """The staging tables that a run has left. Raises `ExternalUnavailable`."""
        return self._where(noted.c.run_uid == run_uid) or ()

    def _say_left(self, table: TableName, error: LogioError) -> None:
        log.warning("staging table %s is not dropped yet: %s", table, error)

    # --- one transaction each: what the simulator has a database of its own for ---------------------------------------

    def _drop_one(self, table: TableName) -> None:
        with self._warehouse.translated(), self._dropping() as connection, connection.begin():
            named = table.quoted(connection)
            connection.execute(_END_SESSIONS, {"table": table.as_value()})
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {named}")
            is_it = (noted.c.table_schema == table.schema, noted.c.table_name == table.table)
            connection.execute(sa.delete(noted).where(*is_it))

    def _end_sessions(self, tables: Sequence[TableName]) -> None:
        with self._warehouse.translated(), self._dropping() as connection, connection.begin():
            for table in tables:
                connection.execute(_END_SESSIONS, {"table": table.as_value()})

    def _shut_out(self, marker: Marker) -> None:
        """Drivers with lower tokens are refused from now on."""
        self._warehouse.shut_out(marker)

    def _noted(self, marker: Marker) -> Sequence[TableName] | None:
        """The staging tables of a writer, with tokens up to the marker's; None if this user cannot have made one."""
        columns = noted.c
        return self._where(
            columns.run_uid == marker.run_uid,
            columns.operator == marker.operator,
            columns.connection == marker.connection,
            columns.slot == marker.slot,
            columns.token <= marker.token,
        )

    def _where(self, *conditions: sa.ColumnElement[bool]) -> Sequence[TableName] | None:
        with self._warehouse.translated(), self._warehouse.engine.begin() as connection:
            if not connection.execute(_MAY_NOTE).scalar_one():
                return None
            found = connection.execute(sa.select(noted.c.table_schema, noted.c.table_name).where(*conditions))
            return [TableName(schema, name) for schema, name in found]

    def _dropping(self) -> Connection:
        return self._connected({"lock_timeout": _DROP_LOCK_TIMEOUT})

    def _connected(self, settings: Mapping[str, str]) -> Connection:
        """A connection whose transactions have these settings."""
        return self._warehouse.for_writes(settings)


def _make(connection: Connection, target: TableName, columns: Sequence[str], marker: Marker, number: int) -> TableName:
    """With the types of the target, so that a value is converted once, by the insert that loads it."""
    name = f"logio_staging_{marker.run_uid[:8]}_{marker.token:x}_{number}_{uuid.uuid4().hex[:12]}"
    schema = connection.execute(sa.text("SELECT current_schema()")).scalar_one()
    table = TableName(schema, name)
    staging = table.quoted(connection)
    names = ", ".join(quoted(connection, column) for column in columns)
    connection.exec_driver_sql(
        f"CREATE UNLOGGED TABLE {staging} WITH (autovacuum_enabled = off) AS SELECT {names} FROM {target.quoted(connection)} "
        "WITH NO DATA"
    )
    connection.exec_driver_sql(
        f"ALTER TABLE {staging} ADD COLUMN {FILE} integer NOT NULL, ADD COLUMN {ATTEMPT} text NOT NULL"
    )
    # Added without a default first: this one has a value in transactions that load only.
    connection.exec_driver_sql(
        f"ALTER TABLE {staging} ALTER COLUMN {FILE} SET DEFAULT CAST(current_setting('logio.{FILE}') AS integer), "
        f"ALTER COLUMN {ATTEMPT} SET DEFAULT current_setting('logio.{ATTEMPT}')"
    )
    note = {
        "table_schema": schema,
        "table_name": name,
        "run_uid": marker.run_uid,
        "operator": marker.operator,
        "connection": marker.connection,
        "slot": marker.slot,
        "token": marker.token,
        "write_action": number,
    }
    connection.execute(sa.insert(noted).values(**note))
    return table


def _load(connection: Connection, writer: TableWriter, part: WriteAction, into: Insertion, place: list[str]) -> None:
    """Insert some records; `place` says which row is refused, if one is."""
    records = into.converted([part])
    try:
        with savepoint(connection):
            into.insert(connection, records)
    except sa.exc.DBAPIError as error:
        row = first_refused(connection, records, into) if is_lasting(error) else None
        if row is not None:
            place[0] = f"table {writer.table!r}, {row_of(row, [part])}: "
        raise

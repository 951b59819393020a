"""A SQL warehouse as an external system: reads, and atomically conditional write actions.

One transaction applies a group of write actions and advances the marker of (run, operator, connection, slot). It is
refused if the marker has passed these numbers (they were applied by an earlier incarnation), if a higher fencing token
wrote, or if another run owns the table. A stopped process cannot hold the marker's row for long: its session is ended by
`idle_in_transaction_session_timeout` (PostgreSQL), or the process itself is ended before it is replaced (SQLite).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.databases import (
    RETRYABLE,
    cause_of,
    is_misconfigured,
    parse_url,
    plain_engine,
    snapshot_options,
    sqlite_engine,
)
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.write_actions import Marker, WriteAction
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, WriteRefused
from airflow_logio.postgres_sessions import postgres_engine
from airflow_logio.protocol.warehouse_rules import Contender, Owner
from airflow_logio.runtime.systems import sql_rows

LOCK_TIMEOUT_SECONDS = 20.0
"""Longer than PostgreSQL needs to end an idle session in a transaction, so that one wait is enough."""

metadata = sa.MetaData()

marker_table = sa.Table(
    "logio_marker",
    metadata,
    sa.Column("run_uid", sa.String(32), primary_key=True),
    sa.Column("operator", sa.String(250), primary_key=True),
    sa.Column("connection", sa.String(250), primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last_write", sa.BigInteger, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
)

owner_table = sa.Table(
    "logio_owner",
    metadata,
    sa.Column("table_name", sa.String(250), primary_key=True),
    sa.Column("run_uid", sa.String(32), nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
)


class Warehouse:
    """One external SQL database, under the name the pipeline gives it. Used by one thread at a time per operation."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.engine = _engine(name, url)
        self._prepared = False

    # --- reads --------------------------------------------------------------------------------------------------------

    def read(self, read: TableRead, keys: pa.Array | None = None) -> pa.Table:
        """The effect of a read action, obtained in one snapshot.

        With `keys`, only the rows whose `read.key` is among them. Raises `ExternalUnavailable`, `ConfigurationError`.
        """
        with self._translated(), self.engine.connect().execution_options(**snapshot_options(self.engine)) as connection:
            return sql_rows.fetch(connection, read, keys)

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """A connection for reads of one snapshot; driver errors come out as `ExternalUnavailable`, as from `read`."""
        with self._translated(), self.engine.connect().execution_options(**snapshot_options(self.engine)) as connection:
            yield connection

    # --- writes -------------------------------------------------------------------------------------------------------

    def apply(self, marker: Marker, writer: TableWriter, actions: Sequence[WriteAction]) -> None:
        """Apply a gapless group of write actions and advance the marker, in one transaction.

        Raises `WriteRefused` (another run owns the table), `Fenced` (a higher
        token wrote), `LogInconsistent` (the external system is behind the log), `ExternalUnavailable` (try again).
        """
        self._prepare()
        with self._translated(), self.engine.begin() as connection:
            pending = marker.unapplied(actions, *self._lock_marker(connection, marker))
            if not pending:
                return
            contender = self._contender(marker, writer)
            if pending[0].is_opening:
                self._begin(connection, contender, writer)
            self._check_owner(connection, contender)
            sql_rows.insert(connection, writer, [action.records for action in pending if not action.is_opening])
            crash_here(CrashPoint.IN_WAREHOUSE_TRANSACTION)
            new = {"last_write": pending[-1].number, "token": marker.token}
            connection.execute(sa.update(marker_table).where(_row(marker)).values(**new))

    def rehearse(self, writer: TableWriter, tables: Sequence[pa.Table] = ()) -> None:
        """Do what the writer would do, in a transaction that is rolled back: make its table, empty it, insert records.

        Nothing is emptied: the statement that would do so finds no row. Raises as `apply`, and `WriteRefused` where the
        database refuses a statement: for a permission, a column, a value, or a key that is in the table already.
        """
        with self._translated(), self.engine.connect() as connection, connection.begin() as transaction:
            metadata.create_all(connection, checkfirst=True)
            table = sql_rows.table_of(connection, writer, create=True)
            if writer.on_new_run == "replace":
                connection.execute(sa.delete(table).where(sa.false()))
            nothing = sa.select(*(sa.cast(sa.null(), column.type) for column in table.columns)).where(sa.false())
            connection.execute(sa.insert(table).from_select(list(table.columns), nothing))
            sql_rows.insert(connection, writer, tables)
            transaction.rollback()

    def _prepare(self) -> None:
        if self._prepared:
            return
        with self._translated(), self.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('logio warehouse'))"))
            metadata.create_all(connection, checkfirst=True)
        self._prepared = True

    @staticmethod
    def _lock_marker(connection: Connection, marker: Marker) -> tuple[int, int]:
        """Last number applied and its token, with the row locked: any other writer waits here, then finds this token."""
        query = sa.select(marker_table.c.last_write, marker_table.c.token).where(_row(marker)).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            _insert_marker(connection, marker)
            row = connection.execute(query).one()
        return int(row.last_write), int(row.token)

    def _contender(self, marker: Marker, writer: TableWriter) -> Contender:
        mine = Owner(marker.run_uid, marker.started_at)
        return Contender(writer.table, self.name, marker.operator, mine, writer.on_new_run)

    @staticmethod
    def _begin(connection: Connection, contender: Contender, writer: TableWriter) -> None:
        """The first write action of a run: take the table over, create it if declared, treat what is in it as asked."""
        if connection.dialect.name == "postgresql":  # two runs, or two writers of one table, begin one after the other
            key = sa.text("SELECT pg_advisory_xact_lock(hashtext('logio table'), hashtext(:name))")
            connection.execute(key, {"name": writer.table})
        # Locked before anything is looked at or deleted: any writer that is the owner has committed, or will be refused.
        row = owner_table.c.table_name == writer.table
        found = connection.execute(sa.select(owner_table).where(row).with_for_update()).one_or_none()
        owner = None if found is None else Owner(found.run_uid, found.started_at)
        if not contender.takes_over(owner):
            return  # another writer of the run, or another slot of this one, has begun: its rows stay
        table = sql_rows.table_of(connection, writer, create=True)
        is_filled = connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None
        if contender.empties(is_filled=is_filled):
            connection.execute(sa.delete(table))
        mine = contender.mine._asdict()
        if owner is None:
            connection.execute(sa.insert(owner_table).values(table_name=writer.table, **mine))
        else:
            connection.execute(sa.update(owner_table).where(row).values(**mine))

    @staticmethod
    def _check_owner(connection: Connection, contender: Contender) -> None:
        row = owner_table.c.table_name == contender.table
        contender.check_owner(
            connection.execute(
                sa.select(owner_table.c.run_uid).where(row).with_for_update(read=True)
            ).scalar_one_or_none()
        )

    # --- inside -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as error:
            if is_misconfigured(error):
                raise ConfigurationError(f"connection {self.name!r}: {cause_of(error)}") from error
            raise ExternalUnavailable(f"connection {self.name!r}: {cause_of(error)}") from error
        except sa.exc.DBAPIError as error:
            code = getattr(error.orig, "pgcode", None) or ""
            if error.connection_invalidated or code.startswith(RETRYABLE):
                raise ExternalUnavailable(f"connection {self.name!r}: {cause_of(error)}") from error
            raise WriteRefused(f"connection {self.name!r} refused a statement: {cause_of(error)}") from error
        except (
            ValueError,
            OverflowError,
            pa.ArrowException,
        ) as error:  # text with NUL, a year 10000, a number too long
            raise WriteRefused(f"connection {self.name!r}: a value cannot be passed on: {error}") from error

    def close(self) -> None:
        self.engine.dispose()


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A `TableWriter` as the runtime drives it: like an author's `ConditionalWriter`."""

    writer: TableWriter
    warehouse: Warehouse
    unavailable: tuple[type[Exception], ...] = ()

    def connect(self, _url: str) -> AbstractContextManager[Warehouse]:
        """The run's one pool of connections to the database, which reconnects by itself."""
        return nullcontext(self.warehouse)

    def apply(self, client: Warehouse, marker: Marker, actions: Sequence[WriteAction]) -> None:
        client.apply(marker, self.writer, actions)


def _row(marker: Marker) -> sa.ColumnElement[bool]:
    columns = marker_table.c
    return sa.and_(
        columns.run_uid == marker.run_uid,
        columns.operator == marker.operator,
        columns.connection == marker.connection,
        columns.slot == marker.slot,
    )


def _insert_marker(connection: Connection, marker: Marker) -> None:
    """Two drivers may come here at once (the older one is about to be refused): the first one makes the row."""
    dialects: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}
    values = {
        "run_uid": marker.run_uid,
        "operator": marker.operator,
        "connection": marker.connection,
        "slot": marker.slot,
        "last_write": 0,
        "token": marker.token,
    }
    make = dialects.get(connection.dialect.name)
    insert = make(marker_table).on_conflict_do_nothing() if make else sa.insert(marker_table)
    connection.execute(insert.values(**values))


def _engine(name: str, url: str) -> Engine:
    """PostgreSQL and SQLite with all their guarantees; any other database that SQLAlchemy reaches, with its own."""
    if not url.startswith(("postgresql", "sqlite")):
        return plain_engine(url, f"connection {name!r}", pool_pre_ping=True, hide_parameters=True)
    try:
        parsed = parse_url(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"connection {name!r}: {error}") from None
    if parsed.get_backend_name() == "sqlite":
        return sqlite_engine(parsed)
    return postgres_engine(parsed, f"logio {name}", lock_timeout=LOCK_TIMEOUT_SECONDS, pool_size=2, pool_pre_ping=True)

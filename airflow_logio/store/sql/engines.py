"""Connections to the log: engines, how transactions are begun, and what an error means for the log.

What it shares with warehouses is in `airflow_logio/databases.py`: URLs, durable sessions, which errors may be retried.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from airflow_logio.database_errors import Fault, fault_of, is_damaged, is_forbidden
from airflow_logio.databases import (
    AUTOCOMMIT,
    IN_UTC,
    SETTINGS,
    idle_for,
    parse_url,
    postgres_engine,
    shown,
    snapshot_options,
    sqlite_engine,
)
from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable, NotPermitted
from airflow_logio.store.sql.beat_file import beat_file_engine

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0


LOCK_TIMEOUT_SECONDS = 3
READING_SECONDS = 600.0
"""How long a client may work between two statements of a snapshot, or behind the last one: it rebuilds a group of millions of
events, or loads a body from a slow store."""
NOT_DURABLE = {SETTINGS: {"synchronous_commit": "off"}}
"""Execution options of a connection whose transactions may be lost when the server stops."""
MOST_CONNECTIONS = 10


class TransactionConflict(LogUnavailable):
    """A deadlock, serialization failure or lock timeout: nothing was committed, the same effects may be tried again."""


class LockTimeout(TransactionConflict):
    """A lock was held for longer than any transaction of a living driver takes."""


def log_engine(url: str, *, application: str = "logio", connections: int | None = None, kept: int = 5) -> Engine:
    """An engine for the log itself. Transactions are begun by `writing` and `reading` below.

    At most so many `connections` are open at a time, by default ten; so many are `kept` while they are idle.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return sqlite_engine(parsed)
    most = connections or MOST_CONNECTIONS
    return postgres_engine(
        parsed,
        application,
        lock_timeout=LOCK_TIMEOUT_SECONDS,
        settings=IN_UTC,
        pool_size=min(kept, most),
        max_overflow=most - min(kept, most),
        pool_pre_ping=False,
        executemany_mode="values_plus_batch",
        use_native_hstore=False,  # the log has none, and each connection would begin with the question
    )


def beat_engine(url: str, log: Engine) -> Engine:
    """Where heartbeats go: a second SQLite file that never waits for a writer; the same database on PostgreSQL."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return log
    return beat_file_engine(parsed.set(database=f"{parsed.database}.heartbeat"))


@contextmanager
def writing(engine: Engine, *, durable: bool = True) -> Iterator[Connection]:
    """One writing transaction, committed at the end; driver errors come out as errors of this package.

    One that need not be `durable` does not wait for the disk of a server.
    """
    options = {} if durable else NOT_DURABLE
    with translated(engine), engine.connect() as connection, connection.execution_options(**options).begin():
        yield connection


@contextmanager
def reading(engine: Engine, *, idle_seconds: float | None = READING_SECONDS) -> Iterator[Connection]:
    """One consistent snapshot, never committed; None for `idle_seconds` leaves them as a transaction that writes has them."""
    options = snapshot_options(engine)
    if idle_seconds is not None and engine.dialect.name == "postgresql":
        options |= idle_for(idle_seconds, engine.get_execution_options().get(SETTINGS, {}))
    with (
        translated(engine),
        engine.connect() as connection,
        connection.execution_options(**options).begin() as transaction,
    ):
        yield connection
        transaction.rollback()


_BY_CODE: Mapping[str, Callable[[str], Exception]] = {
    "40001": TransactionConflict,  # serialization_failure
    "40P01": TransactionConflict,  # deadlock_detected
    "42501": NotPermitted,  # insufficient_privilege
    "55P03": LockTimeout,  # lock_not_available
}


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Translate driver errors once, at the boundary. The error's text is kept; it does not contain the URL's
    password."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _translate(engine, error) from error
    except UnicodeDecodeError as error:
        why = f"{describe(engine)} has a text that is none: {error}"
        if engine.dialect.name == "postgresql":
            raise LogInconsistent(f"{why}; restore it from a backup") from error
        raise LogUnavailable(why) from error  # that of heartbeats, which is made anew
    except (sa.exc.TimeoutError, sa.exc.PendingRollbackError, sa.exc.ResourceClosedError) as error:
        raise LogUnavailable(f"no usable connection to {describe(engine)}: {error}") from error


def _translate(engine: Engine, error: sa.exc.DBAPIError) -> Exception:
    cause = str(error.orig).strip()
    where = describe(engine)
    code = getattr(error.orig, "pgcode", None) or ""
    if code in _BY_CODE:
        return _BY_CODE[code](f"{where}: {cause}")
    if code == "42P01" or ("no such table" in cause and not error.connection_invalidated):
        return ConfigurationError(f"{where} has no LOG.io tables; create them with `logio db upgrade`")
    if code == "3F000":  # invalid_schema_name
        return ConfigurationError(
            f"{where}: {cause.splitlines()[0]}; create the schema that its search path names (of the URL or the role), or "
            "correct the path"
        )
    # The file of heartbeats is made anew if it is damaged: to its users that is a lost connection, whatever its code says.
    fault = Fault.UNAVAILABLE if error.connection_invalidated else fault_of(error)
    if is_forbidden(error) or fault is Fault.MISCONFIGURED:
        return (NotPermitted if is_forbidden(error) else ConfigurationError)(f"{where}: {cause}")
    if fault is not Fault.LASTING:
        return LogUnavailable(f"{where}: {cause}{LONGER if fault is Fault.CUT_OFF else ''}")
    refused = " refused a row" if isinstance(error, sa.exc.IntegrityError) else ""
    way_out = "; restore it from a backup" if is_damaged(error) else ""
    return LogInconsistent(f"{where}{refused}: {cause}{way_out}")


LONGER = (
    ". If that is a timeout of the server, give the role of this URL a longer one (ALTER ROLE ... SET statement_timeout = "
    "...), or the URL (?options=-cstatement_timeout%3D...)"
)
"""What to do about statements that are ended before their end."""


def describe(engine: Engine) -> str:
    """The database without its password, for messages."""
    return f"log database {shown(engine.url)}"


def now(dialect: str) -> sa.ColumnElement[float]:
    """Seconds since the epoch by the database's clock, as it is now and not when the transaction began."""
    if dialect == "postgresql":
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double())
    return (sa.func.julianday("now") - 2440587.5) * 86400.0


def inserting(dialect: str, table: sa.Table) -> Any:
    """INSERT that may have ON CONFLICT, which both dialects have under the same name."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


class Statements:
    """Statements that are a transaction each, on a connection of their own: for what is asked or said with every event.

    That spares the begin and the end of a transaction, which are round trips. The connection is not one of the pool: to
    switch autocommit on and off again, psycopg2 changes a setting of the server's session each time.

    On PostgreSQL; one thread at a time. `options` are execution options of the connection.
    """

    def __init__(self, engine: Engine, **options: Any) -> None:
        self._engine = engine
        self._options = options
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Raises errors of this package; then the next one is another connection."""
        with self._lock, translated(self._engine):
            try:
                if self._connection is None:
                    self._connection = self._opened()
                yield self._connection
                self._connection.commit()  # of SQLAlchemy's transaction: the server has none
            except BaseException:
                self._drop()
                raise

    def _opened(self) -> Connection:
        connection = self._engine.connect().execution_options(isolation_level=AUTOCOMMIT, **self._options)
        connection.detach()
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except Exception as error:
            log.debug("closing a broken connection: %s", error)

    def close(self) -> None:
        """A statement that does not end is not waited for: its connection goes with the process."""
        if self._lock.acquire(timeout=CLOSE_SECONDS):
            try:
                self._drop()
            finally:
                self._lock.release()

"""Engines: how a connection to the log is opened, begun and made durable, per dialect; and what its errors mean.

Sessions are durable (SQLite `synchronous=FULL`, PostgreSQL `synchronous_commit=on`), and a process that stops inside a
transaction loses it (`idle_in_transaction_session_timeout`, TCP timeouts), below the lease.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import tenacity
from sqlalchemy.engine import URL, Connection, Engine, make_url

from airflow_logio.errors import ConfigurationError, LogInconsistent, LogUnavailable

IDLE_IN_TRANSACTION_SECONDS = 5
LOCK_TIMEOUT_SECONDS = 3
BUSY_TIMEOUT_SECONDS = 20


class TransactionConflict(LogUnavailable):
    """A deadlock, serialization failure or lock timeout: nothing was committed, the same effects may be tried again."""


class LockTimeout(TransactionConflict):
    """Somebody holds a lock for longer than any transaction of a living driver takes."""


def parse_url(url: str) -> URL:
    """Check that a URL names a database that can hold a log. The message never repeats the password."""
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # their texts repeat parts of the URL: not even as a cause
        raise ConfigurationError(
            "the database URL cannot be parsed; expected e.g. postgresql://user@host/name, with special characters of "
            "the password written as %XX"
        ) from None
    if parsed.host and "@" in parsed.host:
        # What stands behind the first @ of a password would become the host, and appear in every message.
        raise ConfigurationError("the database URL has two @: write an @ of the password as %40") from None
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg2")
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise ConfigurationError("an SQLite database for LOG.io must be a file: its processes have to share it")
        if not Path(parsed.database).is_absolute():
            raise ConfigurationError(
                f"the SQLite database {parsed.database!r} must be an absolute path (sqlite:////...): its processes work in "
                "folders of their own"
            )
        return parsed.set(drivername="sqlite")
    raise ConfigurationError(f"{shown(parsed)}: databases of kind {backend!r} are not supported")


def log_engine(url: str, *, application: str = "logio", pool_size: int = 5) -> Engine:
    """An engine for the log itself. Transactions are begun by `writing` and `reading` below."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return sqlite_engine(parsed)
    return sa.create_engine(
        parsed,
        pool_size=pool_size,
        max_overflow=5,
        pool_pre_ping=False,
        isolation_level="READ COMMITTED",
        executemany_mode="values_plus_batch",
        hide_parameters=True,
        connect_args=postgres_arguments(parsed, application),
    )


def postgres_arguments(url: URL, application: str, *, lock_timeout: float = LOCK_TIMEOUT_SECONDS) -> dict[str, Any]:
    """libpq arguments of a session that cannot outlive its client for long.

    Settings that the URL itself asks for (``?options=-csearch_path%3Dlogio``) hold as well, but for those that are set here.
    """
    settings = {
        "synchronous_commit": "on",
        "timezone": "UTC",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS}s",
        "lock_timeout": f"{int(lock_timeout * 1000)}ms",
    }
    return {
        "application_name": application,
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 8000,
        "options": " ".join([*_asked_for(url), *(f"-c {name}={value}" for name, value in settings.items())]),
    }


def _asked_for(url: URL) -> tuple[str, ...]:
    """In the order of the URL; of two values of a setting the server takes the last one."""
    options = url.query.get("options", ())
    return (options,) if isinstance(options, str) else options


def sqlite_engine(url: URL, *, durable: bool = True) -> Engine:
    """An SQLite file in WAL mode whose transactions are begun IMMEDIATE, unless option `logio_writes` is False."""
    path = Path(str(url.database))
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder of the SQLite database {path} does not exist; create it first")
    engine = sa.create_engine(
        url, connect_args={"timeout": BUSY_TIMEOUT_SECONDS, "check_same_thread": False}, hide_parameters=True
    )

    @sa.event.listens_for(engine, "connect")
    def _on_connect(dbapi: sqlite3.Connection, _record: object) -> None:
        dbapi.isolation_level = None  # transactions are begun by us: BEGIN IMMEDIATE, never upgraded
        cursor = dbapi.cursor()
        _set_wal(cursor)
        cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        cursor.execute("PRAGMA wal_autocheckpoint=4000")
        cursor.execute("PRAGMA cache_size=-16000")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("logio_writes", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _set_wal(cursor: sqlite3.Cursor) -> None:
    """SQLite does not wait by itself where another process makes the same new file a WAL database at the same moment."""
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_message(match=".*locked"),
        wait=tenacity.wait_random(0.01, 0.05),
        stop=tenacity.stop_after_delay(BUSY_TIMEOUT_SECONDS),
        reraise=True,
    )
    again(cursor.execute, "PRAGMA journal_mode=WAL")


def beat_engine(url: str, log: Engine) -> Engine:
    """Where heartbeats go: a second SQLite file that never waits for a writer; the same database on PostgreSQL."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return log
    return sqlite_engine(parsed.set(database=f"{parsed.database}.heartbeat"), durable=False)


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One writing transaction, committed at the end; driver errors come out as errors of this package."""
    with translated(engine), engine.begin() as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One consistent snapshot, never committed."""
    options: dict[str, Any] = {"logio_writes": False}
    if engine.dialect.name == "postgresql":
        options["isolation_level"] = "REPEATABLE READ"
    with (
        translated(engine),
        engine.connect() as connection,
        connection.execution_options(**options).begin() as transaction,
    ):
        yield connection
        transaction.rollback()


_CONFLICTS = {"40001", "40P01"}
_LOCK_TIMEOUT = "55P03"
RETRYABLE = ("08", "53", "57", "25P03", "25006")
"""Beginnings of SQLSTATE codes after which asking again may help: connection, resources, shutdown, read-only for now."""


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Translate driver errors once, at the boundary. The text of the error is kept, the URL's password is not in it."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise _translate(engine, error) from error
    except (sa.exc.TimeoutError, sa.exc.PendingRollbackError, sa.exc.ResourceClosedError) as error:
        raise LogUnavailable(f"no usable connection to {describe(engine)}: {error}") from error


def _translate(engine: Engine, error: sa.exc.DBAPIError) -> Exception:
    cause = str(error.orig).strip()
    where = describe(engine)
    code = getattr(error.orig, "pgcode", None) or ""
    if code == _LOCK_TIMEOUT:
        return LockTimeout(f"{where}: {cause}")
    if code in _CONFLICTS:
        return TransactionConflict(f"{where}: {cause}")
    if code == "42P01" or "no such table" in cause:
        return ConfigurationError(f"{where} has no LOG.io tables; create them with `logio db upgrade`")
    if is_misconfigured(error):
        return ConfigurationError(f"{where}: {cause}")
    gone = error.connection_invalidated or code.startswith(RETRYABLE)
    if gone or isinstance(error, (sa.exc.OperationalError, sa.exc.InterfaceError)):
        return LogUnavailable(f"{where}: {cause}")
    refused = " refused a row" if isinstance(error, sa.exc.IntegrityError) else ""
    return LogInconsistent(f"{where}{refused}: {cause}")


_MISCONFIGURED = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    '" does not exist',
)


def is_misconfigured(error: Exception) -> bool:
    """A connection that was refused for what its URL says; a server that is starting, full or gone says something else."""
    text = str(getattr(error, "orig", None) or error)
    return "connection to server" in text and any(phrase in text for phrase in _MISCONFIGURED)


def describe(engine: Engine) -> str:
    """The database without its password, for messages."""
    return f"log database {shown(engine.url)}"


def shown(url: URL) -> str:
    """A URL for messages: no password, and no query part either, which may hold another one."""
    return url.set(query={}).render_as_string(hide_password=True)


def now(dialect: str) -> sa.ColumnElement[float]:
    """Seconds since the epoch by the database's clock, as it is now and not when the transaction began."""
    if dialect == "postgresql":
        return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double())
    return (sa.func.julianday("now") - 2440587.5) * 86400.0

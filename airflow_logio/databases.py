"""What the log and warehouses share: how a database is named, reached and made durable, and what its errors mean.

A URL is checked, and shown without its password. Transactions are durable (SQLite `synchronous=FULL`; for PostgreSQL see
`airflow_logio/postgres_sessions.py`). TLS, and whatever else libpq takes, is set in the URL's query
(``?sslmode=verify-full``).
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

from airflow_logio.errors import ConfigurationError

BUSY_TIMEOUT_SECONDS = 20


# --- URLs -------------------------------------------------------------------------------------------------------------


def read_url(url: str) -> URL:
    """The parts of a URL of any kind of database. Raises `ConfigurationError`, which never repeats the URL.

    Every PostgreSQL is reached with psycopg2, which this package brings along: plain ``postgresql://`` means another driver
    from SQLAlchemy 2.1 on, and Airflow writes ``postgres://``, which SQLAlchemy does not know.
    """
    try:
        parsed = make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # their texts repeat parts of the URL: chain none of them
        raise ConfigurationError(
            "the database URL cannot be parsed; expected e.g. postgresql://user@host/name, with special characters of "
            "the password written as %XX"
        ) from None
    is_postgres = parsed.drivername == "postgres" or parsed.get_backend_name() == "postgresql"
    return parsed.set(drivername="postgresql+psycopg2") if is_postgres else parsed


def with_driver(url: str) -> str:
    """A connection's URL as authors' code gets it: of PostgreSQL in the form that Airflow's connections have, too."""
    scheme, rest = url.partition("://")[::2]
    return f"postgresql+psycopg2://{rest}" if scheme in ("postgres", "postgresql") else url


def parse_url(url: str) -> URL:
    """The parts of the URL of a database that keeps all guarantees: PostgreSQL, or SQLite in a file.

    Raises `ConfigurationError`, whose message never repeats the password.
    """
    parsed = read_url(url)
    if parsed.host and "@" in parsed.host:
        # What stands behind the first @ of a password would become the host, and appear in every message.
        raise ConfigurationError("the database URL has two @: write an @ of the password as %40")
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        return parsed
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


def sqlite_file(url: str) -> Path | None:
    """The file that an SQLite URL names; None for a server, a database in memory, or a URL that cannot be parsed."""
    try:
        parsed = read_url(url)
    except ConfigurationError:
        return None
    if parsed.get_backend_name() != "sqlite" or not parsed.database or parsed.database.startswith((":", "file:")):
        return None
    return Path(parsed.database).absolute()


def with_absolute_path(url: str) -> str:
    """A URL whose relative SQLite path is seen from this folder; any other URL as it is."""
    scheme, separator, path = url.partition(":///")
    if not scheme.startswith("sqlite") or not separator or not path or path.startswith((":", "/")):
        return url
    return f"{scheme}:///{in_url(Path.cwd())}/{path}"


def sqlite_url(path: Path) -> str:
    """An SQLite file, as an absolute URL; its folder is made, readable by its owner only."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return f"sqlite:///{in_url(path)}"


def in_url(path: Path) -> str:
    """A path as part of a URL, where % and ? have a meaning."""
    return str(path).replace("%", "%25").replace("?", "%3F")


def shown(url: URL) -> str:
    """A URL for messages: no password, and no query part either, which may hold another one."""
    return url.set(query={}).render_as_string(hide_password=True)


# --- sessions ---------------------------------------------------------------------------------------------------------


def sqlite_engine(url: URL, *, durable: bool = True, busy_timeout: float | None = None) -> Engine:
    """An SQLite file in WAL mode whose transactions are begun IMMEDIATE, unless option `logio_writes` is False.

    A transaction that has to wait for another writer waits for `busy_timeout` seconds, BUSY_TIMEOUT_SECONDS if it is None.
    """
    path = Path(str(url.database))
    if not path.parent.is_dir():
        raise ConfigurationError(f"the folder of the SQLite database {path} does not exist; create it first")
    seconds = BUSY_TIMEOUT_SECONDS if busy_timeout is None else busy_timeout
    engine = sa.create_engine(url, connect_args={"timeout": seconds, "check_same_thread": False}, hide_parameters=True)

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


def is_busy(error: BaseException | None) -> bool:
    """Whether SQLite refused a statement because another process held the lock for too long."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def _set_wal(cursor: sqlite3.Cursor) -> None:
    """Retries: SQLite itself does not wait if another process makes the same new file a WAL database at the same moment."""
    again = tenacity.Retrying(
        retry=tenacity.retry_if_exception_message(match=".*locked"),
        wait=tenacity.wait_random(0.01, 0.05),
        stop=tenacity.stop_after_delay(BUSY_TIMEOUT_SECONDS),
        reraise=True,
    )
    again(cursor.execute, "PRAGMA journal_mode=WAL")


def plain_engine(url: URL, owner: str, **options: Any) -> Engine:
    """An engine of any database that SQLAlchemy reaches, with the guarantees of that database; `options` are SQLAlchemy's.

    Raises `ConfigurationError` if it cannot be made, saying whose URL that is (`owner`) and never repeating it.
    """
    try:
        return sa.create_engine(url, **options)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError, ValueError):
        # Their texts repeat parts of the URL.
        raise ConfigurationError(
            f"the URL of {owner} cannot be used: it cannot be parsed, or its driver is not installed"
        ) from None


def snapshot_options(engine: Engine) -> dict[str, Any]:
    """Execution options of a connection whose transactions read one consistent snapshot, and write nothing."""
    return {"isolation_level": "REPEATABLE READ"} if engine.dialect.name == "postgresql" else {"logio_writes": False}


# --- errors -----------------------------------------------------------------------------------------------------------

RETRYABLE = ("08", "53", "57", "25P03", "25006")
"""Prefixes of SQLSTATE codes after which a retry may help: connection, resources, shutdown, read-only for now."""

_MISCONFIGURED = (
    "authentication failed",  # of a password, a peer, or whatever a pooler trusts
    "no password supplied",
    "no pg_hba.conf entry",
    '" does not exist',
    "unsupported startup parameter",
    "no such database:",  # this one and the next: PgBouncer
    "no such user",
)


def is_misconfigured(error: Exception) -> bool:
    """Whether a connection was refused because of its URL; a server that is starting, full or gone answers differently."""
    text = cause_of(error)
    return "connection to server" in text and any(phrase in text for phrase in _MISCONFIGURED)


def cause_of(error: Exception) -> str:
    """What the database itself says about an error of SQLAlchemy, without the statement."""
    return str(getattr(error, "orig", None) or error).strip()


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise `ConfigurationError` for whatever a database refuses: `what`, and the database's own words."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise ConfigurationError(f"{what}: {cause_of(error)}") from error

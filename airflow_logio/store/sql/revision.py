"""Which schema a database is at: a plain read, so that a driver starts without loading the migration tool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.databases import check_encoding, check_settings, check_transactions, parse_url
from airflow_logio.errors import ConfigurationError, LogUnavailable, SchemaMismatch
from airflow_logio.store.sql.backends import log_identity
from airflow_logio.store.sql.engines import describe, log_engine, reading
from airflow_logio.store.sql.schema import REVISION, VERSION_TABLE


def current(connection: Connection) -> str | None:
    """The revision a database is at; None if it has no LOG.io tables."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(
        sa.select(sa.column("version_num")).select_from(sa.table(VERSION_TABLE))
    ).scalar_one_or_none()


def check(url: str) -> str:
    """Raise `SchemaMismatch` unless the database is at this code's revision; returns the log's `backends.log_identity`.

    Raises `ConfigurationError` if the database does not keep what a transaction asks for.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(str(parsed.database)).is_file():
        raise ConfigurationError(
            f"there is no log {parsed.database} yet; the first run makes it, or `logio db upgrade`"
        )
    engine = log_engine(url)
    try:
        with first_look(engine) as connection:
            found = current(connection)
            log_id = log_identity(connection) if found == REVISION else ""
    finally:
        engine.dispose()
    refuse_newer(describe(engine), found)
    if found != REVISION:
        raise SchemaMismatch(
            f"{describe(engine)} is at schema {found or 'none'}, this version of airflow_logio needs {REVISION}; "
            "run `logio db upgrade` while no run is active"
        )
    return log_id


def is_empty(url: str) -> bool:
    """Whether a database has no LOG.io tables yet. Raises `ConfigurationError` as `check` does."""
    engine = log_engine(url)
    try:
        with first_look(engine) as connection:
            return current(connection) is None
    finally:
        engine.dispose()


@contextmanager
def first_look(engine: Engine) -> Iterator[Connection]:
    """The transaction that comes before any other one at a log: whether the database keeps what transactions ask for is
    known before anything is read, or made. Raises `ConfigurationError`, `LogUnavailable`."""
    is_postgres = engine.dialect.name == "postgresql"
    try:
        with reading(engine, idle_seconds=None) as connection:
            if is_postgres:
                check_settings(connection, describe(engine))
                check_encoding(connection, describe(engine))
            yield connection
    except LogUnavailable:
        if is_postgres:
            check_transactions(engine, describe(engine))
        raise


def refuse_newer(where: str, found: str | None) -> None:
    """Revisions are numbered: a later version of this package made a greater one."""
    if found is not None and found > REVISION:
        raise SchemaMismatch(
            f"{where} is at schema {found}, which is newer than this version of airflow_logio (it knows "
            f"{REVISION}); upgrade airflow_logio on this machine"
        )

"""The logs that schedules run on: in memory, or SQLite or PostgreSQL beside it, with every answer compared.

A schedule on a database runs on both logs: every commit goes to both, and all answers to drivers must be equal, including
refusals. So the invariants, which look into the tables in memory, hold for the SQL adapter as well.
"""

from __future__ import annotations

import atexit
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, make_url

from airflow_logio.databases import parse_url, shown, sqlite_engine
from airflow_logio.errors import ConfigurationError
from airflow_logio.store.port import LogStore
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import log_engine, translated
from airflow_logio.store.sql.runs import KeptRuns
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.testing.memory_log.tables import Tables
from airflow_logio.testing.simulator.twin_log import twin_log

MakeLog = Callable[[], tuple[LogStore, Tables]]
METADATA = (schema.metadata, schema.beat_metadata)
IMPATIENT = Patience(total_seconds=0.0)


def memory_log() -> tuple[LogStore, Tables]:
    """An empty log in memory, with a counter as clock."""
    store = MemoryLogStore(clock=count(1.0).__next__)
    return store, store.tables


def sqlite_log() -> tuple[LogStore, Tables]:
    """Empty logs on SQLite in memory and in memory."""
    store = MemoryLogStore(clock=count(1.0).__next__)
    return twin_log(_emptied(), store), store.tables


LOGS: Mapping[str, MakeLog] = {"memory": memory_log, "sqlite": sqlite_log}
POSTGRES = "postgres"
"""How the URL of a PostgreSQL database begins; ``postgres://``, as Airflow writes it, is one."""


def log_of(name: str) -> MakeLog:
    """A function that makes an empty log, for ``memory``, ``sqlite``, or the URL of a PostgreSQL database.

    Existing contents of that database are not touched: each process creates a schema for its schedules, and drops it.
    Raises `ConfigurationError`.
    """
    if name in LOGS:
        return LOGS[name]
    if not name.startswith(POSTGRES):
        raise ConfigurationError(f"schedules run on memory, sqlite, or postgresql://..., not on {shown_name(name)!r}")
    parse_url(name)
    return partial(postgres_log, name)


def shown_name(name: str) -> str:
    """The name for reports and state files: a URL without its password."""
    return shown(parse_url(name)) if name.startswith(POSTGRES) else name.partition("://")[0]


def postgres_log(url: str) -> tuple[LogStore, Tables]:
    """Empty logs on PostgreSQL and in memory."""
    store = MemoryLogStore(clock=count(1.0).__next__)
    return twin_log(_emptied(url), store), store.tables


class _OnSqlite(SqlLogStore):
    """The SQL adapter on a database that only this thread sees."""

    def __init__(self) -> None:
        super().__init__(_in_memory(schema.metadata), _in_memory(schema.beat_metadata), patience=IMPATIENT)

    def empty(self) -> None:
        self._runs = KeptRuns()
        for engine, metadata in ((self.engine, schema.metadata), (self.beats, schema.beat_metadata)):
            with engine.begin() as connection:
                _empty(connection, metadata)
        with self.engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM sqlite_sequence"))  # requests are numbered as in memory


class _OnPostgres(SqlLogStore):
    """The SQL adapter in a schema that only this thread uses, and that goes when its process ends."""

    def __init__(self, url: str) -> None:
        self._schema = f"logio_simulate_{os.getpid()}_{secrets.token_hex(4)}"
        engine = log_engine(url, application="logio simulate", kept=1)
        super().__init__(engine, engine, patience=IMPATIENT)
        path = f"SET search_path TO {self._schema}; SET synchronous_commit TO off"  # no one recovers a simulated log

        @sa.event.listens_for(engine, "connect")
        def _on_connect(dbapi: Any, _record: object) -> None:
            with dbapi.cursor() as cursor:
                cursor.execute(path)
            dbapi.commit()

        with translated(engine), engine.begin() as connection:
            connection.execute(sa.text(f"CREATE SCHEMA {self._schema}"))
            for metadata in METADATA:
                metadata.create_all(connection)
        atexit.register(self.drop)

    def empty(self) -> None:
        self._runs = KeptRuns()
        with translated(self.engine), self.engine.begin() as connection:
            for metadata in METADATA:
                _empty(connection, metadata)
            sequences = sa.text(
                "SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences WHERE schemaname = :s"
            )
            for name in connection.execute(sequences, {"s": self._schema}).scalars().all():
                connection.execute(sa.text("SELECT setval(:name, 1, false)"), {"name": name})

    def drop(self) -> None:
        """Drop the schema."""
        with self.engine.begin() as connection:
            connection.execute(sa.text(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE"))
        self.dispose()


def _empty(connection: Connection, metadata: sa.MetaData) -> None:
    for table in reversed(metadata.sorted_tables):
        connection.execute(sa.delete(table))


def _in_memory(metadata: sa.MetaData) -> Engine:
    engine = sqlite_engine(make_url("sqlite://"))
    with engine.begin() as connection:
        metadata.create_all(connection)
    return engine


_of_thread = threading.local()


def _emptied(url: str = "") -> SqlLogStore:
    """One per thread and database, because creating the tables takes longer than a schedule."""
    stores: dict[str, _OnSqlite | _OnPostgres] = _of_thread.__dict__.setdefault("stores", {})
    if url not in stores:
        stores[url] = _OnPostgres(url) if url else _OnSqlite()
    stores[url].empty()
    return stores[url]


def close_logs() -> None:
    """Drop what this thread's schedules have created in databases. The end of the process does it as well."""
    stores: dict[str, _OnSqlite | _OnPostgres] = _of_thread.__dict__.get("stores", {})
    for store in [store for store in stores.values() if isinstance(store, _OnPostgres)]:
        atexit.unregister(store.drop)
        store.drop()
    stores.clear()

"""The logs that schedules run on: in memory, and SQLite beside it, the two held equal at every answer.

A schedule on SQLite runs on both: every commit goes to both, and whatever a driver is told must be the same, refusals
included. So the invariants, which look into the tables in memory, hold for the SQL adapter as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count

import sqlalchemy as sa
from sqlalchemy.engine import Engine, make_url

from airflow_logio.databases import sqlite_engine
from airflow_logio.store.memory import MemoryLogStore
from airflow_logio.store.memory.tables import Tables
from airflow_logio.store.rules.patience import Patience
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.simulator.log_port import Log
from airflow_logio.testing.simulator.twin_log import TwinLog


def memory_log() -> tuple[Log, Tables]:
    """An empty log in memory, whose clock counts."""
    store = MemoryLogStore(clock=count(1.0).__next__)
    return store, store.tables


def sqlite_log() -> tuple[Log, Tables]:
    """Empty logs on SQLite in memory and in memory."""
    store = MemoryLogStore(clock=count(1.0).__next__)
    return TwinLog(_emptied(), store), store.tables


LOGS: Mapping[str, Callable[[], tuple[Log, Tables]]] = {"memory": memory_log, "sqlite": sqlite_log}


class _SqliteInMemory(SqlLogStore):
    """The SQL adapter on a database that only this thread sees."""

    def __init__(self) -> None:
        patience = Patience(total_seconds=0.0)
        super().__init__(_engine(schema.metadata), _engine(schema.beat_metadata), patience=patience)

    def empty(self) -> None:
        self._runs = {}
        for engine, metadata in ((self.engine, schema.metadata), (self.beats, schema.beat_metadata)):
            with engine.begin() as connection:
                for table in reversed(metadata.sorted_tables):
                    connection.execute(sa.delete(table))
        with self.engine.begin() as connection:
            connection.execute(sa.text("DELETE FROM sqlite_sequence"))  # requests are numbered as in memory


def _engine(metadata: sa.MetaData) -> Engine:
    engine = sqlite_engine(make_url("sqlite://"))
    with engine.begin() as connection:
        metadata.create_all(connection)
    return engine


_of_thread = threading.local()


def _emptied() -> SqlLogStore:
    """One per thread: making the tables takes longer than a schedule."""
    if not hasattr(_of_thread, "store"):
        _of_thread.store = _SqliteInMemory()
    store: _SqliteInMemory = _of_thread.store
    store.empty()
    return store

"""`LogStore` over SQL: SQLite (one host) and PostgreSQL. Its parts stand in the modules named after those of the port."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_logio.errors import LogInconsistent
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LineageLog
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.port.unfenced_port import AddressBook, OutputLog
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.beats import BeatCheck
from airflow_logio.store.sql.cluster_log import SqlClusterLog
from airflow_logio.store.sql.engines import beat_engine, describe, log_engine, reading
from airflow_logio.store.sql.group_log import SqlGroupLog
from airflow_logio.store.sql.lineage_log import SqlLineageLog
from airflow_logio.store.sql.removed_runs import SqlRetentionLog
from airflow_logio.store.sql.run_log import SqlCodeLog, SqlRunLog
from airflow_logio.store.sql.runs import KeptRuns
from airflow_logio.store.sql.scaling_log import SqlScalingLog
from airflow_logio.store.sql.session import SqlGroupSession
from airflow_logio.store.sql.unfenced_log import SqlAddressBook, SqlOutputLog
from airflow_logio.store.sql.upkeep_log import SqlUpkeepLog
from airflow_logio.store.sql.wake import PostgresWaker, SqliteWaker, Waker
from airflow_logio.store.sql.watch_log import SqlWatchLog


class SqlLogStore(
    SqlRunLog,
    SqlCodeLog,
    SqlUpkeepLog,
    SqlRetentionLog,
    SqlGroupLog,
    SqlClusterLog,
    SqlScalingLog,
    SqlWatchLog,
    LogStore,
):
    """Open with `open_store`, which checks the schema. On PostgreSQL, `engine` and `beats` are the same."""

    def __init__(self, engine: Engine, beats: Engine, *, patience: Patience | None = None) -> None:
        self.engine = engine
        self.beats = beats
        self.patience = patience or Patience()
        self._runs = KeptRuns()
        self._sessions: WeakSet[SqlGroupSession] = WeakSet()
        self._beat_check = BeatCheck(beats, is_alone=beats is not engine)

    @classmethod
    def at(
        cls, url: str, *, application: str = "logio", patience: Patience | None = None, connections: int | None = None
    ) -> SqlLogStore:
        """The log at `url`. On PostgreSQL, `application` names the sessions, and `connections` bounds their number."""
        engine = log_engine(url, application=application, connections=connections)
        return cls(engine, beat_engine(url, engine), patience=patience)

    def log_uid(self) -> str:
        with reading(self.engine) as connection:
            found: Sequence[str] = connection.execute(sa.select(schema.this_log.c.uid)).scalars().all()
        if len(found) != 1:
            raise LogInconsistent(
                f"{describe(self.engine)}: table logio_log has {len(found)} rows instead of one, so that this log cannot be "
                "told from others; restore the row from a backup"
            )
        return found[0]

    def session(self, ref: GroupRef) -> GroupSession:
        waker: Waker
        if self.engine.dialect.name == "postgresql":
            waker = PostgresWaker(self.engine, ref)
        else:
            waker = SqliteWaker(self.engine)
        session = SqlGroupSession(self.engine, ref, waker, self.patience)
        self._sessions.add(session)
        return session

    @contextmanager
    def lineage(self, run: Run) -> Iterator[LineageLog]:
        with reading(self.engine) as connection:
            yield SqlLineageLog(connection, run)

    @property
    def output(self) -> OutputLog:
        return SqlOutputLog(self.beats)

    @property
    def addresses(self) -> AddressBook:
        return SqlAddressBook(self.beats)

    def dispose(self) -> None:
        for session in tuple(self._sessions):
            session.close()
        self.engine.dispose()
        if self.beats is not self.engine:
            self.beats.dispose()

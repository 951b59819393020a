"""A run that waits for the day of a table while another session holds its lock: as long as that one works, it waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio import databases
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable
from airflow_logio.protocol.writes import HeldGroup, PendingWrite
from airflow_logio.store.records.driver_records import WAIT
from airflow_logio.systems import warehouse
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.calls import COUNTED, CallWatch, Locks
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import HeldWrites, executor_of
from airflow_logio.systems.warehouse import Warehouse
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

DAY = "2026-03-01"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database whose sessions wait for a lock for a moment only."""
    monkeypatch.setattr(warehouse, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.05)
    return f"sqlite:///{tmp_path}/wh.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


class Run:
    """The writer of a run, as its thread drives it."""

    def __init__(self, url: str, ordinal: int, day: str = DAY, seconds: float = 60.0) -> None:
        writer = TableWriter("wh", "t", {"day": "date", "a": "bigint"}, on_new_run="overwrite", by=("day",))
        self.writer = writer.for_run({"day": day, "day_start": f"{day}T00:00:00+00:00"})
        self.watch, self._ordinal, self._day = CallWatch(), ordinal, day
        identity = WriterIdentity(f"run{ordinal}", 1, 0.0, (), "clicks", "log", ordinal)
        self._systems = Connections("clicks", {"wh": url}, identity, seconds, self.watch)
        self.executor = executor_of("save", self.writer, self._systems)
        self.stopping = threading.Event()

    def open(self) -> None:
        self.executor.execute([self._pending(1, "begin", b"")], 0, self.stopping)

    def close(self) -> None:
        table = pa.table({"day": pa.array([self._day]).cast(pa.date32()), "a": pa.array([self._ordinal], pa.int64())})
        page = [self._pending(2, "insert", encode(table), 1)]
        held = HeldWrites(HeldGroup(2, 3, 1), self._pending(3, "close", b""), lambda _: page, lambda _: None)
        self.executor.execute_held(held, self.stopping)

    def end(self) -> None:
        self.executor.close()
        self._systems.close()

    def _pending(self, number: int, kind: str, body: bytes, records: int = 0) -> PendingWrite:
        return PendingWrite("save", "wh", number, {"action": kind}, records, body)


@contextmanager
def held(url: str) -> Iterator[Connection]:
    """Another session has the row of the day, or the file."""
    other = Warehouse("other", url)
    with other.for_writes() as connection, connection.begin():
        if other.engine.dialect.name != "sqlite":
            connection.execute(sa.text("SELECT 1 FROM logio_scope FOR UPDATE"))
        yield connection
    other.close()


@pytest.mark.parametrize("step", ["opening", "closing"])
def test_the_run_waits_for_a_session_that_works_and_says_for_what(url: str, step: str) -> None:
    """For many times as long as it is to be replayed, where the server ends sessions that do not work."""
    first, is_sqlite = Run(url, 1), url.startswith("sqlite")
    first.open()
    first.close()
    run = Run(url, 2, seconds=60.0 if is_sqlite else 0.1)
    if step == "closing":
        run.open()
    with ThreadPoolExecutor(1) as pool:
        with held(url):
            begun: Future[None] = pool.submit(run.open if step == "opening" else run.close)
            eventually(lambda: run.watch.longest()[0].startswith(WAIT) or begun.done(), what="it waits")
            said, _ = run.watch.longest()
            if not is_sqlite:
                eventually(lambda: run.watch.longest()[1] > 1.0 or begun.done(), what="it waits on")
            assert not begun.done(), begun.exception()
        begun.result(timeout=60)
    number = "write action 1" if step == "opening" else "write actions 2 to 3"
    assert f"{number} of 'save'" in said and "another session holds a lock: connection 'wh'" in said
    if step == "opening":
        run.close()
    assert rows_of(url, "SELECT a FROM t") == [(2,)]
    run.end()
    first.end()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_file_that_stays_locked_is_given_up_and_the_lock_is_named(url: str) -> None:
    """Nothing ends a process that has stopped with it."""
    run = Run(url, 1, seconds=0.2)
    run.open()
    with held(url), pytest.raises(ExternalUnavailable, match=r"another session holds a lock: .*database is locked"):
        run.close()
    run.close()
    run.end()


def locks_of(url: str, **settings: Any) -> Locks:
    systems = Connections("p", {"wh": url}, WriterIdentity("r", 1, 0.0), 1.0)
    writer = TableWriter("wh", "t", {"day": "date", "a": "bigint"}, **settings)
    try:
        found: Locks = executor_of("save", writer, systems)._target.locks
        return found
    finally:
        systems.close()


@pytest.mark.parametrize("kind", ["overwrite", "append", "replace"])
def test_a_session_that_writes_to_a_file_is_waited_for(tmp_path: Any, kind: str) -> None:
    """Whatever the writer that waits is, and before the other one commits: a transaction that is too long for its memory.
    Not if it stands still."""
    url = f"sqlite:///{tmp_path}/wh.db"
    other = Run(url, 2, "2026-03-02")
    days = {"on_new_run": kind, "by": ("day",)} if kind == "overwrite" else {"on_new_run": kind}
    progress = locks_of(url, **days).progress
    assert progress is not None
    seen = [progress()]
    for step in (other.open, other.close, lambda: None):
        step()
        seen.append(progress())
    with held(url) as connection:
        seen.append(progress())
        connection.exec_driver_sql("CREATE TABLE long (a)")
        connection.exec_driver_sql("INSERT INTO long VALUES (randomblob(40000000))")
        seen.append(progress())
        seen.append(progress())
    moved = [after != before for before, after in pairwise(seen)]
    assert moved == [True, True, False, False, True, False]
    other.end()


@pytest.mark.postgres
def test_writers_that_own_no_day_wait_as_before_at_a_server(postgres_url: str) -> None:
    """Their transactions are short: to wait for so long is an outage."""
    assert locks_of(postgres_url) == COUNTED

"""Drivers that stand still anywhere in a commit while they are replaced: they commit nothing, and hold nobody up."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import psycopg2
import pytest

from airflow_logio import databases
from airflow_logio.errors import Fenced, LogUnavailable
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.store.sql import engines, migrate
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import Pause, before_statement
from tests.support.logs import (
    Driver,
    assigned,
    contents,
    driver_name,
    fetched,
    open_sql_store,
    sent,
    spec,
    start_driver,
)
from tests.support.waiting import eventually


@pytest.fixture
def short_lock_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as any transaction of a living driver takes, in a test."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_SECONDS", 0.5)


def zombie(open_another: OpenStore) -> Driver:
    """A driver whose sessions are named as its launcher names them."""
    launcher = open_another()
    run = launcher.start_run(spec())
    store = open_another(application=driver_name(launcher, run.run_id, "g"))
    driver = start_driver(store, run=run)
    driver.session.commit([sent(1), sent(2)])
    return driver


def replace(supervisor: SqlLogStore, driver: Driver) -> Driver:
    assert supervisor.declare_dead(driver.ref, "no heartbeat")
    return start_driver(supervisor, run=driver.run, expected=driver.ref.incarnation)


@pytest.mark.postgres
def test_drivers_of_another_log_in_the_same_database_keep_their_sessions(postgres_url: str) -> None:
    """Two schemas, each with a run 1: a recovery in one of them ends no session of the other."""
    with psycopg2.connect(postgres_url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA other")
    connection.close()
    other_url = f"{postgres_url}?options=-csearch_path%3Dother"
    migrate.upgrade(other_url)
    ours, theirs = (open_sql_store(url, patience=QUICK) for url in (postgres_url, other_url))
    claims = [start_driver(store).claim for store in (ours, theirs)]
    drivers = [
        open_sql_store(url, driver=claim, patience=QUICK)
        for url, claim in zip((postgres_url, other_url), claims, strict=True)
    ]
    before = [backend(driver) for driver in drivers]
    assert {(claim.run_id, claim.group, claim.incarnation) for claim in claims} == {(1, "g", 1)}
    assert theirs.end_backends(1, "g", 1) == 1
    assert backend(drivers[0]) == before[0], "the same session as before"
    for store in (ours, theirs, *drivers):
        store.dispose()


def backend(store: SqlLogStore) -> int:
    with store.engine.connect() as session:
        return int(session.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


@pytest.mark.postgres
def test_a_stopped_driver_loses_its_transaction_by_itself(postgres_url: str) -> None:
    """Also where no role may end its backend: `idle_in_transaction_session_timeout` is below the lease."""
    store = open_sql_store(postgres_url, patience=QUICK)
    driver = start_driver(store)
    pause = Pause()
    watcher = open_sql_store(postgres_url, application="watcher", patience=QUICK)
    with ThreadPoolExecutor(1) as pool, before_statement(store, 2, pause):
        commit = commit_in_thread(pool, driver)
        pause.wait_until_reached()
        Patience(total_seconds=20, longest_wait_seconds=0.2).call(
            "claim", lambda: watcher.declare_dead(GroupRef(driver.run.run_id, "g", 1), "test")
        )
        pause.release()
        commit.result(90)  # dead is an observation; without a claim the driver continues
    assert fetched(driver.session) == [1]
    store.dispose()
    watcher.dispose()


def commit_in_thread(pool: ThreadPoolExecutor, driver: Driver) -> Future[tuple[Collected, ...]]:
    return pool.submit(driver.session.commit, [sent(1)])


STOPS_INSIDE_ITS_COMMIT = """
import os, signal, sys
import sqlalchemy as sa
from airflow_logio.errors import Fenced
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.sql.backends import driver_application
from airflow_logio.store.sql.revision import check
from tests.support.logs import assigned, sent

url, run_id, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = open_store(url, application=driver_application(check(url), run_id, "g", 1))
session = store.session(GroupRef(run_id, "g", 1))
session.open()
seen = []

@sa.event.listens_for(store.engine, "before_cursor_execute")
def stop(connection, cursor, statement, *_):
    seen.append(statement)
    if len(seen) == number:
        os.kill(os.getpid(), signal.SIGSTOP)

try:
    session.commit([sent(3), assigned(1, "A"), assigned(2, "A")])
except Fenced:
    sys.exit(75)
"""
FENCED = 75


@contextmanager
def stopped_driver(url: str, run_id: int, statement: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has stopped itself in its commit, before the statement of that number."""
    command = [sys.executable, "-c", STOPS_INSIDE_ITS_COMMIT, url, str(run_id), str(statement)]
    process = subprocess.Popen(command)
    try:
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, what="the driver is stopped")
        yield process
    finally:
        process.kill()
        process.wait(90)


def test_a_stopped_writer_is_ended_before_it_is_replaced(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite: a real process, stopped inside its transaction, shuts everyone out until it is ended."""
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.2)
    store = open_sql_store(sqlite_url, patience=QUICK)
    driver = start_driver(store)
    driver.session.commit([sent(1), sent(2)])
    with stopped_driver(sqlite_url, driver.run.run_id, 3):
        assert store.ends_old_driver_first
        with pytest.raises(LogUnavailable, match="locked"):
            store.declare_dead(driver.ref, "no heartbeat")
        assert store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1), "heartbeats are in a file of their own"
        assert fetched(driver.session) == [1, 2], "readers are not shut out"
    successor = replace(store, driver)
    assert fetched(successor.session) == [1, 2]
    store.dispose()


@pytest.mark.parametrize("statement", [1, 2, 4], ids=["before the fence", "behind the fence", "before the last"])
@pytest.mark.usefixtures("short_lock_timeout")
@pytest.mark.postgres
def test_a_stopped_driver_holds_no_claim_up(postgres_url: str, statement: int) -> None:
    """PostgreSQL: the claim gets through while the process is stopped; when it continues, it is fenced."""
    store = open_sql_store(postgres_url, patience=QUICK)
    driver = start_driver(store)
    driver.session.commit([sent(1), sent(2)])
    with stopped_driver(postgres_url, driver.run.run_id, statement) as process:
        assert not store.ends_old_driver_first
        began = time.monotonic()
        successor = replace(store, driver)
        assert time.monotonic() - began < databases.IDLE_IN_TRANSACTION_SECONDS, "it did not wait for the idle timeout"
        assert fetched(successor.session) == [1, 2], "what the zombie had in hand was not committed"
        successor.session.commit([assigned(1, "B"), sent(3)])
        before = contents(store)
        process.send_signal(signal.SIGCONT)
        assert process.wait(90) == FENCED
    assert contents(store) == before
    store.dispose()


def test_a_driver_stopped_before_its_transaction_is_fenced_when_it_goes_on(sqlite_url: str) -> None:
    """SQLite: it holds nothing yet. It was not ended here: the fence is enough."""
    store = open_sql_store(sqlite_url, patience=QUICK)
    driver = start_driver(store)
    driver.session.commit([sent(1), sent(2)])
    with stopped_driver(sqlite_url, driver.run.run_id, 1) as process:
        successor = replace(store, driver)
        successor.session.commit([assigned(1, "B"), sent(3)])
        before = contents(store)
        process.send_signal(signal.SIGCONT)
        assert process.wait(90) == FENCED
    assert contents(store) == before
    store.dispose()


def test_of_many_supervisors_one_recovers(open_another: OpenStore) -> None:
    driver = zombie(open_another)
    supervisors = [open_another() for _ in range(4)]
    barrier = threading.Barrier(len(supervisors))

    def recover(store: SqlLogStore) -> bool:
        barrier.wait(90)
        store.declare_dead(driver.ref, "no heartbeat")
        try:
            store.claim(driver.run.run_id, "g", expected=1, reason="no heartbeat")
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor(len(supervisors)) as pool:
        assert sorted(pool.map(recover, supervisors)) == [False, False, False, True]
    assert supervisors[0].group(driver.run.run_id, "g").incarnation == 2

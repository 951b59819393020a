"""The log database is unavailable, locked or full for a while: a commit waits and continues; nothing fails or doubles."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.errors import LogUnavailable
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.small_disk import small_disk
from tests.support.faults import around_commit, before_statement
from tests.support.logs import contents, fetched, open_sql_store, sent, start_driver
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

AWAY_SECONDS = 0.7


def failures(store: SqlLogStore) -> list[str]:
    """Filled with the texts of errors as they happen."""
    seen: list[str] = []

    @sa.event.listens_for(store.engine, "handle_error")
    def note(context: Any) -> None:
        seen.append(str(context.original_exception))

    return seen


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.parametrize("where", ["before the first statement", "inside", "before COMMIT", "after COMMIT"])
def test_postgres_stops_in_a_commit_and_comes_back(
    postgres_server: PostgresServer, postgres_url: str, mode: str, where: str
) -> None:
    store = open_sql_store(postgres_url, patience=QUICK)
    driver = start_driver(store)
    driver.session.commit([sent(1)])
    back = threading.Timer(AWAY_SECONDS, postgres_server.start)

    def stop(_: object) -> None:
        postgres_server.stop(mode=mode)
        back.start()

    fault = {
        "before the first statement": before_statement(store, 1, stop),
        "inside": before_statement(store, 3, stop),
        "before COMMIT": around_commit(store, before=stop),
        "after COMMIT": around_commit(store, after=stop),
    }[where]
    try:
        with fault:
            driver.session.commit([sent(2)])
        driver.session.commit([sent(3)])
    finally:
        back.join()
    assert driver.session.open().commit_no == 3
    assert fetched(driver.session) == [1, 2, 3]
    store.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("statement", [1, 3])
def test_postgres_stops_while_a_group_is_read_for_recovery(
    postgres_server: PostgresServer, postgres_url: str, statement: int
) -> None:
    """An outage at this moment, too, is not the driver's death."""
    store = open_sql_store(postgres_url, patience=QUICK)
    driver = start_driver(store)
    driver.session.commit([sent(1)])
    back = threading.Timer(AWAY_SECONDS, postgres_server.start)

    def stop(_: object) -> None:
        postgres_server.stop()
        back.start()

    before = driver.session.recover(["a", "b"])
    try:
        with before_statement(store, statement, stop):
            assert driver.session.recover(["a", "b"]) == before
    finally:
        back.join()
    store.dispose()


@pytest.mark.postgres
def test_patience_ends(postgres_server: PostgresServer, postgres_url: str) -> None:
    store = open_sql_store(postgres_url, patience=Patience(0.3, 0.01, 0.05))
    driver = start_driver(store)
    postgres_server.stop()
    try:
        with pytest.raises(LogUnavailable):
            driver.session.commit([sent(1)])
        with pytest.raises(LogUnavailable):
            fetched(driver.session)
        with pytest.raises(LogUnavailable):
            store.group(driver.run.run_id, "g")
    finally:
        postgres_server.start()
    eventually(lambda: _answers(store, driver.run.run_id), what="the store answers again")
    driver.session.open()
    driver.session.commit([sent(1)])
    assert fetched(driver.session) == [1]
    store.dispose()


def _answers(store: SqlLogStore, run_id: int) -> bool:
    try:
        return bool(store.groups(run_id))
    except LogUnavailable:
        return False


LOCKS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


def test_sqlite_is_locked_for_longer_than_the_busy_timeout(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.05)
    store = open_sql_store(sqlite_url, patience=QUICK)
    driver = start_driver(store)
    seen = failures(store)
    command = [sys.executable, "-c", LOCKS, sqlite_url.removeprefix("sqlite:///")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as locker:
        assert locker.stdin is not None and locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(driver.session.commit, [sent(1)])
            eventually(lambda: len(seen) >= 2, what="the commit has been refused twice")
            assert not commit.done()
            assert fetched(driver.session) == [], "readers are not shut out"
            locker.stdin.write("\n")
            locker.stdin.flush()
            commit.result(90)
    assert "locked" in seen[0]
    assert fetched(driver.session) == [1]
    store.dispose()


def test_sqlite_is_full_for_a_while(sqlite_url: str) -> None:
    store = open_sql_store(sqlite_url, patience=QUICK)
    driver = start_driver(store)
    driver.session.commit([sent(1)])
    before = contents(store)
    pages = [0]

    @sa.event.listens_for(store.engine, "checkout")
    def limit(connection: sqlite3.Connection, *_: object) -> None:
        connection.execute(f"PRAGMA max_page_count={pages[0] or 2**30}").close()

    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as probe:
        pages[0] = int(probe.execute("PRAGMA page_count").fetchone()[0]) + 4
    probe.close()
    seen = failures(store)
    with ThreadPoolExecutor(1) as pool:
        commit = pool.submit(driver.session.commit, [sent(2, b"x" * 200_000)])
        eventually(lambda: len(seen) >= 2, what="the commit has been refused twice")
        assert "full" in seen[0]
        assert contents(store) == before, "nothing half committed"
        assert fetched(driver.session) == [1], "readers are not shut out"
        assert not commit.done()
        pages[0] = 0
        commit.result(90)
    driver.session.commit([sent(3)])
    assert fetched(driver.session) == [1, 2, 3]
    store.dispose()


@pytest.mark.postgres
def test_postgres_has_no_room_for_a_while(postgres_server: PostgresServer) -> None:
    body = os.urandom(3 << 20)
    with small_disk(postgres_server) as disk:
        store = open_sql_store(disk.url, patience=QUICK)
        driver = start_driver(store)
        driver.session.commit([sent(1)])
        before = contents(store)
        seen = failures(store)
        disk.fill()
        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(driver.session.commit, [sent(2, body)])
            eventually(lambda: len(seen) >= 2, what="the commit has been refused twice")
            assert "No space left on device" in seen[0]
            assert contents(store) == before, "nothing half committed"
            assert fetched(driver.session) == [1], "readers are not shut out"
            assert not commit.done()
            disk.make_room()
            commit.result(90)
        driver.session.commit([sent(3)])
        assert fetched(driver.session) == [1, 2, 3]
        store.dispose()


@pytest.mark.postgres
def test_patience_with_a_full_disk_ends_with_what_the_database_says(postgres_server: PostgresServer) -> None:
    with small_disk(postgres_server) as disk:
        store = open_sql_store(disk.url, patience=Patience(0.2, 0.01, 0.05))
        driver = start_driver(store)
        disk.fill()
        with pytest.raises(LogUnavailable, match="No space left on device"):
            driver.session.commit([sent(1, os.urandom(3 << 20))])
        disk.make_room()
        driver.session.commit([sent(1)])
        assert fetched(driver.session) == [1]
        store.dispose()


@pytest.mark.postgres
def test_a_run_goes_on_through_restarts_of_the_server(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Sender, receiver and heartbeats at work while the server is restarted twice; each event is received once."""
    store = open_sql_store(postgres_url, patience=QUICK)
    driver = start_driver(store)
    receiving = store.session(driver.ref)
    last, received = 60, list[int]()
    restarted = threading.Event()

    def send() -> None:
        for number in range(1, last + 1):
            driver.session.commit([sent(number)])
            driver.session.announce(["g"])
            if number == last // 2:
                assert restarted.wait(60), "the server was not restarted"

    def poll() -> list[int]:
        return fetched(receiving, after=received[-1] if received else 0, many=7)

    def beat() -> None:
        store.heartbeat(driver.ref, len(received) + 1, ready=True, rss_bytes=1)

    def receive() -> None:
        while len(received) < last:
            received.extend(QUICK.call("fetch", poll))
            QUICK.call("heartbeat", beat)
            receiving.wait(0.25)

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(send), pool.submit(receive)]
        for mode in ("fast", "immediate"):
            postgres_server.stop(mode=mode)
            postgres_server.start()
        restarted.set()
        for work in working:
            work.result(60)
    assert received == list(range(1, last + 1))
    assert driver.session.open().commit_no == last
    receiving.close()
    driver.session.close()
    store.dispose()


def test_what_rightly_takes_longer_than_patience_survives_an_outage() -> None:
    """A large file on its way to a slow store, a recovery of millions of events."""
    begun: list[float] = []

    def long() -> int:
        begun.append(time.monotonic())
        while time.monotonic() - begun[-1] <= 0.05:
            time.sleep(0.01)
        if len(begun) == 1:
            raise LogUnavailable("the connection broke")
        return len(begun)

    assert Patience(0.05, 0.001, 0.001).call("test", long) == 2


def test_nobody_waits_who_has_lost_interest() -> None:
    asked: list[int] = []

    def away() -> None:
        asked.append(1)
        raise LogUnavailable("away")

    with pytest.raises(LogUnavailable):
        Patience(60, 0.001, 0.001).call("test", away, still_wanted=lambda: len(asked) < 3)
    assert len(asked) == 3

"""Heartbeats continue while the log is unavailable, or is written for long: neither may look like the death of a driver."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa

from airflow_logio.driver.heartbeat import Heartbeat
from airflow_logio.errors import HeartbeatsHeld, LogUnavailable
from airflow_logio.launch import processes
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, Load
from airflow_logio.store.records.run_records import Supervision
from airflow_logio.store.sql import migrate
from airflow_logio.store.sql.beat_file import lock_holder, make_anew
from airflow_logio.supervision.findings import FailureFinder
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.store.small_disk import small_folder
from tests.support.lock_holders import holder_of
from tests.support.logs import Driver, open_sql_store, sent, spec, start_driver
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually
from tests.support.watching import GroupWatcher


class Counted:
    """A store whose heartbeats are counted; what was raised is kept."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self.asked = 0
        self.failed: list[Exception] = []

    def heartbeat(
        self, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None = None
    ) -> GroupState:
        try:
            return self._store.heartbeat(ref, beat, ready=ready, rss_bytes=rss_bytes, load=load)
        except Exception as error:
            self.failed.append(error)
            raise
        finally:
            self.asked += 1


@contextmanager
def beating(driver: Driver, store: LogStore) -> Iterator[tuple[Counted, list[str]]]:
    """The driver's own heartbeat thread; the second value are reasons to end that it was given."""
    counted, replaced = Counted(store), list[str]()
    heartbeat = Heartbeat(counted, driver.ref, lambda: True, {}, replaced.append)  # type: ignore[arg-type]
    heartbeat.start()
    try:
        yield counted, replaced
    finally:
        heartbeat.stop()


WRITES_FOR_LONG = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA synchronous=FULL")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE logio_group SET since = since")
print("writing", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
"""


def test_nobody_waits_for_a_long_writer_to_say_that_he_is_alive(sqlite_url: str) -> None:
    """SQLite: another process holds the file's only write lock; the driver's own commit waits for it."""
    store = open_sql_store(sqlite_url, patience=QUICK)
    driver = start_driver(store)
    path = sqlite_url.removeprefix("sqlite:///")
    command = [sys.executable, "-c", WRITES_FOR_LONG, path]
    with (
        beating(driver, store) as (counted, replaced),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        assert writer.stdout is not None and writer.stdout.readline() == "writing\n"
        before, committing = _beat(store, driver), pool.submit(driver.session.commit, [sent(1)])
        eventually(lambda: _beat(store, driver) >= before + 3, what="three heartbeats")
        assert not committing.done(), "the commit waits"
        writer.communicate("enough\n")
        committing.result(60)
    assert not counted.failed and not replaced
    store.dispose()


@pytest.mark.postgres
def test_nobody_waits_for_a_lock_to_say_that_he_is_alive(postgres_url: str) -> None:
    """PostgreSQL: another session holds the fence row and the tables of events, as a long commit of this very group does."""
    store = open_sql_store(postgres_url, patience=QUICK)
    driver = start_driver(store)
    with beating(driver, store) as (counted, replaced), store.engine.begin() as connection:
        connection.execute(sa.text("LOCK TABLE logio_event_log, logio_event_data IN EXCLUSIVE MODE"))
        connection.execute(sa.text("SELECT 1 FROM logio_fence FOR UPDATE"))
        connection.execute(sa.text("SELECT 1 FROM logio_group FOR UPDATE"))
        before = store.group(driver.run.run_id, "g").beat
        eventually(lambda: store.group(driver.run.run_id, "g").beat >= before + 3, what="three heartbeats")
    assert not counted.failed and not replaced
    store.dispose()


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_heartbeats_go_on_after_an_outage(postgres_server: PostgresServer, postgres_url: str, mode: str) -> None:
    """The driver lives through it; an observer's polls fail meanwhile, so that it does not count the time."""
    store = open_sql_store(postgres_url, patience=QUICK)
    driver = start_driver(store)
    with beating(driver, store) as (counted, replaced):
        eventually(lambda: store.group(driver.run.run_id, "g").beat >= 1, what="the first heartbeat")
        postgres_server.stop(mode=mode)
        try:
            eventually(lambda: len(counted.failed) >= 2, what="two heartbeats have failed")
            with pytest.raises(LogUnavailable):
                store.group(driver.run.run_id, "g")
        finally:
            postgres_server.start()
        last = counted.asked
        eventually(lambda: _beat(store, driver) > last, what="the heartbeat is seen again")
    assert all(isinstance(error, LogUnavailable) for error in counted.failed), counted.failed
    assert replaced == []
    driver.session.commit([sent(1)])
    store.dispose()


def _beat(store: LogStore, driver: Driver) -> int:
    try:
        return store.group(driver.run.run_id, "g").beat
    except LogUnavailable:
        return 0


def test_heartbeats_go_on_after_their_file_was_locked(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite: what an outage of the heartbeats themselves looks like; the log is not touched by it."""
    monkeypatch.setattr("airflow_logio.databases.BUSY_TIMEOUT_SECONDS", 0.05)
    store = open_sql_store(sqlite_url, patience=QUICK)
    driver = start_driver(store)
    with beating(driver, store) as (counted, replaced):
        eventually(lambda: store.group(driver.run.run_id, "g").beat >= 1, what="the first heartbeat")
        locker = sqlite3.connect(sqlite_url.removeprefix("sqlite:///") + ".heartbeat", isolation_level=None)
        locker.execute("BEGIN IMMEDIATE")
        eventually(lambda: counted.failed, what="a heartbeat has failed")
        driver.session.commit([sent(1)])
        locker.execute("ROLLBACK")
        locker.close()
        last = counted.asked
        eventually(lambda: _beat(store, driver) > last, what="the heartbeat is seen again")
    assert all(isinstance(error, LogUnavailable) for error in counted.failed), counted.failed
    assert replaced == []
    store.dispose()


def test_a_lost_heartbeat_file_is_no_death(open_another: OpenStore) -> None:
    """The row of the heartbeat is gone (a file that need not be kept): the next heartbeat makes it again."""
    store = open_another()
    driver = start_driver(store)
    store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1)
    with store.beats.begin() as connection:
        connection.execute(sa.text("DELETE FROM logio_heartbeat"))
    assert store.group(driver.run.run_id, "g").beat_at is None
    store.heartbeat(driver.ref, 2, ready=True, rss_bytes=1)
    assert store.group(driver.run.run_id, "g").beat == 2


def damage_in_the_middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100 : len(content)] = os.urandom(len(content) - 100)
    path.write_bytes(content)


def rename_a_column(path: Path) -> None:
    """What a few bits can do to the description of a table."""
    with tempfile.NamedTemporaryFile() as other:
        Path(other.name).write_bytes(path.read_bytes())
        with closing(sqlite3.connect(other.name)) as connection, connection:
            connection.execute("ALTER TABLE logio_heartbeat RENAME COLUMN at TO a4")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        path.write_bytes(Path(other.name).read_bytes())


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"no database" * 100),
    "in the middle": damage_in_the_middle,
    "cut short": lambda path: os.truncate(path, 5000),
    "empty": lambda path: os.truncate(path, 0),
    "gone": Path.unlink,
    "another column": rename_a_column,
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_of_heartbeats_is_made_anew_and_nobody_dies(sqlite_url: str, how: str) -> None:
    """The log itself is sound: no driver is declared dead, no supervisor stops, and the next heartbeats are seen."""
    store, watching = (open_sql_store(sqlite_url, patience=QUICK) for _ in range(2))
    path = Path(f"{watching.engine.url.database}.heartbeat")
    driver = start_driver(store)
    watcher = GroupWatcher(watching, driver.run, "g", Lease(seconds=5.0))
    with beating(driver, store):
        eventually(lambda: watcher.poll().status, what="the driver is watched")
        before = store.group(driver.run.run_id, "g").beat
        for left in ("-wal", "-shm"):
            Path(f"{path}{left}").unlink(missing_ok=True)
        DAMAGES[how](path)

        def beats_again() -> bool:
            seen = watcher.poll()
            assert not seen.is_dead, seen.cause
            return seen.status is not None and seen.status.beat > before

        eventually(beats_again, what="heartbeats are seen again")
    watching.note_supervisor("me")
    assert [one.name for one in store.supervisors()] == ["me"]
    assert {file.name for file in path.parent.iterdir() if file.name.startswith(".")} == set(), "nothing is left behind"
    for opened in (store, watching):
        opened.dispose()


def test_many_processes_make_one_file_anew(sqlite_url: str) -> None:
    stores = [open_sql_store(sqlite_url, patience=QUICK) for _ in range(8)]
    path = Path(f"{stores[0].engine.url.database}.heartbeat")
    path.write_bytes(b"no database" * 100)

    def note(number: int) -> None:
        eventually_noted = QUICK.call("noting", lambda: stores[number].note_supervisor(f"number {number}"))
        assert eventually_noted is None

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(note, range(len(stores))))
    assert len(stores[0].supervisors()) == len(stores)
    for store in stores:
        store.dispose()


def test_on_a_full_disk_nobody_dies_and_it_is_said_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No driver can say that it is alive; so the log is unavailable, for drivers and for those who look after them."""
    with small_folder(tmp_path) as disk:
        url = f"sqlite:///{disk.path}/log.db"
        migrate.upgrade(url)
        store, watching = (open_sql_store(url, patience=QUICK) for _ in range(2))
        driver = start_driver(store, run=store.start_run(replace(spec("g"), supervision=Supervision.DAG)))
        # The log's own file still has room for a declaration of death: pages that are written again.
        driver.session.commit([sent(1, b"x" * 300_000)])
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT", logio_writes=False) as connection:
            connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(RESTART)")  # type: ignore[union-attr]
        finder = FailureFinder(watching)
        watcher = GroupWatcher(watching, driver.run, "g", Lease(seconds=3.0))
        with beating(driver, store):
            eventually(lambda: watcher.poll().status, what="the driver is watched")
            disk.fill()
            began, said = time.monotonic(), set[str | None]()
            while time.monotonic() - began < 5.0:
                seen, found = watcher.poll(), finder.look()
                said |= {seen.unavailable, found.unavailable} - {None}
                assert not seen.is_dead, seen.cause
                assert not found.failed
                time.sleep(0.1)
            assert said and all("full" in str(why) or "disk I/O" in str(why) for why in said), said
            disk.make_room()
            beat = store.group(driver.run.run_id, "g").beat
            eventually(lambda: store.group(driver.run.run_id, "g").beat > beat, what="it beats again")
        told = [text for record in caplog.records if "takes no heartbeat" in (text := record.getMessage())]
        assert len(told) == 1 and "keeps running" in told[0]
        driver.session.commit([sent(2)])
        for opened in (store, watching):
            opened.dispose()


def test_a_driver_stopped_with_the_lock_on_heartbeats_is_ended_and_no_other(sqlite_url: str) -> None:
    """No other driver can say that it is alive meanwhile. That must neither save the one, nor cost the others their lives."""
    store, watching = (open_sql_store(sqlite_url, patience=QUICK) for _ in range(2))
    short = Lease(seconds=2.0)
    other, run = (
        store.start_run(replace(spec("g", dag_run=name), lease=short, supervision=Supervision.DAG))
        for name in ("another", "held")
    )
    path = sqlite_url.removeprefix("sqlite:///")
    driver = start_driver(store, run=other)
    with holder_of(f"{path}.heartbeat", path) as (holder, hold), beating(driver, store):
        identity = processes.identity_of(holder.pid)
        assert identity is not None
        ref = store.register(store.claim(run.run_id, "g", expected=0, reason="test"), identity)
        store.heartbeat(ref, 1, ready=True, rss_bytes=0)
        hold()
        finder, watcher = FailureFinder(watching), GroupWatcher(watching, other, "g", short)
        said = set[str]()

        def is_ended() -> bool:
            found, seen = finder.look(), watcher.poll()
            said.update({found.unavailable or "", seen.unavailable or ""})
            assert not seen.is_dead, seen.cause
            return [one.run_uid for one in found.failed or ()] == [run.uid]

        eventually(is_ended, what="it is declared dead", timeout=60, every=0.1)
        assert not psutil.pid_exists(holder.pid)
        assert any(f"process {holder.pid}" in why and "(it is stopped)" in why for why in said), said
        beat = store.group(other.run_id, "g").beat
        eventually(lambda: store.group(other.run_id, "g").beat > beat, what="the other beats again")
    for opened in (store, watching):
        opened.dispose()


def test_who_is_no_driver_and_holds_the_lock_on_heartbeats_is_named(sqlite_url: str) -> None:
    store = open_sql_store(sqlite_url, patience=QUICK)
    path = f"{sqlite_url.removeprefix('sqlite:///')}.heartbeat"
    assert lock_holder(Path(path)) is None
    with holder_of(path) as (holder, hold):
        hold()
        assert lock_holder(Path(path)) == holder.pid
        with pytest.raises(HeartbeatsHeld, match=rf"process {holder.pid}, .*kill -CONT {holder.pid}"):
            store.check_heartbeats()
    store.dispose()


def test_a_new_file_of_heartbeats_has_the_permissions_of_its_log(tmp_path: Path, sqlite_url: str) -> None:
    """Addresses of drivers are in it, with what those show who ask them."""
    log = Path(sqlite_url.removeprefix("sqlite:///"))
    beats = Path(f"{log}.heartbeat")
    log.chmod(0o640)
    for path in (beats, Path(f"{beats}-wal"), Path(f"{beats}-shm")):
        path.unlink(missing_ok=True)
    store = open_sql_store(sqlite_url)
    driver = start_driver(store)
    with suppress(LogUnavailable):  # it has no tables; the next one makes it anew
        store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
    assert stat.S_IMODE(beats.stat().st_mode) == 0o640
    store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
    assert stat.S_IMODE(beats.stat().st_mode) == 0o640
    store.dispose()
    beats.unlink()
    make_anew(beats)
    assert stat.S_IMODE(beats.stat().st_mode) == 0o640

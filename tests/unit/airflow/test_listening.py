"""One LISTEN per log and process, however many wait for failures, in whichever event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa

from airflow_logio.store.sql.hearings import CHANNEL, THREAD, announce_failure
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from tests.support.airflow_connections import connection
from tests.support.logs import open_sql_store, start_driver
from tests.support.waiting import eventually

pytestmark = pytest.mark.postgres

NEVER = 600.0
"""Seconds between two polls: who wakes was rung."""
LISTENING = sa.text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = :query")


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlLogStore]:
    assert threads() == 0, "an earlier test has left its thread"
    store = open_sql_store(postgres_url, application="logio test")
    yield store
    eventually(lambda: not sessions(store), what="no connection is left")
    eventually(lambda: threads() == 0, what="no thread is left")
    store.dispose()


def sessions(store: SqlLogStore) -> list[int]:
    """Backends that listen."""
    with store.engine.connect() as connection:
        return list(connection.execute(LISTENING, {"query": f"LISTEN {CHANNEL}"}).scalars())


def threads() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


def listening(store: SqlLogStore) -> int:
    [pid] = eventually(lambda: sessions(store), what="a session listens")
    return pid


class Rings:
    """Counts the rings of one who hears."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1

    def more_than(self, count: int) -> Callable[[], bool]:
        return lambda: self.count > count


def test_one_connection_for_all_stores_of_a_process(store: SqlLogStore, postgres_url: str) -> None:
    """The one that came first leaves first."""
    stores = [open_sql_store(postgres_url, application="logio test") for _ in range(3)]
    rings = [Rings() for _ in stores]
    hearings = [own.listen(ring_) for own, ring_ in zip(stores, rings, strict=True)]
    for one in rings:
        eventually(one.more_than(0), what="the ring with which listening begins")
    assert threads() == 1
    listening(store)
    counts = [one.count for one in rings]
    announce_failure(store.engine)
    for one, count in zip(rings, counts, strict=True):
        eventually(one.more_than(count), what="it is rung")
    for hearing, own in zip(hearings, stores, strict=True):
        assert hearing is not None
        hearing.close()
        own.dispose()


def test_the_first_may_leave_and_the_last_ends_it(store: SqlLogStore, postgres_url: str) -> None:
    first_store = open_sql_store(postgres_url, application="logio test")
    first, second = Rings(), Rings()
    leaving, staying = first_store.listen(first), store.listen(second)
    assert leaving is not None and staying is not None
    pid = listening(store)
    leaving.close()
    leaving.close()
    first_store.dispose()
    count, heard = second.count, first.count
    announce_failure(store.engine)
    eventually(second.more_than(count), what="the other one hears")
    assert first.count == heard
    assert sessions(store) == [pid]
    staying.close()
    eventually(lambda: threads() == 0, what="the thread ends")
    again = store.listen(second)
    assert again is not None
    assert listening(store) != pid
    again.close()


def test_the_last_one_ends_it_though_a_forked_process_keeps_its_descriptors(store: SqlLogStore) -> None:
    hearing = store.listen(Rings())
    assert hearing is not None
    listening(store)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that the child does not have
        child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        hearing.close()
        eventually(lambda: threads() == 0, what="the thread ends")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_one_that_cannot_be_rung_harms_no_other(store: SqlLogStore) -> None:
    def broken() -> None:
        raise RuntimeError("Event loop is closed")

    rings = Rings()
    hearings = [store.listen(one) for one in (broken, rings)]
    listening(store)
    hearings.append(store.listen(broken))  # it is rung at once, in this thread
    for _ in range(2):
        count = rings.count
        listening(store)
        announce_failure(store.engine)
        eventually(rings.more_than(count), what="it is rung")
    for one in hearings:
        assert one is not None
        one.close()


def test_a_connection_that_is_lost_is_made_again(store: SqlLogStore) -> None:
    rings = Rings()
    hearing = store.listen(rings)
    assert hearing is not None
    pid = listening(store)
    eventually(rings.more_than(0), what="it listens")
    count = rings.count
    with store.engine.begin() as connection:
        connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
    following = eventually(lambda: [one for one in sessions(store) if one != pid], what="it listens again")
    eventually(rings.more_than(count), what="all that wait look: something may have been missed")
    count = rings.count
    announce_failure(store.engine)
    eventually(rings.more_than(count), what="it is rung again")
    assert sessions(store) == following
    hearing.close()


def test_a_log_that_is_away_is_waited_for() -> None:
    """Port 9 does not answer."""
    away = SqlLogStore.at("postgresql://postgres@127.0.0.1:9/nothing")
    rings = Rings()
    hearing = away.listen(rings)
    assert hearing is not None
    assert rings.count == 0
    hearing.close()
    eventually(lambda: threads() == 0, what="no thread is left")
    away.dispose()


def test_triggers_hear_of_a_failure_before_they_poll(
    store: SqlLogStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sa.make_url(postgres_url)
    monkeypatch.setenv(
        "AIRFLOW_CONN_LOGIO_DEFAULT",
        connection("logio", host=url.host, port=url.port, schema=url.database, login=url.username),
    )
    driver = start_driver(store)

    def trigger(name: str) -> LogioFailedGroupTrigger:
        return LogioFailedGroupTrigger(
            logio_conn_id="logio_default", supervisor=name, run_uid=driver.run.uid, poll_interval=NEVER
        )

    async def event(trigger: LogioFailedGroupTrigger) -> object:
        try:
            async for one in trigger.run():
                return one.payload
        finally:
            await trigger.cleanup()
        return None

    async def both() -> list[object]:
        events = [asyncio.create_task(event(trigger(name))) for name in ("a", "b")]
        looked = lambda: len(store.supervisors()) == 2 and bool(sessions(store))  # noqa: E731
        await asyncio.to_thread(eventually, looked, what="both look and listen")
        assert threads() == 1
        assert await asyncio.to_thread(store.declare_dead, driver.ref, "killed by a test")
        return list(await asyncio.wait_for(asyncio.gather(*events), 120))

    for payload in asyncio.run(both()):
        assert isinstance(payload, dict)
        assert [one["cause"] for one in payload["findings"]] == ["killed by a test"]

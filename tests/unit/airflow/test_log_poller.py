"""One poller per log and triggerer: how many connections and statements 10, 100 and 500 deferred groups cost."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.launch import processes
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import GroupRef, LaunchRecipe
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.triggers import base, group, log_poller
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from airflow_logio.triggers.group import LogioGroupTrigger
from tests.support.airflow_connections import connection
from tests.support.connections import connections_made, is_open
from tests.support.lock_holders import holder_of
from tests.support.logs import SOMEBODY, open_sql_store, spec
from tests.support.replicated import GROUP, REPLICAS, A, replicated_spec, to_slot
from tests.support.statements import counted_statements
from tests.support.waiting import eventually

log = logging.getLogger(__name__)

CONN_ID = "logio_default"
GROUPS = ("a", "b", "c", "d", "e")
SECONDS = 6.0


@pytest.fixture
def store(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlLogStore]:
    url = sa.make_url(postgres_url)
    known = connection("logio", host=url.host, port=url.port, schema=url.database, login=url.username)
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", known)
    store = open_sql_store(postgres_url, application="logio test")
    yield store
    store.dispose()


@dataclass
class Triggerer:
    """Triggers in the event loop of a thread, as in a triggerer."""

    triggers: list[Any]

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.tasks: list[asyncio.Task[Any]] = []
        self._thread = threading.Thread(target=self._run)
        self._began = threading.Event()
        self._stop = asyncio.Event()

    def __enter__(self) -> Triggerer:
        self._thread.start()
        assert self._began.wait(90)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        self.loop.run_until_complete(self._all())

    async def _all(self) -> None:
        self.tasks = [asyncio.create_task(self._one(trigger)) for trigger in self.triggers]
        self._began.set()
        await self._stop.wait()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    @staticmethod
    async def _one(trigger: Any) -> Any:
        try:
            return (await anext(aiter(trigger.run()))).payload
        finally:
            await trigger.cleanup()

    def fired(self) -> list[Any]:
        """What triggers have said."""
        return [task.result() for task in self.tasks if task.done()]


def started(store: SqlLogStore, runs: int) -> list[tuple[Run, list[GroupRef]]]:
    """Runs of five groups, each of which runs somewhere else and sends no heartbeat, and of a replicated one that sleeps."""
    made = []
    for number in range(runs):
        asleep = replicated_spec(initial=0, dag_run=f"run-{number}")
        run = store.start_run(replace(asleep, groups=(*GROUPS, *REPLICAS), lease=Lease(600.0)))
        claims = [store.claim(run.run_id, group, expected=0, reason="test") for group in GROUPS]
        made.append((run, [store.register(claim, SOMEBODY) for claim in claims]))
    return made


def triggers_of(runs: list[tuple[Run, list[GroupRef]]]) -> list[Any]:
    """As a DAG run has them: one per group, and that of the supervising task."""
    found: list[Any] = []
    for run, _ in runs:
        found += [LogioGroupTrigger(logio_conn_id=CONN_ID, run_uid=run.uid, group=name) for name in GROUPS]
        found.append(LogioFailedGroupTrigger(logio_conn_id=CONN_ID, supervisor=f"of {run.uid}", run_uid=run.uid))
    return found


def supervised(store: SqlLogStore, runs: int) -> Callable[[], bool]:
    return lambda: len(store.supervisors()) == runs


@pytest.mark.postgres
@pytest.mark.parametrize("groups", [10, 100, 500])
def test_what_deferred_groups_cost_a_log(groups: int, store: SqlLogStore) -> None:
    """At most five connections and ten statements per second; the event loop is free, and every death is seen."""
    runs = started(store, groups // len(GROUPS))
    with connections_made() as made, Triggerer(triggers_of(runs)) as triggerer:
        eventually(supervised(store, len(runs)), what="all look", timeout=60)
        with counted_statements() as statements:
            began, late = time.monotonic(), 0.0
            while (seconds := time.monotonic() - began) < SECONDS:
                asked = time.monotonic()
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), triggerer.loop).result(90)
                late = max(late, time.monotonic() - asked)
                time.sleep(0.1)
        opened = sum(map(is_open, made))
        rate = len(statements) / seconds
        log.info("%d groups: %.1f statements/s, %d connections, event loop late by %.3f s", groups, rate, opened, late)
        assert rate <= 10, statements[:40]
        assert opened <= 5
        assert triggerer.fired() == []
        run, refs = runs[-1]
        assert store.declare_dead(refs[0], "killed by a test")
        [event] = eventually(triggerer.fired, what="the supervising task is woken")
        assert [one["cause"] for one in event["findings"]] == ["killed by a test"]
        assert store.park(refs[1], "broken")
        woken = lambda: [one for one in triggerer.fired() if one.get("state") == "parked"]  # noqa: E731
        [parked] = eventually(woken, what="the task of the parked group is woken")
        assert (parked["group"], parked["cause"]) == (refs[1].group, "broken")
        other, (sender, *_) = runs[0]
        store.note_launch(other.run_id, A, LaunchRecipe())
        session = store.session(sender)
        session.open()
        session.commit([to_slot(1, 0)])
        due = lambda: [one for event in triggerer.fired() for one in event.get("findings", ()) if "request_id" in one]  # noqa: E731
        [scaling] = eventually(due, what="the group that slept is woken")
        assert (scaling["run_uid"], scaling["group"], scaling["replicas"]) == (other.uid, GROUP, 1)
    eventually(lambda: not any(map(is_open, made)), what="no connection is left")
    assert store.group(run.run_id, "c").state is GroupState.RUNNING


@pytest.mark.postgres
@pytest.mark.postgres
def test_what_runs_that_wait_for_a_place_cost_a_log(store: SqlLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As any other: at most ten statements per second for a hundred. As many are woken as there are places."""
    monkeypatch.setattr(base, "SETTLING_SECONDS", 0.0)
    monkeypatch.setattr(group, "LINE_SECONDS", 600.0)
    monkeypatch.setattr(group, "LAST_IN_LINE_SECONDS", 600.0)
    runs = [store.start_run(replace(spec("a", dag_run=f"day {number}"), drivers_at_once=2)) for number in range(102)]
    claims = [store.claim(run.run_id, "a", expected=0, reason="test") for run in runs[:2]]
    refs = [store.register(claim, SOMEBODY) for claim in claims]
    waiting = [
        LogioGroupTrigger(logio_conn_id=CONN_ID, run_uid=run.uid, group="a", waits_for_place=True) for run in runs[2:]
    ]
    with Triggerer(waiting) as triggerer, counted_statements() as statements:
        eventually(lambda: any("drivers" in one or "count(" in one for one in statements), what="they ask", timeout=60)
        begun, began = len(statements), time.monotonic()
        time.sleep(SECONDS)
        rate = (len(statements) - begun) / (time.monotonic() - began)
        log.info("100 runs that wait: %.1f statements/s", rate)
        assert rate <= 10, statements[-40:]
        assert triggerer.fired() == []
        for ref in refs:
            assert store.park(ref, "it is red")
        eventually(lambda: len(triggerer.fired()) >= 2, what="two are woken", timeout=60)
        assert [task.done() for task in triggerer.tasks] == [True, True, *[False] * 98], "the first two in line"


def test_a_slow_one_does_not_hold_up_the_others(store: SqlLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One waits for a lock or for the end of a driver; it is not shown another look meanwhile."""
    [(run, refs)] = started(store, 1)
    may_end, slow = threading.Event(), list[str]()
    declare = SqlLogStore.declare_dead

    def stuck(self: SqlLogStore, ref: GroupRef, cause: str, **named: Any) -> bool:
        slow.append(ref.group)
        assert may_end.wait(90)
        return declare(self, ref, cause, **named)

    monkeypatch.setattr(SqlLogStore, "declare_dead", stuck)
    monkeypatch.setattr("airflow_logio.supervision.look.processes.is_gone", lambda _: bool(not slow))
    triggers = [
        LogioGroupTrigger(logio_conn_id=CONN_ID, run_uid=run.uid, group=name, poll_interval=0.05) for name in GROUPS
    ]
    with Triggerer(triggers[:1]) as first, Triggerer(triggers[1:]) as others:
        eventually(lambda: slow, what="one is stuck")
        assert store.park(refs[3], "broken")
        [event] = eventually(others.fired, what="another one is woken")
        assert event["group"] == "d" and slow == ["a"] and first.fired() == []
        may_end.set()


@pytest.mark.postgres
def test_a_connection_that_names_another_database_is_read_anew(
    store: SqlLogStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some triggers keep running; one that comes later is for a run of the other log."""
    monkeypatch.setattr(log_poller, "REOPEN_SECONDS", 0.0)
    [(run, _)] = started(store, 1)
    here = LogioGroupTrigger(logio_conn_id=CONN_ID, run_uid=run.uid, group="a", poll_interval=0.05)
    with Triggerer([here]):
        eventually(lambda: here.incarnations, what="it watches")
        known = connection("logio", extra={"path": sqlite_url.removeprefix("sqlite:///")})
        monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", known)
        other = open_sql_store(sqlite_url)
        [(later, _)] = started(other, 1)
        there = LogioGroupTrigger(logio_conn_id=CONN_ID, run_uid=later.uid, group="a", poll_interval=0.05)
        with Triggerer([there]):
            eventually(lambda: there.incarnations == {"a": 1}, what="it watches, too")
        other.dispose()


def test_a_driver_stopped_with_the_lock_on_heartbeats_is_ended_by_a_trigger(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervisors note their looks in the same file. That these are refused must not cost the looks."""
    path = sqlite_url.removeprefix("sqlite:///")
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", extra={"path": path}))
    store = open_sql_store(sqlite_url)
    run = store.start_run(replace(spec("g"), supervision=Supervision.TASK))
    assert run.spec.lease.seconds > 2 * log_poller.NOTE_SECONDS - 1, "notes are due again and again within a lease"
    trigger = LogioFailedGroupTrigger(logio_conn_id=CONN_ID, supervisor="of a test", run_uid=run.uid)
    with holder_of(f"{path}.heartbeat", path) as (holder, hold):
        identity = processes.identity_of(holder.pid)
        assert identity is not None
        ref = store.register(store.claim(run.run_id, "g", expected=0, reason="test"), identity)
        store.heartbeat(ref, 1, ready=True, rss_bytes=0)
        hold()
        with Triggerer([trigger]) as triggerer:
            [event] = eventually(triggerer.fired, what="it is found", timeout=90, every=0.1)
        [found] = event["findings"]
        assert found["group"] == "g" and "gave no heartbeat" in found["cause"]
    assert store.group(run.run_id, "g").state is GroupState.DEAD
    store.dispose()


def test_what_opening_the_log_raises_is_said_by_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next trigger tries again."""
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("http", host="nowhere"))
    triggers = [LogioGroupTrigger(logio_conn_id=CONN_ID, run_uid="x", group=name) for name in GROUPS]
    with Triggerer(triggers) as triggerer:
        eventually(lambda: len(triggerer.fired()) == len(GROUPS), what="all have said so")
        assert {one["state"] for one in triggerer.fired()} == {"error"}
        assert all("ConfigurationError" in one["cause"] for one in triggerer.fired())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_poller_that_breaks_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its triggers fail, and their tasks try again."""

    def broken(self: Any, due: Any) -> None:
        raise MemoryError("broken")

    monkeypatch.setattr(log_poller._LogPoller, "_poll", broken)
    trigger = LogioGroupTrigger(logio_conn_id=CONN_ID, run_uid="x", group="a")
    with Triggerer([trigger]) as triggerer:
        eventually(triggerer.tasks[0].done, what="it fails")
        assert isinstance(triggerer.tasks[0].exception(), MemoryError)
    # The poller raises what broke it when its triggers know already: pytest must hear of it here, not in the next test.
    for thread in threading.enumerate():
        if thread.name == "logio poller":
            thread.join(90)
            assert not thread.is_alive()

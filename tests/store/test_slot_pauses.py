"""A step of a replica against a move of its slots, each standing still before and after every SQL statement of the other.

The mutual exclusion of Section 7.2: exactly one of them comes first. If the step does, its rows are in the log before the
slot moves, and the new owner is not given the event again; if the move does, the step is refused as a whole.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pytest

from airflow_logio import databases
from airflow_logio.errors import EpochVoid, Fenced, LogUnavailable, ProtocolViolation, ReplicaBusy
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql import engines, scaling_log
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.test_pauses import OpenNamed
from tests.support.faults import (
    STANDS_SECONDS,
    Injected,
    Pause,
    after_statement,
    before_statement,
    inject,
    place,
    places,
)
from tests.support.logs import Driver, contents, driver_name, fetched, held
from tests.support.replicated import (
    GROUP,
    A,
    B,
    C,
    feeder,
    inbox,
    launch,
    owners,
    replicated_run,
    rescale_at_last,
    slots,
    taken,
    to_slot,
)
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as any transaction of a living driver takes, in a test."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(scaling_log, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.02)


@pytest.fixture
def open_named(log_url: str) -> Iterator[OpenNamed]:
    with ExitStack() as stack:

        def opened(application: str = "logio test") -> SqlLogStore:
            store = SqlLogStore.at(log_url, application=application, patience=QUICK)
            stack.callback(store.dispose)
            return store

        yield opened


def step_of(slot: int) -> fx.Effects:
    """Step 4 of the slot's operator: the event is in an Input Set, the state has changed."""
    return [
        taken(1, slot),
        fx.StoreState(f"work[{slot}]", b"after"),
        fx.CountEvents(inbox(slot), "in", 1, 1, 1),
    ]


class Scene:
    """A run whose slots have an event each, with replicas 1 and 2; the process that moves has a store of its own."""

    def __init__(self, open_named: OpenNamed, *, slots: int) -> None:
        self.scaler = open_named()
        self.run: Run = replicated_run(self.scaler, slots=slots, initial=1)
        feeder(self.scaler, self.run).session.commit([to_slot(1, slot) for slot in range(slots)])
        self.old_store = open_named(driver_name(self.scaler, self.run.run_id, A))
        self.old: Driver = launch(self.old_store, self.run, A)
        self.new: Driver = launch(open_named(), self.run, B)

    def rescale(self, slot: int) -> int:
        return self.scaler.rescale(self.run.run_id, GROUP, {slot: B})

    def rescale_at_last(self, slot: int) -> int:
        return rescale_at_last(self.scaler, self.run, {slot: B})

    def check_exactly_once(self, slot: int, where: str, *, step_came_first: bool) -> None:
        """As the new owner sees it, which then takes what is there for it. The old one continues with what it has left."""
        assert slots(self.scaler, self.run)[slot].owner == B, where
        self.new.session.open(raise_epoch=True)
        assert slot in self.new.session.slots(), where
        if step_came_first:
            assert fetched(self.new.session, receiver=inbox(slot)) == [], where
        else:
            assert fetched(self.new.session, receiver=inbox(slot)) == [1], where
            self.new.session.commit(step_of(slot))
        assert held(self.new.session, f"work[{slot}]") == [(1, "I")], where
        assert self.new.session.recover([f"work[{slot}]"]).states == {f"work[{slot}]": b"after"}, where
        with pytest.raises(EpochVoid):
            self.old.session.commit([])
        self.old.session.open(raise_epoch=True)
        assert slot not in self.old.session.slots(), where


def test_a_step_stands_still_anywhere_while_its_slot_moves(open_named: OpenNamed) -> None:
    scene = Scene(open_named, slots=40)
    slot, reached, busy = 0, True, 0
    while reached:
        pause = Pause()
        where, standing = place(scene.old_store, slot, pause)
        with ThreadPoolExecutor(1) as pool, standing:
            step = pool.submit(scene.old.session.commit, step_of(slot))
            reached = pause.is_reached_before(step)
            try:
                moved = reached and _moves_while_it_stands(scene, slot, where)
            finally:
                pause.release()
            busy += reached and not moved
            step_came_first = _came_first(step)
            assert step_came_first == (not moved or where == "after COMMIT"), where
        if not moved:
            assert scene.rescale(slot) == 1, where
        scene.check_exactly_once(slot, where, step_came_first=step_came_first)
        slot += 1
    assert slot > 10 and busy > 5


def _moves_while_it_stands(scene: Scene, slot: int, where: str) -> bool:
    """False if the step holds the replica's fence: then nothing has changed, and it says who is in the way."""
    before = contents(scene.scaler)
    try:
        assert scene.rescale(slot) == 1, where
    except ReplicaBusy as error:
        assert "replica 'work.1' has been inside a transaction" in str(error)
    except LogUnavailable as error:  # SQLite: a stopped writer shuts every other one out
        assert scene.scaler.ends_old_driver_first and "locked" in str(error), where
    else:
        return True
    assert contents(scene.scaler) == before, where
    return False


def _came_first(step: Future[Any]) -> bool:
    try:
        step.result(90)
    except EpochVoid:
        return False
    return True


def test_a_move_stands_still_anywhere_while_the_replica_takes_a_step(open_named: OpenNamed) -> None:
    scene = Scene(open_named, slots=60)
    slot, reached = 0, True
    first: list[bool] = []
    while reached:
        pause = Pause()
        where, standing = place(scene.scaler, slot, pause)
        with ThreadPoolExecutor(2) as pool, standing:
            move = pool.submit(scene.rescale_at_last, slot)
            reached = pause.is_reached_before(move)
            step = pool.submit(scene.old.session.commit, step_of(slot))
            if reached:
                wait([step], STANDS_SECONDS)
            pause.release()
            assert move.result(90) == 1, where
            first.append(_came_first(step))
        scene.check_exactly_once(slot, where, step_came_first=first[-1])
        slot += 1
    assert slot > 15 and True in first and False in first


ALSO: dict[str, Callable[[Scene], Any]] = {
    "register": lambda scene: launch(scene.old_store, scene.run, C),
    "declare_dead": lambda scene: scene.old_store.declare_dead(scene.old.ref, "test"),
    "finish": lambda scene: scene.old.session.commit([fx.FinishGroup()]),
    "retire": lambda scene: rescale_at_last(scene.old_store, scene.run, {0: B, 1: B}, retire=[A]),
    "heartbeat": lambda scene: scene.old_store.heartbeat(scene.old.ref, 1, ready=True, rss_bytes=1),
    "halt": lambda scene: scene.old_store.halted(scene.old.ref),
}
"""What else may come while slots move."""


@pytest.mark.parametrize(
    "place_of_move", ["before COMMIT", "before statement 3", "before statement 6", "after statement 8"]
)
@pytest.mark.parametrize("name", ALSO)
def test_a_move_stands_still_while_something_else_happens(open_named: OpenNamed, name: str, place_of_move: str) -> None:
    scene = Scene(open_named, slots=2)
    pause = Pause()
    standing = dict(itertools.islice(places(scene.scaler, pause), 20))[place_of_move]
    with ThreadPoolExecutor(2) as pool, standing:
        move = pool.submit(scene.rescale_at_last, 0)
        assert pause.is_reached_before(move)
        also = pool.submit(QUICK.call, "test", lambda: ALSO[name](scene))
        wait([also], STANDS_SECONDS)
        pause.release()
        moved, other = move.exception(90), also.exception(90)
    found = slots(scene.scaler, scene.run)
    if name == "finish":
        assert (moved is None) != (other is None), f"{moved!r} {other!r}"
        assert isinstance(moved, ProtocolViolation) or isinstance(other, EpochVoid), f"{moved!r} {other!r}"
        assert [slot.done for slot in found] == [moved is not None] * 2
        return
    assert moved is None and other is None, f"{moved!r} {other!r}"
    assert [slot.owner for slot in found] == [B, B if name == "retire" else A]
    assert found[0].moves == 1
    wanted = {"declare_dead": GroupState.DEAD, "retire": GroupState.RETIRED, "halt": GroupState.HALTED}
    assert scene.scaler.group(scene.run.run_id, A).state is wanted.get(name, GroupState.RUNNING)
    with pytest.raises(EpochVoid):
        scene.old.session.commit(step_of(0))


# --- the mover dies ---------------------------------------------------------------------------------------------------


def test_a_move_that_fails_anywhere_changes_nothing(open_named: OpenNamed) -> None:
    scene = Scene(open_named, slots=2)
    before = contents(scene.scaler)
    number, reached = 1, True
    while reached:
        for at in (before_statement, after_statement):
            with at(scene.scaler, number, inject):
                try:
                    assert scene.scaler.rescale(scene.run.run_id, GROUP, {0: B, 1: B}, retire=[A]) == 2
                    reached = False
                    break
                except Injected:
                    assert contents(scene.scaler) == before, number
            number += at is after_statement
    assert number > 8
    assert owners(scene.scaler, scene.run) == [B] * 2
    assert scene.scaler.group(scene.run.run_id, A).state is GroupState.RETIRED
    with pytest.raises(EpochVoid):
        scene.old.session.commit(step_of(0))
    with pytest.raises(Fenced):
        scene.old.session.open(raise_epoch=True)


# --- a replica that is stopped, as a process --------------------------------------------------------------------------

STOPS_INSIDE_ITS_STEP = """
import os, signal, sys
import sqlalchemy as sa
from airflow_logio.errors import EpochVoid
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.sql.backends import driver_application
from airflow_logio.store.sql.revision import check
from tests.store.test_slot_pauses import step_of

url, run_id, group = sys.argv[1], int(sys.argv[2]), sys.argv[3]
store = open_store(url, application=driver_application(check(url), run_id, group, 1))
session = store.session(GroupRef(run_id, group, 1))
session.open()
seen = []

@sa.event.listens_for(store.engine, "before_cursor_execute")
def stop(connection, cursor, statement, *_):
    seen.append(statement)
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGSTOP)

session.commit(step_of(0))
"""


@contextmanager
def stopped_replica(url: str, run: Run, group: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", STOPS_INSIDE_ITS_STEP, url, str(run.run_id), group]
    process = subprocess.Popen(command)
    try:
        eventually(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, what="the replica is stopped")
        yield process
    finally:
        process.kill()
        process.wait(90)


@pytest.mark.postgres
def test_a_move_that_takes_too_long_is_in_the_way_of_the_next(postgres_url: str) -> None:
    store = SqlLogStore.at(postgres_url, patience=QUICK)
    run = replicated_run(store)
    for name in (A, B, C):
        launch(store, run, name)
    before = contents(store)
    with store.engine.begin() as stands_still:
        scaling_log._lock_rescaling(stands_still, run.run_id, GROUP)
        with pytest.raises(ReplicaBusy, match="another process has been moving slots of group 'work'"):
            store.rescale(run.run_id, GROUP, {0: C})
        assert contents(store) == before
    assert store.rescale(run.run_id, GROUP, {0: C}) == 1
    store.dispose()


@pytest.mark.postgres
def test_slots_of_a_stopped_replica_move_when_it_has_been_recovered(postgres_url: str) -> None:
    store = SqlLogStore.at(postgres_url, patience=QUICK)
    run = replicated_run(store)
    feeder(store, run).session.commit([to_slot(1, 0)])
    old, new, third = launch(store, run, A), launch(store, run, B), launch(store, run, C)
    with stopped_replica(postgres_url, run, A):
        before = contents(store)
        with pytest.raises(ReplicaBusy, match=r"replica 'work\.1' .* try again when it has ended"):
            store.rescale(run.run_id, GROUP, {0: B, 2: C})
        assert contents(store) == before
        new.session.commit([])  # it was locked for a moment, and blocks no other
        assert store.rescale(run.run_id, GROUP, {2: C}) == 1, "the slots of the others move"
        assert store.declare_dead(old.ref, "no heartbeat")
        assert store.rescale(run.run_id, GROUP, {0: B, 1: B}, retire=[A]) == 2
    for session in (new.session, third.session):
        session.open(raise_epoch=True)
    assert fetched(new.session, receiver=inbox(0)) == [1]
    new.session.commit(step_of(0))
    store.dispose()


# --- waking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [A, B])
def test_replicas_that_have_nothing_to_do_are_woken(open_named: OpenNamed, name: str) -> None:
    scene = Scene(open_named, slots=2)
    session = {A: scene.old, B: scene.new}[name].session
    with ThreadPoolExecutor(1) as pool:
        session.wait(0.01)  # says that it waits, and looks once more
        session.wait(0.01)
        waiting = pool.submit(session.wait, 30.0)
        assert scene.rescale(0) == 1
        waiting.result(60)
    with pytest.raises(EpochVoid):
        session.check()
    session.close()

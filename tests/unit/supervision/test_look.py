"""The one look: what it remembers from look to look, and what it does not let one thing cost the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_logio.errors import LogUnavailable
from airflow_logio.launch import processes
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.look import Look, Watcher
from airflow_logio.testing.memory_log.store import MemoryLogStore
from tests.support.logs import spec, start_driver
from tests.support.replicated import GROUP, REPLICAS, A, B, launch, replicated_spec

LEASE = Lease(10, 120)


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def store() -> MemoryLogStore:
    return MemoryLogStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def away(*_: object, **__: object) -> None:
    raise LogUnavailable("away")


def watch(watcher: Watcher, clock: Clock, seconds: float) -> Look:
    """So many seconds of looks, one per second; the last one."""
    for _ in range(round(seconds)):
        clock.time += 1
        look = watcher.look()
    return look


def run_of(store: MemoryLogStore, *groups: str) -> Run:
    run = store.start_run(replace(spec(*groups), lease=LEASE))
    for group in groups:
        start_driver(store, group=group, run=run)
    return run


def test_a_heartbeat_that_stands_still_for_a_lease_is_a_death(store: MemoryLogStore, clock: Clock) -> None:
    watcher = Watcher(store, run_of(store, "g", "h"), clock=clock)
    assert not watch(watcher, clock, 9).is_dead
    look = watch(watcher, clock, 4)
    assert {name: one.cause for name, one in look.observations.items()} == dict.fromkeys(
        ("g", "h"), "the driver of incarnation 1 gave no heartbeat for 11 s"
    )


def test_a_look_that_fails_begins_the_lease_anew(
    store: MemoryLogStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher(store, run_of(store, "g", "h"), clock=clock)
    watch(watcher, clock, 9)
    with monkeypatch.context() as outage:
        outage.setattr(store, "groups", away)
        look = watch(watcher, clock, 3_600)
    assert (look.statuses, look.unavailable) == ([], "away")
    assert {one.unavailable for one in look.observations.values()} == {"away"}
    assert not watch(watcher, clock, 10).is_dead
    assert watch(watcher, clock, 3).is_dead


def test_an_observer_that_was_stopped_accuses_no_driver(store: MemoryLogStore, clock: Clock) -> None:
    watcher = Watcher(store, run_of(store, "g"), clock=clock)
    watch(watcher, clock, 2)
    clock.time += 3_600
    assert not watcher.look().is_dead


def test_what_cannot_be_declared_dead_costs_the_others_nothing(
    store: MemoryLogStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher(store, run_of(store, "g", "h"), clock=clock)
    declare = store.declare_dead

    def only_others(ref: GroupRef, cause: str, **more: Any) -> bool:
        if ref.group == "g":
            away()
        return declare(ref, cause, **more)

    monkeypatch.setattr(store, "declare_dead", only_others)
    look = watch(watcher, clock, 12)
    assert look.observations["h"].is_dead and look.observations["g"].status is None
    assert look.unavailable == "away"


def test_of_many_dead_groups_only_one_waits_for_the_lock_of_the_whole_log(
    store: MemoryLogStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite each declaration would wait 20 seconds for the one lock, after the processes that may hold it have ended."""
    run = run_of(store, "g", "h", "i")
    watcher = Watcher(store, run, clock=clock)
    happened = list[str]()
    monkeypatch.setattr(store, "ends_old_driver_first", True)
    monkeypatch.setattr(processes, "is_gone", lambda identity: True)
    monkeypatch.setattr(processes, "end", lambda identity: happened.append("end"))

    def locked(ref: GroupRef, cause: str, **_: object) -> None:
        happened.append(ref.group)
        raise LogUnavailable("database is locked")

    with monkeypatch.context() as lock:
        lock.setattr(store, "declare_dead", locked)
        look = watcher.look()
    assert happened == ["end", "end", "end", "g"]
    assert {name: one.unavailable for name, one in look.observations.items()} == dict.fromkeys(
        ("g", "h", "i"), "database is locked"
    )
    assert all(one.is_dead for one in watcher.look().observations.values())


def test_scaling_that_cannot_be_looked_after_saves_no_dead_driver(
    store: MemoryLogStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.start_run(replace(replicated_spec(), lease=LEASE))
    for name in ("feed", A, B, "end"):
        launch(store, run, name)
    monkeypatch.setattr("airflow_logio.supervision.look.look_after", away)
    look = watch(Watcher(store, run, supervises=True, clock=clock), clock, 12)
    assert {name for name, one in look.observations.items() if one.is_dead} == {"feed", A, B, "end"}
    assert (look.requests, look.unavailable) == ((), "away")


def test_a_supervisor_sees_requests_and_others_do_not(store: MemoryLogStore) -> None:
    run = store.start_run(replicated_spec())
    request = store.request_scaling(run.run_id, GROUP, 3, by="a person", reason="")
    assert Watcher(store, run).look().requests == ()
    assert [one.request_id for one in Watcher(store, run, supervises=True).look().requests] == [request.request_id]


def test_a_group_of_which_one_replica_cannot_be_seen_is_not_known(
    store: MemoryLogStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.start_run(replace(replicated_spec(), lease=LEASE))
    for name in (A, B):
        launch(store, run, name)
    watcher = Watcher.of_group(store, run, GROUP, clock=clock)
    assert watcher.members == REPLICAS
    assert watch(watcher, clock, 5).state is GroupState.RUNNING
    monkeypatch.setattr(store, "declare_dead", away)
    look = watch(watcher, clock, 7)
    assert (look.state, look.statuses, look.is_dead, look.unavailable) == (None, [], False, "away")

"""Requests that cannot be met as they are, and groups that sleep: on a log in memory, without drivers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.runtime.launch import LaunchContext
from airflow_logio.runtime.scaling import Stage, carry_out, look_after, plan
from airflow_logio.runtime.stop_run import StopMode, StopRun
from airflow_logio.store.memory.store import MemoryLogStore
from airflow_logio.store.records import GroupStatus, Run
from tests.support.replicated import GROUP, REPLICAS, A, B, C, feeder, inbox, launch, replicated_spec, to_slot

NEW, RUNNING, DEAD, PARKED, RETIRED, FINISHED = (
    GroupState.NEW,
    GroupState.RUNNING,
    GroupState.DEAD,
    GroupState.PARKED,
    GroupState.RETIRED,
    GroupState.FINISHED,
)


@dataclass(frozen=True)
class Context:
    """What `carry_out` needs where nothing is launched."""

    store: MemoryLogStore
    run: Run

    def as_context(self) -> LaunchContext:
        return cast(LaunchContext, self)


@pytest.fixture
def store() -> MemoryLogStore:
    return MemoryLogStore()


def begun(store: MemoryLogStore, *, initial: int, least: int) -> Run:
    return store.start_run(replicated_spec(initial=initial, least=least))


def statuses(*states: GroupState) -> list[GroupStatus]:
    fields: dict[str, Any] = {"desired": RUNNING, "incarnation": 1, "beat": 1, "beat_at": 1.0, "recoveries": 0}
    return [
        GroupStatus(group=name, state=state, ready=True, error=None, since=0.0, **fields)
        for name, state in zip(REPLICAS, states, strict=True)
    ]


@pytest.mark.parametrize(
    ("states", "replicas", "expected"),
    [
        ((RUNNING, RETIRED, RETIRED), 2, ((A, B), (B,), ())),
        ((RUNNING, RUNNING, RUNNING), 1, ((A,), (), (B, C))),
        ((DEAD, RUNNING, RETIRED), 1, ((B,), (), (A,))),
        ((PARKED, RUNNING, RETIRED), 2, ((B, C), (C,), (A,))),
        ((FINISHED, RUNNING, RETIRED), 0, ((), (), (B,))),
        ((NEW, NEW, RETIRED), 1, ((A,), (A,), (B,))),
    ],
)
def test_which_replicas_are_to_work(
    states: tuple[GroupState, ...], replicas: int, expected: tuple[tuple[str, ...], ...]
) -> None:
    found = plan(statuses(*states), replicas)
    assert (found.wanted, found.to_launch, found.to_retire) == expected


def test_replicas_that_a_person_must_see_to_are_not_silently_done_without(store: MemoryLogStore) -> None:
    run = begun(store, initial=3, least=2)
    for name in REPLICAS:
        driver = launch(store, run, name)
        store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
        if name != A:
            driver.session.park("a fault")
    request = store.request_scaling(run.run_id, GROUP, 2, by="test")
    step = carry_out(Context(store, run).as_context(), request)
    assert step.stage is Stage.REFUSED
    assert step.sentence == (
        "group work cannot have 2 replicas, only 1: work.2 is parked, work.3 is parked. Mend the cause and `logio retry`, "
        "or ask for fewer"
    )
    assert store.scalings(run.run_id)[0].state is ScalingState.REFUSED


def test_a_group_that_sleeps_is_woken_with_as_many_replicas_as_its_author_wants_at_least(store: MemoryLogStore) -> None:
    run = begun(store, initial=2, least=2)
    store.rescale(run.run_id, GROUP, dict.fromkeys(range(4)), retire=[A, B])
    assert look_after(store, run, store.groups(run.run_id)) == []
    feeder(store, run).session.commit([to_slot(1, 0)])
    (request,) = look_after(store, run, store.groups(run.run_id))
    assert (request.replicas, request.by) == (2, "dispatcher")
    assert look_after(store, run, store.groups(run.run_id)) == [request]


def test_a_drain_is_not_over_while_the_last_group_sleeps_with_work_left(store: MemoryLogStore) -> None:
    spec = replicated_spec(slots=2, initial=1)
    ends_with_replicas = replace(
        spec,
        groups=("feed", *REPLICAS),
        operators={name: shape for name, shape in spec.operators.items() if name != "end"},
    )
    run = store.start_run(ends_with_replicas)
    launch(store, run, A)
    store.rescale(run.run_id, GROUP, {0: None, 1: None}, retire=[A])
    source = feeder(store, run)
    drain = StopRun(store, run, StopMode.DRAIN)
    drain.request()
    end = fx.LogEvent(Event(Port("feed", "slot0"), 1, Kind.END, body=b""), (fx.Delivery(inbox(0)),))
    source.session.commit([end, fx.FinishGroup()])

    states = drain.look()
    assert states == {"feed": FINISHED, A: RETIRED, B: RETIRED, C: RETIRED}
    assert not drain.is_over(states) and not drain.has_succeeded(states)

    (request,) = look_after(store, run, store.groups(run.run_id))
    assert request.replicas == 1, "whoever supervises the run wakes the group"
    replica = launch(store, run, A)
    store.rescale(run.run_id, GROUP, {0: A, 1: A})
    replica.session.open(raise_epoch=True)
    replica.session.commit([fx.FinishGroup()])
    states = drain.look()
    assert states is not None
    assert drain.is_over(states) and drain.has_succeeded(states)

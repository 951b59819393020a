"""Requests that cannot be met as they are, and groups that sleep: on a log in memory, without drivers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.scaling import Stage, launches_by_task, look_after, next_step, plan
from airflow_logio.supervision.stop_run import StopMode, StopRun
from airflow_logio.testing.memory_log.store import MemoryLogStore
from tests.support.replicated import GROUP, REPLICAS, A, B, C, feeder, inbox, launch, replicated_spec, to_slot

NEW, RUNNING, DEAD, PARKED, RETIRED, FINISHED = (
    GroupState.NEW,
    GroupState.RUNNING,
    GroupState.DEAD,
    GroupState.PARKED,
    GroupState.RETIRED,
    GroupState.FINISHED,
)


def nobody(group: str, **_: object) -> None:
    raise AssertionError(f"{group} was launched")


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
    step = next_step(store, run, request, nobody)
    assert step.stage is Stage.REFUSED
    assert step.sentence == (
        "group work cannot have 2 replicas, only 1: work.2 is parked, work.3 is parked. Fix the cause and `logio retry`, "
        "or ask for fewer"
    )
    assert store.scalings(run.run_id)[0].state is ScalingState.REFUSED


def test_a_group_that_sleeps_is_woken_with_as_many_replicas_as_its_author_wants_at_least(store: MemoryLogStore) -> None:
    run = begun(store, initial=2, least=2)
    store.rescale(run.run_id, GROUP, dict.fromkeys(range(4)), retire=[A, B])
    assert look_after(store, *store.sight([run.uid])) == []
    feeder(store, run).session.commit([to_slot(1, 0)])
    (request,) = look_after(store, *store.sight([run.uid]))
    assert (request.replicas, request.by) == (2, "dispatcher")
    assert look_after(store, *store.sight([run.uid])) == [request]


def test_a_replica_that_was_launched_for_a_superseded_request_gets_the_slots_that_nobody_has(
    store: MemoryLogStore,
) -> None:
    run = begun(store, initial=2, least=0)
    halting = launch(store, run, B)
    store.rescale(run.run_id, GROUP, {0: None, 1: B, 2: None, 3: None}, retire=[A])
    store.request(run.run_id, B, GroupState.HALTED)
    store.halted(halting.ref)
    feeder(store, run).session.commit([to_slot(1, 0)])
    store.request_scaling(run.run_id, GROUP, 1, by="dispatcher")
    woken = launch(store, run, A)
    store.heartbeat(woken.ref, 1, ready=True, rss_bytes=0)
    too_many = store.request_scaling(run.run_id, GROUP, 3, by="a person")
    assert next_step(store, run, too_many, nobody).stage is Stage.REFUSED
    assert look_after(store, *store.sight([run.uid])) == [], "a person has halted a replica"

    store.request(run.run_id, B, RUNNING)
    resumed = launch(store, run, B)
    store.heartbeat(resumed.ref, 1, ready=True, rss_bytes=0)
    store.rescale(run.run_id, GROUP, {1: None}, retire=[B])
    (request,) = look_after(store, *store.sight([run.uid]))
    assert (request.replicas, request.by) == (1, "dispatcher")
    assert next_step(store, run, request, nobody).stage is Stage.DONE
    assert {slot.owner for slot in store.slots(run.run_id, GROUP)} == {A}
    assert look_after(store, *store.sight([run.uid])) == []


def test_a_group_that_lacks_replicas_is_asked_for_once(store: MemoryLogStore) -> None:
    """The others are parked: a person must see to them, and each look would only be refused again."""
    run = begun(store, initial=3, least=2)
    drivers = {name: launch(store, run, name) for name in REPLICAS}
    for name, driver in drivers.items():
        store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
        if name != A:
            driver.session.park("a fault")
    store.rescale(run.run_id, GROUP, dict.fromkeys(range(4)))
    feeder(store, run).session.commit([to_slot(1, 0)])
    asked = store.request_scaling(run.run_id, GROUP, 2, by="test")
    assert next_step(store, run, asked, nobody).stage is Stage.REFUSED
    assert look_after(store, *store.sight([run.uid])) == []


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

    (request,) = look_after(store, *store.sight([run.uid]))
    assert request.replicas == 1, "the supervisor of the run wakes the group"
    replica = launch(store, run, A)
    store.rescale(run.run_id, GROUP, {0: A, 1: A})
    replica.session.open(raise_epoch=True)
    replica.session.commit([fx.FinishGroup()])
    states = drain.look()
    assert states is not None
    assert drain.is_over(states) and drain.has_succeeded(states)


def test_an_executor_that_is_late_launches_nothing(store: MemoryLogStore) -> None:
    """The group is put to sleep by a newer request while an executor of the older one is about to launch a replica."""
    run = begun(store, initial=1, least=0)
    driver = launch(store, run, A)
    store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
    late = store.request_scaling(run.run_id, GROUP, 2, by="a slow one")

    def overtaken(group: str, **how: Any) -> None:
        newer = store.request_scaling(run.run_id, GROUP, 0, by="a fast one")
        assert next_step(store, run, newer, nobody).stage is Stage.DONE
        store.claim(run.run_id, group, **how)

    assert next_step(store, run, late, overtaken).launched == ()
    assert [store.group(run.run_id, name).state for name in REPLICAS] == [RETIRED] * 3
    assert next_step(store, run, late, nobody).stage is Stage.REFUSED


def test_what_a_retry_has_given_back_goes_to_nobody_else(
    store: MemoryLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor has seen all replicas finished; when it moves slots, some are open again."""
    run = begun(store, initial=3, least=0)
    for name in REPLICAS:
        launch(store, run, name)
    before = store.slots(run.run_id, GROUP)
    request = store.request_scaling(run.run_id, GROUP, 2, by="test")
    monkeypatch.setattr(store, "groups", lambda _run_id: statuses(FINISHED, FINISHED, FINISHED))
    step = next_step(store, run, request, nobody)
    assert (step.stage, step.sentence) == (Stage.LAUNCHING, "all replicas of work had finished; looking again")
    assert store.slots(run.run_id, GROUP) == before


def test_of_two_executors_the_later_one_reports_what_the_log_says(
    store: MemoryLogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two executors carry out one request; the slower one finds that the group has finished, and would refuse it."""
    run = begun(store, initial=1, least=0)
    driver = launch(store, run, A)
    store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0)
    request = store.request_scaling(run.run_id, GROUP, 1, by="test")
    store.settle_scaling(request.request_id, ScalingState.ACCEPTED)
    settle = store.settle_scaling

    def overtaken(request_id: int, state: ScalingState, note: str = "") -> bool:
        settle(request_id, ScalingState.DONE, "as asked")
        return settle(request_id, state, note)

    monkeypatch.setattr(store, "settle_scaling", overtaken)
    monkeypatch.setattr(store, "slots", lambda *_: [])
    step = next_step(store, run, request, nobody)
    assert (step.stage, step.sentence) == (Stage.DONE, "as asked")


def test_replicas_that_their_tasks_launch_are_taken_in_their_order_and_not_in_that_of_their_names(
    store: MemoryLogStore,
) -> None:
    run = begun(store, initial=1, least=0)
    names = tuple(f"{GROUP}.{number}" for number in range(1, 13))
    shape = replace(run.spec.replicated[GROUP], replicas=names)
    run = replace(run, spec=replace(run.spec, replicated={GROUP: shape}))
    one, *_ = statuses(RUNNING, RETIRED, RETIRED)
    groups = [
        structs.replace(one, group=name, state=RUNNING if name == names[0] else RETIRED, own_place=name != names[2])
        for name in sorted(names)
    ]
    request = store.request_scaling(run.run_id, GROUP, 2, by="a test")
    assert launches_by_task(run, groups, request) == (names[1],)
    assert launches_by_task(run, groups, replace(request, replicas=4)) == (names[1], names[3]), (
        "one has given its place up"
    )

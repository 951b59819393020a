"""What a Controller reads from the log, and when it asks for another number of replicas."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Load
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.controller import Counters, decide, observe, read_counters
from airflow_logio.supervision.policies import DS2, Change, Figures, Policy, Schedule
from tests.support.logs import Driver
from tests.support.replicated import GROUP, REPLICAS, A, B, feeder, inbox, launch, replicated_run

LOAD = Load(10.0, 0.5, 0.5, 0.0, 4, 500, 4, 500)
ALWAYS_THREE = Schedule({"* * * * *": 3})


@dataclass
class Work:
    """A run with two replicas at work; a test says what was sent and taken."""

    store: LogStore
    run: Run = field(init=False)
    drivers: dict[str, Driver] = field(init=False)
    now: float = 100.0

    def __post_init__(self) -> None:
        self.run = replicated_run(self.store)
        self.drivers = {"feed": feeder(self.store, self.run)}
        self.drivers |= {name: launch(self.store, self.run, name) for name in (A, B)}
        for name in (A, B):
            self.beat(name)

    def beat(self, name: str, load: Load | None = LOAD) -> None:
        self.store.heartbeat(self.drivers[name].ref, 1, ready=True, rss_bytes=1, load=load)

    def send(self, slot: int, events: int, records: int) -> None:
        self.drivers["feed"].session.commit([fx.CountEvents(Port("feed", f"slot{slot}"), "out", events, records, 0)])

    def take(self, name: str, slot: int, events: int, records: int) -> None:
        self.drivers[name].session.commit([fx.CountEvents(inbox(slot), "in", events, records, 0)])

    def look(self) -> Counters:
        return read_counters(self.store, self.run, GROUP, lambda: self.now)

    def observe(self, earlier: Counters) -> Figures:
        return observe(self.store, self.run, GROUP, earlier, lambda: self.now)

    def decide(self, policy: Policy = ALWAYS_THREE) -> str:
        return str(decide(self.store, self.run, GROUP, policy, self.look()))


@pytest.fixture
def work(log_store: LogStore) -> Work:
    return Work(log_store)


def test_what_a_policy_is_told(work: Work) -> None:
    work.send(0, 2, 20)
    earlier = work.look()
    work.send(0, 3, 30)
    work.send(3, 1, 50)
    work.take(A, 0, 2, 20)
    work.now += 4
    seen = work.observe(earlier)
    assert (seen.replicas, seen.least, seen.most, seen.loads) == (2, 0, 3, {A: LOAD, B: LOAD})
    assert (seen.arrivals, seen.backlog, seen.events, seen.ended, seen.last) == (20.0, 80, 4, False, None)
    assert work.observe(work.look()).arrivals is None, "two looks at the same moment tell no rate"
    asked = work.store.request_scaling(work.run.run_id, GROUP, 2, by="test")
    for state in (ScalingState.ACCEPTED, ScalingState.DONE):
        work.store.settle_scaling(asked.request_id, state)
    (settled,) = work.store.scalings(work.run.run_id)
    assert settled.ended_at is not None
    assert work.observe(earlier).last == Change(2, settled.ended_at)
    work.drivers["feed"].session.commit([fx.FinishGroup()])
    assert work.observe(earlier).ended
    work.store.declare_dead(work.drivers[B].ref, "test")
    assert work.observe(earlier).loads == {A: LOAD, B: None}, "it is recovered, and stays in use"


def test_it_asks_once_and_says_why(work: Work) -> None:
    assert work.decide(Schedule({"* * * * *": 2})).startswith(f"{GROUP} stays at 2 replica(s): entry '* * * * *' of ")
    assert work.store.scalings(work.run.run_id) == []
    assert work.decide().startswith(f"{GROUP}: 2 → 3 replica(s): entry")
    (request,) = work.store.scalings(work.run.run_id)
    assert (request.replicas, request.by, request.state) == (3, "controller", ScalingState.REQUESTED)
    assert request.reason.startswith("Schedule: entry '* * * * *' of ")
    said = work.decide(Schedule({"* * * * *": 1}))
    assert said == (
        f"{GROUP} stays at 2 replica(s): request {request.request_id} by controller for 3 replica(s) is open"
    )
    assert work.store.scalings(work.run.run_id) == [request]


def test_a_group_scaled_to_zero_is_woken_by_what_waits(work: Work) -> None:
    work.store.rescale(work.run.run_id, GROUP, dict.fromkeys(range(4)), retire=REPLICAS)
    assert work.decide(DS2()) == f"{GROUP} stays at 0 replica(s): no replica is in use"
    work.send(0, 1, 10)
    assert work.decide(DS2()) == f"{GROUP}: 0 → 1 replica(s): no replica is in use; one replica because 1 event(s) wait"


def test_where_a_person_is_at_work_nothing_is_asked_for(work: Work) -> None:
    work.store.request(work.run.run_id, B, GroupState.HALTED)
    assert f"replica {B} was asked to halt" in work.decide()
    work.store.halted(work.drivers[B].ref)
    assert f"replica {B} is halted: a person must fix that" in work.decide()
    assert work.store.scalings(work.run.run_id) == []


def test_nothing_is_asked_for_before_the_replicas_of_a_run_are_launched(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    verdict = decide(log_store, run, GROUP, ALWAYS_THREE, read_counters(log_store, run, GROUP))
    assert verdict.decision.sentence == f"replica {A} has not been launched yet"


def test_nor_when_the_work_or_the_run_has_ended(work: Work) -> None:
    for name in ("feed", A, B):
        work.drivers[name].session.commit([fx.FinishGroup()])
    assert work.decide().endswith("all its work is done")
    end = launch(work.store, work.run, "end")
    end.session.commit([fx.FinishGroup()])
    assert work.store.finish_run(work.run.run_id)
    assert work.decide().endswith("the run is finished")

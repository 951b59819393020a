"""Slots of replicated groups: who owns them, how they move, and what a replica may still do when they have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_logio.errors import EpochVoid, Fenced, LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, HeldOutput, encode_state
from airflow_logio.protocol.replicas import Slot, SlotsSight
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import ConcurrentRuns, OperatorShape, Run
from airflow_logio.store.records.upkeep_records import QuarantineCount
from tests.store.test_maintenance import rows_of
from tests.support.logs import SOMEBODY, UNDONE, Driver, contents, fetched, held, spec, start_driver
from tests.support.racing import race
from tests.support.replicated import (
    GROUP,
    REPLICAS,
    A,
    B,
    C,
    feeder,
    inbox,
    launch,
    owners,
    replicated_run,
    replicated_spec,
    rescale_at_last,
    slots,
    taken,
    to_slot,
)

RETIRED = GroupState.RETIRED


def running(store: LogStore, *names: str, slots: int = 4) -> tuple[Run, dict[str, Driver]]:
    run = replicated_run(store, slots=slots)
    return run, {name: launch(store, run, name) for name in names}


# --- how it begins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("initial", "expected"),
    [(0, [None] * 4), (1, [A] * 4), (2, [A, A, B, B]), (3, [A, A, B, C])],
)
def test_a_run_begins_with_its_slots_spread(log_store: LogStore, initial: int, expected: list[str | None]) -> None:
    run = replicated_run(log_store, initial=initial)
    assert slots(log_store, run) == [Slot(number, owner) for number, owner in enumerate(expected)]
    assert log_store.slots_of_run(run.run_id) == {GROUP: log_store.slots(run.run_id, GROUP)}
    states = {status.group: status.state for status in log_store.groups(run.run_id)}
    assert states == {
        "feed": GroupState.NEW,
        "end": GroupState.NEW,
        **{name: GroupState.NEW if place < initial else RETIRED for place, name in enumerate(REPLICAS)},
    }
    assert replicated_run(log_store, initial=initial) == run
    assert len(slots(log_store, run)) == 4, "started once"


def test_only_replicated_groups_have_slots(log_store: LogStore) -> None:
    run, drivers = running(log_store, A)
    with pytest.raises(ProtocolViolation, match=r"'feed' of run .* is not replicated"):
        log_store.slots(run.run_id, "feed")
    with pytest.raises(ProtocolViolation, match="it is a replica: name 'work'"):
        log_store.slots(run.run_id, A)
    with pytest.raises(UnknownRun, match="no replicated group 'nobody'; it has work"):
        log_store.rescale(run.run_id, "nobody", {})
    with pytest.raises(UnknownRun):
        log_store.slots(run.run_id + 1, GROUP)
    assert start_driver(log_store, group="end", run=run).session.slots() == {}
    assert drivers[A].session.slots() == {0: 0, 1: 0}


def test_a_recovery_cannot_claim_a_retired_replica(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match=r"replica 'work\.3' is not in use"):
        log_store.claim(run.run_id, C, expected=0, reason="a recovery")
    assert contents(log_store) == before
    driver = launch(log_store, run, C)
    status = log_store.group(run.run_id, C)
    assert (status.state, status.desired) == (GroupState.RUNNING, GroupState.RUNNING)
    assert driver.session.slots() == {}


# --- moves ------------------------------------------------------------------------------------------------------------


def test_slots_move_with_what_belongs_to_them(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B, C)
    feeder(log_store, run).session.commit([to_slot(n, slot) for slot in range(4) for n in (1, 2)])
    drivers[A].session.commit([taken(1, 1), fx.StoreState("work[1]", b"half filled")])
    assert log_store.rescale(run.run_id, GROUP, {1: C, 2: C}) == 2
    assert slots(log_store, run) == [Slot(0, A), Slot(1, C, 1), Slot(2, C, 1), Slot(3, B)]
    for name in (A, B, C):
        with pytest.raises(EpochVoid):
            drivers[name].session.check()
        with pytest.raises(EpochVoid):
            drivers[name].session.commit([])
        drivers[name].session.open(raise_epoch=True)
    assert [dict(drivers[name].session.slots()) for name in REPLICAS] == [{0: 0}, {3: 0}, {1: 1, 2: 1}]
    new = drivers[C].session
    assert held(new, "work[1]") == [(1, "I")]
    assert new.recover(["work[1]"]).states == {"work[1]": b"half filled"}
    assert fetched(new, receiver=inbox(1)) == [2], "what was taken is not delivered again"
    assert fetched(new, receiver=inbox(2)) == [1, 2]
    new.commit([fx.MarkDone("work[1]", "I", 1), taken(2, 1, "J")])


def test_what_is_there_already_does_not_move(log_store: LogStore) -> None:
    run, _ = running(log_store, A, B)
    before = contents(log_store)
    assert log_store.rescale(run.run_id, GROUP, {}) == 0
    assert log_store.rescale(run.run_id, GROUP, {0: A, 3: B}) == 0
    assert log_store.rescale(run.run_id, GROUP, {}, retire=[C]) == 0, "it is retired"
    assert log_store.rescale(run.run_id, GROUP, {0: A, 1: B}) == 1
    assert log_store.rescale(run.run_id, GROUP, {0: A, 1: B}) == 0, "again, after an acknowledgement was lost"
    assert contents(log_store) != before
    assert slots(log_store, run)[1] == Slot(1, B, 1)


def test_replicas_that_are_not_concerned_go_on(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B, C)
    log_store.rescale(run.run_id, GROUP, {0: C})
    drivers[B].session.check()
    drivers[B].session.commit([])


def test_scale_to_zero_and_back(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B)
    assert log_store.rescale(run.run_id, GROUP, dict.fromkeys(range(4)), retire=[A, B]) == 4
    assert owners(log_store, run) == [None] * 4
    assert {log_store.group(run.run_id, name).state for name in REPLICAS} == {RETIRED}
    for driver in drivers.values():
        with pytest.raises(EpochVoid):
            driver.session.commit([])
        with pytest.raises(Fenced, match="is retired"):
            driver.session.open(raise_epoch=True)
    again = launch(log_store, run, A)
    assert again.ref.incarnation == 2
    assert log_store.rescale(run.run_id, GROUP, dict.fromkeys(range(4), A)) == 4
    again.session.open(raise_epoch=True)
    assert again.session.slots() == dict.fromkeys(range(4), 2)


@pytest.mark.parametrize("state", [GroupState.DEAD, GroupState.HALTED, GroupState.PARKED, GroupState.CLAIMED])
def test_slots_are_taken_from_a_replica_in_any_state(log_store: LogStore, state: GroupState) -> None:
    run, drivers = running(log_store, A, B)
    ref = drivers[B].ref
    if state is GroupState.DEAD:
        log_store.declare_dead(ref, "test")
    elif state is GroupState.HALTED:
        log_store.halted(ref)
    elif state is GroupState.PARKED:
        log_store.park(ref, "test")
    else:
        log_store.declare_dead(ref, "test")
        log_store.claim(run.run_id, B, expected=1, reason="test")
    assert log_store.rescale(run.run_id, GROUP, {2: A, 3: A}, retire=[B]) == 2
    status = log_store.group(run.run_id, B)
    assert (status.state, status.desired, status.error) == (RETIRED, GroupState.HALTED, None)
    with pytest.raises(EpochVoid if state is not GroupState.CLAIMED else Fenced):
        drivers[B].session.commit([taken(1, 2)])


def test_a_replica_that_was_never_launched_is_retired(log_store: LogStore) -> None:
    run, _ = running(log_store, A)
    assert log_store.rescale(run.run_id, GROUP, {2: A, 3: A}, retire=[B]) == 2
    assert log_store.group(run.run_id, B).state is RETIRED


@pytest.mark.parametrize(
    ("placement", "retire", "sentence"),
    [
        ({9: A}, [], "no slot 9; it has 4, from 0"),
        ({0: "work.4"}, [], "no replica 'work.4'; it has work.1, work.2, work.3"),
        ({0: "feed"}, [], "no replica 'feed'"),
        ({}, ["end"], "no replica 'end'"),
        ({0: B}, [A], "'work.1' cannot retire while it owns slot 1"),
        ({0: C}, [C], "'work.3' cannot retire while it owns slot 0"),
        ({0: C}, [], "'work.3' is retired: it cannot be given slots"),
        ({0: B, 1: C}, [], "'work.3' is retired"),
    ],
)
def test_moves_that_are_refused_change_nothing(
    log_store: LogStore, placement: dict[int, str | None], retire: list[str], sentence: str
) -> None:
    run, drivers = running(log_store, A, B)
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match=sentence):
        log_store.rescale(run.run_id, GROUP, placement, retire=retire)
    assert contents(log_store) == before
    drivers[A].session.commit([])


def test_a_replica_that_was_asked_to_halt_gets_no_slots(log_store: LogStore) -> None:
    run, _ = running(log_store, A, B)
    log_store.request(run.run_id, B, GroupState.HALTED)
    with pytest.raises(ProtocolViolation, match=r"'work\.2' is asked to halt"):
        log_store.rescale(run.run_id, GROUP, {0: B})
    assert log_store.rescale(run.run_id, GROUP, {2: A, 3: A}) == 2, "it loses them"


def test_nothing_of_a_superseded_run_is_rescaled(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B)
    for driver in drivers.values():
        log_store.halted(driver.ref)
    assert log_store.supersede(run.run_id)
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match="was given up for a fresh run"):
        log_store.rescale(run.run_id, GROUP, {0: None})
    with pytest.raises(ProtocolViolation, match="was given up for a fresh run"):
        log_store.request_scaling(run.run_id, GROUP, 3, by="test")
    assert contents(log_store) == before
    fresh = log_store.start_run(run.spec)
    assert owners(log_store, fresh) == [A, A, B, B]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_replica_that_finishes_concludes_its_slots(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B)
    drivers[A].session.commit([fx.FinishGroup()])
    assert [slot.done for slot in slots(log_store, run)] == [True, True, False, False]
    assert drivers[A].session.slots() == {}
    before = contents(log_store)
    for placement in ({0: B}, {1: None}):
        with pytest.raises(ProtocolViolation, match=r"slot \d of group 'work' is done: it stays with 'work.1'"):
            log_store.rescale(run.run_id, GROUP, placement)
    with pytest.raises(ProtocolViolation, match=r"'work\.1' is finished: it cannot retire"):
        log_store.rescale(run.run_id, GROUP, {}, retire=[A])
    assert log_store.rescale(run.run_id, GROUP, {0: A}) == 0
    assert contents(log_store) == before


def finished_but_for_the_end(store: LogStore) -> Run:
    """Replica C is retired, and all that is left to do is to finish the run."""
    run, drivers = running(store, A, B)
    drivers |= {name: start_driver(store, group=name, run=run) for name in ("feed", "end")}
    for driver in drivers.values():
        driver.session.commit([fx.FinishGroup()])
    return run


def test_no_replica_of_a_run_that_has_finished_is_launched(log_store: LogStore) -> None:
    """The executor of a request may have looked long before: a driver would wait for slots that never come."""
    run = finished_but_for_the_end(log_store)
    assert log_store.finish_run(run.run_id)
    with pytest.raises(ProtocolViolation, match="has ended, it is finished"):
        log_store.claim(run.run_id, C, expected=0, reason="scaling", by_user=True)
    assert log_store.group(run.run_id, C).state is RETIRED


@pytest.mark.parametrize("number", range(4))
def test_the_end_of_a_run_and_the_launch_of_a_replica_at_once(log_store: LogStore, number: int) -> None:
    run = finished_but_for_the_end(log_store)
    acts: list[Callable[[], Any]] = [
        lambda: log_store.finish_run(run.run_id),
        lambda: log_store.claim(run.run_id, C, expected=0, reason="scaling", by_user=True),
    ]
    outcomes = race(*(reversed(acts) if number % 2 else acts))
    finished, claimed = reversed(outcomes) if number % 2 else outcomes
    assert isinstance(finished, bool), finished
    assert finished == isinstance(claimed, ProtocolViolation), claimed
    if not finished:
        assert log_store.rescale(run.run_id, GROUP, {}, retire=[C]) == 0
        assert log_store.finish_run(run.run_id)


def test_a_replica_without_slots_finishes_nothing(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B, C)
    before = contents(log_store)
    with pytest.raises(LogInconsistent, match=r"'work\.3' owns no slot"):
        drivers[C].session.commit([fx.FinishGroup()])
    assert contents(log_store) == before
    log_store.rescale(run.run_id, GROUP, {0: B, 1: B})
    drivers[A].session.open()
    with pytest.raises(LogInconsistent, match=r"'work\.1' owns no slot"):
        drivers[A].session.commit([fx.FinishGroup()])


def test_the_run_finishes_when_all_slots_are_done(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B)
    for name in ("feed", "end"):
        start_driver(log_store, group=name, run=run).session.commit([fx.FinishGroup()])
    drivers[A].session.commit([fx.FinishGroup()])
    assert not log_store.finish_run(run.run_id)
    log_store.rescale(run.run_id, GROUP, {2: None, 3: None}, retire=[B])
    assert not log_store.finish_run(run.run_id), "every group has finished or is retired, and two slots are not done"
    assert log_store.removable(0.0) == []
    with pytest.raises(ProtocolViolation, match=r"has not ended: 2 slot\(s\) of work are not done"):
        log_store.remove_run(run.run_id, 10)
    last = launch(log_store, run, C)
    log_store.rescale(run.run_id, GROUP, {2: C, 3: C})
    last.session.open()
    last.session.commit([fx.FinishGroup()])
    assert log_store.finish_run(run.run_id)
    assert log_store.find_run(run.uid).state is RunState.FINISHED
    with pytest.raises(ProtocolViolation, match="has ended, it is finished"):
        log_store.request_scaling(run.run_id, GROUP, 1, by="test")
    assert [found.uid for found in log_store.removable(0.0)] == [run.uid]
    log_store.start_run(replicated_spec(dag_run="run-2"), concurrent=ConcurrentRuns.REFUSE)


def test_a_removed_run_leaves_no_slots_and_no_requests(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B)
    other = replicated_run(log_store, dag_run="run-2")
    log_store.request_scaling(run.run_id, GROUP, 1, by="test")
    log_store.request_scaling(other.run_id, GROUP, 1, by="test")
    untouched = rows_of(log_store, other.run_id)
    for driver in drivers.values():
        log_store.halted(driver.ref)
    assert log_store.remove_run(run.run_id, 3, unfinished=True).more
    with pytest.raises(UnknownRun):
        log_store.rescale(run.run_id, GROUP, {0: B})
    with pytest.raises(UnknownRun):
        log_store.request_scaling(run.run_id, GROUP, 1, by="test")
    while log_store.remove_run(run.run_id, 3).more:
        pass
    assert rows_of(log_store, run.run_id) == {}
    assert rows_of(log_store, other.run_id) == untouched


def test_what_a_slot_that_is_done_has_left_is_collected(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B)
    feeder(log_store, run).session.commit([to_slot(1, slot) for slot in range(4)])
    done = fx.MarkDone
    drivers[A].session.commit([*(taken(1, s) for s in (0, 1)), *(done(f"work[{s}]", "I", 1) for s in (0, 1))])
    drivers[B].session.commit([taken(1, 2), done("work[2]", "I", 1)])
    assert log_store.garbage(run.run_id) == 0, "no slot is done"
    drivers[A].session.commit([fx.FinishGroup()])
    assert log_store.garbage(run.run_id) == 2
    assert log_store.collect(run.run_id, 10).rows == 2
    assert fetched(drivers[B].session, receiver=inbox(3)) == [1]


# --- quarantine -------------------------------------------------------------------------------------------------------


def test_a_retry_goes_to_whoever_owns_the_slot(log_store: LogStore) -> None:
    run, drivers = running(log_store, A, B)
    feeder(log_store, run).session.commit([to_slot(1, 0), to_slot(1, 1)])
    _set_aside(drivers[A], 0)
    drivers[A].session.commit([fx.FinishGroup()])
    found = log_store.quarantined(run.run_id)
    assert [(one.group, one.operator) for one in found] == [(GROUP, "work[0]")]
    assert log_store.quarantined(run.run_id, GROUP) == log_store.quarantined(run.run_id, A) == found
    assert log_store.quarantined(run.run_id, "end") == []
    counted = log_store.figures([run.run_id])[run.run_id].quarantined
    assert counted == {GROUP: QuarantineCount(1, found[0].since)}
    retried = log_store.retry_quarantined(run.run_id)
    assert retried.to_launch == (A,)
    assert [slot.done for slot in slots(log_store, run)] == [False, True, False, False], "only that slot is reopened"
    assert log_store.group(run.run_id, A).state is GroupState.HALTED
    log_store.rescale(run.run_id, GROUP, {0: B}, retire=[A])
    drivers[B].session.open()
    assert drivers[B].session.slots() == {0: 1, 2: 0, 3: 0}
    assert held(drivers[B].session, "work[0]") == [(1, "I")]


def test_a_retry_reopens_what_a_retired_replica_has_finished(log_store: LogStore) -> None:
    """It owns a slot that was done, so that only it can continue with it; a person launches it."""
    run, drivers = running(log_store, A, B)
    first = feeder(log_store, run)
    first.session.commit([to_slot(1, 0)])
    for slot in (0, 1):
        drivers[A].session.commit([_ended(slot)])
    _set_aside(drivers[A], 0)
    drivers[A].session.commit([fx.FinishGroup()])
    log_store.retry_quarantined(run.run_id)
    log_store.rescale(run.run_id, GROUP, {0: B}, retire=[A])
    assert slots(log_store, run)[1] == Slot(1, A, 0, True)
    outside = Port("outside", "out"), Port("feed", "in")
    first.session.commit(
        [
            fx.LogEvent(Event(outside[0], 1, records=1, body=b"x"), (fx.Delivery(outside[1]),)),
            fx.Acknowledge(*outside, 1, (("Q", UNDONE),)),
            fx.SetAside("feed", "Q", 1, "ValueError: no"),
            fx.StoreState("feed", encode_state(Context(aside=["Q"], finished=True, next_event={"slot1": 2}), {})),
            to_slot(1, 1),
            fx.FinishGroup(),
        ]
    )
    assert log_store.retry_quarantined(run.run_id).to_launch == ("feed", A)
    assert slots(log_store, run)[1] == Slot(1, A, 0, False)
    assert log_store.group(run.run_id, A).state is GroupState.HALTED
    assert launch(log_store, run, A).session.slots() == {1: 0}


def _ended(slot: int) -> fx.StoreState:
    """The operator of the slot has received the end of its stream."""
    return fx.StoreState(f"work[{slot}]", encode_state(Context(ended={"in"}, finished=True, next_event={"out": 2}), {}))


def _set_aside(driver: Driver, slot: int) -> None:
    context = Context(marks={"in": 1}, aside=["I"], finished=True, next_event={"out": 2})
    driver.session.commit(
        [
            taken(1, slot),
            fx.SetAside(f"work[{slot}]", "I", 1, "ValueError: no"),
            fx.StoreState(f"work[{slot}]", encode_state(context, {})),
        ]
    )


# --- several at once --------------------------------------------------------------------------------------------------


def test_of_two_rescales_at_once_the_last_one_holds(log_store: LogStore) -> None:
    run, _ = running(log_store, A, B, C)
    moves: list[dict[int, str | None]] = [
        {0: B, 1: C, 2: A, 3: C},
        {0: C, 1: B, 2: C, 3: A},
        dict.fromkeys(range(4)),
        dict.fromkeys(range(4), A),
    ]
    for _ in range(5):
        outcomes = race(*[partial(rescale_at_last, log_store, run, to) for to in moves])
        assert all(isinstance(outcome, int) for outcome in outcomes), outcomes
        assert dict(enumerate(owners(log_store, run))) in moves
    total = sum(slot.moves for slot in slots(log_store, run))
    assert total >= 4


@pytest.mark.parametrize("number", range(3))
def test_a_rescale_and_whatever_else_at_once(log_store: LogStore, number: int) -> None:
    """Registration, heartbeat, the end, another rescale: one order or the other, never a mixture."""
    run = replicated_run(log_store)
    drivers = {name: launch(log_store, run, name) for name in (A, C)}
    claim = log_store.claim(run.run_id, B, expected=0, reason="test")
    acts: list[Callable[[], Any]] = [
        lambda: rescale_at_last(log_store, run, {0: C, 2: C, 3: C}, retire=[B]),
        lambda: log_store.register(claim, SOMEBODY),
        lambda: drivers[A].session.commit([fx.FinishGroup()]),
        lambda: log_store.heartbeat(drivers[C].ref, 1, ready=True, rss_bytes=1),
        lambda: rescale_at_last(log_store, run, {3: C}),
    ]
    outcomes = list(race(*acts[number:], *acts[:number]))
    rescaled, registered, finished, beaten, other = outcomes[-number:] + outcomes[:-number] if number else outcomes
    assert beaten is GroupState.RUNNING
    assert isinstance(other, int), other
    found = slots(log_store, run)
    assert found[3].owner == C
    if isinstance(finished, Exception):
        assert isinstance(finished, EpochVoid), finished
        assert rescaled in (2, 3)
        assert [slot.owner for slot in found] == [C, A, C, C]
        assert not any(slot.done for slot in found)
        assert log_store.group(run.run_id, B).state is RETIRED
    else:
        assert isinstance(rescaled, ProtocolViolation), "slot 0 was done: nothing was moved"
        assert found[:3] == [Slot(0, A, 0, True), Slot(1, A, 0, True), Slot(2, B)]
        assert log_store.group(run.run_id, B).state in (GroupState.CLAIMED, GroupState.RUNNING)
    assert not isinstance(registered, Exception) or isinstance(registered, Fenced), registered


@pytest.mark.parametrize("number", range(3))
def test_a_claim_of_a_replica_and_its_retirement_at_once(log_store: LogStore, number: int) -> None:
    run = replicated_run(log_store)
    a, b = launch(log_store, run, A), launch(log_store, run, B)
    log_store.declare_dead(b.ref, "test")
    acts: list[Callable[[], Any]] = [
        lambda: rescale_at_last(log_store, run, {2: A, 3: A}, retire=[B]),
        lambda: log_store.claim(run.run_id, B, expected=1, reason="a recovery"),
    ]
    outcomes = race(*(reversed(acts) if number % 2 else acts))
    retired, claimed = reversed(outcomes) if number % 2 else outcomes
    assert retired == 2, retired
    assert log_store.group(run.run_id, B).state is RETIRED
    assert not isinstance(claimed, Exception) or isinstance(claimed, ProtocolViolation), claimed
    a.session.open()
    assert a.session.slots() == {0: 0, 1: 0, 2: 1, 3: 1}


def test_the_end_of_an_ordinary_group_needs_no_slots(log_store: LogStore) -> None:
    """Also of one whose name has a dot, in a run without replicas."""
    run = log_store.start_run(replace(spec("a.b"), groups=("a.b",)))
    driver = start_driver(log_store, group="a.b", run=run)
    assert driver.session.slots() == {}
    driver.session.commit([fx.FinishGroup()])
    assert log_store.finish_run(run.run_id)


def has_work(store: LogStore, run: Run) -> bool:
    return store.slots_sight([(run.run_id, GROUP)])[run.run_id, GROUP].has_work


def test_slots_and_work_of_many_groups_are_asked_for_at_once(log_store: LogStore) -> None:
    runs = [replicated_run(log_store, slots=2, initial=1, dag_run=f"run-{number}") for number in range(4)]
    nothing, an_event, its_end, an_owner = [(run.run_id, GROUP) for run in runs]
    workers = [launch(log_store, run, A) for run in runs]
    workers[2].session.commit([fx.StoreState("work[1]", encode_state(Context(ended={"in"}), {}))])
    for run in runs[:3]:
        log_store.rescale(run.run_id, GROUP, {0: None, 1: None}, retire=[A])
    feeder(log_store, runs[1]).session.commit([to_slot(1, 0)])
    asked = [nothing, an_event, its_end, an_owner, (an_owner[0], "another"), (4711, GROUP)]
    assert log_store.slots_sight(asked) == {
        nothing: SlotsSight(all_done=False, is_owned=False, has_work=False),
        an_event: SlotsSight(all_done=False, is_owned=False, has_work=True),
        its_end: SlotsSight(all_done=False, is_owned=False, has_work=True),
        an_owner: SlotsSight(all_done=False, is_owned=True, has_work=False),
    }


def test_a_sleeping_group_has_work_when_anything_waits_for_a_replica(log_store: LogStore) -> None:
    run = replicated_run(log_store, initial=1)
    sender, worker = feeder(log_store, run), launch(log_store, run, A)
    assert not has_work(log_store, run)
    sender.session.commit([to_slot(1, 0)])
    assert has_work(log_store, run), "an event"
    worker.session.commit([taken(1, 0)])
    assert not has_work(log_store, run), "a window that is open is no reason to wake"
    worker.session.commit([fx.LogWrite("work[0]", "warehouse", 1, {}, 1, body=b"x")])
    assert has_work(log_store, run), "a write action"
    worker.session.commit([fx.WritesDone("work[0]", "warehouse", 1, 1)])
    end = fx.LogEvent(Event(Port("feed", "slot1"), 1, Kind.END, body=b""), (fx.Delivery(inbox(1)),))
    sender.session.commit([end])
    assert has_work(log_store, run), "the end of its stream"
    assert not log_store.slots_sight([(run.run_id, "another")])


LEFT_TO_DO = {
    "an Input Set to generate": (Context(triggered=["I"]), True),
    "an Output Set to send": (Context(outbox=[HeldOutput()]), True),
    "its own end": (Context(ended={"in"}), True),
    "its slot's end": (Context(ended={"in"}, finished=True), True),
    "nothing": (Context(marks={"in": 7}, aside=["I"]), False),
}
"""What an operator had left to do when its replica was retired, and whether that is work for another one."""


@pytest.mark.parametrize("what", LEFT_TO_DO)
def test_a_sleeping_group_has_work_that_no_row_tells_of(log_store: LogStore, what: str) -> None:
    context, is_work = LEFT_TO_DO[what]
    run = replicated_run(log_store, slots=2, initial=1)
    worker = launch(log_store, run, A)
    worker.session.commit([fx.StoreState("work[1]", encode_state(context, {}))])
    assert log_store.rescale(run.run_id, GROUP, {0: None, 1: None}, retire=[A]) == 2
    assert has_work(log_store, run) is is_work


@pytest.mark.parametrize("also_ended", [False, True])
def test_an_operator_that_has_ended_is_no_work_while_another_one_of_its_slot_waits(
    log_store: LogStore, also_ended: bool
) -> None:
    """Else a group that is put to sleep would be woken at once, for nothing."""
    spec = replicated_spec(slots=1, initial=1)
    second = OperatorShape(GROUP, {"in": "feed.more"}, ("out",))
    run = log_store.start_run(replace(spec, operators={**spec.operators, "second[0]": second}))
    worker = launch(log_store, run, A)
    ended = encode_state(Context(ended={"in"}, finished=True), {})
    waits = encode_state(Context(marks={"in": 3}), {"large": "x" * 1000})
    worker.session.commit([fx.StoreState("work[0]", ended), fx.StoreState("second[0]", ended if also_ended else waits)])
    assert log_store.rescale(run.run_id, GROUP, {0: None}, retire=[A]) == 1
    assert has_work(log_store, run) is also_ended, "then only the slot's own end is left"


def test_a_slot_that_is_done_is_no_work_and_a_state_that_cannot_be_read_is(log_store: LogStore) -> None:
    run = replicated_run(log_store, slots=2, initial=2)
    first, second = launch(log_store, run, A), launch(log_store, run, B)
    first.session.commit([fx.StoreState("work[0]", encode_state(Context(ended={"in"}, finished=True), {}))])
    first.session.commit([fx.FinishGroup()])
    assert not has_work(log_store, run)
    second.session.commit([fx.StoreState("work[1]", b"garbage")])
    assert has_work(log_store, run), "its recovery says what is wrong"

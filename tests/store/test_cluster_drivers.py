"""Drivers on clusters in the log: the same in memory, in SQLite and in PostgreSQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from airflow_logio.errors import BudgetSpent, Fenced
from airflow_logio.protocol.liveness import TAKEN_BUDGET, RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.recoveries import budget_left
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupRef, ManagerSaid, Submission
from tests.support.logs import SOMEBODY, finish, spec, start_driver

NOTED = Submission("yarn", "http://rm:8088", "logio-1234-g-1-abcdef")
SUBMITTED = structs.replace(NOTED, id="application_1_0001")
SECOND = structs.replace(SUBMITTED, attempt=2)
LAUNCHER = DriverIdentity("edge", "boot of the edge", 99, 1.5)
NODE = structs.replace(SOMEBODY, host="node", parent_pid=4700, parent_start_time=12.0)


def claimed(store: LogStore, expected: int = 0, run_id: int | None = None) -> Claim:
    run_id = store.start_run(spec("g")).run_id if run_id is None else run_id
    return store.claim(run_id, "g", expected=expected, reason="test")


def ref_of(claim: Claim) -> GroupRef:
    return GroupRef(claim.run_id, claim.group, claim.incarnation)


def test_a_driver_from_the_note_to_its_registration(log_store: LogStore) -> None:
    claim = claimed(log_store)
    assert log_store.submitting(claim, NOTED)
    assert log_store.group(claim.run_id, "g").submission == NOTED, "others find it, should the launcher die now"

    log_store.note_id(ref_of(claim), SUBMITTED)
    assert log_store.submitted(claim, log_path=None, launcher=None)
    log_store.note_said(ref_of(claim), ManagerSaid("queued", "queue default", 1000.0))
    status = log_store.group(claim.run_id, "g")
    assert (status.state, status.submission, status.reported) == (GroupState.SUBMITTED, SUBMITTED, None)
    assert status.manager_said == ManagerSaid("queued", "queue default", 1000.0)
    assert status.said_age_seconds is not None
    assert status.identity is None, "the launcher is not on the driver's machine"

    log_store.register(claim, NODE, reported=SECOND)
    log_store.note_said(ref_of(claim), ManagerSaid("gone"))
    status = log_store.group(claim.run_id, "g")
    assert (status.state, status.submission, status.reported) == (GroupState.RUNNING, SUBMITTED, SECOND)
    assert status.manager_said == ManagerSaid("queued", "queue default", 1000.0), "it speaks of drivers that wait"
    assert log_store.drivers(claim.run_id)[0].submission == SECOND, "what the driver says counts"


def test_nothing_is_submitted_for_a_claim_that_is_void_or_was_noted_before(log_store: LogStore) -> None:
    claim = claimed(log_store)
    assert log_store.submitting(claim, NOTED)
    assert not log_store.submitting(claim, structs.replace(NOTED, name="another")), "one submission for each claim"

    log_store.declare_dead(ref_of(claim), "killed")
    late = claimed(log_store, expected=1, run_id=claim.run_id)
    log_store.declare_dead(ref_of(late), "the launcher slept")
    assert not log_store.submitting(late, NOTED)

    current = claimed(log_store, expected=2, run_id=claim.run_id)
    assert not log_store.submitting(late, NOTED)
    assert not log_store.submitting(replace(current, nonce="0" * 32), NOTED), "another nonce"
    assert log_store.submitting(current, NOTED)


def test_a_launcher_says_nothing_of_a_driver_that_has_registered(log_store: LogStore) -> None:
    claim = claimed(log_store)
    log_store.register(claim, NODE)
    assert not log_store.submitted(claim, log_path="/driver.log", launcher=LAUNCHER)
    status = log_store.group(claim.run_id, "g")
    assert status.identity == NODE, "where it is, it says itself"
    assert status.log_path == "/driver.log"


def test_the_first_id_stays_and_is_noted_whatever_has_become_of_the_claim(log_store: LogStore) -> None:
    claim = claimed(log_store)
    log_store.submitting(claim, NOTED)
    log_store.declare_dead(ref_of(claim), "late")
    claimed(log_store, expected=1, run_id=claim.run_id)
    log_store.note_gone(ref_of(claim))
    assert list(log_store.left_on_clusters()) == []

    log_store.note_id(ref_of(claim), SUBMITTED)
    [left] = log_store.left_on_clusters([claim.run_id])
    assert (left.ref, left.submissions, left.is_replaced) == (ref_of(claim), (SUBMITTED,), True), (
        "its end is asked for anew"
    )
    log_store.note_id(ref_of(claim), structs.replace(NOTED, id="application_1_0002"))
    assert log_store.left_on_clusters([claim.run_id])[0].submissions == (SUBMITTED,)


def test_what_is_judged_unregistered_and_has_registered_is_not_dead(log_store: LogStore) -> None:
    claim = claimed(log_store)
    log_store.register(claim, NODE)
    assert not log_store.declare_dead(ref_of(claim), "its first submission has ended", unregistered=True)
    assert log_store.group(claim.run_id, "g").state is GroupState.RUNNING
    assert log_store.declare_dead(ref_of(claim), "its own has ended")

    other = claimed(log_store, expected=1, run_id=claim.run_id)
    assert log_store.declare_dead(ref_of(other), "it has ended", unregistered=True)
    with pytest.raises(Fenced):
        log_store.register(other, NODE)


def test_what_may_still_have_room_is_found_until_its_end_is_confirmed(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g", "h"))
    claim = claimed(log_store, run_id=run.run_id)
    log_store.submitting(claim, SUBMITTED)
    assert list(log_store.left_on_clusters()) == [], "it is the driver"
    ref = log_store.register(claim, NODE, reported=SECOND)
    assert list(log_store.left_on_clusters()) == []

    session = log_store.session(ref)
    session.open()
    session.close()
    finish(log_store, ref)
    [left] = log_store.left_on_clusters()
    assert (left.submissions, left.is_replaced) == ((SUBMITTED, SECOND), False)
    assert 0 <= left.ended_seconds <= left.claimed_seconds
    log_store.note_gone(left.ref)
    assert list(log_store.left_on_clusters()) == []

    local = start_driver(log_store, group="h", run=run)
    log_store.declare_dead(local.ref, "killed")
    log_store.claim(local.run.run_id, "h", expected=1, reason="test")
    assert list(log_store.left_on_clusters()) == [], "a process of the launching machine"


@pytest.mark.parametrize("late", [False, True])
def test_what_the_manager_takes_spends_no_budget_and_forgives_nothing(log_store: LogStore, late: bool) -> None:
    """`late`: the reason is learned when the recovery has been claimed."""
    run = log_store.start_run(spec("g", budget=RecoveryBudget(recoveries=2)))
    failed, taken = iter([False, True, True, True, False, False]), 0
    for incarnation in range(6):
        claim = log_store.claim(run.run_id, "g", expected=incarnation, reason="test")
        was_taken = next(failed)
        taken += was_taken
        log_store.declare_dead(ref_of(claim), "preempted" if was_taken else "killed", was_taken=was_taken and not late)
        if was_taken and late and incarnation < 5:
            next_claim = ref_of(claim)
            log_store.note_taken(next_claim)
    budget = budget_left(run.spec.budget, log_store.drivers(run.run_id), log_store.drivers(run.run_id)[-1].claimed_at)
    assert (budget.used, budget.left) == (2, 0), "two of five recoveries came after failures"
    with pytest.raises(BudgetSpent):
        log_store.claim(run.run_id, "g", expected=6, reason="killed again")
    assert log_store.group(run.run_id, "g").state is GroupState.PARKED


def test_what_is_taken_each_time_is_parked_in_the_end(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g"))
    for incarnation in range(TAKEN_BUDGET.recoveries + 1):
        claim = log_store.claim(run.run_id, "g", expected=incarnation, reason="evicted")
        log_store.declare_dead(ref_of(claim), "evicted", was_taken=True)
    with pytest.raises(BudgetSpent, match="took the room of 20 drivers"):
        log_store.claim(run.run_id, "g", expected=TAKEN_BUDGET.recoveries + 1, reason="evicted")


def test_what_the_manager_takes_is_recovered_though_the_budget_is_spent(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g", budget=RecoveryBudget(recoveries=1)))
    for incarnation, was_taken in enumerate((False, True, True)):
        claim = log_store.claim(run.run_id, "g", expected=incarnation, reason="test")
        log_store.declare_dead(ref_of(claim), "killed", was_taken=was_taken)
    claim = log_store.claim(run.run_id, "g", expected=3, reason="evicted again")
    log_store.declare_dead(ref_of(claim), "killed")
    with pytest.raises(BudgetSpent):
        log_store.claim(run.run_id, "g", expected=4, reason="killed again")

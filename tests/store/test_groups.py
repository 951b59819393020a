"""Claims, registration, heartbeats and the other moves of a group, each compare-and-set on the incarnation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from airflow_logio.errors import BudgetSpent, EpochVoid, Fenced, ProtocolViolation, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.condition import condition_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupRef, Load
from airflow_logio.store.records.run_records import OperatorShape
from airflow_logio.store.records.status_records import GroupStatus
from tests.support.logs import SOMEBODY, Driver, contents, replace_driver, spec, start_driver
from tests.support.racing import race


def status(store: LogStore, claim: Claim | GroupRef) -> GroupStatus:
    return store.group(claim.run_id, claim.group)


def die(store: LogStore, claim: Claim) -> GroupRef:
    """Register and be declared dead."""
    ref = store.register(claim, SOMEBODY)
    assert store.declare_dead(ref, f"death of {ref.incarnation}")
    return ref


# --- claims -----------------------------------------------------------------------------------------------------------


def test_the_first_claim(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    claim = log_store.claim(run.run_id, "g", expected=0, reason="start")
    assert (claim.incarnation, claim.recovery, claim.run_uid) == (1, False, run.uid)
    found = status(log_store, claim)
    assert (found.state, found.desired, found.incarnation) == (GroupState.CLAIMED, GroupState.RUNNING, 1)
    assert (found.recoveries, found.identity, found.beat_at) == (0, None, None)


def test_of_many_claimants_one_wins(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    outcomes = race(*[lambda: log_store.claim(run.run_id, "g", expected=0, reason="start")] * 4)
    winners = [outcome for outcome in outcomes if isinstance(outcome, Claim)]
    assert len(winners) == 1
    assert all(isinstance(outcome, (Claim, Fenced)) for outcome in outcomes), outcomes
    assert status(log_store, winners[0]).incarnation == 1


def test_a_claim_of_what_has_been_claimed_is_fenced_and_changes_nothing(log_store: LogStore) -> None:
    claim = start_driver(log_store).claim
    before = contents(log_store)
    with pytest.raises(Fenced, match="incarnation 1, expected 0"):
        log_store.claim(claim.run_id, "g", expected=0, reason="late")
    assert contents(log_store) == before


def test_a_running_group_cannot_be_claimed(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match="'running' to 'claimed'"):
        log_store.claim(driver.run.run_id, "g", expected=1, reason="impatient")
    assert contents(log_store) == before


def test_claims_of_what_is_not_there(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    with pytest.raises(ProtocolViolation, match="no group 'x'"):
        log_store.claim(run.run_id, "x", expected=0, reason="start")
    with pytest.raises(UnknownRun):
        log_store.claim(run.run_id + 1, "g", expected=0, reason="start")


def test_a_recovery_raises_the_incarnation_and_keeps_the_history(log_store: LogStore) -> None:
    driver = replace_driver(start_driver(log_store))
    found = status(log_store, driver.claim)
    assert driver.claim.recovery
    assert (found.incarnation, found.recoveries, found.state) == (2, 1, GroupState.RUNNING)
    assert found.error is None


def test_a_spent_budget_parks_the_group_with_its_causes(log_store: LogStore) -> None:
    run = log_store.start_run(spec(budget=RecoveryBudget(recoveries=2)))
    causes = ["start", "first death", "second death", "third death"]
    for expected, reason in enumerate(causes[:3]):
        die(log_store, log_store.claim(run.run_id, "g", expected=expected, reason=reason))
    with pytest.raises(BudgetSpent) as spent:
        log_store.claim(run.run_id, "g", expected=3, reason="third death")
    for cause in causes[1:]:
        assert cause in str(spent.value)
    found = log_store.group(run.run_id, "g")
    assert (found.state, found.incarnation, found.error) == (GroupState.PARKED, 3, str(spent.value))


def test_a_parked_group_is_restarted_by_a_person_and_that_is_free(log_store: LogStore) -> None:
    run = log_store.start_run(spec(budget=RecoveryBudget(recoveries=1)))
    for expected in range(2):
        die(log_store, log_store.claim(run.run_id, "g", expected=expected, reason="death"))
    with pytest.raises(BudgetSpent):
        log_store.claim(run.run_id, "g", expected=2, reason="death")
    with pytest.raises(ProtocolViolation, match="only a person"):
        log_store.claim(run.run_id, "g", expected=2, reason="again")
    claim = log_store.claim(run.run_id, "g", expected=2, reason="retry", by_user=True)
    assert status(log_store, claim).state is GroupState.CLAIMED
    assert status(log_store, claim).error is None


def test_claims_by_a_person_spend_no_budget_and_are_no_recoveries(log_store: LogStore) -> None:
    run = log_store.start_run(spec(budget=RecoveryBudget(recoveries=1)))
    for expected in range(4):
        die(log_store, log_store.claim(run.run_id, "g", expected=expected, reason="death", by_user=True))
    assert log_store.group(run.run_id, "g").recoveries == 0
    assert log_store.claim(run.run_id, "g", expected=4, reason="death").incarnation == 5
    assert log_store.group(run.run_id, "g").recoveries == 1


def test_a_budget_of_none_parks_at_the_first_recovery(log_store: LogStore) -> None:
    run = log_store.start_run(spec(budget=RecoveryBudget(recoveries=0)))
    die(log_store, log_store.claim(run.run_id, "g", expected=0, reason="start"))
    with pytest.raises(BudgetSpent, match="last cause: death"):
        log_store.claim(run.run_id, "g", expected=1, reason="death")


# --- launch and registration ------------------------------------------------------------------------------------------


def test_submitted_first_and_later(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    launcher = DriverIdentity("here", "boot", 77, 3.5)
    claim = log_store.claim(run.run_id, "g", expected=0, reason="start")
    assert log_store.submitted(claim, log_path="/logs/1", launcher=launcher)
    found = status(log_store, claim)
    assert (found.state, found.log_path) == (GroupState.SUBMITTED, "/logs/1")
    assert found.identity == DriverIdentity("here", "boot", 0, 0.0, parent_pid=77, parent_start_time=3.5)
    assert not log_store.submitted(claim, log_path="/logs/1", launcher=launcher), "once"
    die(log_store, claim)
    second = log_store.claim(run.run_id, "g", expected=1, reason="death")
    assert log_store.submitted(second, log_path=None, launcher=None)
    assert status(log_store, second).state is GroupState.RESTARTED


def test_a_driver_that_is_quicker_than_its_launcher(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    claim = log_store.claim(run.run_id, "g", expected=0, reason="start")
    log_store.register(claim, SOMEBODY)
    assert not log_store.submitted(claim, log_path="/logs/1", launcher=SOMEBODY)
    found = status(log_store, claim)
    assert (found.state, found.log_path) == (GroupState.RUNNING, "/logs/1")
    assert found.identity is not None
    assert found.identity.pid == SOMEBODY.pid


def test_an_incarnation_is_registered_once(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    claim = log_store.claim(run.run_id, "g", expected=0, reason="start")
    others = [structs.replace(SOMEBODY, pid=pid) for pid in range(1, 5)]
    outcomes = race(*[lambda who=who: log_store.register(claim, who) for who in others])
    winners = [who for who, outcome in zip(others, outcomes, strict=True) if isinstance(outcome, GroupRef)]
    assert len(winners) == 1
    assert all(isinstance(outcome, (GroupRef, Fenced)) for outcome in outcomes), outcomes
    assert status(log_store, claim).identity == winners[0]


def test_a_wrong_nonce_is_refused_and_changes_nothing(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    claim = log_store.claim(run.run_id, "g", expected=0, reason="start")
    before = contents(log_store)
    with pytest.raises(Fenced, match="cannot be registered"):
        log_store.register(replace(claim, nonce="guessed"), SOMEBODY)
    assert contents(log_store) == before


def test_a_late_driver_is_fenced_before_its_first_read(log_store: LogStore) -> None:
    run = log_store.start_run(spec())
    late = log_store.claim(run.run_id, "g", expected=0, reason="start")
    assert log_store.declare_dead(GroupRef(run.run_id, "g", 1), "the launch deadline has passed")
    before = contents(log_store)
    with pytest.raises(Fenced):
        log_store.register(late, SOMEBODY)
    assert contents(log_store) == before
    log_store.claim(run.run_id, "g", expected=1, reason="deadline")
    with pytest.raises(Fenced):
        log_store.register(late, SOMEBODY)


# --- heartbeats and wishes --------------------------------------------------------------------------------------------


def test_heartbeats_are_seen_and_answer_with_the_wish(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    assert log_store.heartbeat(driver.ref, 1, ready=False, rss_bytes=100) is GroupState.RUNNING
    first = status(log_store, driver.ref)
    assert (first.beat, first.ready, first.rss_bytes) == (1, False, 100)
    log_store.request(driver.run.run_id, "g", GroupState.HALTED)
    assert log_store.heartbeat(driver.ref, 2, ready=True, rss_bytes=200) is GroupState.HALTED
    second = status(log_store, driver.ref)
    assert (second.beat, second.ready, second.rss_bytes, second.desired) == (2, True, 200, GroupState.HALTED)
    assert first.beat_at is not None and second.beat_at is not None
    assert second.beat_at >= first.beat_at


def test_a_driver_says_how_busy_it_is_and_its_successor_says_it_anew(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    assert status(log_store, driver.ref).load is None
    first, second = Load(10.0, 0.5, 0.25, 0.25, 3, 30, 1, 5, 2, 0.4), Load(10.0, 1.0, 0.0, 0.0, 9, 90, 3, 15)
    for beat, load in ((1, first), (2, second)):
        log_store.heartbeat(driver.ref, beat, ready=True, rss_bytes=1, load=load)
        assert status(log_store, driver.ref).load == load
    newer = replace_driver(driver)
    assert status(log_store, newer.ref).load is None


def test_the_heartbeat_of_a_replaced_driver_is_refused_and_not_seen(log_store: LogStore) -> None:
    old = start_driver(log_store)
    log_store.heartbeat(old.ref, 7, ready=True, rss_bytes=1)
    new = replace_driver(old)
    with pytest.raises(Fenced, match="incarnation 1"):
        log_store.heartbeat(old.ref, 8, ready=True, rss_bytes=1)
    found = status(log_store, new.ref)
    assert (found.beat, found.beat_at, found.ready) == (0, None, False), "observers read the new incarnation's row"


SOURCE = {"read": OperatorShape("g", {}, ("out",)), "use": OperatorShape("behind", {"in": "read.out"})}


def with_source(store: LogStore, state: GroupState = GroupState.RUNNING) -> Driver:
    """A driver of group ``g``, which has a source; group ``behind`` has none."""
    run = store.start_run(replace(spec("g", "behind"), operators=SOURCE))
    driver = start_driver(store, run=run)
    if state is GroupState.HALTED:
        store.halted(driver.ref)
    return driver


def test_a_group_with_sources_is_asked_to_drain_and_says_that_it_does(log_store: LogStore) -> None:
    driver = with_source(log_store)
    for _ in range(2):
        assert log_store.request(driver.run.run_id, "g", GroupState.DRAINING), "a second request changes nothing"
        assert log_store.heartbeat(driver.ref, 1, ready=True, rss_bytes=0) is GroupState.DRAINING
    for _ in range(2):
        driver.session.commit([fx.DrainGroup()])
        assert status(log_store, driver.ref).state is GroupState.DRAINING
        assert status(log_store, driver.ref).drained_at is not None
        assert condition_of(status(log_store, driver.ref)) == "draining"
    driver.session.commit([fx.FinishGroup()])
    assert status(log_store, driver.ref).state is GroupState.FINISHED
    assert condition_of(status(log_store, driver.ref)) == "finished, drained", "it has not read all that there was"
    assert log_store.request(driver.run.run_id, "g", GroupState.DRAINING), "what was asked for has happened"


def test_a_recovery_keeps_the_wish_to_drain(log_store: LogStore) -> None:
    driver = with_source(log_store)
    log_store.request(driver.run.run_id, "g", GroupState.DRAINING)
    driver.session.commit([fx.DrainGroup()])
    driver = replace_driver(driver)
    found = status(log_store, driver.ref)
    assert (found.state, found.desired) == (GroupState.RUNNING, GroupState.DRAINING)
    driver.session.park("by itself")
    again = log_store.claim(driver.run.run_id, "g", expected=2, reason="mended", by_user=True)
    assert status(log_store, again).desired is GroupState.DRAINING


def test_a_drain_of_a_group_that_nobody_has_launched_waits_for_its_driver(log_store: LogStore) -> None:
    run = log_store.start_run(replace(spec("g", "behind"), operators=SOURCE))
    log_store.request(run.run_id, "g", GroupState.DRAINING)
    assert log_store.group(run.run_id, "g").state is GroupState.NEW
    assert start_driver(log_store, run=run).ref.incarnation == 1
    assert log_store.group(run.run_id, "g").desired is GroupState.DRAINING


def test_a_halt_takes_the_wish_to_drain_back(log_store: LogStore) -> None:
    driver = with_source(log_store)
    log_store.request(driver.run.run_id, "g", GroupState.DRAINING)
    log_store.request(driver.run.run_id, "g", GroupState.HALTED)
    driver.session.commit([fx.DrainGroup()])
    assert log_store.halted(driver.ref)
    claim = log_store.claim(driver.run.run_id, "g", expected=1, reason="retry", by_user=True)
    assert status(log_store, claim).desired is GroupState.RUNNING


@pytest.mark.parametrize("when", ["before the end", "after the end"])
def test_a_finished_group_keeps_no_wish_that_stands_in_the_way_of_the_next(log_store: LogStore, when: str) -> None:
    """A stop asks every group to halt. One that has finished is not launched again, so no retry would take that back."""
    driver = with_source(log_store)
    if when == "before the end":  # it was about to finish, and did
        log_store.request(driver.run.run_id, "g", GroupState.HALTED)
    driver.session.commit([fx.FinishGroup()])
    for wish in (GroupState.HALTED, GroupState.DRAINING, GroupState.RUNNING):
        desired = status(log_store, driver.ref).desired
        assert log_store.request(driver.run.run_id, "g", wish)
        assert (status(log_store, driver.ref).state, status(log_store, driver.ref).desired) == (
            GroupState.FINISHED,
            desired,
        )


@pytest.mark.parametrize(
    ("group", "before", "wish", "sentence"),
    [
        ("behind", GroupState.RUNNING, GroupState.DRAINING, "'behind' has no source"),
        ("g", GroupState.HALTED, GroupState.DRAINING, "`logio retry` it first"),
        ("g", GroupState.RUNNING, GroupState.DEAD, "not to be 'dead'"),
        ("nobody", GroupState.RUNNING, GroupState.HALTED, "has no group 'nobody'"),
    ],
)
def test_wishes_that_nobody_would_obey_are_refused(
    log_store: LogStore, group: str, before: GroupState, wish: GroupState, sentence: str
) -> None:
    driver = with_source(log_store, before)
    found = contents(log_store)
    with pytest.raises(ProtocolViolation, match=sentence):
        log_store.request(driver.run.run_id, group, wish)
    assert contents(log_store) == found


def test_a_draining_group_cannot_be_asked_to_run(log_store: LogStore) -> None:
    driver = with_source(log_store)
    log_store.request(driver.run.run_id, "g", GroupState.DRAINING)
    with pytest.raises(ProtocolViolation, match="cannot go back"):
        log_store.request(driver.run.run_id, "g", GroupState.RUNNING)


def test_a_wish_for_one_incarnation_spares_the_next(log_store: LogStore) -> None:
    driver = replace_driver(start_driver(log_store))
    assert not log_store.request(driver.run.run_id, "g", GroupState.HALTED, incarnation=1)
    assert status(log_store, driver.ref).desired is GroupState.RUNNING
    assert log_store.request(driver.run.run_id, "g", GroupState.HALTED, incarnation=2)
    assert status(log_store, driver.ref).desired is GroupState.HALTED


@pytest.mark.parametrize("end", ["halted", "park"])
def test_a_driver_whose_group_was_stopped_commits_nothing_and_cannot_go_on(log_store: LogStore, end: str) -> None:
    driver = start_driver(log_store)
    assert getattr(log_store, end)(driver.ref, *(() if end == "halted" else ("given up",)))
    before = contents(log_store)
    with pytest.raises(EpochVoid):
        driver.session.commit([fx.StoreState("receiver", b"late")])
    with pytest.raises(EpochVoid):
        driver.session.check()
    for raise_epoch in (True, False):
        with pytest.raises(Fenced, match="commits nothing more"):
            log_store.session(driver.ref).open(raise_epoch=raise_epoch)
    assert contents(log_store) == before
    claim = log_store.claim(driver.run.run_id, "g", expected=1, reason="retry", by_user=True)
    session = log_store.session(log_store.register(claim, SOMEBODY))
    session.open()
    session.commit([fx.StoreState("receiver", b"next")])


def test_a_group_can_be_asked_to_run_to_drain_or_to_halt_only(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    with pytest.raises(ProtocolViolation, match="finished"):
        log_store.request(driver.run.run_id, "g", GroupState.FINISHED)


def test_a_claim_wishes_the_group_to_run_again(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    log_store.request(driver.run.run_id, "g", GroupState.HALTED)
    assert log_store.halted(driver.ref)
    assert status(log_store, driver.ref).state is GroupState.HALTED
    claim = log_store.claim(driver.run.run_id, "g", expected=1, reason="resume", by_user=True)
    assert status(log_store, claim).desired is GroupState.RUNNING


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "state"), [("declare_dead", GroupState.DEAD), ("park", GroupState.PARKED), ("halted", GroupState.HALTED)]
)
def test_ends_hold_for_the_incarnation_they_were_seen_at(log_store: LogStore, end: str, state: GroupState) -> None:
    old = start_driver(log_store)
    new = replace_driver(old)
    arguments = () if end == "halted" else ("cause",)
    before = contents(log_store)
    assert not getattr(log_store, end)(old.ref, *arguments)
    assert contents(log_store) == before
    assert getattr(log_store, end)(new.ref, *arguments)
    found = status(log_store, new.ref)
    assert (found.state, found.error) == (state, arguments[0] if arguments else None)


@pytest.mark.parametrize("end", ["declare_dead", "park", "halted"])
def test_a_finished_group_stays_finished(log_store: LogStore, end: str) -> None:
    driver = start_driver(log_store)
    driver.session.commit([fx.FinishGroup()])
    before = contents(log_store)
    assert not getattr(log_store, end)(driver.ref, *(() if end == "halted" else ("cause",)))
    assert contents(log_store) == before
    with pytest.raises(ProtocolViolation, match="'finished' to 'claimed'"):
        log_store.claim(driver.run.run_id, "g", expected=1, reason="again")


def test_a_driver_parks_itself(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.park("the operator's code raised")
    found = status(log_store, driver.ref)
    assert (found.state, found.error) == (GroupState.PARKED, "the operator's code raised")


def test_a_replaced_driver_parks_nobody(log_store: LogStore) -> None:
    old = start_driver(log_store)
    replace_driver(old)
    before = contents(log_store)
    with pytest.raises(Fenced):
        old.session.park("too late")
    assert contents(log_store) == before


def test_dead_stays_the_first_cause(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    assert log_store.declare_dead(driver.ref, "killed")
    assert not log_store.declare_dead(driver.ref, "lease")
    assert status(log_store, driver.ref).error == "killed"

"""Requests to scale a group: kept with who asked and why, one open per group, settled by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from airflow_logio.errors import ConfigurationError, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.support.faults import Pause, around_commit
from tests.support.logs import contents
from tests.support.racing import race
from tests.support.replicated import GROUP, A, B, C, launch, owners, replicated_run, replicated_spec

REQUESTED, ACCEPTED, DONE, REFUSED = ScalingState


def test_a_request_is_kept(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    made = log_store.request_scaling(run.run_id, GROUP, 3, by="a policy", reason="lag 9 s", key="k")
    assert made.requested_at > 0
    assert (made.run_id, made.group, made.replicas, made.state) == (run.run_id, GROUP, 3, REQUESTED)
    assert (made.by, made.reason, made.note, made.key) == ("a policy", "lag 9 s", "", "k")
    assert (made.accepted_at, made.ended_at) == (None, None)
    assert log_store.scalings(run.run_id) == log_store.scalings(run.run_id, GROUP) == [made]
    assert log_store.scalings(run.run_id, "another") == []


def test_a_request_is_settled_step_by_step(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    number = log_store.request_scaling(run.run_id, GROUP, 3, by="test").request_id
    assert not log_store.settle_scaling(number, DONE), "it was not accepted yet"
    for _ in range(2):
        assert log_store.settle_scaling(number, ACCEPTED, "launching")
    for _ in range(2):
        assert log_store.settle_scaling(number, DONE, "3 replicas run")
    assert not log_store.settle_scaling(number, REFUSED, "late")
    assert not log_store.settle_scaling(number, ACCEPTED)
    (found,) = log_store.scalings(run.run_id)
    assert (found.state, found.note) == (DONE, "3 replicas run")
    assert found.accepted_at is not None and found.ended_at is not None
    assert found.requested_at <= found.accepted_at <= found.ended_at


@pytest.mark.parametrize("accepted", [False, True])
def test_a_request_is_refused(log_store: LogStore, accepted: bool) -> None:
    run = replicated_run(log_store)
    number = log_store.request_scaling(run.run_id, GROUP, 3, by="test").request_id
    if accepted:
        assert log_store.settle_scaling(number, ACCEPTED)
    assert log_store.settle_scaling(number, REFUSED, "no\0 \ud800 room")
    (found,) = log_store.scalings(run.run_id)
    assert (found.state, found.note) == (REFUSED, "no� � room")
    assert not log_store.settle_scaling(number, DONE)


def test_a_newer_request_refuses_an_older_one_that_is_open(log_store: LogStore) -> None:
    run, other = replicated_run(log_store), replicated_run(log_store, dag_run="run-2")
    untouched = log_store.request_scaling(other.run_id, GROUP, 3, by="test")
    numbers = [log_store.request_scaling(run.run_id, GROUP, 1, by="test").request_id]
    log_store.settle_scaling(numbers[0], ACCEPTED)
    log_store.settle_scaling(numbers[0], DONE, "as asked")
    numbers += [log_store.request_scaling(run.run_id, GROUP, 3, by="test").request_id]
    log_store.settle_scaling(numbers[1], ACCEPTED)
    numbers += [log_store.request_scaling(run.run_id, GROUP, replicas, by="test").request_id for replicas in (2, 1)]
    found = log_store.scalings(run.run_id)
    assert [one.request_id for one in found] == numbers[::-1]
    assert [(one.state, one.note) for one in reversed(found)] == [
        (DONE, "as asked"),
        (REFUSED, f"superseded by request {numbers[2]}"),
        (REFUSED, f"superseded by request {numbers[3]}"),
        (REQUESTED, ""),
    ]
    assert found[1].ended_at is not None
    assert not log_store.settle_scaling(numbers[1], DONE), "the executor that carries it out finds out"
    assert log_store.scalings(other.run_id) == [untouched]
    sights = {one.run.uid: one.requests for one in log_store.sight(None)}
    assert sights == {run.uid: [found[0]], other.uid: [untouched]}, "a watcher sees the latest of each group"
    log_store.settle_scaling(numbers[-1], ACCEPTED)
    log_store.settle_scaling(numbers[-1], REFUSED, "no")
    (sight,) = log_store.sight([run.uid])
    assert [one.state for one in sight.requests] == [REFUSED], "even if it is not open"


def test_the_same_key_is_the_same_request(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    first = log_store.request_scaling(run.run_id, GROUP, 3, by="task", key="task/1")
    log_store.settle_scaling(first.request_id, ACCEPTED)
    log_store.settle_scaling(first.request_id, DONE)
    last = log_store.request_scaling(run.run_id, GROUP, 1, by="task", key="task/2")
    again = log_store.request_scaling(run.run_id, GROUP, 3, by="task", key="task/1")
    assert (again.request_id, again.state) == (first.request_id, DONE)
    assert log_store.scalings(run.run_id)[0] == last, "a request that is asked for again supersedes nothing"


def test_of_many_requests_at_once_one_is_open(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    same = race(*[lambda: log_store.request_scaling(run.run_id, GROUP, 3, by="test", key="k")] * 3)
    assert all(isinstance(one, ScalingRequest) for one in same), same
    assert len(log_store.scalings(run.run_id)) == 1
    outcomes = race(*[lambda: log_store.request_scaling(run.run_id, GROUP, 2, by="test")] * 4)
    assert all(isinstance(one, ScalingRequest) for one in outcomes), outcomes
    states = [one.state for one in log_store.scalings(run.run_id)]
    assert states == [REQUESTED, *[REFUSED] * 4]


def test_of_two_who_settle_a_request_one_does(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    number = log_store.request_scaling(run.run_id, GROUP, 3, by="test").request_id
    log_store.settle_scaling(number, ACCEPTED)
    outcomes = race(
        lambda: log_store.settle_scaling(number, DONE, "done"), lambda: log_store.settle_scaling(number, REFUSED, "no")
    )
    assert sorted(outcomes, key=repr) == [False, True], outcomes


@pytest.mark.parametrize("replicas", [0, 4, -1, 10**30])
def test_a_number_that_the_group_cannot_have_is_refused_at_once(log_store: LogStore, replicas: int) -> None:
    run = log_store.start_run(replicated_spec(least=1))
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match="its author allows 1 to 3"):
        log_store.request_scaling(run.run_id, GROUP, replicas, by="test")
    assert contents(log_store) == before


def test_requests_that_cannot_be_kept(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    with pytest.raises(UnknownRun, match="no replicated group 'nobody'"):
        log_store.request_scaling(run.run_id, "nobody", 1, by="test")
    with pytest.raises(ProtocolViolation, match="is not replicated"):
        log_store.request_scaling(run.run_id, "feed", 1, by="test")
    with pytest.raises(UnknownRun):
        log_store.request_scaling(run.run_id + 1, GROUP, 1, by="test")
    with pytest.raises(ConfigurationError, match="the key of a request to scale cannot be"):
        log_store.request_scaling(run.run_id, GROUP, 1, by="test", key="a\0b")
    with pytest.raises(ConfigurationError, match="the name of the requester cannot be ''"):
        log_store.request_scaling(run.run_id, GROUP, 1, by="")
    with pytest.raises(ProtocolViolation, match="no request 99"):
        log_store.settle_scaling(99, DONE)
    number = log_store.request_scaling(run.run_id, GROUP, 1, by="test").request_id
    with pytest.raises(ProtocolViolation, match="is accepted, done or refused, not 'requested'"):
        log_store.settle_scaling(number, REQUESTED)


def test_the_number_of_a_removed_request_is_not_given_to_another(log_store: LogStore) -> None:
    run = replicated_run(log_store)
    number = log_store.request_scaling(run.run_id, GROUP, 1, by="test").request_id
    while log_store.remove_run(run.run_id, 9, unfinished=True).more:
        pass
    again = replicated_run(log_store)
    assert log_store.request_scaling(again.run_id, GROUP, 1, by="test").request_id > number


def test_whoever_goes_by_a_request_that_is_settled_moves_nothing(log_store: LogStore) -> None:
    """Two carry out requests; the slower one read the first when it was open, and the second is done meanwhile."""
    run = replicated_run(log_store)
    for name in (A, B):
        launch(log_store, run, name)
    first = log_store.request_scaling(run.run_id, GROUP, 1, by="test")
    second = log_store.request_scaling(run.run_id, GROUP, 2, by="test")
    before = owners(log_store, run)
    with pytest.raises(ProtocolViolation, match=f"request {first.request_id} to scale a group is refused"):
        log_store.rescale(run.run_id, GROUP, dict.fromkeys(range(4), A), retire=[B], request_id=first.request_id)
    assert owners(log_store, run) == before
    assert log_store.rescale(run.run_id, GROUP, {0: B}, request_id=second.request_id) == (before[0] != B)
    with pytest.raises(ProtocolViolation, match="request 99 to scale a group is no longer in the log"):
        log_store.rescale(run.run_id, GROUP, {1: A}, request_id=99)


def test_whoever_goes_by_a_request_that_is_settled_launches_nothing(log_store: LogStore) -> None:
    """Else a replica would run without a request: it gets no slot, and a group put to sleep would not be woken."""
    run = replicated_run(log_store)
    first = log_store.request_scaling(run.run_id, GROUP, 3, by="test")
    second = log_store.request_scaling(run.run_id, GROUP, 3, by="test")
    before = contents(log_store)
    with pytest.raises(ProtocolViolation, match=f"request {first.request_id} to scale a group is refused"):
        log_store.claim(run.run_id, C, expected=0, reason="late", by_user=True, request_id=first.request_id)
    assert contents(log_store) == before
    log_store.claim(run.run_id, C, expected=0, reason="in time", by_user=True, request_id=second.request_id)
    assert log_store.group(run.run_id, C).state is GroupState.CLAIMED


@pytest.mark.parametrize("number", range(4))
def test_a_newer_request_and_a_launch_for_the_older_one_at_once(log_store: LogStore, number: int) -> None:
    run = replicated_run(log_store)
    first = log_store.request_scaling(run.run_id, GROUP, 3, by="test").request_id
    acts: list[Callable[[], Any]] = [
        lambda: log_store.request_scaling(run.run_id, GROUP, 0, by="test"),
        lambda: log_store.claim(run.run_id, C, expected=0, reason="test", by_user=True, request_id=first),
        lambda: log_store.rescale(run.run_id, GROUP, {}, retire=[C], request_id=first),
    ]
    acts = acts[number % 3 :] + acts[: number % 3]
    outcomes = race(*acts)
    allowed = (ScalingRequest, Claim, int, ProtocolViolation)
    assert all(isinstance(outcome, allowed) for outcome in outcomes), outcomes
    with pytest.raises(ProtocolViolation, match="is refused"):
        log_store.claim(run.run_id, B, expected=0, reason="late", by_user=True, request_id=first)


@pytest.mark.parametrize("first", ["the launch", "the settlement"])
def test_a_launch_for_a_request_and_its_settlement_come_one_after_the_other(log_url: str, first: str) -> None:
    """The first one stands still before its COMMIT; the other one waits, and goes by what the first has done."""
    launching, settling = SqlLogStore.at(log_url, patience=QUICK), SqlLogStore.at(log_url, patience=QUICK)
    run = replicated_run(launching, initial=1)
    request = launching.request_scaling(run.run_id, GROUP, 2, by="test")

    def claim() -> Claim:
        named: dict[str, Any] = {"by_user": True, "request_id": request.request_id}
        return launching.claim(run.run_id, B, expected=0, reason="scaling", **named)

    def settle() -> bool:
        return settling.settle_scaling(request.request_id, ScalingState.REFUSED, "the group was halted")

    stands, goes = (claim, settle) if first == "the launch" else (settle, claim)
    pause = Pause()
    with ThreadPoolExecutor(2) as pool, around_commit(launching if stands is claim else settling, before=pause):
        standing = pool.submit(stands)
        assert pause.is_reached_before(standing)
        going = pool.submit(goes)
        wait([going], 0.3)
        waited = not going.done()
        pause.release()
        assert standing.result(90)
        refused = going.exception(90)
    assert waited, f"what comes after {first} did not wait for it"
    if first == "the launch":
        assert refused is None
        assert launching.group(run.run_id, B).incarnation == 1, "who halts the group sees it"
    else:
        assert isinstance(refused, ProtocolViolation) and "is refused: nothing is done for it any more" in str(refused)
        assert launching.group(run.run_id, B).incarnation == 0
    for store in (launching, settling):
        store.dispose()

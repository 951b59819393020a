"""The fence: a driver that was replaced, or whose memory is void, commits nothing."""

from __future__ import annotations

import pytest

from airflow_logio.errors import EpochVoid, Fenced, LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import FenceRow, GroupRef
from tests.support.logs import contents, fetched, replace_driver, sent, spec, start_driver
from tests.support.racing import race


def test_commits_are_numbered_and_a_claim_does_not_reset_the_number(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit([sent(1)])
    driver.session.commit([sent(2)])
    assert driver.session.open() == FenceRow(1, 0, 2)
    assert replace_driver(driver).session.open() == FenceRow(2, 0, 2)


@pytest.mark.parametrize("effects", [[], [sent(9)], [fx.FinishGroup()]], ids=["empty", "event", "finish"])
def test_a_replaced_driver_commits_nothing(log_store: LogStore, effects: list[fx.Effect]) -> None:
    old = start_driver(log_store)
    old.session.commit([sent(1)])
    new = replace_driver(old)
    before = contents(log_store)
    with pytest.raises(Fenced, match="incarnation 1, was replaced by incarnation 2"):
        old.session.commit(effects)
    with pytest.raises(Fenced):
        old.session.open()
    with pytest.raises(Fenced):
        old.session.open(raise_epoch=True)
    assert contents(log_store) == before
    new.session.commit([sent(2)])
    assert fetched(new.session) == [1, 2]


def test_a_claim_alone_fences(log_store: LogStore) -> None:
    """Before anybody registers: recovery may read the log from the claim on."""
    old = start_driver(log_store)
    log_store.declare_dead(old.ref, "test")
    log_store.claim(old.run.run_id, "g", expected=1, reason="test")
    with pytest.raises(Fenced):
        old.session.commit([sent(1)])


def test_a_driver_declared_dead_and_not_replaced_may_still_commit(log_store: LogStore) -> None:
    """Dead is an observation; only the claim raises the fence, and recovery reads after it."""
    driver = start_driver(log_store)
    log_store.declare_dead(driver.ref, "a wrong guess")
    driver.session.commit([sent(1)])
    assert fetched(start_driver(log_store, expected=1, run=driver.run).session) == [1]


def test_a_raised_epoch_voids_what_another_thread_still_holds(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    stale = log_store.session(driver.ref)
    stale.open()
    driver.session.commit([sent(1)])
    assert driver.session.open(raise_epoch=True) == FenceRow(1, 1, 1)
    before = contents(log_store)
    with pytest.raises(EpochVoid, match="epoch 0 is void, the log is at 1"):
        stale.commit([sent(9)])
    assert contents(log_store) == before
    driver.session.commit([sent(2)])
    assert fetched(driver.session) == [1, 2]


def test_an_epoch_outlives_the_incarnation(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.open(raise_epoch=True)
    driver.session.open(raise_epoch=True)
    assert replace_driver(driver).session.open() == FenceRow(2, 2, 0)


def test_a_commit_number_is_used_once(log_store: LogStore) -> None:
    """Two sessions of one incarnation and epoch: a bug of ours, refused instead of interleaved."""
    driver = start_driver(log_store)
    twin = log_store.session(driver.ref)
    twin.open()
    driver.session.commit([sent(1)])
    before = contents(log_store)
    with pytest.raises(LogInconsistent, match="commit 1 was refused, the log is at commit 1"):
        twin.commit([sent(2)])
    assert contents(log_store) == before


def test_of_two_twins_at_once_one_commits(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    sessions = [log_store.session(driver.ref) for _ in range(4)]
    for session in sessions:
        session.open()
    outcomes = race(
        *[lambda session=session, n=n: session.commit([sent(n)]) for n, session in enumerate(sessions, start=1)]
    )
    committed = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
    assert committed == [()]
    assert all(isinstance(outcome, LogInconsistent) for outcome in outcomes if outcome not in committed), outcomes
    assert len(fetched(driver.session)) == 1


def test_groups_have_fences_of_their_own(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    a = start_driver(log_store, group="a", run=run)
    b = start_driver(log_store, group="b", run=run)
    a.session.commit([sent(1)])
    replace_driver(a)
    b.session.commit([sent(2)])
    assert b.session.open() == FenceRow(1, 0, 1)


def test_a_group_that_is_not_in_the_log_is_fenced(log_store: LogStore) -> None:
    session = log_store.session(GroupRef(99, "g", 1))
    with pytest.raises(Fenced):
        session.open()
    with pytest.raises(Fenced):
        session.commit([])

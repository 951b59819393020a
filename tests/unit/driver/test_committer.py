"""The committer's thread: what leaves a group leaves it after its commit, in order, and never after a refusal."""

from __future__ import annotations

import threading

import pytest

from airflow_logio.driver.committer import Committer
from airflow_logio.errors import Fenced
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import MAX_STEPS_WAITING, HandOver
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.systems.payloads.bodies import Bodies
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import IN, Driver, fetched, replace_driver, sent, start_driver
from tests.support.waiting import eventually


class Group:
    """A committer over a log in memory. `durable` is what was in the log when each hand-over came."""

    def __init__(self) -> None:
        self.driver: Driver = start_driver(MemoryLogStore())
        self.durable: list[list[int]] = []
        self.released: list[HandOver] = []
        self.errors: list[BaseException] = []
        self.gate = threading.Event()
        self.gate.set()
        self.commits: list[fx.Effects] = []
        self._commit = self.driver.session.commit
        self.driver.session.commit = self.commit  # type: ignore[method-assign]
        self.freed = 0
        self.committer = Committer(
            self.driver.session, Bodies(None), self.release, self.errors.append, freed=self.is_free
        )
        self.committer.start()

    def commit(self, effects: fx.Effects) -> tuple[Collected, ...]:
        assert self.gate.wait(60)
        self.commits.append(effects)
        return self._commit(effects)

    def is_free(self) -> None:
        assert self.committer.is_idle(), "and it can be asked from here"
        self.freed += 1

    def release(self, released: HandOver) -> None:
        self.durable.append(fetched(self.driver.session))
        self.released.append(released)


@pytest.fixture
def group() -> Group:
    return Group()


def test_what_is_handed_over_is_in_the_log(group: Group) -> None:
    for number in (1, 2, 3):
        group.committer.add([sent(number)])
        group.committer.drain()
    group.committer.stop()
    assert group.durable == [[1], [1, 2], [1, 2, 3]]
    assert [one.sent for one in group.released] == [[IN]] * 3


def test_steps_that_come_during_a_commit_share_the_next_one(group: Group) -> None:
    group.gate.clear()
    group.committer.add([sent(1)])
    eventually(lambda: not group.committer.is_idle(), what="the first is under way")
    eventually(lambda: not group.committer._queue.steps, what="the first was taken")
    for number in (2, 3, 4):
        group.committer.add([sent(number)])
    group.gate.set()
    group.committer.drain()
    group.committer.stop()
    assert len(group.commits) == 2
    assert group.durable == [[1], [1, 2, 3, 4]]


def test_it_says_when_nothing_is_left_to_commit(group: Group) -> None:
    group.gate.clear()
    group.committer.add([sent(1)])
    eventually(lambda: not group.committer.is_idle())
    group.committer.add([sent(2)])
    assert group.freed == 0
    group.gate.set()
    group.committer.drain()
    group.committer.stop()
    assert (len(group.commits), group.freed) in [(2, 1), (1, 1)]


def test_after_a_refused_commit_nothing_more_is_committed_or_handed_over(group: Group) -> None:
    group.gate.clear()
    group.committer.add([sent(1)])
    eventually(lambda: not group.committer._queue.steps, what="the first was taken")
    group.committer.add([sent(2)])
    successor = replace_driver(group.driver)
    group.gate.set()
    group.committer.drain()  # returns, though nothing will be committed any more
    group.committer.stop()
    assert [type(error) for error in group.errors] == [Fenced]
    assert (len(group.commits), group.released) == (1, [])
    assert fetched(successor.session) == []


def test_a_stop_drops_what_is_queued_and_waits_for_what_is_under_way(group: Group) -> None:
    group.gate.clear()
    group.committer.add([sent(1)])
    eventually(lambda: not group.committer._queue.steps, what="the first was taken")
    group.committer.add([sent(2)])
    stopper = threading.Thread(target=group.committer.stop)
    stopper.start()
    eventually(lambda: not group.committer._queue.steps, what="what is queued was dropped")
    assert stopper.is_alive(), "a commit is under way"
    group.gate.set()
    stopper.join(60)
    assert group.durable == [[1]]


def test_who_brings_too_much_waits_and_is_let_go_by_a_stop(group: Group) -> None:
    group.gate.clear()
    group.committer.add([sent(1)])
    eventually(lambda: not group.committer._queue.steps, what="the first was taken")
    for number in range(2, MAX_STEPS_WAITING + 2):
        group.committer.add([sent(number)])
    late = threading.Thread(target=group.committer.add, args=([sent(MAX_STEPS_WAITING + 2)],))
    late.start()
    late.join(0.2)
    assert late.is_alive(), "memory stays bounded"
    threading.Timer(0.1, group.gate.set).start()
    group.committer.stop()
    late.join(60)
    assert not late.is_alive()
    assert group.durable == [[1]], "nothing that came after the stop is committed"


def test_an_idle_committer_finds_out_that_its_driver_was_replaced(group: Group) -> None:
    replace_driver(group.driver)
    eventually(lambda: group.errors, what="it looks at the fence by itself")
    assert isinstance(group.errors[0], Fenced)
    group.committer.stop()

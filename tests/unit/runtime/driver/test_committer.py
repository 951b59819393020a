"""The committer's thread: one transaction after the other, nothing released before, nothing committed after a refusal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest

from airflow_logio.errors import EpochVoid, LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit_queue import MAX_STEPS_WAITING, CommitQueue, HandOver
from airflow_logio.protocol.values import Event, Port
from airflow_logio.runtime.driver import committer as module
from airflow_logio.runtime.driver.committer import Committer, serialize
from airflow_logio.runtime.payloads.bodies import Bodies
from airflow_logio.runtime.systems.arrow import encode
from airflow_logio.store.memory import MemoryLogStore
from airflow_logio.store.records import Collected
from tests.support.breaking import Variants
from tests.support.logs import IN, OUT, Driver, fetched, sent, start_driver
from tests.support.waiting import eventually

RECORDS = pa.table({"value": [1, 2, 3]})


class Group:
    """A committer over a log in memory. Its commits wait while the log is `busy`; `refusal` is raised by the next one."""

    def __init__(self) -> None:
        self.driver: Driver = start_driver(MemoryLogStore())
        self.busy, self.under_way = threading.Event(), threading.Event()
        self.refusal: Exception | None = None
        self.told: list[str] = []
        self.released: list[HandOver] = []
        self.collected: list[tuple[Sequence[fx.Effect], Sequence[Collected]]] = []
        self.errors: list[BaseException] = []
        self.before_failing: Callable[[], None] = lambda: None
        self._commit = self.driver.session.commit
        self.driver.session.commit = self._slow_commit  # type: ignore[method-assign]
        self.committer = Committer(
            self.driver.session, Bodies(None), self._released, self._failed, lambda *what: self.collected.append(what)
        )

    def _slow_commit(self, effects: fx.Effects) -> tuple[Collected, ...]:
        self.under_way.set()
        while self.busy.is_set():
            time.sleep(0.005)
        if self.refusal is not None:
            error, self.refusal = self.refusal, None
            raise error
        done = self._commit(effects)
        self.told.append("committed")
        return done

    def _released(self, durable: HandOver) -> None:
        self.told.append("released")
        self.released.append(durable)

    def _failed(self, error: BaseException) -> None:
        self.before_failing()
        self.errors.append(error)

    def logged(self) -> list[int]:
        return fetched(self.driver.session)


@contextmanager
def running() -> Iterator[Group]:
    group = Group()
    group.committer.start()
    try:
        yield group
    finally:
        group.busy.clear()
        group.committer.stop()


@contextmanager
def in_thread(work: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(10)


def what_is_durable_is_released() -> None:
    """After its commit, with the bodies that the commit has made; and the collection hears of it."""
    write = fx.LogWrite("sender", "wh", 1, {}, 3, RECORDS)
    with running() as group:
        group.committer.add([sent(1), write, fx.Collect(("sender",), 10)])
        group.committer.drain()
    assert group.errors == []
    assert group.told == ["committed", "released"], "it is released once, after the commit"
    (durable,) = group.released
    assert durable.sent == [IN]
    assert [one.body for one in durable.writes] == [encode(RECORDS)], "a writer gets the body that is in the log"
    assert [len(results) for _, results in group.collected] == [1], "the collection hears what a commit has collected"


def nothing_is_committed_after_a_refusal() -> None:
    with running() as group:
        group.busy.set()
        group.committer.add([sent(1)])
        assert group.under_way.wait(10)
        group.committer.add([sent(2)])
        group.refusal = LogInconsistent("commit 1 was refused")
        group.busy.clear()
        group.committer.drain()
        time.sleep(0.05)
        assert group.logged() == [], "a later step was committed without the one before it"
    assert group.released == [], "what was refused has left the group"
    assert [str(error) for error in group.errors] == ["commit 1 was refused"], "nobody hears of the refusal"


def a_refusal_is_known_when_a_wait_ends() -> None:
    """The loop looks for a failure when `drain` returns: the end of the group must not be reported without its commit."""
    known: list[bool] = []
    with running() as group:
        group.before_failing = lambda: time.sleep(0.1)
        group.refusal = LogInconsistent("the last commit was refused")
        group.committer.add([sent(1)])
        group.committer.drain()
        known.append(bool(group.errors))
    assert known == [True], "the wait has ended before the failure was told"


def a_loop_that_is_ahead_waits() -> None:
    def closes_many() -> None:
        for number in range(1, MAX_STEPS_WAITING + 10):
            group.committer.add([sent(number)])

    with running() as group:
        group.busy.set()
        group.committer.add([fx.Collect(("sender",), 1)])
        assert group.under_way.wait(10)
        with in_thread(closes_many) as loop:
            queue = group.committer._queue
            eventually(lambda: len(queue.steps) >= MAX_STEPS_WAITING)
            time.sleep(0.05)
            assert loop.is_alive() and len(queue.steps) == MAX_STEPS_WAITING, "memory is not bounded"
            group.busy.clear()
        group.committer.drain()
        assert group.logged() == list(range(1, MAX_STEPS_WAITING + 10))


def what_is_queued_when_it_stops_is_dropped() -> None:
    with running() as group:
        group.busy.set()
        group.committer.add([sent(1)])
        assert group.under_way.wait(10)
        group.committer.add([sent(2)])
        with in_thread(group.committer.stop) as stopping:
            eventually(lambda: group.committer._stopping)
            time.sleep(0.02)
            assert stopping.is_alive(), "its thread was not joined"
            group.busy.clear()
    assert group.logged() == [1], "a step of a void epoch was committed"


def one_that_is_idle_learns_that_its_epoch_is_void() -> None:
    with running() as group:
        store, ref = group.driver.store, group.driver.ref
        store.session(ref).open(raise_epoch=True)
        deadline = time.monotonic() + 3
        while not group.errors and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [type(error) for error in group.errors] == [EpochVoid], "an idle group never learns it"


CHECKS = [
    what_is_durable_is_released,
    nothing_is_committed_after_a_refusal,
    a_refusal_is_known_when_a_wait_ends,
    a_loop_that_is_ahead_waits,
    what_is_queued_when_it_stops_is_dropped,
    one_that_is_idle_learns_that_its_epoch_is_void,
]
BROKEN = Variants()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_CHECK_SECONDS", 0.02)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_committer(check: Callable[[], None]) -> None:
    check()


@BROKEN.of(what_is_durable_is_released, "after the commit")
def released_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """What a transaction releases leaves the group first."""

    def early(self: Committer) -> None:
        self._release(HandOver())
        commit(self)

    commit = Committer._commit
    patch.setattr(Committer, "_commit", early)


@BROKEN.of(what_is_durable_is_released, "released once")
def nothing_is_released(patch: pytest.MonkeyPatch) -> None:
    """The committer takes the hand-over for done."""
    patch.setattr(Committer, "_hand_over", lambda self: self._queue.handed_over())


@BROKEN.of(what_is_durable_is_released, "the body that is in the log")
def released_as_it_was_taken(patch: pytest.MonkeyPatch) -> None:
    """The serialized form goes to the log, but does not replace what was taken."""

    def commit(self: Committer) -> None:
        collected = self._session.commit(serialize(self._queue.taken, self._bodies))
        effects = self._queue.taken
        self._queue.committed()
        self._collected(effects, collected)

    patch.setattr(Committer, "_commit", commit)


@BROKEN.of(what_is_durable_is_released, "the collection hears")
def collection_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """The results of garbage collection are dropped: a batch stays under way for ever."""

    def commit(self: Committer) -> None:
        self._queue.taken = serialize(self._queue.taken, self._bodies)
        self._session.commit(self._queue.taken)
        self._queue.committed()

    patch.setattr(Committer, "_commit", commit)


@BROKEN.of(nothing_is_committed_after_a_refusal, "a later step was committed")
def resumes_after_a_refusal(patch: pytest.MonkeyPatch) -> None:
    """A refused transaction is reported, and the next one taken."""

    def run(self: Committer) -> None:
        while self._take():
            try:
                self._commit()
                self._hand_over()
            except Exception as error:
                self._failed(error)
                self._queue.drop_taken()  # type: ignore[attr-defined]

    def drop_taken(self: CommitQueue) -> None:
        self._left, self.taken = [], []

    patch.setattr(CommitQueue, "drop_taken", drop_taken, raising=False)
    patch.setattr(Committer, "_run", run)


@BROKEN.of(nothing_is_committed_after_a_refusal, "nobody hears")
def refusal_is_swallowed(patch: pytest.MonkeyPatch) -> None:
    """The thread ends without a word."""

    def run(self: Committer) -> None:
        try:
            while self._take():
                self._commit()
                self._hand_over()
        except Exception:
            with self._changed:
                self._broken = True
                self._changed.notify_all()

    patch.setattr(Committer, "_run", run)


@BROKEN.of(a_refusal_is_known_when_a_wait_ends, "before the failure was told")
def broken_before_it_says_so(patch: pytest.MonkeyPatch) -> None:
    """Who waits is woken first, and told then."""

    def run(self: Committer) -> None:
        try:
            while self._take():
                self._commit()
                self._hand_over()
        except Exception as error:
            with self._changed:
                self._broken = True
                self._changed.notify_all()
            self._failed(error)

    patch.setattr(Committer, "_run", run)


@BROKEN.of(a_loop_that_is_ahead_waits, "memory is not bounded")
def never_full(patch: pytest.MonkeyPatch) -> None:
    """`add` does not wait."""

    def add(self: Committer, effects: fx.Effects) -> None:
        with self._changed:
            self._queue.add(effects)
            self._changed.notify_all()

    patch.setattr(Committer, "add", add)


@BROKEN.of(what_is_queued_when_it_stops_is_dropped, "a step of a void epoch")
def stops_when_all_is_committed(patch: pytest.MonkeyPatch) -> None:
    """What is queued is committed before the thread ends."""

    def stop(self: Committer) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    patch.setattr(Committer, "stop", stop)


@BROKEN.of(what_is_queued_when_it_stops_is_dropped, "not joined")
def stops_without_joining(patch: pytest.MonkeyPatch) -> None:
    """The thread is told to end, and may still commit."""

    def stop(self: Committer) -> None:
        with self._changed:
            self._stopping = True
            self._queue.drop()
            self._changed.notify_all()

    patch.setattr(Committer, "stop", stop)


@BROKEN.of(one_that_is_idle_learns_that_its_epoch_is_void, "never learns")
def idle_ones_look_at_nothing(patch: pytest.MonkeyPatch) -> None:
    """An idle committer does not look at its fence."""
    patch.setattr(Committer, "_check_idle", lambda _self: None)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_committer_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name].is_noticed(monkeypatch)


def test_bytes_are_counted_where_they_are_known() -> None:
    event = fx.LogEvent(Event(OUT, 1, records=3, payload=RECORDS), (fx.Delivery(IN),))
    *rest, counted = serialize([event, event], Bodies(None))
    assert len(rest) == 2 and isinstance(counted, fx.CountEvents)
    assert counted == fx.CountEvents(Port("sender", "out"), "out", 0, 0, 2 * len(encode(RECORDS)))

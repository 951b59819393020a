"""The thread of a source operator: executes its read actions one after the other (Algorithms 1 and 6).

The effect of a replayable one streams through, and is replayed from the logged offset. The effect of one that is not is
stored first; once it is complete, the external system is not read again. What is logged, and when, the group decides: this
thread brings what it has read, and discards a store when it is told that its last event is in the log.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator
from airflow_logio.dataflow.sources import ConnectedSource, RangeSource, SparkSource
from airflow_logio.dataflow.sources.ranges import END, START, is_empty
from airflow_logio.dataflow.unavailability import advice, is_missing_input
from airflow_logio.driver.mailbox import Closed, Mailbox
from airflow_logio.driver.spark_jobs.evaluation import LEAST_ATTEMPTS, Evaluation, ReadRange, ReopenStored, StoreEffect
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    FailurePoint,
    InputMissing,
    LogioError,
    LogUnavailable,
    OperatorFailed,
    SourceChanged,
    StatementCutOff,
    authored_frames,
)
from airflow_logio.protocol.commit import DiscardOrder, ForgetOrder, ReadOrder, SourceOrder
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.spark.chains import Evaluated
from airflow_logio.spark.schemas import SentColumns
from airflow_logio.spark.spark_effects import store_nothing, stored_events
from airflow_logio.systems.arrow import bytes_shown
from airflow_logio.systems.calls import replay
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.payload_roots import HOW_TO_CONFIGURE
from airflow_logio.systems.payloads.payload_store import EpochPayloads
from airflow_logio.systems.payloads.stored_effects import store_effect, stored_batches

log = logging.getLogger(__name__)
T = TypeVar("T")
_LATE = (
    ". What it reads is not there yet. Nothing is lost: the retries of its task in Airflow look again (retries, "
    "retry_delay), and so does `logio retry`"
)
PLAN = "plan"
"""Key of the first read action: what the following ones need to know of it. Kept with the run, not with each action."""
POLL_SECONDS = 0.25
RANGE_POLL_SECONDS = 1.0
"""A source without a new range is asked again so often."""


class SourceReader:
    """`may_start` blocks until the source may read (a benchmark waits until all groups are ready).

    What is used up is cleared on another thread (`SourceClearing`).
    """

    def __init__(
        self,
        name: str,
        operator: SourceOperator,
        params: Mapping[str, Any],
        plan: Any,
        connections: Connections,
        payloads: EpochPayloads | None,
        mailbox: Mailbox,
        failed: Callable[[BaseException], None],
        may_start: Callable[[threading.Event], None],
        evaluation: Evaluation | None = None,
    ) -> None:
        self._name = name
        self._operator = operator
        self._params = params
        self._plan = plan
        self._connections = connections
        self._payloads = payloads
        self._mailbox = mailbox
        self._failed = failed
        self._may_start = may_start
        self._evaluation = evaluation
        self._access = SourceAccess(name, operator, params, connections)
        self._reading = 0
        self._started = False
        self._offset = 0
        self._columns = SentColumns(name, self._where)
        self._reads: queue.SimpleQueue[tuple[ReadOrder, threading.Event] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._draining = threading.Event()
        self._interrupted = threading.Event()
        """Set when nothing is to be read any more: on stopping, or when the read action under way was cut short."""
        self._clearing = SourceClearing(self._access, payloads, mailbox, failed, self._thread, self._stopping)
        self._reading_thread = self._thread("source", self._read_all)

    def ask(self, task: SourceOrder) -> None:
        """Tasks are begun in the order in which they are asked for: what is used up goes before more is stored."""
        if isinstance(task, ReadOrder):
            self._reads.put((task, self._clearing.last_discard))
        else:
            self._clearing.ask(task)

    def drain(self, *, cut_short: bool) -> None:
        """No further read action follows. `cut_short`: nothing more of the one under way is wanted, or it has no rest."""
        self._draining.set()
        if cut_short:
            self._interrupted.set()

    def stop(self, *, patience: float) -> FailurePoint | None:
        """The mailbox must be closed first: the threads may wait for room in it.

        A read (or `forget`) that is blocked in the external system is waited for `patience` seconds. If it does not answer,
        returns where it is: the process must end then, because a rebuild would read a second time beside it.
        """
        self._stopping.set()
        self._interrupted.set()
        self._reads.put(None)
        self._clearing.stop()
        deadline = time.monotonic() + patience
        threads = list(filter(None, [self._reading_thread, self._clearing.thread]))
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        blocked = next((thread for thread in threads if thread.is_alive()), None)
        if blocked is None:
            return None
        call = self._connections.calls.of(blocked)
        log.warning("source %s: %s does not answer, and is abandoned", self._name, call or blocked.name)
        return self._point() if call is None else call.point

    # --- the threads --------------------------------------------------------------------------------------------------

    def _thread(self, kind: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._reporting, args=(work,), name=f"logio-{kind}-{self._name}", daemon=True)
        thread.start()
        return thread

    def _read_all(self) -> None:
        try:
            while (task := self._reads.get()) is not None:
                read, discarded = task
                while not discarded.wait(POLL_SECONDS):
                    self._check_wanted()
                if not self._started:
                    self._may_start(self._stopping)
                self._started = True
                self._execute(read)
        except _Cut:
            log.info("source %s: nothing further is read", self._name)
        except Exception as error:
            if self._interrupted.is_set() and not self._stopping.is_set():
                log.info("source %s: nothing further is read (%s: %s)", self._name, type(error).__name__, error)
                return
            raise

    def _reporting(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Closed:
            return
        except OperatorFailed as error:
            failure = error.further(self._where(), self._point())
            failure.is_first = self._is_first()
            self._fail(failure, error)
        except LogioError as error:
            self._failed(error)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}{advice(error, f'source {self._name!r}')}"
            cause += authored_frames(error)
            self._fail(OperatorFailed(cause, self._point(), place=self._where(), is_first=self._is_first()), error)

    def _fail(self, failure: OperatorFailed, error: Exception) -> None:
        """Another driver would not find a file that is missing, either: its group waits, and is asked for it again."""
        found = InputMissing(f"{failure}{_LATE}") if is_missing_input(error) else failure
        found.__cause__ = error
        self._failed(found)

    def _is_first(self) -> bool:
        return self._offset == 0 and self._reading <= FIRST_EVENT_ID

    def _where(self) -> str:
        return f"pipeline {self._connections.pipeline!r}, source {self._name!r}, {self._how_far()}"

    def _point(self) -> FailurePoint:
        return FailurePoint(self._name, action=self._how_far())

    def _how_far(self) -> str:
        return f"read action {self._reading} after {self._offset:,} records"

    def _execute(self, read: ReadOrder) -> None:
        self._check_wanted()
        self._reading = read.action_id
        what = f"reading source {self._name}"
        self._offset = read.offset
        self._columns.schema = self._columns.schema or read.sent_schema
        if isinstance(self._operator, RangeSource) and self._operator.replayable:
            self._execute_range(what, read)
            return
        if self._operator.replayable:
            self._replayed(what, lambda: self._bring(self._read(read.action, self._offset)))
            self._mailbox.put_input(self._end(read.action), 0)
            return
        payloads, ref = needed_payloads(self._name, self._payloads), read.stored
        if ref is None:
            ref, records = self._replayed(what, lambda: self._stored(payloads, read))
            self._clearing.remember(read.action_id, ref)
            end = None if records else self._end(read.action)
            self._mailbox.put_input(Stored(self._name, ref, records, end), 0)
            if end is not None:
                return
        self._clearing.remember(read.action_id, ref)
        where = f"the stored effect of read action {read.action_id} of source {self._name!r}"
        self._replayed(what, lambda: self._bring_stored(payloads, where, ref, read.action_id))
        self._mailbox.put_input(HandedOver(self._name), 0)
        if not self._draining.is_set():
            self._mailbox.put_input(self._end(read.action), 0)

    def _execute_range(self, what: str, read: ReadOrder) -> None:
        """One range is one event: it is read, or it was (`offset` 1)."""
        evaluation, action = self._evaluation, read.action
        assert evaluation is not None, f"{self._name} has ranges, and nothing evaluates them"
        if not read.offset and not is_empty(action):
            crash_here(CrashPoint.BEFORE_READ)
            payload = self._replayed(what, lambda: self._evaluated(evaluation, action, read.action_id))
            crash_here(CrashPoint.AFTER_READ)
            self._check_wanted()
            self._columns.schema = payload.schema
            self._mailbox.put_input(ReadFrame(self._name, payload, payload.num_rows, 1), 0)
            self._offset = 1
        self._mailbox.put_input(self._end(action), 0)

    def _evaluated(self, evaluation: Evaluation, action: Mapping[str, Any], number: int) -> Evaluated:
        """The event of a range. Raises as `SourceAccess.unchanged` and `Evaluation.evaluate`."""
        work = ReadRange(self._name, self._params, action, number, self._columns.fitted)
        return self._unchanged(action, lambda: evaluation.evaluate(work))

    def _unchanged(self, action: Mapping[str, Any], made: Callable[[], T]) -> T:
        return self._access.unchanged(action, made, self._where, self._point())

    def _stored(self, payloads: EpochPayloads, read: ReadOrder) -> tuple[str, int]:
        """Step 2.a: the reference of the whole effect, and its records."""
        if isinstance(self._operator, RangeSource) and is_empty(read.action):
            return store_nothing(payloads, self._name, read.action_id), 0
        if isinstance(self._operator, SparkSource | RangeSource):
            assert self._evaluation is not None, f"{self._name} reads DataFrames, and nothing evaluates them"
            work = StoreEffect(self._name, self._params, read.action, read.action_id, self._columns.fitted)
            effect = partial(self._evaluation.evaluate, work)
            crash_here(CrashPoint.BEFORE_READ)
            found = self._unchanged(read.action, effect) if isinstance(self._operator, RangeSource) else effect()
            self._check_wanted()
            return found
        purpose = f"effects/{self._name}/{read.action_id}"
        reference, records = store_effect(payloads, purpose, self._read(read.action, 0))
        return str(reference), records

    def _bring_stored(self, payloads: EpochPayloads, where: str, ref: str, action_id: int) -> None:
        """Step 2.c, as `_bring`."""
        if not isinstance(self._operator, SparkSource | RangeSource):
            self._bring(stored_batches(payloads, where, ref, self._offset))
            return
        assert self._evaluation is not None
        events = list(stored_events(payloads, where, ref, self._offset))
        for event, payload in self._evaluation.in_order(events, partial(ReopenStored, self._name, action_id)):
            self._check_wanted()
            self._columns.schema = payload.schema
            records = event.next_offset - event.first
            self._mailbox.put_input(ReadFrame(self._name, payload, records, event.next_offset, event.about), 0)
            self._offset = event.next_offset
            self._connections.calls.waits_no_more()

    def _bring(self, batches: Iterator[SourceBatch]) -> None:
        """Hand over the batches, starting after the last one that was handed over: a replay resumes there."""
        for batch in batches:
            self._mailbox.put_input(
                ReadBatch(self._name, batch.table, batch.next_offset, batch.about), bytes_shown(batch.table)
            )
            self._offset = batch.next_offset
            self._connections.calls.waits_no_more()

    def _read(self, action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        """Step 2.a or 3: the batches of the external system, until this thread is to end."""
        crash_here(CrashPoint.BEFORE_READ)
        for batch in self._access.batches(action, offset, self._point):
            crash_here(CrashPoint.AFTER_READ)
            self._check_wanted()
            yield batch
            crash_here(CrashPoint.BEFORE_READ)

    def _check_wanted(self) -> None:
        if self._stopping.is_set():
            raise Closed
        if self._interrupted.is_set():
            raise _Cut

    def _end(self, action: Mapping[str, Any]) -> Exhausted:
        previous = dict(action) if self._plan is None else {**action, PLAN: self._plan}
        crash_here(CrashPoint.BEFORE_NEXT_ACTION)
        following = self._replayed(
            f"the next read action of source {self._name}",
            lambda: self._access.next_action(previous, self._point()),
        )
        while isinstance(self._operator, RangeSource) and following is not None and is_empty(following):
            self._interrupted.wait(RANGE_POLL_SECONDS)
            self._check_wanted()
            following = self._replayed(
                f"the next range of source {self._name}",
                lambda: self._access.next_action(previous, self._point()),
            )
        crash_here(CrashPoint.AFTER_NEXT_ACTION)
        return Exhausted(self._name, None if following is None else without_plan(following))

    def _replayed(self, what: str, action: Callable[[], T]) -> T:
        """Replay an action with back-off while the external system or the payload store is unavailable. There is no limit
        while the action still yields events.

        Raises `ExternalUnavailable`.
        """
        attempts, reached = 0, self._offset

        def attempt() -> T:
            nonlocal attempts
            attempts, begun = attempts + 1, self._offset
            try:
                return action()
            except LogUnavailable as error:
                raise ExternalUnavailable(str(error)) from error
            except StatementCutOff as error:
                if self._offset == begun:
                    raise
                raise ExternalUnavailable(str(error)) from error  # it comes further each time

        while True:
            try:
                return replay(
                    what,
                    attempt,
                    self._connections.replay_seconds,
                    self._interrupted,
                    self._operator.unavailable,
                    self._connections.calls,
                )
            except ExternalUnavailable:
                self._check_wanted()
                if self._offset > reached:
                    attempts, reached = 0, self._offset
                elif attempts >= LEAST_ATTEMPTS:
                    raise


class _Cut(Exception):
    """The group drains: the read under way is not wanted any more."""


class SourceReaders(dict[str, SourceReader]):
    """The readers of a group's sources (`protocol.loop.Readers`)."""

    def ask(self, orders: Iterable[SourceOrder]) -> None:
        for order in orders:
            self[order.operator].ask(order)

    def drain(self, name: str, *, cut_short: bool) -> None:
        self[name].drain(cut_short=cut_short)


def without_plan(action: Mapping[str, Any]) -> dict[str, Any]:
    """The read action as it is logged."""
    return {name: value for name, value in action.items() if name != PLAN}


class SourceClearing:
    """`start` runs a function on a thread of the source, and reports what it raises; `stopping` is set before `stop`."""

    def __init__(
        self,
        access: SourceAccess,
        payloads: EpochPayloads | None,
        mailbox: Mailbox,
        failed: Callable[[BaseException], None],
        start: Callable[[str, Callable[[], None]], threading.Thread],
        stopping: threading.Event,
    ) -> None:
        self._access = access
        self._payloads = payloads
        self._mailbox = mailbox
        self._failed = failed
        self._start = start
        self._stopping = stopping
        self._refs: dict[int, str] = {}
        self._orders: queue.SimpleQueue[tuple[DiscardOrder | ForgetOrder, threading.Event] | None] = queue.SimpleQueue()
        self.last_discard = threading.Event()
        """Set when every store that had to be discarded so far is gone."""
        self.last_discard.set()
        self.thread: threading.Thread | None = None
        """None until there is something to clear."""

    def ask(self, order: DiscardOrder | ForgetOrder) -> None:
        if self.thread is None:
            self.thread = self._start("clear", self._clear_all)
        cleared = threading.Event()
        if isinstance(order, DiscardOrder):
            self.last_discard = cleared
        self._orders.put((order, cleared))

    def remember(self, action_id: int, ref: str) -> None:
        """The stored effect of a read action, for the order to discard it."""
        self._refs[action_id] = ref

    def stop(self) -> None:
        """Nothing further is cleared. The thread is the caller's to join."""
        self._orders.put(None)

    def _clear_all(self) -> None:
        while (asked := self._orders.get()) is not None and not self._stopping.is_set():
            order, cleared = asked
            if isinstance(order, DiscardOrder):
                self._discard(order)
            else:
                self._forget(order)
            cleared.set()

    def _discard(self, order: DiscardOrder) -> None:
        name = self._access.name
        ref = self._refs.pop(order.action_id, None) if order.ref is None else order.ref
        if ref is None:
            raise OperatorFailed(f"source {name!r} knows no store of read action {order.action_id}")
        crash_here(CrashPoint.BEFORE_DROP)
        point = FailurePoint(name, action=f"discarding the stored effect of read action {order.action_id}")
        with self._access.connections.calls.call("remove", point, limited=False):
            needed_payloads(name, self._payloads).remove([ref])
        crash_here(CrashPoint.AFTER_DROP)
        self._mailbox.put(Discarded(name, order.action_id))

    def _forget(self, order: ForgetOrder) -> None:
        access = self._access
        point = FailurePoint(access.name, action=f"forget() of read action {order.action_id}")
        crash_here(CrashPoint.BEFORE_FORGET)
        what, seconds = f"telling source {access.name} what it may forget", access.connections.replay_seconds
        try:
            replay(
                what,
                lambda: access.forget(order.action[END], point),
                seconds,
                self._stopping,
                access.operator.unavailable,
                access.connections.calls,
            )
        except Exception as error:
            if self._stopping.is_set():
                raise Closed from None
            if isinstance(error, LogioError):
                raise
            cause = f"{type(error).__name__}: {error}{advice(error, f'source {access.name!r}')}{authored_frames(error)}"
            failure = OperatorFailed(cause, point, place=f"pipeline {access.connections.pipeline!r}, {point}")
            failure.__cause__ = error
            self._failed(failure)  # here: its place is not the one that is being read
            raise Closed from error
        crash_here(CrashPoint.AFTER_FORGET)
        self._mailbox.put(Forgotten(access.name, order.action_id))


def needed_payloads(source: str, payloads: EpochPayloads | None) -> EpochPayloads:
    """Raises `ConfigurationError` where the deployment has no payload store."""
    if payloads is None:
        raise ConfigurationError(
            f"source {source!r} cannot be replayed, so its effect must be stored, and the deployment has no payload "
            f"store: {HOW_TO_CONFIGURE}"
        )
    return payloads


class SourceAccess:
    """`point` says what the source was doing: a call that does not return is reported with it.

    Every method raises what the author's method does, and `ConfigurationError` if the run was started without a connection
    that the source asks for.
    """

    def __init__(
        self, name: str, operator: SourceOperator, params: Mapping[str, Any], connections: Connections
    ) -> None:
        self.name = name
        self.operator = operator
        self.params = params
        self.connections = connections
        self._connected: RangeSource | None = None
        self._connecting = threading.Lock()

    def batches(
        self, action: Mapping[str, Any], offset: int, point: Callable[[], FailurePoint]
    ) -> Iterator[SourceBatch]:
        """The batches of a read action, from the record after `offset` on. Each is a call of its own."""
        with self.connections.calls.call("read", point()):
            batches = iter(self._read(action, offset))
        while True:
            with self.connections.calls.call("read", point()):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _read(self, action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        operator = self.operator
        if isinstance(operator, ConnectedSource):
            connection = self.connections.source(operator.connection, self.name)
            return operator.read_from(connection, self.params, action, offset)
        return operator.read(self.params, action, offset)

    def next_action(self, previous: Mapping[str, Any], point: FailurePoint) -> Mapping[str, Any] | None:
        with self.connections.calls.call("next_action", point):
            asked = self._ranges() if isinstance(self.operator, RangeSource) else self.operator
            return asked.next_action(self.params, previous)

    def forget(self, end: Any, point: FailurePoint) -> None:
        with self.connections.calls.call("forget", point):
            self._ranges().forget(self.params, end)

    def unchanged(
        self, action: Mapping[str, Any], made: Callable[[], T], where: Callable[[], str], point: FailurePoint
    ) -> T:
        """What is made of a range that did not change while Spark read it. Raises `SourceChanged`."""
        before = self._observed(action, point)
        try:
            found = made()
        except OperatorFailed as error:  # Spark says of a file that has gone only that it is not there
            _check_unchanged(action, before, self._observed(action, point), where, error)
            raise
        _check_unchanged(action, before, self._observed(action, point), where)
        return found

    def _observed(self, action: Mapping[str, Any], point: FailurePoint) -> Any:
        with self.connections.calls.call("observed", point):
            return self._ranges().observed(self.params, action[START], action[END])

    def _ranges(self) -> RangeSource:
        """The source as it is asked, with its connections."""
        assert isinstance(self.operator, RangeSource)
        with self._connecting:
            if self._connected is None:
                self._connected = self.operator.connected(self.connections.source)
            return self._connected


def _check_unchanged(
    action: Mapping[str, Any],
    before: object,
    after: object,
    where: Callable[[], str],
    error: OperatorFailed | None = None,
) -> None:
    """Raises `SourceChanged` if the range is not what it was, as the cause of an `error`."""
    if after != before:
        raise SourceChanged(
            f"{where()}: the range from {action[START]} to {action[END]} was changed while it was read: it was "
            f"{before}, and is {after}. Nothing of it was used: put it back as it was, or start a fresh run"
        ) from error


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Records of one event, and the offset after them."""

    operator: str
    table: pa.Table
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """The event of a range, or one of an effect that Spark has stored, evaluated; and the offset after it."""

    operator: str
    payload: Evaluated
    records: int
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The read action has no more records; `next_action` follows it."""

    operator: str
    next_action: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The stored effect of the read action is handed over whole; what follows is asked of the external system now."""

    operator: str


@dataclass(frozen=True, slots=True)
class Stored:
    """The whole effect of the read action is stored; `end` if it is empty, so that the action completes with that."""

    operator: str
    ref: str
    records: int
    end: Exhausted | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """The store of a read action was discarded."""

    operator: str
    action_id: int


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The external system has heard that it may forget what was read up to the end of a read action."""

    operator: str
    action_id: int

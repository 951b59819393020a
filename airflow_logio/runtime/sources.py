"""The thread of a source operator: executes its read actions one after the other (Algorithms 1 and 6).

The effect of a replayable one streams through, and is replayed from the logged offset. The effect of one that is not is
stored first; once it is complete, the external system is not read again. What is logged, and when, the group decides: this
thread brings what it has read, and discards a store when it is told that its last event is in the log.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SourceBatch, SourceOperator
from airflow_logio.dataflow.sources import ConnectedSource
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    LogUnavailable,
    OperatorFailed,
)
from airflow_logio.runtime.external import Connections, replay
from airflow_logio.runtime.mailbox import Closed, Mailbox
from airflow_logio.runtime.payloads.effects import store_effect, stored_batches
from airflow_logio.runtime.payloads.roots import HOW_TO_CONFIGURE
from airflow_logio.runtime.payloads.store import EpochPayloads

log = logging.getLogger(__name__)

T = TypeVar("T")

PLAN = "plan"
"""Key of the first read action: what the following ones need to know of it. Kept with the run, not with each action."""

LEAST_ATTEMPTS = 3
"""A read that fails after a long time has used up the time for replays at once; it gets these attempts anyway."""


# --- what the thread brings -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one event, and the offset after them."""

    operator: str
    table: pa.Table
    next_offset: int
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The read action has no more records; `next_action` follows it."""

    operator: str
    next_action: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """The whole effect of the read action is stored; `end` if it is empty, so that the action completes with that."""

    operator: str
    ref: str
    records: int
    end: Exhausted | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """The store of a read action is discarded."""

    operator: str
    action_id: int


# --- what the thread is asked to do -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadAction:
    """Execute a read action that is in the log, from behind its first `offset` records; `stored` is its stored effect."""

    action_id: int
    action: Mapping[str, Any]
    offset: int = 0
    stored: str | None = None


@dataclass(frozen=True, slots=True)
class UsedUp:
    """The last event of the read action is in the log: discard its store (Algorithm 1 Step 2.d)."""

    action_id: int
    ref: str | None = None
    """None for a read action that this thread has executed."""


class SourceReader:
    """`may_start` blocks until the source may read (a benchmark waits until all groups are ready)."""

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
        self._reading = 0
        self._started = False
        self._offset = 0
        self._refs: dict[int, str] = {}
        self._tasks: queue.SimpleQueue[ReadAction | UsedUp | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"logio-source-{name}", daemon=True)
        self._thread.start()

    def ask(self, task: ReadAction | UsedUp) -> None:
        """Tasks are done in the order in which they are asked for."""
        self._tasks.put(task)

    def stop(self) -> None:
        """The mailbox must be closed first: the thread may wait for room in it."""
        self._stopping.set()
        self._tasks.put(None)
        self._thread.join()

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (task := self._tasks.get()) is not None and not self._stopping.is_set():
                match task:
                    case ReadAction():
                        if not self._started:
                            self._may_start(self._stopping)
                        self._started = True
                        self._execute(task)
                    case UsedUp():
                        self._discard(task)
        except Closed:
            return
        except OperatorFailed as error:
            error.at = error.at or self._point()
            self._failed(error)
        except LogioError as error:
            self._failed(error)
        except Exception as error:
            failure = OperatorFailed(f"source {self._name!r}: {type(error).__name__}: {error}", self._point())
            failure.__cause__ = error
            self._failed(failure)

    def _point(self) -> FailurePoint:
        return FailurePoint(self._name, action=f"read action {self._reading} after {self._offset:,} records")

    def _execute(self, read: ReadAction) -> None:
        self._reading = read.action_id
        what = f"reading source {self._name}"
        self._offset = read.offset
        if self._operator.replayable:
            self._replayed(what, lambda: self._bring(self._read(read.action, self._offset)))
            self._mailbox.put_input(self._end(read.action), 0)
            return
        payloads, ref = self._store(), read.stored
        if ref is None:
            purpose = f"effects/{self._name}/{read.action_id}"
            stored, records = self._replayed(what, lambda: store_effect(payloads, purpose, self._read(read.action, 0)))
            ref = self._refs[read.action_id] = str(stored)
            end = None if records else self._end(read.action)
            self._mailbox.put_input(Stored(self._name, ref, records, end), 0)
            if end is not None:
                return
        self._refs[read.action_id] = ref
        where = f"the stored effect of read action {read.action_id} of source {self._name!r}"
        self._replayed(what, lambda: self._bring(stored_batches(payloads, where, ref, self._offset)))
        self._mailbox.put_input(self._end(read.action), 0)

    def _bring(self, batches: Iterator[SourceBatch]) -> None:
        """From behind the last batch that was handed over: what is replayed resumes there."""
        for batch in batches:
            self._mailbox.put_input(Batch(self._name, batch.table, batch.next_offset, batch.about), batch.table.nbytes)
            self._offset = batch.next_offset

    def _read(self, action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        """Step 2.a or 3: the batches of the external system, until this thread is to end."""
        for batch in self._batches(action, offset):
            if self._stopping.is_set():
                raise Closed
            yield batch

    def _batches(self, action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        operator = self._operator
        if isinstance(operator, ConnectedSource):
            connection = self._connections.source(operator.connection)
            return operator.read_from(connection, self._params, action, offset)
        return operator.read(self._params, action, offset)

    def _end(self, action: Mapping[str, Any]) -> Exhausted:
        previous = dict(action) if self._plan is None else {**action, PLAN: self._plan}
        following = self._replayed(
            f"the next read action of source {self._name}",
            lambda: self._operator.next_action(self._params, previous),
        )
        return Exhausted(self._name, None if following is None else without_plan(following))

    def _discard(self, used_up: UsedUp) -> None:
        ref = self._refs.pop(used_up.action_id, None) if used_up.ref is None else used_up.ref
        if ref is None:
            raise OperatorFailed(f"source {self._name!r} knows no store of read action {used_up.action_id}")
        crash_here(CrashPoint.BEFORE_DROP)
        self._store().remove([ref])
        crash_here(CrashPoint.AFTER_DROP)
        self._mailbox.put(Discarded(self._name, used_up.action_id))

    def _store(self) -> EpochPayloads:
        if self._payloads is None:
            raise ConfigurationError(
                f"source {self._name!r} cannot be replayed, so its effect must be stored, and the deployment has no payload "
                f"store: {HOW_TO_CONFIGURE}"
            )
        return self._payloads

    def _replayed(self, what: str, action: Callable[[], T]) -> T:
        """With back-off while the external system, or the payload store, is away; without end while events come of it.

        Raises `ExternalUnavailable`.
        """
        attempts, reached = 0, self._offset

        def attempt() -> T:
            nonlocal attempts
            attempts += 1
            try:
                return action()
            except LogUnavailable as error:
                raise ExternalUnavailable(str(error)) from error
            except (ConnectionError, TimeoutError) as error:
                raise ExternalUnavailable(f"source {self._name!r}: {type(error).__name__}: {error}") from error

        while True:
            try:
                return replay(what, attempt, self._connections.replay_seconds, self._stopping)
            except ExternalUnavailable:
                if self._stopping.is_set():
                    raise Closed from None
                if self._offset > reached:
                    attempts, reached = 0, self._offset
                elif attempts >= LEAST_ATTEMPTS:
                    raise


def without_plan(action: Mapping[str, Any]) -> dict[str, Any]:
    """The read action as it is logged."""
    return {name: value for name, value in action.items() if name != PLAN}

"""Calls of code that is not ours: which one each thread of a driver is in, for how long, and how it is replayed.

A call that never returns raises nothing, and the driver's heartbeat keeps beating: only a clock can tell. A call of an
external system that is unavailable is replayed with back-off (Algorithm 5 Step 2).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Generic, TypeVar

import tenacity

from airflow_logio.dataflow.pipeline.definition import CallLimit
from airflow_logio.dataflow.unavailability import is_outage
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    FailurePoint,
    LockHeld,
    LogioError,
    StatementCutOff,
)
from airflow_logio.protocol.liveness import MOST_LONG_ATTEMPTS, Outage
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.store.records.driver_records import UNAVAILABLE_SINCE, WAIT

log = logging.getLogger(__name__)

T = TypeVar("T")

_UNLIMITED: Mapping[str, CallLimit] = {}
MOST_OF_A_CAUSE = 300
"""Characters that displays get: the driver's log has all of it."""
_NOTHING = object()
"""What `progress` has given before it was asked."""
MOST_CUT_OFF = 3
"""A statement that the database ends so often in a row would be ended again."""


@dataclass(slots=True)
class Call:
    """A call under way; a context manager. Its clock stands while the same thread is in a call inside of it."""

    watch: CallWatch
    phase: str
    point: FailurePoint
    limit: CallLimit | None
    since: float = 0.0
    spent: float = 0.0

    def __str__(self) -> str:
        return f"`{self.phase}` of {self.point}"

    def seconds(self, now: float) -> float:
        """How long it has run, if it is the innermost call of its thread."""
        return self.spent + now - self.since

    def __enter__(self) -> Call:
        self.watch.begun(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.watch.ended()


@dataclass(frozen=True, slots=True)
class Wait:
    """Something that waits for an external system."""

    what: str
    since: float
    at: datetime
    cause: str

    def __str__(self) -> str:
        cause = " ".join(self.cause.split())
        shown = cause if len(cause) <= MOST_OF_A_CAUSE else f"{cause[:MOST_OF_A_CAUSE]} ..."
        return f"{WAIT}{self.what}{UNAVAILABLE_SINCE}{self.at:%Y-%m-%d %H:%M:%S} UTC: {shown}"


class CallWatch:
    """The calls of all threads of a driver. `limits`: operator as its author named it → limit of its calls. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stacks: dict[int, list[Call]] = {}
        self._waits: dict[int, Wait] = {}
        self.limits = _UNLIMITED

    def call(self, phase: str, point: FailurePoint, *, limited: bool = True) -> Call:
        """A call of the author's code of `point.operator`, as a context. `limited=False`: something that is done for it, and
        is not the author's."""
        return Call(
            self, phase, point, self.limits.get(base_operator(point.operator)) if limited and self.limits else None
        )

    def inner(self, phase: str, *, limited: bool = True) -> Call:
        """A call inside of the one that this thread is in, measured by itself. `limited=False`: waiting for something else,
        such as an external system that is unavailable."""
        stack = self._stacks.get(threading.get_ident())
        if not stack:
            return Call(self, phase, FailurePoint(""), None)
        return Call(self, phase, stack[-1].point, stack[0].limit if limited else None)

    def begun(self, call: Call) -> None:
        """This thread is in the call from now on."""
        with self._lock:
            now = self._clock()
            stack = self._stacks.setdefault(threading.get_ident(), [])
            if stack:
                stack[-1].spent += now - stack[-1].since
            call.since = now
            stack.append(call)

    def ended(self) -> None:
        """The innermost call of this thread has returned."""
        with self._lock:
            thread = threading.get_ident()
            stack = self._stacks[thread]
            stack.pop()
            if stack:
                stack[-1].since = self._clock()
            else:
                del self._stacks[thread]

    def longest(self) -> tuple[str, float]:
        """The innermost call that has run longest, in words, and its seconds; an empty text if no thread is in one. Where a
        thread waits for an external system: what does, since when, and why."""
        calls, now = self._innermost()
        with self._lock:
            wait = min(self._waits.values(), key=lambda one: one.since, default=None)
        if wait is not None:
            return str(wait), now - wait.since
        call = max(calls, key=lambda one: one.seconds(now), default=None)
        return ("", 0.0) if call is None else (str(call), call.seconds(now))

    def waits(self, what: str, cause: str) -> Wait:
        """This thread will ask an external system again for `what`, because of `cause`: since it first said so."""
        with self._lock:
            thread, now = threading.get_ident(), self._clock()
            before = self._waits.get(thread)
            since, at = (before.since, before.at) if before is not None else (now, datetime.now(UTC))
            wait = self._waits[thread] = Wait(what, since, at, cause)
            return wait

    def waits_no_more(self) -> None:
        """This thread has got what it waited for, or has given up."""
        with self._lock:
            self._waits.pop(threading.get_ident(), None)

    def of(self, thread: threading.Thread) -> Call | None:
        """The innermost call that a thread is in."""
        with self._lock:
            stack = self._stacks.get(thread.ident or 0)
            return stack[-1] if stack else None

    def overrun(self) -> tuple[Call, float] | None:
        """A call that has run longer than its limit, and its seconds."""
        calls, now = self._innermost()
        over = (call for call in calls if call.limit is not None and call.seconds(now) > call.limit.seconds)
        return next(((call, call.seconds(now)) for call in over), None)

    def forgive(self, seconds: float) -> None:
        """The process was stopped for so long: that is the fault of no call."""
        with self._lock:
            for stack in self._stacks.values():
                stack[-1].since += seconds

    def _innermost(self) -> tuple[list[Call], float]:
        with self._lock:
            return [stack[-1] for stack in self._stacks.values()], self._clock()


@dataclass(frozen=True, slots=True)
class Locks:
    """What it means for `replay` that other sessions hold locks."""

    count: bool = True
    """To wait for one is a failure, as if the system were unavailable."""
    progress: Callable[[], object] | None = None
    """What changes when others have worked: then the time begins anew."""


COUNTED = Locks()


# --- replay -----------------------------------------------------------------------------------------------------------


def replay(
    what: str,
    action: Callable[[], T],
    seconds: float,
    stopping: threading.Event,
    unavailable: tuple[type[Exception], ...] = (),
    calls: CallWatch | None = None,
    *,
    locks: Locks = COUNTED,
) -> T:
    """Run an action on an external system until it raises no error that says "unavailable" (Algorithm 5 Step 2).

    `dataflow.unavailability.is_outage` says which errors do; an author adds some with `unavailable`. With back-off, for so
    many seconds of an `Outage`, or until `stopping`; then raises `ExternalUnavailable` for good. `calls` is told that this
    thread waits, and why. Any other error is raised as it is. A statement that the database ends `MOST_CUT_OFF` times in a
    row is a `ConfigurationError`.

    An attempt that ends in `LockHeld` has waited for another session. Unless `locks.count` that is no failure, however often:
    for systems where a session that holds a lock works, or is ended. With `locks.progress` the seconds begin anew when others
    have worked: it is asked after each such attempt, and gives something else than before if they have.
    """
    watch, attempts = calls or CallWatch(), _Attempts(action, Outage(seconds), locks)

    def report(state: tenacity.RetryCallState) -> None:
        said = _said(_error_of(state))
        since = watch.waits(what, said).at
        told = (what, state.attempt_number, f"{since:%H:%M:%S}", said)
        log.warning("%s: replaying (attempt %d), unavailable since %s UTC: %s", *told)

    def is_replayed(error: BaseException) -> bool:
        return attempts.cut_off < MOST_CUT_OFF and is_outage(error, unavailable)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_replayed),
        wait=tenacity.wait_exponential(0.1, 5.0) + tenacity.wait_random(0, 0.1),
        stop=lambda state: attempts.is_enough(_error_of(state)) or stopping.is_set(),
        sleep=tenacity.sleep_using_event(stopping),
        before_sleep=report,
        reraise=True,
    )
    try:
        return retrying(attempts.once)
    except Exception as error:
        if not is_outage(error, unavailable):
            raise
        if attempts.cut_off >= MOST_CUT_OFF:
            raise ConfigurationError(
                f"{what}: the database has ended its statement {attempts.cut_off} times in a row: {_said(error)}. If that is "
                "a timeout of the database, give the role of the connection a longer one (PostgreSQL: ALTER ROLE ... SET "
                "statement_timeout = ...); then `logio retry` resumes it"
            ) from error
        tried, long_attempts = retrying.statistics["attempt_number"], attempts.outage.long_attempts
        lasted = f"in {seconds:g} s"
        if long_attempts >= MOST_LONG_ATTEMPTS:
            lasted = f"({long_attempts} times for longer than {seconds:g} s)"
        raise ExternalUnavailable(
            f"{what}: after {tried} attempts {lasted}, the external system is still unavailable: {_said(error)}. What is to "
            "be done stays in the log: when the system is back, `logio retry` resumes it"
        ) from error
    finally:
        watch.waits_no_more()


class _Attempts(Generic[T]):
    """The attempts at one action, and whether there have been enough."""

    def __init__(self, action: Callable[[], T], outage: Outage, locks: Locks) -> None:
        self.outage = outage
        self.cut_off = 0
        """How often in a row its statement was ended."""
        self._action = action
        self._locks = locks
        self._seen: object = _NOTHING
        self._begun = 0.0

    def once(self) -> T:
        self._begun = time.monotonic()
        try:
            return self._action()
        except Exception as error:
            self.cut_off = self.cut_off + 1 if isinstance(error, StatementCutOff) else 0
            raise

    def is_enough(self, error: BaseException | None) -> bool:
        """Whether to give up after one that ended so."""
        ended = time.monotonic()
        if isinstance(error, LockHeld):
            if not self._locks.count:
                self.outage.is_over()
                return False
            if self._has_moved():
                self.outage.is_over()
        return self.outage.failed(self._begun, ended)

    def _has_moved(self) -> bool:
        if self._locks.progress is None:
            return False
        before = self._seen
        with suppress(ExternalUnavailable):  # what cannot be asked now has not moved
            self._seen = self._locks.progress()
        return before is not _NOTHING and self._seen != before


def _error_of(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def _said(error: BaseException | None) -> str:
    if isinstance(error, LockHeld):
        return f"another session holds a lock: {error}"
    return str(error) if isinstance(error, LogioError) else f"{type(error).__name__}: {error}"

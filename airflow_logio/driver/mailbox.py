"""The mailbox from which a group's loop takes its work, and the figures of its load (design D10): how it spends its time.

The mailbox has observations from threads, bounded where they carry data. Inputs (events, source batches) are bounded in
number and bytes: a thread that brings one waits. Completions (jobs, write actions, failures) are few and never wait, and
are taken first, so that the loop can always make progress.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_logio.store.records.driver_records import LOAD_SECONDS, Load


@dataclass(frozen=True, slots=True)
class Bound:
    """At most this much waits in memory (design D5, prefetch). One item always fits."""

    events: int = 64
    bytes: int = 16 * 2**20


class Closed(Exception):
    """The loop has ended; threads that bring input should end, too."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A thread of the group has ended with an error."""

    error: BaseException


class Mailbox:
    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._inputs: deque[tuple[Any, int, float]] = deque()
        self._completions: deque[Any] = deque()
        self._bytes = 0
        self._closed = False
        self._woken = False
        self._changed = threading.Condition()

    def put_input(self, item: Any, size: int) -> None:
        """Wait for room, then add. Raises `Closed`."""
        with self._changed:
            while not self._closed and not self._fits(size):
                self._changed.wait()
            if self._closed:
                raise Closed
            self._inputs.append((item, size, time.monotonic()))
            self._bytes += size
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._inputs or (len(self._inputs) < self._bound.events and self._bytes + size <= self._bound.bytes)

    def put(self, item: Any) -> None:
        """Add a completion; never waits, and is dropped silently only after the loop has ended."""
        with self._changed:
            self._completions.append(item)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a `get` with `wakes` end: the next one, if none waits."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def get(self, timeout: float, *, inputs: bool, wakes: bool = False) -> Any | None:
        """The next completion, else (if `inputs`) the next input, else None after `timeout` seconds, or by `wake`."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._completions:
                    return self._completions.popleft()
                if inputs and self._inputs:
                    item, size, _ = self._inputs.popleft()
                    self._bytes -= size
                    self._changed.notify_all()
                    return item
                remaining = deadline - time.monotonic()
                if remaining <= 0 or (wakes and self._woken):
                    self._woken = False
                    return None
                self._changed.wait(remaining)

    def waiting(self) -> tuple[int, float]:
        """Inputs that are not taken yet, and for how many seconds the oldest one has been here."""
        with self._changed:
            return len(self._inputs), time.monotonic() - self._inputs[0][2] if self._inputs else 0.0

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


# --- load -------------------------------------------------------------------------------------------------------------

_Totals = tuple[float, ...]
Waiting = Callable[[], tuple[int, float]]
"""How many events wait in memory, and for how many seconds the oldest one has."""


class Doing(Enum):
    """What the loop of a group does; every moment is one of these."""

    BUSY = 0
    """It works: steps, generation, a Spark job."""
    IDLE = 1
    """It waits for input."""
    BLOCKED = 2
    """It has input but may not take it: a receiver, an external system or the log holds it up."""


class LoadMeter:
    """The loop reports what it does, takes and sends; the heartbeat reads the figures. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, window: float = LOAD_SECONDS) -> None:
        self._clock = clock
        self._window = window
        self._lock = threading.Lock()
        self._doing = Doing.IDLE
        self._since = clock()
        self._seconds = [0.0, 0.0, 0.0]
        self._counts = [0, 0, 0, 0]
        self._waiting = _nothing
        self._history: deque[tuple[float, _Totals]] = deque([(self._since, (0.0,) * 7)])

    def now(self, doing: Doing) -> None:
        """The loop does something else from now on."""
        if doing is self._doing:
            return
        with self._lock:
            self._pass(self._clock())
            self._doing = doing

    def watch(self, waiting: Waiting | None) -> None:
        """From now on, every reading calls `waiting`. None: nothing is in memory."""
        self._waiting = waiting or _nothing

    def took(self, events: int, records: int) -> None:
        """Input events were used."""
        with self._lock:
            self._counts[0] += events
            self._counts[1] += records

    def sent(self, events: int, records: int) -> None:
        """Output events were made for other groups."""
        with self._lock:
            self._counts[2] += events
            self._counts[3] += records

    def read(self) -> Load:
        """The figures of the last seconds."""
        with self._lock:
            now = self._clock()
            self._pass(now)
            totals = (*self._seconds, *map(float, self._counts))
            while len(self._history) > 1 and now - self._history[1][0] >= self._window:
                self._history.popleft()
            then, before = self._history[0]
            self._history.append((now, totals))
            busy, idle, blocked, *counts = (new - old for new, old in zip(totals, before, strict=True))
            seconds = now - then
        whole = busy + idle + blocked
        shares = (busy / whole, idle / whole, blocked / whole) if whole > 0 else (0.0, 1.0, 0.0)
        events_in, records_in, events_out, records_out = map(int, counts)
        return Load(seconds, *shares, events_in, records_in, events_out, records_out, *self._waiting())

    def _pass(self, now: float) -> None:
        self._seconds[self._doing.value] += now - self._since
        self._since = now


def _nothing() -> tuple[int, float]:
    return 0, 0.0

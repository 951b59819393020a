"""How a driver spends its time, and how much passes through it: the figures that scaling uses (design D10)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum

from airflow_logio.store.records.driver_records import LOAD_SECONDS, Load


class Doing(Enum):
    """What the loop of a group does; every moment is one of these."""

    BUSY = 0
    """It works: steps, generation, a Spark job."""
    IDLE = 1
    """It waits for input."""
    BLOCKED = 2
    """It has input but may not take it: a receiver, an external system or the log holds it up."""


_Totals = tuple[float, ...]
Waiting = Callable[[], tuple[int, float]]
"""How many events wait in memory, and for how many seconds the oldest one has."""


def _nothing() -> tuple[int, float]:
    return 0, 0.0


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

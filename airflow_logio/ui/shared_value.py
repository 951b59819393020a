"""A value that costs the log something: found by one thread at a time, and kept for a moment for all others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

SHARE = 0.1
"""Share of the time that finding one value may take: what costs more holds for longer."""
MEANWHILE_SECONDS = 2.0
"""For so long a value holds more, while the next one is being found."""
T = TypeVar("T")


class SharedValue(Generic[T]):
    """`find` finds the value, which holds for `seconds` at least. Thread-safe."""

    def __init__(self, find: Callable[[], T], seconds: float, clock: Callable[[], float]) -> None:
        self._find = find
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None
        """Until when it holds, and the value."""

    def fresh(self) -> T | None:
        """The value if it still holds, also for a moment more while another thread finds the next one; None if not.

        It waits for nothing: of many viewers, one asks the log.
        """
        last = self._last
        if last is None:
            return None
        more = MEANWHILE_SECONDS if self._lock.locked() else 0.0
        return last[1] if self._clock() < last[0] + more else None

    def get(self) -> T:
        """Raises what `find` raises, and keeps the last value then."""
        with self._lock:
            began = self._clock()
            if self._last is None or began >= self._last[0]:
                value = self._find()
                ended = self._clock()
                self._last = ended + max(self._seconds, (ended - began) / SHARE), value
            return self._last[1]

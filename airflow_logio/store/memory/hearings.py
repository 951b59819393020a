"""Who hears of the failures in a log in memory: they are told in the thread that declares a driver dead."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from airflow_logio.store.port import Hearing

log = logging.getLogger(__name__)


class MemoryHearing(Hearing):
    """One share in what a log announces."""

    def __init__(self, hearings: Hearings, ring: Callable[[], None]) -> None:
        self._hearings = hearings
        self.ring = ring

    def close(self) -> None:
        self._hearings.leave(self)


class Hearings:
    """All who hear of one log's failures. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[MemoryHearing] = set()

    def join(self, ring: Callable[[], None]) -> MemoryHearing:
        """Rings once, for listening has begun."""
        hearing = MemoryHearing(self, ring)
        with self._lock:
            self._all.add(hearing)
        ring()
        return hearing

    def leave(self, hearing: MemoryHearing) -> None:
        with self._lock:
            self._all.discard(hearing)

    def announce(self) -> None:
        """To be called after the commit: whoever is rung reads the log."""
        with self._lock:
            heard_by = tuple(self._all)
        for hearing in heard_by:
            try:
                hearing.ring()
            except Exception as error:  # an event loop that has ended
                log.debug("nobody was rung: %s", error)

"""Listeners to the failures in a log in memory. They are called in the thread that declares a driver dead."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from airflow_logio.store.port import Hearing

log = logging.getLogger(__name__)


class MemoryHearing(Hearing):
    """One listener to the announcements of a log."""

    def __init__(self, hearings: Hearings, ring: Callable[[], None]) -> None:
        self._hearings = hearings
        self.ring = ring

    def close(self) -> None:
        self._hearings.leave(self)


class Hearings:
    """All listeners to one log's failures. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[MemoryHearing] = set()

    def join(self, ring: Callable[[], None]) -> MemoryHearing:
        """Rings once, because listening has begun."""
        hearing = MemoryHearing(self, ring)
        with self._lock:
            self._all.add(hearing)
        ring()
        return hearing

    def leave(self, hearing: MemoryHearing) -> None:
        with self._lock:
            self._all.discard(hearing)

    def announce(self) -> None:
        """Call it after the commit: the listeners then read the log."""
        with self._lock:
            heard_by = tuple(self._all)
        for hearing in heard_by:
            try:
                hearing.ring()
            except Exception as error:  # an event loop that has ended
                log.debug("a listener was not rung: %s", error)

"""Limits of searches through records, what a search has used up of them, and its watch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

from airflow_logio.protocol.values import Port

EVENTS_AT_ONCE = 32
"""Bodies of one question to the log, at most: they are in memory together."""
BYTES_AT_ONCE = 64 * 2**20
"""Where bodies are large (without a payload store, all of a record's data is in the log), fewer are read at once."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """A search ends at whichever comes first, but not before it has looked at one event: the next one gets further."""

    seconds: float = inf
    alone_seconds: float = 0.0
    """The first event gets so long, if that is longer: what one search does not get through, none does."""
    size: float = inf
    """Bytes that are read: of bodies, and of the columns of datasets."""
    found: float = inf
    """Events that hold such a record."""


NO_LIMITS = SearchLimits()


class SearchStopped(Exception):
    """The caller waits for the answer no more. No `LogioError`: a search passes over some of those, and not over this."""


@dataclass(frozen=True, slots=True)
class SearchedSoFar:
    """How far the search of one port has come."""

    port: Port
    """As its author named it."""
    slot: int | None
    """Inside of a replicated group, where each slot numbers its events."""
    searched: int
    sent: int
    found: int
    """Events that hold such a record."""


class SearchWatch:
    """Gets told how far a search is, and may end it; this one does neither.

    The searching thread calls it at each event, so a method must not wait.
    """

    def looks(self, so_far: SearchedSoFar) -> None:
        """The search has come so far."""

    def is_stopped(self) -> bool:
        """Whether the search is to end with `SearchStopped`."""
        return False


class Spent:
    """What a search, or several together, have used up of their limits."""

    def __init__(self, limits: SearchLimits, watch: SearchWatch | None = None) -> None:
        self._limits = limits
        self._watch = watch or SearchWatch()
        self._begun = time.monotonic()
        self._size = self._found = self._largest = 0
        self.events = 0

    def at_once(self) -> int:
        """How many bodies to read now: one, until it is known how large they are."""
        if not self.events:
            return 1
        return max(1, min(EVENTS_AT_ONCE, BYTES_AT_ONCE // max(self._largest, 1)))

    def fetched(self, body: bytes) -> None:
        self._largest = max(self._largest, len(body))

    def read(self, size: int) -> None:
        self._size += size

    def looked(self, *, is_found: bool) -> None:
        self.events += 1
        self._found += is_found

    def tell(self, so_far: SearchedSoFar) -> None:
        """Tells the watch. Raises as `is_late`."""
        self._watch.looks(so_far)
        self._check()

    def is_over(self) -> bool:
        """Whether limits are reached. Raises as `is_late`."""
        return self.is_late() or self._size >= self._limits.size or self._found >= self._limits.found

    def is_late(self) -> bool:
        """Whether the time is over. Raises `SearchStopped` if the caller waits no more."""
        self._check()
        limits = self._limits
        most = limits.seconds if self.events else max(limits.seconds, limits.alone_seconds)
        return time.monotonic() - self._begun >= most

    def _check(self) -> None:
        if self._watch.is_stopped():
            raise SearchStopped

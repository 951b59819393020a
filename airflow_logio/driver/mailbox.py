"""The inbox of a group's loop: observations from threads, bounded where they carry data.

Inputs (events, source batches) are bounded in number and bytes: a thread that brings one waits. Completions (jobs, write
actions, failures) are few and never wait, and are taken first, so that the loop can always make progress.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any


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

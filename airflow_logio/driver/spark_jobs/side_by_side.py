"""Evaluates waiting events side by side, and gives the results one by one, in the order of the events (ADR-92)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from airflow_logio.driver.mailbox import Closed

T = TypeVar("T")
R = TypeVar("R")

POLL_SECONDS = 0.25
"""While there is room, what has come meanwhile is asked for so often."""


def _nothing(_last: Any) -> Sequence[Any]:
    return ()


class Pending(Generic[R]):
    """An evaluation that a thread has begun, or will. Its fields belong to the lock of its `SideBySide`."""

    def __init__(self, work: Callable[[], R]) -> None:
        self._work = work
        self._made: list[R] = []
        self._error: BaseException | None = None
        self.is_wanted = True
        self.is_done = False

    def run(self) -> None:
        """Whatever is raised waits for its turn."""
        try:
            self._made.append(self._work())
        except BaseException as error:
            self._error = error

    def result(self) -> R:
        """What was made; raises what was raised."""
        if self._error is not None:
            raise self._error
        return self._made[0]


class SideBySide:
    """Threads that evaluate for one thread that brings events. Each is started when it is needed, and stays until `stop`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Pending[Any]] = deque()
        self._idle = 0
        self._is_stopped = False
        self.threads: list[threading.Thread] = []

    # --- called by the thread that brings events ----------------------------------------------------------------------

    def begun(
        self,
        items: Sequence[T],
        evaluate: Callable[[T], R],
        at_once: Callable[[], int],
        more: Callable[[T], Sequence[T]] = _nothing,
    ) -> Generator[tuple[T, Callable[[], R]]]:
        """Each item, in order, with a function that waits for what `evaluate` makes of it.

        At most `at_once()` items are being evaluated, or are evaluated and not yet used up by the caller. While there is room
        for another one, `more` is asked what has come behind the last item. When the iterator is closed before its end, what
        was begun ahead is discarded; it is not waited for. Raises `Closed` after `stop`, and what `more` raises.
        """
        ahead: deque[tuple[T, Pending[R]]] = deque()
        left = deque(items)
        try:
            while True:
                most = max(1, at_once())
                while left and len(ahead) < most:
                    last = left.popleft()
                    ahead.append((last, self._begin(partial(evaluate, last), most)))
                if not ahead:
                    return
                item, pending = ahead[0]
                if len(ahead) < most and not self._is_settled(pending, POLL_SECONDS):
                    left.extend(more(last))
                    continue
                yield item, partial(self._awaited, pending)
                ahead.popleft()
        finally:
            with self._changed:
                for _, pending in ahead:
                    pending.is_wanted = False

    def _begin(self, work: Callable[[], R], most: int) -> Pending[R]:
        pending = Pending(work)
        with self._changed:
            if self._is_stopped:
                raise Closed
            self._waiting.append(pending)
            if self._idle < len(self._waiting) and len(self.threads) < most:
                name = f"{self._name}-{len(self.threads) + 1}"
                self.threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self.threads[-1].start()
            self._changed.notify_all()
        return pending

    def _is_settled(self, pending: Pending[Any], seconds: float) -> bool:
        """Wait so long for an evaluation. True if it has ended, or waiting is over."""
        with self._changed:
            return self._changed.wait_for(lambda: pending.is_done or self._is_stopped, seconds)

    def _awaited(self, pending: Pending[R]) -> R:
        with self._changed:
            self._changed.wait_for(lambda: pending.is_done or self._is_stopped)
            if not pending.is_done:
                raise Closed
        return pending.result()

    # --- called by the main thread ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing more is begun, and no thread waits for what is under way. The threads are to be joined."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    # --- the threads --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (pending := self._taken()) is not None:
            pending.run()
            with self._changed:
                pending.is_done = True
                self._changed.notify_all()
            del pending  # what it has made is the caller's

    def _taken(self) -> Pending[Any] | None:
        """The next one that is still wanted, when there is one; None after `stop`."""
        with self._changed:
            while True:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting or self._is_stopped)
                self._idle -= 1
                if self._is_stopped:
                    return None
                if (pending := self._waiting.popleft()).is_wanted:
                    return pending

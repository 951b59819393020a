"""The log that the page reads: opened when it is asked for first, not again while it has just refused, by few at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.ui.looks import Looks

REFUSED_SECONDS = 2.0
"""For so long a refusal holds for everyone: a database that is away must not hold all threads of a server."""
MOST_ASKING = 4
"""Threads that may wait for the log. The page shares them with all of Airflow's API: a log that hangs takes no more."""
PATIENCE_SECONDS = 2.0
"""For so long one more waits for its turn."""


class LogSource:
    """`opening` opens the log, `log` is its connection id. Thread-safe."""

    def __init__(self, opening: Callable[[], LogStore], log: str | None) -> None:
        self._opening = opening
        self._log = log
        self._lock = threading.Lock()
        self._looks: Looks | None = None
        self._refused: tuple[float, str] | None = None
        self._places = threading.BoundedSemaphore(MOST_ASKING)

    @contextmanager
    def asking(self) -> Iterator[Looks]:
        """The log, for one request. Raises as `looks` does, and `LogUnavailable` while too many others wait for the log."""
        if not self._places.acquire(timeout=PATIENCE_SECONDS):
            raise LogUnavailable(
                f"{MOST_ASKING} requests wait for the log, and none was answered in {PATIENCE_SECONDS:g} s"
            )
        try:
            yield self.looks()
        finally:
            self._places.release()

    def looks(self) -> Looks:
        """Raises `LogUnavailable` for every log that cannot be opened, with the reason."""
        with self._lock:
            if self._looks is None:
                if self._refused is not None and time.monotonic() - self._refused[0] < REFUSED_SECONDS:
                    raise LogUnavailable(self._refused[1])
                self._looks = self._opened()
            return self._looks

    def _opened(self) -> Looks:
        try:
            return Looks(self._opening(), self._log)
        except Exception as error:  # whatever a connection's lookup raises: it must not end a web server's request
            text = str(error) if isinstance(error, LogioError) else f"{type(error).__name__} when the log was opened"
            self._refused = time.monotonic(), text
            raise LogUnavailable(text) from error

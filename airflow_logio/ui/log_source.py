"""The log that the page reads: opened when it is asked for first, not again while it has just refused, by few at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.ui.looks import Looks, RunLook
from airflow_logio.ui.run_list import ListedRuns
from airflow_logio.ui.shared_lists import ListAsked, SharedLists

REFUSED_SECONDS = 2.0
"""For so long a refusal holds for everyone: an unavailable database must not hold all threads of a server."""
MOST_ASKING = 4
"""Threads that may wait for the log. The page shares them with all of Airflow's API: a log that hangs takes no more."""


class TooManyAsk(LogUnavailable):
    """As many requests as may wait for the log wait for it."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """What is known of the log, once it is open."""

    store: LogStore
    looks: Looks
    lists: SharedLists


class LogSource:
    """`opening` opens the log; `log` is its connection id, for commands in sentences. Thread-safe."""

    def __init__(self, opening: Callable[[], LogStore], log: str | None) -> None:
        self._opening = opening
        self._log = log
        self._lock = threading.Lock()
        self._refused: tuple[float, str] | None = None
        self._places = threading.BoundedSemaphore(MOST_ASKING)
        self._opened: OpenLog | None = None

    def look(self, uid: str) -> RunLook:
        """As `Looks.at`; one that still holds takes no place. Raises as `asking`, and `UnknownRun`."""
        held = None if self._opened is None else self._opened.looks.fresh(uid)
        if held is not None:
            return held
        with self.asking() as log:
            return log.looks.at(uid)

    def listed(self, asked: ListAsked) -> ListedRuns:
        """As `SharedLists.of`; one that still holds takes no place. Raises as `asking`."""
        held = None if self._opened is None else self._opened.lists.fresh(asked)
        if held is not None:
            return held
        with self.asking() as log:
            return log.lists.of(asked)

    @contextmanager
    def asking(self) -> Iterator[OpenLog]:
        """The log, for one request. Raises `TooManyAsk` at once while too many others wait for the log, and `LogUnavailable`
        for every log that cannot be opened, with the reason."""
        if not self._places.acquire(blocking=False):
            raise TooManyAsk(f"{MOST_ASKING} requests wait for the log: try again in a moment")
        try:
            yield self._open()
        finally:
            self._places.release()

    def opened(self) -> OpenLog:
        """The log, for a long search: it has a bound of its own (`search_stream`), and takes no place. Raises as `asking`."""
        return self._open()

    def _open(self) -> OpenLog:
        with self._lock:
            if self._opened is None:
                if self._refused is not None and time.monotonic() - self._refused[0] < REFUSED_SECONDS:
                    raise LogUnavailable(self._refused[1])
                store = self._asked()
                self._opened = OpenLog(store, Looks(store, self._log), SharedLists(store, self._log))
            return self._opened

    def _asked(self) -> LogStore:
        try:
            return self._opening()
        except Exception as error:  # whatever a connection's lookup raises: it must not end a web server's request
            text = str(error) if isinstance(error, LogioError) else f"{type(error).__name__} when the log was opened"
            self._refused = time.monotonic(), text
            raise LogUnavailable(text) from error

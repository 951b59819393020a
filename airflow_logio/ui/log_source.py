"""The log that the page reads: opened when it is asked for first, and not again while it has just refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.ui.looks import Looks

REFUSED_SECONDS = 2.0
"""For so long a refusal holds for everyone: a database that is away must not hold all threads of a server."""


class LogSource:
    """`opening` opens the log, `log` is its connection id. Thread-safe."""

    def __init__(self, opening: Callable[[], LogStore], log: str | None) -> None:
        self._opening = opening
        self._log = log
        self._lock = threading.Lock()
        self._looks: Looks | None = None
        self._refused: tuple[float, str] | None = None

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

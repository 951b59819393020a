"""Cancels the Spark jobs of an epoch that has ended, while the threads that started them are joined."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from airflow_logio.driver.spark_session import SparkSessions

log = logging.getLogger(__name__)

CANCEL_SECONDS = 0.5
"""Jobs are cancelled so often until the threads that started them have ended: one may just have been submitted."""
ANSWER_SECONDS = 10.0
"""How long Spark is waited for after that. It has no time-out of its own, and does not answer while its JVM stands still."""


class JobCancel:
    """For the jobs of some job groups, asked for each time; called by the main thread."""

    def __init__(self, sessions: SparkSessions, job_groups: Callable[[], Sequence[str]]) -> None:
        self._sessions = sessions
        self._job_groups = job_groups
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Cancel the jobs, until `end`; also one that begins with a session that is still being made."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._cancel, name="logio-cancel", daemon=True)
            self._thread.start()

    def end(self) -> Sequence[threading.Thread]:
        """The threads that start jobs have ended. Returns the one that cancels if Spark does not answer it."""
        self._ended.set()
        if self._thread is None:
            return []
        self._thread.join(ANSWER_SECONDS)
        return [self._thread] if self._thread.is_alive() else []

    def _cancel(self) -> None:
        while True:
            if self._sessions.is_ready():
                try:
                    self._sessions.cancel(self._job_groups())
                except Exception as error:  # Spark is gone, and its jobs with it
                    log.debug("no jobs to cancel: %s", error)
                    return
            if self._ended.wait(CANCEL_SECONDS):
                return

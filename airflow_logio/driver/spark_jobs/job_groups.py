"""The Spark jobs of an epoch by job group: cancelled when it ends; those that authors' functions run are told apart.

A chain is lazy (ADR-81). An action on what a function gets is evaluated apart from the result, and may see other records:
so it must be seen, and refused.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import OperatorFailed

log = logging.getLogger(__name__)
CANCEL_SECONDS = 0.5
"""Jobs are cancelled so often until the threads that started them have ended: one may just have been submitted."""
ANSWER_SECONDS = 10.0
"""How long Spark is waited for after that. It has no time-out of its own, and does not answer while its JVM stands still."""


class FunctionJobs:
    """The jobs of one epoch. Functions are called one at a time; `job_group` is that of all other jobs of the epoch."""

    def __init__(self, sessions: SparkSessions, job_group: str) -> None:
        self._sessions = sessions
        self.job_group = job_group
        self._calls = itertools.count(1)
        self._called = ""

    def groups(self) -> Sequence[str]:
        """The job groups whose jobs end with the epoch."""
        return [self.job_group, *filter(None, [self._called])]

    @contextmanager
    def called(self) -> Iterator[str]:
        """Within the block, what this thread starts is of a job group of its own, whose name it gets."""
        group = self._called = f"{self.job_group} function {next(self._calls)}"
        with self._sessions.apart(group):
            yield group

    def refuse_actions(self, group: str) -> None:
        """Raises `OperatorFailed` if there was an action in a block."""
        if actions := self._sessions.actions(group):
            raise OperatorFailed(_refusal(actions[0]))


def _refusal(action: str) -> str:
    return (
        f"its function has run a job of Spark, {action}. If it was on what the function was given, that is computed again "
        "for the result, and may have other records then. Leave the action out, or declare "
        "@stateless(mode='dataframe', materialize_input=True): then the function gets files, and may run jobs on them"
    )


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

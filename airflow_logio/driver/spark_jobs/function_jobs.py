"""The Spark jobs that functions of authors run while they are called: told from all others, so that an action is seen.

A chain is lazy (ADR-81). An action on what a function gets is evaluated apart from the result, and may see other records.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import OperatorFailed


class FunctionJobs:
    """Of one epoch. Functions are called one at a time; `job_group` is that of all other jobs of the epoch."""

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

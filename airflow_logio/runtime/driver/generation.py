"""The Spark jobs of a group's asynchronous operators (mode ``executors``): started when `protocol.job_queue` says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from airflow_logio.dataflow.operators import BatchGenerator, Operator
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.job_queue import JobQueue
from airflow_logio.protocol.values import ExecutionMode
from airflow_logio.runtime.driver.epoch_settings import EpochSettings, Failure
from airflow_logio.runtime.driver.jobs import JobRunner


class Generation:
    """The asynchronous operators of a group. Belongs to the group's loop; only the jobs run in threads."""

    def __init__(
        self,
        protocol: GroupProtocol,
        settings: EpochSettings,
        members: Mapping[str, Operator],
        put: Callable[[Any], None],
    ) -> None:
        self._protocol = protocol
        self._runners: dict[str, JobRunner] = {}
        for name, operator in members.items():
            if operator.mode is not ExecutionMode.EXECUTORS:
                continue
            assert isinstance(operator, BatchGenerator), f"{name} has mode executors and is no BatchGenerator"
            self._runners[name] = JobRunner(
                settings.pipeline.name,
                name,
                operator,
                settings.sessions,
                settings.connections,
                partial(self._origin, name),
                put,
                lambda error: put(Failure(error)),
            )
        self._queue = JobQueue(protocol, self._runners, extent)

    def is_full(self) -> bool:
        """Enough is triggered for the next job and the one after it: take no more events into memory meanwhile."""
        return self._queue.is_full()

    def is_busy(self) -> bool:
        """A job is running."""
        return any(not runner.is_free() for runner in self._runners.values())

    def start_jobs(self) -> None:
        """Start a job where one is due; at most one per operator at a time."""
        now = time.monotonic()
        for name, runner in self._runners.items():
            self._queue.note(name, now)
            if runner.is_free() and self._queue.is_due(name, now):
                runner.start(self._protocol.start_job(name, self._queue.take(name, now)))

    def finished(self, operator: str) -> None:
        """The last results of a job are taken: its runner is free again."""
        self._runners[operator].finished()

    def _origin(self, name: str, inset_id: str) -> str:
        """Whether an Input Set is in a job: no event can join it, and it stays triggered until the job is noted."""
        return self._protocol.operators[name].triggered[inset_id].origin()

    def threads(self) -> list[threading.Thread]:
        """Of the jobs that are under way."""
        return [runner.thread for runner in self._runners.values() if runner.thread is not None]


def extent(held: Any) -> tuple[int, int]:
    """Records and bytes of an event state; an operator's own kind of state counts as one record."""
    tables = held if isinstance(held, list) else [held]
    return sum(getattr(t, "num_rows", 1) for t in tables), sum(getattr(t, "nbytes", 0) for t in tables)

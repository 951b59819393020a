"""When a Spark job is started, and with which Input Sets (mode ``executors``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from airflow_logio.dataflow.operators import BatchGenerator, Operator
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.values import ExecutionMode
from airflow_logio.runtime.driver.epoch_settings import EpochSettings, Failure
from airflow_logio.runtime.driver.jobs import (
    FIRST_RECORDS,
    LINGER_SECONDS,
    TARGET_RECORDS,
    Generated,
    JobRunner,
    batch_of,
)

MAX_RECORDS_PER_JOB = 400_000
MAX_RECORDS_WAITING = 2 * MAX_RECORDS_PER_JOB
MAX_BYTES_WAITING = 256 * 2**20


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
        self._waiting: dict[str, dict[str, tuple[int, int]]] = {}
        self._oldest: dict[str, float] = {}
        self._runners: dict[str, JobRunner] = {}
        self._begun: set[str] = set()
        """Operators that have had their first job."""
        for name, operator in members.items():
            if operator.mode is not ExecutionMode.EXECUTORS:
                continue
            assert isinstance(operator, BatchGenerator), f"{name} has mode executors and is no BatchGenerator"
            self._waiting[name] = {}
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

    def is_full(self) -> bool:
        """Enough is triggered for the next job and the one after it: take no more events into memory meanwhile."""
        for waiting in self._waiting.values():
            records = sum(count for count, _ in waiting.values())
            size = sum(size for _, size in waiting.values())
            if records >= MAX_RECORDS_WAITING or size >= MAX_BYTES_WAITING:
                return True
        return False

    def is_busy(self) -> bool:
        """A job is running."""
        return any(not runner.is_free() for runner in self._runners.values())

    def start_jobs(self) -> None:
        """Start a job where one is due; at most one per operator at a time."""
        for name, runner in self._runners.items():
            self._note_triggered(name)
            if runner.is_free() and self._is_due(name):
                self._start(name, runner)

    def _note_triggered(self, name: str) -> None:
        waiting = self._waiting[name]
        operator = self._protocol.operators[name]
        for inset_id in operator.next_triggered():
            if inset_id not in waiting:
                waiting[inset_id] = _extent(operator.triggered[inset_id].held)
                self._oldest.setdefault(name, time.monotonic())

    def _is_due(self, name: str) -> bool:
        waiting = self._waiting[name]
        if not waiting:
            return False
        if self._protocol.operators[name].inputs_ended():
            return True
        records = sum(count for count, _ in waiting.values())
        target = TARGET_RECORDS if name in self._begun else FIRST_RECORDS
        return records >= target or time.monotonic() - self._oldest[name] >= LINGER_SECONDS

    def _start(self, name: str, runner: JobRunner) -> None:
        waiting = self._waiting[name]
        limit = MAX_RECORDS_PER_JOB if name in self._begun else FIRST_RECORDS
        self._begun.add(name)
        chosen = batch_of([(inset_id, count) for inset_id, (count, _) in waiting.items()], limit)
        for inset_id in chosen:
            del waiting[inset_id]
        self._oldest.pop(name, None)
        if waiting:
            self._oldest[name] = time.monotonic()
        runner.start(self._protocol.start_job(name, chosen))

    def finished(self, job: Generated) -> None:
        """The end of a job is a step of its own: Output Sets logged, Input Sets done, state serialized."""
        if job.results:
            self._protocol.generated(job.operator, job.results, job.reads)
        for inset_id, error in job.aside:
            self._protocol.set_aside(job.operator, inset_id, error)
        if job.is_last:
            self._runners[job.operator].finished()

    def _origin(self, name: str, inset_id: str) -> str:
        """Of an Input Set that is in a job: no event joins it any more, and it stays triggered until the job is noted."""
        return self._protocol.operators[name].triggered[inset_id].origin()

    def join(self) -> None:
        for runner in self._runners.values():
            runner.join()


def _extent(held: Any) -> tuple[int, int]:
    """Records and bytes of an event state; an operator's own kind of state counts as one record."""
    tables = held if isinstance(held, list) else [held]
    return sum(getattr(t, "num_rows", 1) for t in tables), sum(getattr(t, "nbytes", 0) for t in tables)

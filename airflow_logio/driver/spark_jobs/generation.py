"""The Spark jobs of a group's asynchronous operators (mode ``executors``, and windows of mode ``dataframe``): started when
`protocol.job_queue` says so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import BatchGenerator, Operator
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.mailbox import Closed, Failure
from airflow_logio.driver.spark_jobs.evaluation import Evaluation
from airflow_logio.driver.spark_jobs.frame_jobs import FrameJobs
from airflow_logio.driver.spark_jobs.job_gate import Turn
from airflow_logio.driver.spark_jobs.jobs import Generated, JobRunner, TableJobs
from airflow_logio.driver.spark_jobs.together import contract_of
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.job_queue import JobBounds, JobQueue
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.values import SENT_SCHEMA, ExecutionMode
from airflow_logio.spark.chains import Evaluated
from airflow_logio.systems.arrow import bytes_shown
from airflow_logio.systems.payloads import EpochPayloads

FRAME_UNIT = 16 * 2**20
"""Bytes of files. An Input Set of mode ``dataframe`` counts as one such unit, or as many as it has."""
FRAME_BOUNDS = JobBounds(target_records=256, first_records=16, most_records=256)
"""For jobs of mode ``dataframe``, in units: their records do not wait in memory. A task may have to write a file for each
Input Set (`task_files.MAX_PARTITIONS`)."""


class Generation:
    """The asynchronous operators of a group. Belongs to the group's loop; only the jobs run in threads.

    `evaluation` and `payloads` are there if the group has operators of mode ``dataframe``.
    """

    def __init__(
        self,
        protocol: GroupProtocol,
        settings: EpochSettings,
        members: Mapping[str, Operator],
        put: Callable[[Any], None],
        job_group: str,
        evaluation: Evaluation | None = None,
        payloads: EpochPayloads | None = None,
    ) -> None:
        self._protocol = protocol
        self._stopping = threading.Event()
        self._runners: dict[str, JobRunner[Any]] = {}
        frames: dict[str, FrameWindowOperator] = {}
        turn = Turn(settings.connections.calls, self._check_wanted) if evaluation is None else evaluation.gate.turn
        for name, operator in members.items():
            common = (
                settings.pipeline.name,
                name,
                operator,
                settings.sessions,
                settings.connections,
                partial(self._origin, name),
                put,
                lambda error: put(Failure(error)),
                job_group,
                self._stopping,
                turn,
            )
            graph = settings.run.spec.graph
            if operator.mode is ExecutionMode.EXECUTORS:
                assert isinstance(operator, BatchGenerator), f"{name} has mode executors and is no BatchGenerator"
                self._runners[name] = TableJobs(*common, contract_of(graph, name, operator))  # type: ignore[arg-type]
            elif isinstance(operator, FrameWindowOperator):
                assert evaluation is not None and payloads is not None
                captures = operator.outputs[0] in protocol.operators[name].spec.captured_out
                contract = contract_of(graph, name, operator)
                self._runners[name] = FrameJobs(evaluation, payloads, captures, *common, contract)
                frames[name] = operator
        tables = JobQueue(protocol, [name for name in self._runners if name not in frames], extent)
        of_frames = JobQueue(protocol, frames, frame_extent, FRAME_BOUNDS)
        self._queues = {name: of_frames if name in frames else tables for name in self._runners}

    def _check_wanted(self) -> None:
        if self._stopping.is_set():
            raise Closed

    def is_full(self) -> bool:
        """Enough is triggered for the next job and the one after it: take no more events into memory meanwhile."""
        return any(queue.is_full() for queue in self._queues.values())

    def is_busy(self) -> bool:
        """A job is running."""
        return any(not runner.is_free() for runner in self._runners.values())

    def start_jobs(self) -> None:
        """Start a job where one is due; at most one per operator at a time."""
        now = time.monotonic()
        for name, runner in self._runners.items():
            queue = self._queues[name]
            queue.note(name, now)
            if runner.is_free() and queue.is_due(name, now):
                state = deepcopy(self._protocol.operators[name].state)
                runner.start(self._protocol.start_job(name, queue.take(name, now)), state)

    def note_columns(self, job: Generated) -> None:
        """Keep what the records of an output port look like, in the state that is logged with the job (`SENT_SCHEMA`)."""
        for _, outputs in job.results:
            for output in outputs:
                if isinstance(output, Emit) and isinstance(output.payload, Evaluated):
                    self._protocol.operators[job.operator].state.setdefault(SENT_SCHEMA, output.payload.schema)

    def finished(self, operator: str) -> None:
        """The last results of a job are taken: its runner is free again."""
        self._runners[operator].finished()

    def _origin(self, name: str, inset_id: str) -> str:
        """Whether an Input Set is in a job: no event can join it, and it stays triggered until the job is noted."""
        return self._protocol.operators[name].triggered[inset_id].origin()

    def stop(self) -> None:
        """Jobs are about to be cancelled, and none of their Input Sets is to blame."""
        self._stopping.set()

    def threads(self) -> list[threading.Thread]:
        """The threads of the jobs that are under way."""
        return [runner.thread for runner in self._runners.values() if runner.thread is not None]


def extent(held: Any) -> tuple[int, int]:
    """Records and bytes of an event state; an operator's own kind of state counts as one record."""
    tables = held if isinstance(held, list) else [held]
    records = sum(getattr(t, "num_rows", 1) for t in tables)
    return records, sum(bytes_shown(t) if isinstance(t, pa.Table) else getattr(t, "nbytes", 0) for t in tables)


def frame_extent(held: Any) -> tuple[int, int]:
    """Units of an event state of mode ``dataframe``, and bytes of the tables in it."""
    parts = [part for some in held.values() for part in some] if isinstance(held, dict) else held
    waiting = sum(part.nbytes for part in parts if isinstance(part, pa.Table))
    return max(1, sum(part.nbytes for part in parts) // FRAME_UNIT), waiting

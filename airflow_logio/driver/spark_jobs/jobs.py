"""The generation of many triggered Input Sets in one Spark job (design D6 and D7).

The declared reads of a job are obtained once, in the driver, before the job; one read action per job, with a row per Input
Set. The job's result is split per Input Set; the log sees the same protocol as in mode ``driver``.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.functions.function_operators import keys_of
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import BatchGenerator, InputSet
from airflow_logio.driver.mailbox import Closed
from airflow_logio.driver.spark_jobs.faults import shortened, shuffle_lost
from airflow_logio.driver.spark_session import SparkSessions, partitions_for
from airflow_logio.errors import (
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    OperatorFailed,
    SparkLost,
    authored_frames,
)
from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.spark.dataset_jobs import frame_of_table, lookup
from airflow_logio.systems.connections import Connections, describe_read, number_of

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 3
"""Attempts of a job that loses what tasks have shuffled. Spark itself gives up after so many, where it may try again."""

Op = TypeVar("Op", bound=BatchGenerator | FrameWindowOperator)


@dataclass(frozen=True, slots=True)
class Generated:
    """A job has ended: outputs per Input Set in the order triggered, and the read actions of the job.

    `aside` are Input Sets to be quarantined, with their errors; `is_last` frees the runner.
    """

    operator: str
    results: list[tuple[str, Sequence[Output]]]
    reads: list[Read]
    aside: list[tuple[str, str]] = field(default_factory=list)
    is_last: bool = True


class JobRunner(ABC, Generic[Op]):
    """Runs one job at a time for one operator; the loop asks `is_free` and hands Input Sets to `start`.

    `origin` says where an Input Set comes from, in words; it is asked only for one to blame, from the job's thread. Spark
    jobs are those of `job_group`, which are cancelled when the epoch ends; `stopping` is set then.
    """

    def __init__(
        self,
        pipeline: str,
        name: str,
        operator: Op,
        sessions: SparkSessions,
        connections: Connections,
        origin: Callable[[str], str],
        done: Callable[[Generated], None],
        failed: Callable[[BaseException], None],
        job_group: str,
        stopping: threading.Event,
    ) -> None:
        self._pipeline = pipeline
        self._name = name
        self._operator = operator
        self._sessions = sessions
        self._connections = connections
        self._origin = origin
        self._done = done
        self._failed = failed
        self._job_group = job_group
        self._stopping = stopping
        self._thread: threading.Thread | None = None
        self._state: Mapping[str, Any] = {}
        self._has_generated = False

    def is_free(self) -> bool:
        return self._thread is None

    def start(self, input_sets: Sequence[tuple[str, Any]], state: Mapping[str, Any] | None = None) -> None:
        """`state` is a copy of the operator's global state."""
        self._state = state or {}
        sets = [InputSet(inset_id, held) for inset_id, held in input_sets]
        self._thread = threading.Thread(target=self._run, args=(sets,), name=f"logio-job-{self._name}", daemon=True)
        self._thread.start()

    def finished(self) -> None:
        """The loop has taken the result; the runner is free again."""
        self._thread = None

    @property
    def thread(self) -> threading.Thread | None:
        """The thread of the job that is under way."""
        return self._thread

    def _run(self, sets: Sequence[InputSet]) -> None:
        try:
            parts = list(self._isolating(sets))
            for part in parts[:-1]:
                self._done(replace(part, is_last=False))
            self._done(parts[-1])
        except Closed:
            return  # the epoch has ended
        except BaseException as error:
            self._failed(error)

    def _isolating(self, sets: Sequence[InputSet]) -> Iterator[Generated]:
        """Run the job. Where it fails, halve it until the Input Set to blame is alone: that one is named, or set aside."""
        try:
            yield self._generate_again(sets)
        except Closed:
            raise
        except Exception as error:
            if self._stopping.is_set():  # the job was cancelled: no operator has failed
                raise Closed from error
            if isinstance(error, LogioError) and not isinstance(error, OperatorFailed):
                raise
            if self._sessions.is_lost(error):  # no Input Set is to blame
                raise SparkLost(
                    f"Spark ended while it worked for operator {self._name!r}: {_first_lines(error)}"
                ) from error
            if self._concerns_all():
                raise self._failure(sets[0].inset_id, error) from error
            if len(sets) == 1:
                yield self._to_blame(sets[0].inset_id, error)
                return
            log.warning(
                "%s: a job of %d Input Sets failed, looking for the one at fault: %s", self._name, len(sets), error
            )
            middle = len(sets) // 2
            yield from self._isolating(sets[:middle])
            yield from self._isolating(sets[middle:])

    def _concerns_all(self) -> bool:
        """Whether what has failed is the function, whichever Input Sets it gets: none is to be looked for, or set aside."""
        return False

    def _to_blame(self, inset_id: str, error: Exception) -> Generated:
        failure = self._failure(inset_id, error)
        if getattr(self._operator, "on_error", "fail") != "quarantine":
            raise failure from error
        return Generated(self._name, [], [], [(inset_id, str(failure))])

    def _failure(self, inset_id: str, error: Exception) -> OperatorFailed:
        cause = f"{type(error).__name__}: {_first_lines(error)}{authored_frames(error)}"
        return OperatorFailed(
            str(error) if isinstance(error, OperatorFailed) else cause,
            FailurePoint(self._name, inset_id=inset_id),
            place=f"pipeline {self._pipeline!r}, operator {self._name!r}, Input Set {inset_id!r}",
            is_first=not self._has_generated,
        ).further(self._origin(inset_id))

    def _generate_again(self, sets: Sequence[InputSet]) -> Generated:
        """As `_generate`, and again where executors were lost with what tasks had shuffled: no Input Set is to blame."""
        for attempt in itertools.count(1):
            try:
                return self._generate(sets)
            except Exception as error:
                if not shuffle_lost(error) or self._stopping.is_set():
                    raise
                said = f"operator {self._name!r}: Spark has lost executors, and with them what tasks had shuffled"
                if attempt == MOST_ATTEMPTS:
                    raise ExternalUnavailable(
                        f"{said}, {attempt} times: {shortened(error)}. The Input Sets stay in the log: when executors stay, "
                        "`logio retry` resumes it"
                    ) from error
                log.warning("%s; its job runs again: %s", said, shortened(error))
        raise AssertionError("the last attempt returns or raises")

    def _generate(self, sets: Sequence[InputSet]) -> Generated:
        started = time.monotonic()
        with self._connections.calls.call("run", self._point(sets)):
            outputs, records, reads = self._worked(sets)
        log.info("%s: %d Input Sets, %d records in %.2f s", self._name, len(sets), records, time.monotonic() - started)
        self._has_generated = True
        results = [(one.inset_id, made) for one, made in zip(sets, outputs, strict=True)]
        return Generated(self._name, results, reads)

    def _point(self, sets: Sequence[InputSet]) -> FailurePoint:
        if len(sets) == 1:
            return FailurePoint(self._name, inset_id=sets[0].inset_id)
        return FailurePoint(self._name, action=f"a Spark job of {len(sets)} Input Sets")

    @abstractmethod
    def _worked(self, sets: Sequence[InputSet]) -> tuple[Sequence[Sequence[Output]], int, list[Read]]:
        """Run the job. The outputs of each Input Set, the records that went in or came out, and the read actions."""


class TableJobs(JobRunner[BatchGenerator]):
    """Mode ``executors``: the records go into the job from the driver, and the result comes back."""

    def _worked(self, sets: Sequence[InputSet]) -> tuple[Sequence[Sequence[Output]], int, list[Read]]:
        tagged = self._operator.tagged(sets)
        effects = self._read(tagged)
        crash_here(CrashPoint.BEFORE_JOB)
        where = f"operator {self._name!r}, {len(sets)} Input Sets from {sets[0].inset_id!r}"
        session = self._sessions.entered(self._job_group, where)
        frames = {name: lookup(session, effect) for name, (effect, _) in effects.items()}
        frame = frame_of_table(session, tagged).coalesce(partitions_for(session))
        result = self._operator.run_with(frame, frames, self._connections.params).toArrow()
        crash_here(CrashPoint.AFTER_JOB)
        outputs = [
            [Emit(port, table, table.num_rows) for port, table in made]
            for made in self._operator.split(result, len(sets))
        ]
        return outputs, tagged.num_rows, [read for _, read in effects.values()]

    def _read(self, tagged: pa.Table) -> Mapping[str, tuple[pa.Table, Read]]:
        """The effects of the declared reads, by name."""
        effects = {}
        for name, read in self._operator.reads.items():
            keys = keys_of([tagged], read)
            table = self._connections.read(read, keys)
            described = describe_read(read, number_of(keys))
            effects[name] = (table, Read(read.connection, described, table, table.num_rows))
        return effects


def _first_lines(error: BaseException, count: int = 6) -> str:
    return "\n".join(str(error).splitlines()[:count])

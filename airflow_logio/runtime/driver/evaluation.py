"""Evaluates the chains of a group: what operators of mode ``dataframe`` make of an event, before the loop gets it (ADR-81).

Called by the threads that bring events; jobs of different threads run side by side. When the epoch ends, jobs under way are
cancelled (`job_cancel`), and no more begin.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from msgspec.structs import replace

from airflow_logio.authored_frames import authored_frames
from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.frame_operators import FrameOperator
from airflow_logio.dataflow.operators import Operator, SparkFrame
from airflow_logio.dataflow.sources import RangeSource
from airflow_logio.errors import (
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    LogUnavailable,
    OperatorFailed,
    SparkLost,
)
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.values import Event, ExecutionMode, Kind, Port
from airflow_logio.runtime.datasets.dataset_jobs import frame_of, frame_of_table, materialized, probe, schema_of
from airflow_logio.runtime.datasets.determinism import FRAMES_SAFETY, check_repeatable
from airflow_logio.runtime.datasets.evaluated import Evaluated, Outputs
from airflow_logio.runtime.driver.epoch_settings import EpochSettings
from airflow_logio.runtime.driver.mailbox import Closed
from airflow_logio.runtime.driver.spark_errors import shortened
from airflow_logio.runtime.payloads import EpochPayloads
from airflow_logio.runtime.payloads.dataset import Dataset

log = logging.getLogger(__name__)

T = TypeVar("T")


class Evaluation:
    """`job_group` names the Spark jobs of this epoch, and no others."""

    def __init__(
        self,
        settings: EpochSettings,
        protocol: GroupProtocol,
        members: Mapping[str, Operator],
        payloads: EpochPayloads,
        job_group: str,
    ) -> None:
        self._settings = settings
        self._protocol = protocol
        self._members = members
        self._payloads = payloads
        self._job_group = job_group
        self._probing = threading.Lock()
        self._is_shared = False
        self._stopping = threading.Event()
        self._has_evaluated = False
        self._unavailable_since: float | None = None

    # --- called by the threads that bring events ----------------------------------------------------------------------

    def wants(self, receiver: Port) -> bool:
        """Whether the events of an input port are evaluated."""
        return self._members[receiver.operator].mode is ExecutionMode.DATAFRAME

    def event(self, receiver: Port, event: Event) -> Event:
        """An event from the log, with what its receiver and the chain behind it make of it.

        Raises `OperatorFailed`, `SparkLost`, `LogUnavailable`, `Closed`.
        """
        if event.kind is not Kind.DATA:
            return event
        where = f"pipeline {self._settings.pipeline.name!r}, port {receiver}, event {event.event_id} of {event.sender}"
        at = FailurePoint(receiver.operator, receiver.name, event.event_id)

        def evaluated() -> Evaluated:
            given = event.payload
            session = self._settings.sessions.get()
            frame = frame_of(session, given) if isinstance(given, Dataset) else frame_of_table(session, given)
            then, writes = self._received(receiver, frame, f"{event.sender}.{event.event_id}", at)
            return Evaluated(given if isinstance(given, Dataset) else None, schema_of(frame), then, writes)

        return replace(event, payload=self._running(where, at, evaluated))

    def range(self, source: str, params: Mapping[str, Any], start: Any, end: Any, number: int) -> Evaluated:
        """The event of a range, read action `number` of a source. Raises as `event`, and what the source raises."""
        operator = self._members[source]
        assert isinstance(operator, RangeSource)
        at = FailurePoint(source, action=f"read action {number}")

        def evaluated() -> Evaluated:
            session = self._settings.sessions.get()
            with self._settings.connections.calls.call("frame", at):
                frame = operator.frame(session, params, start, end)
            return self._sent(Port(source, operator.outputs[0]), frame, str(number), at)

        return self._running("", at, evaluated)  # the thread of the source says where it is

    # --- called by the main thread ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let no more jobs begin."""
        self._stopping.set()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _sent(self, sender: Port, frame: SparkFrame, number: str, at: FailurePoint) -> Evaluated:
        """What is sent on an output port, and what comes of it in the group."""
        receivers = self._protocol.fused(sender)
        dataset = None
        if self._is_border(sender, receivers):
            where = f"the event for {number} on port {sender}"
            self._check_wanted()
            dataset = materialized(self._payloads, where, f"datasets/{sender}/{number}", frame)
            frame = frame_of(self._settings.sessions.get(), dataset)
        then: dict[Port, Outputs] = {}
        writes: dict[str, Dataset] = {}
        for receiver in receivers:
            if self.wants(receiver):
                further, written = self._received(receiver, frame, number, at)
                then |= further
                writes |= written
        return Evaluated(dataset, schema_of(frame), then, writes)

    def _received(
        self, receiver: Port, frame: SparkFrame, number: str, at: FailurePoint
    ) -> tuple[Mapping[Port, Outputs], Mapping[str, Dataset]]:
        """What one receiver makes of a DataFrame: events, or the files of a write action."""
        operator = self._members[receiver.operator]
        if isinstance(operator, DatasetWriter):
            where = f"the write action of {receiver.operator} for {number}"
            purpose = f"datasets/{receiver}/{number}"
            self._check_wanted()
            written = materialized(self._payloads, where, purpose, frame, operator.partition_by)
            return {}, {receiver.operator: written}
        assert isinstance(operator, FrameOperator)
        made = self._called(operator, receiver, frame, at)
        outputs = {port: self._sent(Port(receiver.operator, port), output, number, at) for port, output in made.items()}
        return {receiver: outputs}, {}

    def _called(
        self, operator: FrameOperator, receiver: Port, frame: SparkFrame, at: FailurePoint
    ) -> Mapping[str, SparkFrame]:
        connections = self._settings.connections
        try:
            with connections.calls.call("frames", FailurePoint(receiver.operator, receiver.name, at.event_id)):
                made = operator.frames(receiver.name, frame, connections.params)
            if len(made) > 1:
                check_repeatable(made)
            return made
        except Exception as error:
            if isinstance(error, LogioError) and not isinstance(error, OperatorFailed):
                raise
            self._fail(error, f"operator {receiver.operator!r}", at)

    def _is_border(self, sender: Port, receivers: Sequence[Port]) -> bool:
        """Whether the events of an output port are materialized."""
        if self._protocol.is_logged(sender) or len(receivers) > 1:
            return True
        return any(not self.wants(one) or len(self._members[one.operator].outputs) > 1 for one in receivers)

    def _running(self, where: str, at: FailurePoint, evaluate: Callable[[], T]) -> T:
        self._check_wanted()
        with self._blaming(where, at):
            session = self._settings.sessions.get()
            what = where or f"source {at.operator!r}, {at.action}"
            session.sparkContext.setJobGroup(self._job_group, f"{self._settings.group}: {what}", interruptOnCancel=True)
            for name, value in FRAMES_SAFETY.items():
                session.conf.set(name, value)  # a function may have changed what nobody switches off
            self._probe_once(session)
            result = evaluate()
        self._has_evaluated, self._unavailable_since = True, None
        return result

    def _probe_once(self, session: Any) -> None:
        with self._probing:
            if not self._is_shared:
                probe(session, self._payloads)
                self._is_shared = True

    @contextmanager
    def _blaming(self, where: str, at: FailurePoint) -> Iterator[None]:
        try:
            yield
        except LogUnavailable as error:
            self._unavailable(error)
        except (LogioError, Closed) as error:
            if isinstance(error, OperatorFailed):
                raise OperatorFailed(
                    str(error), error.at or at, place=where, is_first=not self._has_evaluated
                ) from error
            raise
        except Exception as error:
            self._check_wanted()  # a job that was cancelled is nobody's failure
            if self._settings.sessions.is_lost(error):
                raise SparkLost(f"Spark ended while it evaluated {where or at.operator}: {shortened(error)}") from error
            if _is_full(error):
                text = f"{self._payloads}: {os.strerror(errno.ENOSPC)}, told by a task of Spark"
                self._unavailable(LogUnavailable(text), error)
            self._fail(error, where, at)

    def _unavailable(self, error: LogUnavailable, cause: Exception | None = None) -> NoReturn:
        """The payload store is unavailable, which only these threads notice: said, and for `replay_seconds` only."""
        self._unavailable_since = self._unavailable_since or time.monotonic()
        waited, limit = time.monotonic() - self._unavailable_since, self._settings.connections.replay_seconds
        if waited < limit:
            log.warning("%s; evaluated again", error)
            raise error from cause
        raise ExternalUnavailable(
            f"{error}. That has lasted for {waited:.0f} s. What is to be done stays in the log: when there is room, or the "
            "store is back, `logio retry` resumes it"
        ) from (cause or error)

    def _fail(self, error: Exception, where: str, at: FailurePoint) -> NoReturn:
        cause = str(error) if isinstance(error, OperatorFailed) else f"{type(error).__name__}: {shortened(error)}"
        cause += authored_frames(error)
        raise OperatorFailed(cause, at, place=where, is_first=not self._has_evaluated) from error

    def _check_wanted(self) -> None:
        if self._stopping.is_set():
            raise Closed


def has_chains(members: Mapping[str, Operator]) -> bool:
    """Whether a group has operators that are evaluated."""
    return any(operator.mode is ExecutionMode.DATAFRAME for operator in members.values())


def _is_full(error: Exception) -> bool:
    """Whether a task has found the disk, or its quota, full: Spark has the error of a task as text only."""
    return any(f"[Errno {number}]" in str(error) for number in (errno.ENOSPC, errno.EDQUOT))

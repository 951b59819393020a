"""Evaluates the chains of a group: what operators of mode ``dataframe`` make of an event, before the loop gets it (ADR-81).

What is to be evaluated is a small value, a `Work`: an event of the log, a range or an effect of a source, a job of Input
Sets. The threads that bring events ask. Each has threads of its own that evaluate what waits, several events side by side
(`side_by_side`), and hands the results on in the order of events. When the epoch ends, jobs under way are cancelled
(`job_groups`), and no more begin (`job_gate`).
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from msgspec.structs import replace

from airflow_logio.dataflow.arrow_tables import needed_spark_frame
from airflow_logio.dataflow.functions.function_operators import FrameFunctionOperator, FrameOperator
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import Operator, SourceOperator, SparkFrame
from airflow_logio.dataflow.sources import RangeSource, SparkSource
from airflow_logio.dataflow.sources.ranges import END, START
from airflow_logio.dataflow.unavailability import is_outage
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_jobs.job_gate import JobGate
from airflow_logio.driver.spark_jobs.job_groups import FunctionJobs
from airflow_logio.driver.spark_jobs.side_by_side import SideBySide
from airflow_logio.errors import ExternalUnavailable, FailurePoint, LogUnavailable, OperatorFailed
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.values import Event, ExecutionMode, Kind, Port
from airflow_logio.spark.chains import (
    Apply,
    Chains,
    CountLate,
    CountWindows,
    Duplicate,
    Evaluated,
    Materialize,
    Reopen,
    Step,
)
from airflow_logio.spark.dataset_jobs import duplicated, frame_of, frame_of_table, materialized
from airflow_logio.spark.dataset_parts import late_in, windows_of
from airflow_logio.spark.row_readers import range_connections
from airflow_logio.spark.schemas import schema_of
from airflow_logio.spark.spark_effects import StoredEvent, store_frame
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.task_files import AS_PUBLISHED, OWNER_ONLY

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

RETRY_SECONDS = 1.0
"""Between two attempts of a job while the payload store is unavailable, or when executors were lost."""
LEAST_ATTEMPTS = 3
"""What fails after a long time has used up the time for replays. It still gets this many attempts."""

Fit = Callable[[SparkFrame, str], SparkFrame]
"""(records of a range, their schema) → the records as they are sent. Raises `SourceChanged`."""


class Work(ABC, Generic[R]):
    """What is evaluated at once, and makes an `R`."""

    @property
    @abstractmethod
    def at(self) -> FailurePoint:
        """What an error is reported with."""

    @property
    def place(self) -> str:
        """Where an error was, in words, within the pipeline; empty where the caller says it."""
        return ""

    @property
    def described(self) -> str:
        """What Spark says of its jobs, if not the place."""
        return ""


@dataclass(frozen=True)
class Arrived(Work[Event]):
    """An event of the log at an input port: made of it is the same event, with what the chain behind the port makes of it."""

    receiver: Port
    event: Event

    @property
    def at(self) -> FailurePoint:
        return FailurePoint(self.receiver.operator, self.receiver.name, self.event.event_id)

    @property
    def place(self) -> str:
        return f"port {self.receiver}, event {self.event.event_id} of {self.event.sender}"


@dataclass(frozen=True)
class Reading:
    """Read action `number` of a source. `fit` gets the records before the job."""

    source: str
    params: Mapping[str, Any]
    action: Mapping[str, Any]
    number: int
    fit: Fit

    @property
    def at(self) -> FailurePoint:
        return FailurePoint(self.source, action=f"read action {self.number}")


class ReadRange(Reading, Work[Evaluated]):
    """The event of a range."""


class StoreEffect(Reading, Work[tuple[str, int]]):
    """The whole effect of a read action is stored: its reference, and its records."""


@dataclass(frozen=True)
class ReopenStored(Work[Evaluated]):
    """An event of the stored effect of read action `number` of a source."""

    source: str
    number: int
    event: StoredEvent

    @property
    def at(self) -> FailurePoint:
        return FailurePoint(self.source, action=f"read action {self.number}, event {self.event.number}")


@dataclass(frozen=True)
class SetsJob(Work[R]):
    """What `make` makes of triggered Input Sets; `what` describes it.

    While the payload store is unavailable, it is made again: the limit of the call that its thread is in does not count that.
    """

    what: str
    point: FailurePoint
    make: Callable[[], R]

    @property
    def at(self) -> FailurePoint:
        return self.point

    @property
    def described(self) -> str:
        return self.what


class Evaluation:
    """`functions` names the Spark jobs of this epoch, and those that functions run. `gate` is what every job passes."""

    def __init__(
        self,
        settings: EpochSettings,
        protocol: GroupProtocol,
        members: Mapping[str, Operator],
        payloads: EpochPayloads,
        functions: FunctionJobs,
    ) -> None:
        self._settings = settings
        self._members = members
        self._chains = Chains(protocol, members, schema_of)
        self._payloads = payloads
        self._frames = SourceFrames(settings, payloads)
        self.gate = JobGate(settings, payloads, functions)
        self._jobs_at_once = settings.pipeline.group_of(settings.group).jobs_at_once
        self._beside: dict[str, SideBySide] = {}
        """Name of a thread that brings events → those that evaluate for it."""
        self._making = threading.Lock()
        self._has_evaluated = False
        self._unavailable_since: float | None = None
        self._in_vain = 0
        """Evaluations since then."""

    # --- called by the threads that bring events ----------------------------------------------------------------------

    def wants(self, receiver: Port) -> bool:
        """Whether the events of an input port are evaluated."""
        return self._chains.wants(receiver)

    def evaluate(self, work: Work[R]) -> R:
        """What one work makes, in this thread.

        Raises `OperatorFailed`, `SparkLost`, `LogUnavailable` (not for a `SetsJob`), `ExternalUnavailable`, `Closed`; and
        what a source and `fit` raise.
        """
        while True:
            try:
                return self._in_turn(partial(self._evaluated, work))
            except LogUnavailable:
                if not isinstance(work, SetsJob):
                    raise
            with self._settings.connections.calls.inner("store", limited=False):
                self.gate.pause(RETRY_SECONDS)

    def in_order(
        self, waiting: Sequence[T], work_of: Callable[[T], Work[R]], *more: Callable[[T], Sequence[T]]
    ) -> Iterator[tuple[T, R]]:
        """Each item that waits, in its order, with what its work makes. `more` has what has come behind an item.

        Those behind an item are evaluated meanwhile, and evaluated again if an error ends the iteration before their turn.
        `work_of` is called by the threads that evaluate. Raises as `evaluate`, and what `work_of` raises, each at the turn of
        its item.
        """
        with closing(
            self._own_threads().begun(waiting, lambda one: self._evaluated(work_of(one)), self._at_once, *more)
        ) as begun:
            for one, result in begun:
                yield one, self._in_turn(result)

    # --- called by the main thread ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let no more jobs begin, and no thread wait for those of `threads`."""
        self.gate.close()
        with self._making:
            for beside in self._beside.values():
                beside.stop()

    def threads(self) -> list[threading.Thread]:
        """Those that evaluate, after `stop`: to be joined."""
        with self._making:
            return [thread for beside in self._beside.values() for thread in beside.threads]

    # --- turns --------------------------------------------------------------------------------------------------------

    def _own_threads(self) -> SideBySide:
        name = threading.current_thread().name
        with self._making:
            self.gate.check_wanted()
            return self._beside.setdefault(name, SideBySide(name))

    def _at_once(self) -> int:
        """How many events are evaluated side by side. One while the payload store is unavailable, or executors are lost: each
        of them would fail."""
        if self._unavailable_since is not None or not self._settings.sessions.is_ready():
            return 1
        try:
            return self._jobs_at_once or self._settings.sessions.jobs_at_once()
        except Exception as error:  # the JVM is gone: what needs it will say so
            log.debug("Spark does not answer: %s", error)
            return 1

    def _in_turn(self, result: Callable[[], T]) -> T:
        """What an evaluation has made or raised, now that everything before it has been handed on."""
        try:
            made = result()
        except LogUnavailable as error:
            self._unavailable(error)
        except OperatorFailed as error:
            error.is_first = not self._has_evaluated
            raise
        self._has_evaluated, self._unavailable_since, self._in_vain = True, None, 0
        self._settings.connections.calls.waits_no_more()
        return made

    def _unavailable(self, error: LogUnavailable) -> NoReturn:
        """The payload store is unavailable, or executors are lost with what others need, which only these threads notice:
        said, and for `replay_seconds` only."""
        since = self._unavailable_since or time.monotonic()  # another thread may have it back meanwhile, and say so
        self._unavailable_since = since
        self._in_vain += 1
        waited, limit = time.monotonic() - since, self._settings.connections.replay_seconds
        if waited < limit or self._in_vain < LEAST_ATTEMPTS:
            log.warning("%s; evaluated again", error)
            self._settings.connections.calls.waits(f"jobs of group {self._settings.group!r}", str(error))
            raise error
        raise ExternalUnavailable(
            f"{error}. That has lasted for {waited:.0f} s, {self._in_vain} attempts. What is to be done stays in the log: "
            "when there is room, the store is back, or executors stay, `logio retry` resumes it"
        ) from error

    # --- what is made -------------------------------------------------------------------------------------------------

    def _evaluated(self, work: Work[R]) -> R:
        """What a work makes, its jobs those of this epoch, its errors told apart."""
        if isinstance(work, Arrived) and work.event.kind is not Kind.DATA:
            return work.event  # type: ignore[return-value]  # R is Event
        at, where = work.at, work.place and f"pipeline {self._settings.pipeline.name!r}, {work.place}"
        with self.gate.entered(where, at, work.described or where or f"source {at.operator!r}, {at.action}"):
            return self._made(work)  # type: ignore[no-any-return]

    def _made(self, work: Work[Any]) -> Any:
        match work:
            case Arrived():
                return replace(work.event, payload=self._arrived(work))
            case ReadRange():
                return self._read(work)
            case StoreEffect():
                return self._stored(work)
            case ReopenStored():
                return self._reopened(work)
            case SetsJob():
                return work.make()
        raise TypeError(f"{work!r} is no work of an evaluation")

    def _arrived(self, work: Arrived) -> Evaluated:
        receiver, given = work.receiver, work.event.payload
        session = self._settings.sessions.get()
        dataset = given if isinstance(given, Dataset) else None
        if dataset is None and self._chains.has_windows(receiver):  # which looks at the records itself
            return Evaluated(schema=schema_of(frame_of_table(session, given.slice(0, 0))), given=given)
        records = frame_of_table(session, given) if dataset is None else dataset
        number = f"{work.event.sender}.{work.event.event_id}"
        return self._followed(self._chains.arrived(receiver, records, number), work.at)

    def _read(self, work: ReadRange) -> Evaluated:
        operator = self._members[work.source]
        assert isinstance(operator, RangeSource)
        with self._frames.of_range(operator, work.params, work.action, work.at, work.fit) as frame:
            return self._followed(self._chains.sent(self._output(work.source), frame, str(work.number)), work.at)

    def _stored(self, work: StoreEffect) -> tuple[str, int]:
        operator, port = self._members[work.source], self._output(work.source)
        how = (operator.ordered_by, operator.bytes_per_event) if isinstance(operator, SparkSource) else (None, None)
        with self._frames.of_effect(operator, work.params, work.action, work.at, work.fit) as frame:
            self.gate.before_job()
            return store_frame(
                self._payloads,
                port,
                work.number,
                frame,
                ordered_by=how[0],
                bytes_per_event=how[1],
                named=self._chains.is_border(port),
            )

    def _reopened(self, work: ReopenStored) -> Evaluated:
        event = work.event
        dataset = event.dataset if event.is_named else None
        frame = frame_of(self._settings.sessions.get(), event.dataset)
        number = f"{work.number}-{event.number}"
        return self._followed(self._chains.sent(self._output(work.source), frame, number, dataset), work.at)

    def _output(self, source: str) -> Port:
        return Port(source, self._members[source].outputs[0])

    def _followed(self, chain: Generator[Step, Any, Evaluated], at: FailurePoint) -> Evaluated:
        """Do the steps of a chain, one after the other."""
        answer: Any = None
        try:
            while True:
                answer = self._done(chain.send(answer), at)
        except StopIteration as ended:
            evaluated: Evaluated = ended.value
            return evaluated

    def _done(self, step: Step, at: FailurePoint) -> Any:
        match step:
            case Apply(receiver, frame):
                function = self._members[receiver.operator]
                assert isinstance(function, FrameOperator)
                return self.gate.call(function, receiver, frame, at)
            case Materialize(operator, where, purpose, frame, partition_by):
                mode = AS_PUBLISHED if isinstance(self._members[operator], DatasetWriter) else OWNER_ONLY
                with self.gate.job(operator, at):
                    return materialized(self._payloads, where, purpose, frame, partition_by, mode)
            case Duplicate(operator, where, purpose, dataset):
                with self.gate.job(operator, at):
                    return duplicated(self._settings.sessions.get(), self._payloads, where, purpose, dataset)
            case Reopen(dataset):
                return frame_of(self._settings.sessions.get(), dataset)
            case CountWindows(receiver, dataset, frame):
                return self._windows(receiver, dataset, frame, at)
            case CountLate(sender, frame):
                function = self._members[sender.operator]
                assert isinstance(function, FrameFunctionOperator)
                own = function.divides_to(sender.name)
                assert own is not None, sender
                with self.gate.job(sender.operator, at):
                    return late_in(frame, own, self._settings.connections.params)

    def _windows(self, receiver: Port, dataset: Dataset, frame: SparkFrame, at: FailurePoint) -> Mapping[int, int]:
        """How many records each window of time has; nothing where windows count events."""
        operator = self._members[receiver.operator]
        assert isinstance(operator, FrameWindowOperator)
        grid = operator.window.grid()
        if grid is None:
            return {}
        self.gate.before_job()
        try:
            return windows_of(dataset, frame, grid)
        except OperatorFailed as error:
            self.gate.blame(receiver.operator, error, at)


class SourceFrames:
    """Both methods raise what the source and `fit` raise, and `ExternalUnavailable` for what says so."""

    def __init__(self, settings: EpochSettings, payloads: EpochPayloads) -> None:
        self._settings = settings
        self._payloads = payloads

    @contextmanager
    def of_effect(
        self, operator: Operator, params: Mapping[str, Any], action: Mapping[str, Any], at: FailurePoint, fit: Fit
    ) -> Iterator[SparkFrame]:
        """What a read action returns whose effect is stored."""
        if isinstance(operator, RangeSource):
            with self.of_range(operator, params, action, at, fit) as frame:
                yield frame
            return
        assert isinstance(operator, SparkSource)
        session = self._settings.sessions.get()
        with self._asking(operator), self._settings.connections.calls.call("read", at):
            frame = operator.frame(session, params)
        yield frame

    @contextmanager
    def of_range(
        self, operator: RangeSource, params: Mapping[str, Any], action: Mapping[str, Any], at: FailurePoint, fit: Fit
    ) -> Iterator[SparkFrame]:
        """The records of a range, for as long as the block lasts. Spark may have to ask what columns they have."""
        session, connections = self._settings.sessions.get(), self._settings.connections
        with range_connections(session, self._payloads, connections, at.operator) as named:
            with self._asking(operator), connections.calls.call("frame", at):
                made = operator.connected(named).frame(session, params, action[START], action[END])
                frame = needed_spark_frame(made, f"frame() of {type(operator).__name__}")
                schema = schema_of(frame)
            yield fit(frame, schema)

    @contextmanager
    def _asking(self, operator: SourceOperator) -> Iterator[None]:
        """What a source raises if an external system is unavailable becomes `ExternalUnavailable`; not if Spark is."""
        try:
            yield
        except Exception as error:
            unavailable = ExternalUnavailable(f"{type(error).__name__}: {error}")
            if not is_outage(error, operator.unavailable) or self._settings.sessions.is_lost(unavailable):
                raise
            raise unavailable from error


def has_chains(members: Mapping[str, Operator]) -> bool:
    """Whether a group has operators that are evaluated."""
    return any(operator.mode is ExecutionMode.DATAFRAME for operator in members.values())

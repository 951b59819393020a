"""Evaluates the chains of a group: what operators of mode ``dataframe`` make of an event, before the loop gets it (ADR-81).

Called by the threads that bring events. Each has threads of its own that evaluate what waits, several events side by side
(`side_by_side`), and hands the results on in the order of events. When the epoch ends, jobs under way are cancelled
(`job_cancel`), and no more begin.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

from msgspec.structs import replace

from airflow_logio.dataflow.functions.function_operators import FrameOperator
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import Operator, SparkFrame
from airflow_logio.dataflow.sources import RangeSource, SparkSource
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.mailbox import Closed
from airflow_logio.driver.spark_jobs.faults import JobFaults
from airflow_logio.driver.spark_jobs.job_groups import FunctionJobs
from airflow_logio.driver.spark_jobs.side_by_side import SideBySide
from airflow_logio.driver.spark_jobs.source_frames import Fit, SourceFrames
from airflow_logio.errors import (
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    LogUnavailable,
    OperatorFailed,
)
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.values import Event, ExecutionMode, Kind, Port
from airflow_logio.spark.chains import Apply, Chains, CountWindows, Duplicate, Evaluated, Materialize, Reopen, Step
from airflow_logio.spark.dataset_jobs import duplicated, frame_of, frame_of_table, materialized, probe
from airflow_logio.spark.dataset_parts import windows_of
from airflow_logio.spark.determinism import FRAMES_SAFETY, check_repeatable
from airflow_logio.spark.schemas import schema_of
from airflow_logio.spark.spark_effects import StoredEvent, store_frame
from airflow_logio.systems.call_watch import Call
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.task_files import AS_PUBLISHED, OWNER_ONLY

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

PROBE = "probe of the payload store"
"""What `logio status` says of a driver whose executors do not answer its first job."""
TURN_SECONDS = 0.25
"""Between two looks at whether the epoch still lasts, while the function of another event is called."""
RETRY_SECONDS = 1.0
"""Between two attempts of a job while the payload store is unavailable, or when executors were lost."""
LEAST_ATTEMPTS = 3
"""What fails after a long time has used up the time for replays. It still gets this many attempts."""


class Evaluation:
    """`functions` names the Spark jobs of this epoch, and those that functions run."""

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
        self._functions = functions
        self._frames = SourceFrames(settings, payloads)
        self._faults = JobFaults(settings.sessions, payloads, self._check_wanted)
        self._jobs_at_once = settings.pipeline.group_of(settings.group).jobs_at_once
        self._beside: dict[str, SideBySide] = {}
        """Name of a thread that brings events → those that evaluate for it."""
        self._making = threading.Lock()
        self._calling = threading.Lock()
        self._probing = threading.Lock()
        self._is_shared = False
        self._stopping = threading.Event()
        self._has_evaluated = False
        self._unavailable_since: float | None = None
        self._in_vain = 0
        """Evaluations since then."""

    # --- called by the threads that bring events ----------------------------------------------------------------------

    def wants(self, receiver: Port) -> bool:
        """Whether the events of an input port are evaluated."""
        return self._chains.wants(receiver)

    def events(
        self, receiver: Port, waiting: Sequence[T], more: Callable[[T], Sequence[T]], unpacked: Callable[[T], Event]
    ) -> Iterator[tuple[T, Event]]:
        """Events from the log, in their order, each with what its receiver and the chain behind it make of it.

        `unpacked` loads one, `more` has what has come behind one. Those behind an event are evaluated meanwhile, and
        evaluated again if an error ends the iteration before their turn. Raises `OperatorFailed`, `SparkLost`,
        `LogUnavailable`, `ExternalUnavailable`, `Closed`, and what `unpacked` raises, each at the turn of its event.
        """
        return self._in_order(waiting, lambda one: self._event(receiver, unpacked(one)), more)

    def _event(self, receiver: Port, event: Event) -> Event:
        if event.kind is not Kind.DATA:
            return event
        where = f"pipeline {self._settings.pipeline.name!r}, port {receiver}, event {event.event_id} of {event.sender}"
        at = FailurePoint(receiver.operator, receiver.name, event.event_id)

        def evaluated() -> Evaluated:
            given = event.payload
            session = self._settings.sessions.get()
            dataset = given if isinstance(given, Dataset) else None
            if dataset is None and self._chains.has_windows(receiver):  # which looks at the records itself
                return Evaluated(schema=schema_of(frame_of_table(session, given.slice(0, 0))), given=given)
            records = frame_of_table(session, given) if dataset is None else dataset
            number = f"{event.sender}.{event.event_id}"
            return self._followed(self._chains.arrived(receiver, records, number), at)

        return replace(event, payload=self._evaluated(where, at, evaluated))

    def range(
        self, source: str, params: Mapping[str, Any], action: Mapping[str, Any], number: int, fit: Fit
    ) -> Evaluated:
        """The event of a range, read action `number` of a source. `fit` gets its records before the job.

        Raises as `events`, and what the source and `fit` raise.
        """
        operator = self._members[source]
        assert isinstance(operator, RangeSource)
        at, port = FailurePoint(source, action=f"read action {number}"), Port(source, operator.outputs[0])

        def evaluated() -> Evaluated:
            with self._frames.of_range(operator, params, action, at, fit) as frame:
                return self._followed(self._chains.sent(port, frame, str(number)), at)

        return self._running("", at, evaluated)  # the thread of the source says where it is

    def job(self, what: str, at: FailurePoint, evaluate: Callable[[], T]) -> T:
        """What a job of Input Sets makes; `what` describes it. Waits while the payload store is unavailable: the limit of the
        call that this thread is in does not count that.

        Raises as `events`, except `LogUnavailable`.
        """
        while True:
            try:
                return self._running("", at, evaluate, what)
            except LogUnavailable:
                with self._settings.connections.calls.inner("store", limited=False):
                    self._stopping.wait(RETRY_SECONDS)

    def effect(
        self,
        source: str,
        params: Mapping[str, Any],
        action: Mapping[str, Any],
        number: int,
        fit: Fit,
    ) -> tuple[str, int]:
        """Store the whole effect of read action `number` of a source: its reference, and its records. Raises as `range`."""
        operator = self._members[source]
        at, port = FailurePoint(source, action=f"read action {number}"), Port(source, operator.outputs[0])

        def stored() -> tuple[str, int]:
            how = (operator.ordered_by, operator.bytes_per_event) if isinstance(operator, SparkSource) else (None, None)
            with self._frames.of_effect(operator, params, action, at, fit) as frame:
                self.before_job()
                return store_frame(
                    self._payloads,
                    port,
                    number,
                    frame,
                    ordered_by=how[0],
                    bytes_per_event=how[1],
                    named=self._chains.is_border(port),
                )

        return self._running("", at, stored)

    def stored(
        self, source: str, number: int, events: Sequence[StoredEvent]
    ) -> Iterator[tuple[StoredEvent, Evaluated]]:
        """The events of the stored effect of read action `number`, as `events`."""
        return self._in_order(events, partial(self._stored, source, number))

    def _stored(self, source: str, number: int, event: StoredEvent) -> Evaluated:
        port = Port(source, self._members[source].outputs[0])
        at = FailurePoint(source, action=f"read action {number}, event {event.number}")
        dataset = event.dataset if event.is_named else None

        def evaluated() -> Evaluated:
            frame = frame_of(self._settings.sessions.get(), event.dataset)
            return self._followed(self._chains.sent(port, frame, f"{number}-{event.number}", dataset), at)

        return self._evaluated("", at, evaluated)

    def before_job(self) -> None:
        """Raises `Closed` if no more jobs are wanted; sets what nobody switches off, which a function may have changed."""
        self._check_wanted()
        session = self._settings.sessions.get()
        for name, value in FRAMES_SAFETY.items():
            session.conf.set(name, value)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Functions of authors that make DataFrames are called one at a time: what one does to the session on its way, such
        as a view of some name, is not for another event. Who waits for its turn is in no call of its own. Raises `Closed`."""
        with self._settings.connections.calls.inner("turn", limited=False):
            while not self._calling.acquire(timeout=TURN_SECONDS):
                self._check_wanted()
        try:
            yield
        finally:
            self._calling.release()

    # --- called by the main thread ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let no more jobs begin, and no thread wait for those of `threads`."""
        self._stopping.set()
        with self._making:
            for beside in self._beside.values():
                beside.stop()

    def threads(self) -> list[threading.Thread]:
        """Those that evaluate, after `stop`: to be joined."""
        with self._making:
            return [thread for beside in self._beside.values() for thread in beside.threads]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _in_order(
        self, waiting: Sequence[T], evaluate: Callable[[T], R], *more: Callable[[T], Sequence[T]]
    ) -> Iterator[tuple[T, R]]:
        with closing(self._own_threads().begun(waiting, evaluate, self._at_once, *more)) as begun:
            for one, result in begun:
                yield one, self._in_turn(result)

    def _own_threads(self) -> SideBySide:
        name = threading.current_thread().name
        with self._making:
            self._check_wanted()
            return self._beside.setdefault(name, SideBySide(name))

    def _at_once(self) -> int:
        """How many events are evaluated side by side. One while the payload store is unavailable, or executors are lost: each
        of them would fail."""
        if self._unavailable_since is not None or not self._settings.sessions.is_ready():
            return 1
        try:
            return self._jobs_at_once or self._settings.sessions.jobs_at_once()
        except Exception as error:  # the JVM is gone: who needs it says so
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
        return made

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
                return self._called(self._members[receiver.operator], receiver, frame, at)
            case Materialize(operator, where, purpose, frame, partition_by):
                mode = AS_PUBLISHED if isinstance(self._members[operator], DatasetWriter) else OWNER_ONLY
                with self._job(operator, at):
                    return materialized(self._payloads, where, purpose, frame, partition_by, mode)
            case Duplicate(operator, where, purpose, dataset):
                with self._job(operator, at):
                    return duplicated(self._settings.sessions.get(), self._payloads, where, purpose, dataset)
            case Reopen(dataset):
                return frame_of(self._settings.sessions.get(), dataset)
            case CountWindows(receiver, dataset, frame):
                return self._windows(receiver, dataset, frame, at)

    def _windows(self, receiver: Port, dataset: Dataset, frame: SparkFrame, at: FailurePoint) -> Mapping[int, int]:
        """How many records each window of time has; nothing where windows count events."""
        operator = self._members[receiver.operator]
        assert isinstance(operator, FrameWindowOperator)
        grid = operator.window.grid()
        if grid is None:
            return {}
        self.before_job()
        try:
            return windows_of(dataset, frame, grid)
        except OperatorFailed as error:
            self._faults.fail(error, f"operator {receiver.operator!r}", at)

    def _called(
        self, operator: Operator, receiver: Port, frame: SparkFrame, at: FailurePoint
    ) -> Mapping[str, SparkFrame]:
        assert isinstance(operator, FrameOperator)
        connections = self._settings.connections
        try:
            with (
                self.calling(),
                connections.calls.call("frames", FailurePoint(receiver.operator, receiver.name, at.event_id)),
            ):
                if operator.materialize_input:
                    self.before_job()
                with self._functions.called() as jobs:
                    made = operator.frames(receiver.name, frame, connections.params)
            if not operator.materialize_input:
                self._functions.refuse_actions(jobs)
            if len(made) > 1:
                check_repeatable(made)
            return made
        except Closed:  # while it waited for its turn: nobody's failure
            raise
        except Exception as error:
            self._check_wanted()  # a job that was cancelled is no failure of the operator
            if (isinstance(error, LogioError) and not isinstance(error, OperatorFailed)) or self._faults.is_of_jobs(
                error
            ):
                raise
            self._faults.fail(error, f"operator {receiver.operator!r}", at)

    def _job(self, operator: str, at: FailurePoint) -> Call:
        """The job that makes what `operator` sends or writes: the work of a chain is done here, not in its functions."""
        self.before_job()
        point = at if at.operator == operator else FailurePoint(operator, action=f"what comes of {at}")
        return self._settings.connections.calls.call("job", point)

    def _running(self, where: str, at: FailurePoint, evaluate: Callable[[], T], described: str = "") -> T:
        return self._in_turn(lambda: self._evaluated(where, at, evaluate, described))

    def _evaluated(self, where: str, at: FailurePoint, evaluate: Callable[[], T], described: str = "") -> T:
        """What `evaluate` makes, its jobs those of this epoch, its errors told apart."""
        self._check_wanted()
        with self._faults.told_apart(where, at):
            what = described or where or f"source {at.operator!r}, {at.action}"
            session = self._settings.sessions.entered(self._functions.job_group, f"{self._settings.group}: {what}")
            self._probe_once(session, at)
            return evaluate()

    def _probe_once(self, session: Any, at: FailurePoint) -> None:
        if self._is_shared:
            return
        with self._settings.connections.calls.call(PROBE, at, limited=False), self._probing:
            if not self._is_shared:
                probe(session, self._payloads)
                self._is_shared = True

    def _unavailable(self, error: LogUnavailable) -> NoReturn:
        """The payload store is unavailable, or executors are lost with what others need, which only these threads notice:
        said, and for `replay_seconds` only."""
        since = self._unavailable_since or time.monotonic()  # another thread may have it back meanwhile, and say so
        self._unavailable_since = since
        self._in_vain += 1
        waited, limit = time.monotonic() - since, self._settings.connections.replay_seconds
        if waited < limit or self._in_vain < LEAST_ATTEMPTS:
            log.warning("%s; evaluated again", error)
            raise error
        raise ExternalUnavailable(
            f"{error}. That has lasted for {waited:.0f} s, {self._in_vain} attempts. What is to be done stays in the log: "
            "when there is room, the store is back, or executors stay, `logio retry` resumes it"
        ) from error

    def _check_wanted(self) -> None:
        if self._stopping.is_set():
            raise Closed


def has_chains(members: Mapping[str, Operator]) -> bool:
    """Whether a group has operators that are evaluated."""
    return any(operator.mode is ExecutionMode.DATAFRAME for operator in members.values())

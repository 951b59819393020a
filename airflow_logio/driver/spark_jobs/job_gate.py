"""What every evaluation of an epoch passes on its way to Spark: job group, probe, turn, and whose fault an error is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from airflow_logio.dataflow.functions.function_operators import FrameOperator
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.mailbox import Closed
from airflow_logio.driver.spark_jobs.faults import JobFaults
from airflow_logio.driver.spark_jobs.job_groups import FunctionJobs
from airflow_logio.errors import FailurePoint, LogioError, OperatorFailed
from airflow_logio.protocol.values import Port
from airflow_logio.spark.determinism import check_repeatable
from airflow_logio.spark.session_safety import FRAMES_SAFETY
from airflow_logio.spark.store_probe import probe
from airflow_logio.systems.calls import Call, CallWatch
from airflow_logio.systems.payloads import EpochPayloads

PROBE = "probe of the payload store"
"""What `logio status` says of a driver whose executors do not answer its first job."""
TURN_SECONDS = 0.25
"""Between two looks at whether the epoch still lasts, while the function of another event is called."""


class Turn:
    """Functions of authors that make DataFrames are called one at a time: what one does to the session on its way, such as a
    view of some name, is not for another event, nor for another operator. `check_wanted` raises `Closed` when the epoch has
    ended."""

    def __init__(self, calls: CallWatch, check_wanted: Callable[[], None]) -> None:
        self._calls = calls
        self._check_wanted = check_wanted
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """A thread that waits for its turn is in no call of its own. Raises `Closed`."""
        with self._calls.inner("turn", limited=False):
            while not self._lock.acquire(timeout=TURN_SECONDS):
                self._check_wanted()
        try:
            yield
        finally:
            self._lock.release()


class JobGate:
    """Thread-safe. `functions` names the Spark jobs of this epoch, and those that functions run."""

    def __init__(self, settings: EpochSettings, payloads: EpochPayloads, functions: FunctionJobs) -> None:
        self._settings = settings
        self._payloads = payloads
        self._functions = functions
        self._faults = JobFaults(settings.sessions, payloads, self.check_wanted)
        self.turn = Turn(settings.connections.calls, self.check_wanted)
        self._probing = threading.Lock()
        self._is_probed = False
        self._closed = threading.Event()

    def close(self) -> None:
        """Let no more jobs begin."""
        self._closed.set()

    def check_wanted(self) -> None:
        """Raises `Closed` if no more jobs are wanted."""
        if self._closed.is_set():
            raise Closed

    def pause(self, seconds: float) -> None:
        """Wait so long, but no longer than until `close`."""
        self._closed.wait(seconds)

    @contextmanager
    def entered(self, where: str, at: FailurePoint, described: str) -> Iterator[None]:
        """Within the block, what this thread starts are jobs of this epoch, described so, and errors are told apart.

        Raises `Closed`, `OperatorFailed` with its place, `SparkLost`, `LogUnavailable`; another `LogioError` as it is.
        """
        self.check_wanted()
        with self._faults.told_apart(where, at):
            session = self._settings.sessions.entered(self._functions.job_group, f"{self._settings.group}: {described}")
            self._probe_once(session, at)
            with self._settings.sessions.computed_once(self.check_wanted):
                yield

    def _probe_once(self, session: Any, at: FailurePoint) -> None:
        """Before the first job, write a file that an executor must read, and read one that an executor wrote."""
        if self._is_probed:
            return
        with self._settings.connections.calls.call(PROBE, at, limited=False), self._probing:
            if not self._is_probed:
                probe(session, self._payloads)
                self._is_probed = True

    def before_job(self) -> None:
        """Raises `Closed` if no more jobs are wanted; sets what must be set, which a function may have changed."""
        self.check_wanted()
        session = self._settings.sessions.get()
        for name, value in FRAMES_SAFETY.items():
            session.conf.set(name, value)

    def job(self, operator: str, at: FailurePoint) -> Call:
        """The job that makes what `operator` sends or writes: the work of a chain is done here, not in its functions."""
        self.before_job()
        point = at if at.operator == operator else FailurePoint(operator, action=f"what comes of {at}")
        return self._settings.connections.calls.call("job", point)

    def call(
        self, operator: FrameOperator, receiver: Port, frame: SparkFrame, at: FailurePoint
    ) -> Mapping[str, SparkFrame]:
        """What the function of an operator makes of the records at its input port. Raises as `entered`."""
        connections = self._settings.connections
        point = FailurePoint(receiver.operator, receiver.name, at.event_id)
        try:
            with self.turn(), connections.calls.call("frames", point):
                if operator.materialize_input:
                    self.before_job()
                keeping_zone = self._settings.sessions.keeping_zone(f"the function of operator {receiver.operator!r}")
                with keeping_zone, self._functions.called() as jobs:
                    made = operator.frames(receiver.name, frame, connections.params)
            if not operator.materialize_input:
                self._functions.refuse_actions(jobs)
            if len(made) > 1:
                check_repeatable(made)
            return made
        except Closed:  # while it waited for its turn: no function has failed
            raise
        except Exception as error:
            self.check_wanted()  # a job that was cancelled is no failure of the operator
            if (isinstance(error, LogioError) and not isinstance(error, OperatorFailed)) or self._faults.is_of_jobs(
                error
            ):
                raise
            self._faults.fail(error, f"operator {receiver.operator!r}", at)

    def blame(self, operator: str, error: OperatorFailed, at: FailurePoint) -> NoReturn:
        """Raises `OperatorFailed` for what an operator has given a job to do."""
        self._faults.fail(error, f"operator {operator!r}", at)

"""Writer threads: one per (operator, connection), write actions in order, applied in groups (Algorithms 5 and 8).

An action reaches this thread only after the commit that logged it. The order of its steps is that of
`protocol.writes`, which stands here behind a lock.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.audits import Audit
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.driver.spark_jobs.faults import lost_on_the_way, shortened, store_fault
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError, OperatorFailed, SparkLost
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.writes import Applied, Compared, HeldGroup, PendingWrite, WriteQueue, WriterKey, WriteStep
from airflow_logio.spark import lake_audits
from airflow_logio.spark.published_places import Copies, CopyTask, Lines, copied_by_spark
from airflow_logio.spark.publishing import DatasetTarget, DayTarget
from airflow_logio.spark.table_staging import StagingTarget
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.execution import (
    ConditionalExecutor,
    HeldWrites,
    IdempotentExecutor,
    WriteExecutor,
    executor_of,
    table_target,
)
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.bodies import Bodies

PAGE_BYTES = 16 * 2**20
"""How much of what is held is read from the log at once, and is in memory at once."""
_LACKS = "ModuleNotFoundError: "
"""What a task says that cannot import what it needs."""


def writer_threads(
    members: Mapping[str, Operator],
    slots: Mapping[int, int] | None,
    executors: Executors,
    bodies: Bodies,
    session: GroupSession,
    done: Callable[[Applied | Compared], None],
    failed: Callable[[BaseException], None],
) -> dict[WriterKey, WriterThread]:
    """The writer threads of an epoch; they start at once.

    `slots` → how often they have moved; None for a group that is not replicated.
    """
    threads = {}
    for name, operator in members.items():
        if isinstance(operator, ActionWriter):
            executor = executors.of(name, operator, _moves(name, slots))
            threads[name, operator.connection] = WriterThread(name, operator, executor, bodies, session, done, failed)
    return threads


def _moves(operator: str, slots: Mapping[int, int] | None) -> int:
    slot = slot_of(operator)
    return 0 if slots is None or slot is None else slots[slot]


class WriterThread:
    """The thread starts at once."""

    def __init__(
        self,
        operator: str,
        writer: ActionWriter,
        executor: WriteExecutor,
        bodies: Bodies,
        session: GroupSession,
        done: Callable[[Applied | Compared], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._bodies = bodies
        self._session = session
        self._actions_at_once = writer.actions_at_once
        self._executor = executor
        self._done = done
        self._failed = failed
        self._queue = WriteQueue(operator, writer.connection, compares=executor.compares, holds=writer.closes)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"logio-writer-{operator}", daemon=True)
        self._thread.start()

    def add(
        self,
        writes: Sequence[PendingWrite],
        *,
        recovered: bool = False,
        log_end: int = 0,
        held: HeldGroup | None = None,
    ) -> None:
        """As `WriteQueue.add`."""
        with self._changed:
            self._queue.add(writes, recovered=recovered, log_end=log_end, held=held)
            self._changed.notify_all()

    def release(self) -> None:
        """The log knows that the marker was compared with it."""
        with self._changed:
            self._queue.release()
            self._changed.notify_all()

    def is_idle(self) -> bool:
        """The loop has logged the success of everything that was handed over."""
        with self._changed:
            return self._queue.is_idle()

    def has_opened(self) -> bool:
        """As `WriteQueue.has_opened`."""
        with self._changed:
            return self._queue.has_opened()

    def is_full(self) -> bool:
        """So much waits for the external system that the group should take no more events for now."""
        with self._changed:
            return self._queue.is_full()

    def settle(self, applied: Applied) -> None:
        """The loop has noted the result."""
        with self._changed:
            self._queue.settle(applied)

    def stop(self) -> threading.Thread:
        """Nothing more is begun. What is under way ends, and the thread with it: the thread is to be joined."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        return self._thread

    def _run(self) -> None:
        try:
            while self._take():
                while (step := self._queue.wants) is not None:
                    if step is WriteStep.WAIT and not self._is_released():
                        return
                    self._take_step(step)
        except BaseException as error:
            self._failed(error)
        finally:
            self._executor.close()

    def _take(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._queue.pending or self._stopping.is_set())
            return not self._stopping.is_set() and bool(self._queue.take(self._actions_at_once))

    def _take_step(self, step: WriteStep) -> None:
        match step:
            case WriteStep.COMPARE:
                self._compare()
            case WriteStep.APPLY:
                self._apply()
            case WriteStep.REPORT:
                self._report()

    def _is_released(self) -> bool:
        """Wait for it. False if the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.wants is not WriteStep.WAIT or self._stopping.is_set())
            return self._queue.wants is not WriteStep.WAIT

    def _compare(self) -> None:
        writes, log_end = [self._bodies.loaded(write) for write in self._queue.taken], self._queue.log_end
        assert log_end is not None
        self._executor.compare(writes, log_end, self._stopping)
        with self._changed:
            compared = self._queue.compared()
        self._done(compared)

    def _apply(self) -> None:
        writes = [self._bodies.loaded(write) for write in self._queue.taken]
        if (group := self._queue.group) is not None:
            held = HeldWrites(group, writes[0], self._read_behind, self._session.check_patiently)
            self._executor.execute_held(held, self._stopping)
        else:
            self._executor.execute(writes, self._queue.recovered, self._stopping)
        with self._changed:
            self._queue.applied()

    def _read_behind(self, number: int) -> Sequence[PendingWrite]:
        """The next held write actions: their bodies are in the log until the closing one is executed."""
        group = self._queue.group
        assert group is not None
        page = self._session.held_writes(self._queue.key, number, group.last - 1, max_bytes=PAGE_BYTES)
        return [self._bodies.loaded(write) for write in page]

    def _report(self) -> None:
        with self._changed:
            applied = self._queue.report()
        self._done(applied)


@dataclass(frozen=True)
class Executors:
    """Makes them. Their jobs are those of `job_group`; without a payload store there are no datasets."""

    connections: Connections
    bodies: Bodies
    payloads: EpochPayloads | None
    sessions: SparkSessions
    job_group: str

    def of(self, operator: str, writer: ActionWriter, moves: int) -> WriteExecutor:
        """The executor of a writer whose slot has changed owners `moves` times."""
        connections = self.connections
        match writer:
            case DatasetWriter() if writer.owns:
                day = DayTarget(writer, connections.identity, self.bodies.dataset, self._copied, self._asked)
                return IdempotentExecutor(operator, writer, day, connections)
            case DatasetWriter():
                identity = connections.identity
                run = Owner(identity.run_uid, identity.started_at)
                published = DatasetTarget(writer, run, self.bodies.dataset, self._copied, given_up=identity.given_up)
                return IdempotentExecutor(operator, writer, published, connections)
            case TableWriter() if self.payloads is not None:
                tables = table_target(operator, writer, connections)
                url = connections.url(writer.connection)
                job = partial(self._run, needs="psycopg2 and SQLAlchemy")
                target = StagingTarget(tables, url, self.bodies.dataset, self.payloads, job)
                return ConditionalExecutor(operator, writer, target, connections, moves, tables.locks)
            case DeltaWriter() if self.payloads is not None:
                return self._of_delta(operator, writer, moves, self.payloads)
        datasets = None if self.payloads is None else self.bodies.dataset
        return executor_of(operator, writer, connections, moves, datasets)

    def _of_delta(self, operator: str, writer: DeltaWriter, moves: int, payloads: EpochPayloads) -> ConditionalExecutor:
        # A driver without such a writer has no need of delta-rs.
        from airflow_logio.spark.delta_files import TableFiles
        from airflow_logio.systems.delta.delta_target import delta_target

        url, job = self.connections.url(writer.connection), partial(self._run, needs="pyarrow and msgspec")
        files = TableFiles(writer, url, self.bodies.dataset, payloads.root, job, self.sessions.has_begun)
        target = delta_target(writer, self.connections, self.bodies.dataset, files)
        return ConditionalExecutor(operator, writer, target, self.connections, moves, target.locks)

    def _copied(self, description: str, copies: Copies, task: CopyTask) -> Lines:
        """Errors of `copied_by_spark` told apart: `SparkLost`; OSError if something is unavailable; else `OperatorFailed`."""
        try:
            return copied_by_spark(self.sessions.entered(self.job_group, description), description, copies, task)
        except (OSError, LogioError):
            raise
        except Exception as error:
            if self.sessions.is_lost(error):
                raise SparkLost(f"Spark ended while it copied files of {description}: {shortened(error)}") from error
            if found := store_fault(error) or lost_on_the_way(error):
                raise OSError(f"files could not be copied: {found}, told by Spark: {shortened(error)}") from error
            raise OperatorFailed(f"{description}: files could not be copied: {shortened(error)}") from error

    def _asked(self, audit: Audit, do: Callable[[Any], str]) -> str:
        """What an audit finds in a session of the group, in words. Raises `SparkLost`, `ExternalUnavailable`, and what
        `lake_audits.error_of` makes of an error of its author's."""
        try:
            session = self.sessions.entered(self.job_group, f"audit {audit.name}")
            with self.sessions.keeping_zone(f"audit {audit.name!r}"):
                return do(session)
        except Exception as error:
            if isinstance(error, LogioError) and not isinstance(error, OperatorFailed):
                raise
            if self.sessions.is_lost(error):
                raise SparkLost(f"Spark ended at audit {audit.name!r}: {shortened(error)}") from error
            if found := store_fault(error) or lost_on_the_way(error):
                raise ExternalUnavailable(
                    f"audit {audit.name!r}: {found}, told by Spark: {shortened(error)}"
                ) from error
            raise lake_audits.error_of(audit, error) from error

    def _run(self, description: str, job: Callable[[Any], pa.Table], *, needs: str) -> pa.Table:
        """Run a job whose tasks import what `needs` names.

        Raises `SparkLost`; `ExternalUnavailable` if executors, connections or a file system are unavailable;
        `ConfigurationError` if executors cannot run its code; `OperatorFailed` for any other end, which would be the same
        again.
        """
        try:
            return job(self.sessions.entered(self.job_group, description))
        except LogioError:
            raise
        except Exception as error:
            if self.sessions.is_lost(error):
                raise SparkLost(f"Spark ended at {description}: {shortened(error)}") from error
            if isinstance(error, pickle.PicklingError) or _LACKS in str(error):
                raise ConfigurationError(
                    f"{description}: executors cannot load the table: {shortened(error)}. They need {needs} as "
                    "the driver has them, and a writer without locks, sessions or open files in it"
                ) from error
            if found := store_fault(error) or lost_on_the_way(error):
                raise ExternalUnavailable(f"{description}: {found}, told by Spark: {shortened(error)}") from error
            raise OperatorFailed(f"{description}: the job has failed: {shortened(error)}") from error

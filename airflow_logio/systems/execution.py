"""Executing groups of write actions, by their guarantee (Algorithms 5 and 8); one executor per writer, on one thread."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.unavailability import advice, is_outage
from airflow_logio.dataflow.writers.action_writers import (
    ActionWriter,
    CheckableWriter,
    ConditionalWriter,
    IdempotentWriter,
    Marker,
    WriteAction,
)
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import (
    ExternalUnavailable,
    FailurePoint,
    LogioError,
    LogUnavailable,
    OperatorFailed,
    PipelineDefinitionError,
    WriteRefused,
)
from airflow_logio.protocol.external_rules import MarkerRow, compare
from airflow_logio.protocol.scope_rules import DayRun
from airflow_logio.protocol.writes import HeldGroup, PendingWrite, check_gapless, check_next
from airflow_logio.systems.arrow import decode
from airflow_logio.systems.calls import COUNTED, Locks, replay
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.stored_records import StoredRecords
from airflow_logio.systems.warehouse import TableTarget

log = logging.getLogger(__name__)


class Span(NamedTuple):
    """Write actions `first` to `last`, in words."""

    first: int
    last: int

    @classmethod
    def of(cls, actions: Sequence[WriteAction]) -> Span:
        return cls(actions[0].number, actions[-1].number)

    def __str__(self) -> str:
        first, last = self
        return f"write action {first}" if first == last else f"write actions {first} to {last}"


@dataclass(frozen=True, slots=True)
class HeldWrites:
    """The write actions `group` of a writer; `closing` is the last one. The others are read from the log."""

    group: HeldGroup
    closing: PendingWrite
    read: Callable[[int], Sequence[PendingWrite]]
    """Those behind a number, in order, so many as fit; at least one. Does not wait for a log that is unavailable: raises
    `LogUnavailable`. Raises `Fenced` and `EpochVoid` where a commit would be refused."""
    await_log: Callable[[Callable[[], bool]], None]
    """Returns when the log is available. Raises as `read`; `LogUnavailable` when its patience ends, or nothing is wanted."""

    def __iter__(self) -> Iterator[Sequence[PendingWrite]]:
        """Pages of all but the closing one, each time from the first one on. Raises as `read`; `LogInconsistent` for a
        gap."""
        number = self.group.first - 1
        while number + 1 < self.group.last:
            page = self.read(number)
            check_next(number, page[0])
            check_gapless(page)
            yield page
            number = page[-1].number


@dataclass(frozen=True, slots=True)
class _Pages:
    """Pages of held write actions as an external system gets them, as often as they are asked for."""

    held: HeldWrites
    read: Callable[[Sequence[PendingWrite]], Sequence[WriteAction]]

    def __iter__(self) -> Iterator[Sequence[WriteAction]]:
        return map(self.read, self.held)


class WriteExecutor(ABC):
    """Executes the write actions of one operator on its connection; `target` is the author's writer, or ours for tables."""

    compares = False
    """The external system has a marker: `compare` comes before the first `execute`."""

    def __init__(
        self,
        operator: str,
        writer: ActionWriter,
        target: Any,
        connections: Connections,
        moves: int = 0,
        locks: Locks = COUNTED,
    ) -> None:
        self._operator = operator
        self._token = connections.identity.token_after(moves)
        self._connection = writer.connection
        self._target = target
        self._connections = connections
        limit = writer.replay_seconds
        self._replay_seconds = connections.replay_seconds if limit is None else limit
        self._lock = connections.lock(writer.connection)
        self._locks = locks
        self._opened: AbstractContextManager[Any] | None = None
        self._client: Any = None

    def execute(self, writes: Sequence[PendingWrite], recovered: int, stopping: threading.Event) -> None:
        """Execute a gapless group of write actions; returns when the external system has applied all of them.

        Those numbered up to `recovered` were pending when this driver began: another one may have executed them.
        Replayed with back-off while the system is unavailable, until `stopping`. Raises `ExternalUnavailable` if it
        stays unavailable, `OperatorFailed` for an error of the author's code, and what the external system refuses for
        good.
        """
        actions = self._actions(writes)
        doubtful: Sequence[WriteAction] = [action for action in actions if action.number <= recovered]

        def attempt() -> None:
            nonlocal doubtful
            asked, doubtful = doubtful, actions  # if this attempt fails, it is unknown how far it came
            self._attempt(self._connected(), actions, asked)

        crash_here(CrashPoint.BEFORE_WRITE)
        self._replayed(Span.of(actions), attempt, stopping)
        crash_here(CrashPoint.AFTER_WRITE)

    def execute_held(self, held: HeldWrites, stopping: threading.Event) -> None:
        """Execute write actions that were held, and their closing one, as one group; returns when the external system has
        applied all of them. An earlier driver may have applied them: all, or none.

        Replayed as `execute`, and raises the same. If the log becomes unavailable while they are read from it, the attempt is
        rolled back, the log is waited for outside it, and it begins again. Raises what reading them raises.
        """
        closing = self._action(held.closing)
        span = Span(held.group.first, held.group.last)

        def attempt() -> None:
            self._attempt_held(self._connected(), held.group, closing, _Pages(held, self._actions))

        crash_here(CrashPoint.BEFORE_WRITE)
        while True:
            try:
                self._replayed(span, attempt, stopping)
                break
            except LogUnavailable as error:
                log.warning("%s of %r: nothing is changed, it begins again: %s", span, self._operator, error)
                held.await_log(lambda: not stopping.is_set())
        crash_here(CrashPoint.AFTER_WRITE)

    def compare(self, writes: Sequence[PendingWrite], log_end: int, stopping: threading.Event) -> None:
        """Before the first write actions are executed: see that the marker is not ahead of `log_end`, the last number that
        the log had given out when nothing was applied since. Only where the system has a marker (`compares`).

        Replayed as `execute`, and raises the same, `LogInconsistent` if the log has lost commits.
        """
        raise NotImplementedError

    def _replayed(self, span: Span, attempt: Callable[[], None], stopping: threading.Event) -> None:
        def one() -> None:
            with self._lock, self._translated(span), self._connections.calls.call("write", self._point(span)):
                attempt()

        replay(
            f"{span} of {self._operator!r}",
            one,
            self._replay_seconds,
            stopping,
            calls=self._connections.calls,
            locks=self._locks,
        )

    def close(self) -> None:
        """Close the client; on the thread that has used it."""
        opened, self._opened, self._client = self._opened, None, None
        if opened is None:
            return
        point = FailurePoint(self._operator, action=f"the end of connection {self._connection!r}")
        try:
            with self._connections.calls.call("connect", point):
                opened.__exit__(None, None, None)
        except Exception as error:
            log.warning("closing connection %r of %r: %s", self._connection, self._operator, error)

    @abstractmethod
    def _attempt(self, client: Any, actions: Sequence[WriteAction], doubtful: Sequence[WriteAction]) -> None:
        """One attempt; `doubtful` are those of the actions that may have been applied already."""

    def _attempt_held(
        self, client: Any, group: HeldGroup, closing: WriteAction, pages: Iterable[Sequence[WriteAction]]
    ) -> None:
        """One attempt at `execute_held`; `pages` have all of `group` but the closing one."""
        raise PipelineDefinitionError(f"there is no way to execute held write actions of {self._operator!r}")

    def _connected(self) -> Any:
        if self._opened is None:
            opened = self._target.connect(self._connections.url(self._connection))
            self._client = opened.__enter__()
            self._opened = opened
        return self._client

    @contextmanager
    def _translated(self, span: Span) -> Iterator[None]:
        """Errors of the author's code as this package's; a client that has raised one is not used again."""
        try:
            yield
        except ExternalUnavailable:
            self.close()
            raise
        except LogioError as error:
            self.close()
            if isinstance(error, OperatorFailed):
                raise OperatorFailed(f"{self._where(span)}: {error}", self._point(span)) from error
            if isinstance(error, WriteRefused):
                raise WriteRefused(f"{self._where(span)}: {error}") from error
            raise
        except Exception as error:
            self.close()
            text = f"{self._where(span)}: {type(error).__name__}: {error}"
            if is_outage(error, self._target.unavailable):
                raise ExternalUnavailable(text) from error
            text += advice(error, f"the writer of {self._operator!r}")
            raise OperatorFailed(text, self._point(span)) from error

    def _point(self, span: Span) -> FailurePoint:
        """The first action of the group: it is the same one when the group is tried again, however long it is then."""
        return FailurePoint(self._operator, action=f"write action {span.first} on {self._connection!r}")

    def _where(self, span: Span) -> str:
        pipeline = self._connections.pipeline
        return f"pipeline {pipeline!r}, operator {self._operator!r}, connection {self._connection!r}, {span}"

    def _actions(self, writes: Sequence[PendingWrite]) -> Sequence[WriteAction]:
        check_gapless(writes)
        return [self._action(write) for write in writes]

    def _action(self, write: PendingWrite) -> WriteAction:
        records = pa.table({})
        if write.body:
            records = decode(f"write action {write.number} of {write.operator}", write.body)
        identity = self._connections.identity
        dataset = None if write.body else write.ref
        where = (identity.run_uid, write.operator, write.connection, write.number)
        return WriteAction(*where, self._token, records, write.header, dataset=dataset)


class ConditionalExecutor(WriteExecutor):
    """The external system itself tells what it has applied: there is no need to ask before."""

    compares = True

    def compare(self, writes: Sequence[PendingWrite], log_end: int, stopping: threading.Event) -> None:
        actions = self._actions(writes)

        def look(row: MarkerRow) -> None:
            compare(self._operator, self._connection, self._token, row, log_end)
            raise _Compared

        def attempt() -> None:
            try:
                self._target.apply(self._connected(), self._marker(look), actions)
            except Exception as error:
                if not _is_compared(error):
                    raise
                self.close()  # it has raised an error

        self._replayed(Span.of(actions), attempt, stopping)

    def _attempt(self, client: Any, actions: Sequence[WriteAction], doubtful: Sequence[WriteAction]) -> None:
        self._target.apply(client, self._marker(), actions)

    def _attempt_held(
        self, client: Any, group: HeldGroup, closing: WriteAction, pages: Iterable[Sequence[WriteAction]]
    ) -> None:
        """In one atomic step: read the marker, apply all of the group if `Marker.applies`, and advance the marker."""
        self._target.apply_held(client, self._marker(), group, closing, pages)

    def _marker(self, look: Callable[[MarkerRow], None] | None = None) -> Marker:
        identity = self._connections.identity
        where = (identity.run_uid, self._operator, self._connection, 0)
        return Marker(*where, self._token, identity.started_at, look, identity.line)


class _Compared(Exception):
    """The marker was looked at; nothing is to be applied in this step."""


def _is_compared(error: BaseException | None) -> bool:
    """Also inside an error that the author's code has made of it."""
    while error is not None and not isinstance(error, _Compared):
        error = error.__cause__ or error.__context__
    return error is not None


class CheckableExecutor(WriteExecutor):
    """Algorithm 8 Step 2.a: what may have been applied is asked for, what was not is executed, in order."""

    def _attempt(self, client: Any, actions: Sequence[WriteAction], doubtful: Sequence[WriteAction]) -> None:
        applied: set[int] = set()
        if doubtful:
            crash_here(CrashPoint.BEFORE_QUESTION)
            missing = {action.number for action in self._target.unapplied(client, doubtful)}
            crash_here(CrashPoint.AFTER_QUESTION)
            applied = {action.number for action in doubtful if action.number not in missing}
            log.info(
                "%s: %d of %d pending write actions were applied before", self._operator, len(applied), len(doubtful)
            )
        todo = [action for action in actions if action.number not in applied]
        if todo:
            self._target.write_group(client, todo)


class IdempotentExecutor(WriteExecutor):
    """Algorithm 8 Step 2.b: all of them are executed, once more if need be."""

    def _attempt(self, client: Any, actions: Sequence[WriteAction], doubtful: Sequence[WriteAction]) -> None:
        self._target.write_group(client, actions)

    def _attempt_held(
        self, client: Any, group: HeldGroup, closing: WriteAction, pages: Iterable[Sequence[WriteAction]]
    ) -> None:
        self._target.close_group(client, closing, group.records, pages)


def executor_of(
    operator: str,
    writer: ActionWriter,
    connections: Connections,
    moves: int = 0,
    datasets: Callable[[str, str], StoredRecords] | None = None,
) -> WriteExecutor:
    """The executor of a writer whose slot has changed owners `moves` times. `datasets` finds that of a reference.

    Raises `PipelineDefinitionError` for one that no pipeline accepts.
    """
    match writer:
        case TableWriter():
            target = table_target(operator, writer, connections)
            return ConditionalExecutor(operator, writer, target, connections, moves, target.locks)
        case DeltaWriter():
            # A driver without such a writer has no need of delta-rs.
            from airflow_logio.systems.delta.delta_target import delta_target, no_datasets

            delta = delta_target(writer, connections, datasets or no_datasets)
            return ConditionalExecutor(operator, writer, delta, connections, moves, delta.locks)
        case ConditionalWriter():
            return ConditionalExecutor(operator, writer, writer, connections, moves)
        case CheckableWriter():
            return CheckableExecutor(operator, writer, writer, connections)
        case IdempotentWriter():
            return IdempotentExecutor(operator, writer, writer, connections)
    raise PipelineDefinitionError(f"there is no way to execute the write actions of {operator!r}: {writer!r}")


def table_target(operator: str, writer: TableWriter, connections: Connections) -> TableTarget:
    """What executes the write actions of a `TableWriter`."""
    identity = connections.identity
    run = DayRun(identity.pipeline, identity.log_uid, identity.ordinal, identity.run_uid) if writer.owns else None
    warehouse, said = connections.warehouse(writer.connection), (identity.takes_over, identity.may_be_empty)
    return TableTarget(writer, warehouse, identity.given_up, run, *said)

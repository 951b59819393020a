"""Writer threads: one per (operator, connection), write actions in order, applied in groups (Algorithms 5 and 8).

An action reaches this thread only after the commit that logged it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_logio.dataflow.action_writers import ActionWriter
from airflow_logio.dataflow.operators import Operator
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.runtime.payloads.bodies import Bodies
from airflow_logio.runtime.systems.connections import Connections
from airflow_logio.runtime.systems.execution import executor_of

log = logging.getLogger(__name__)

GROUP_RECORDS = 100_000
MAX_ACTIONS_WAITING = 8_192
MAX_BYTES_WAITING = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Applied:
    """Write actions `first` to `last` have succeeded."""

    operator: str
    connection: str
    first: int
    last: int
    records: int


class WriterThread:
    def __init__(
        self,
        operator: str,
        writer: ActionWriter,
        connections: Connections,
        bodies: Bodies,
        done: Callable[[Applied], None],
        failed: Callable[[BaseException], None],
        moves: int = 0,
    ) -> None:
        self._operator = operator
        self._bodies = bodies
        self._writer = writer
        self._executor = executor_of(operator, writer, connections, moves)
        self._done = done
        self._failed = failed
        self._pending: deque[PendingWrite] = deque()
        self._pending_bytes = 0
        self._outstanding = 0
        self._recovered = 0
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"logio-writer-{operator}", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> str:
        return self._writer.connection

    def add(self, writes: Sequence[PendingWrite], *, recovered: bool = False) -> None:
        """Hand over actions that are in the log; `recovered` ones were there when the group was rebuilt (Algorithm 8)."""
        with self._changed:
            self._pending.extend(writes)
            self._pending_bytes += sum(len(write.body) for write in writes)
            self._outstanding += len(writes)
            if recovered and writes:
                self._recovered = writes[-1].number
            self._changed.notify_all()

    def outstanding(self) -> int:
        """Actions handed over whose success the loop has not logged yet."""
        with self._changed:
            return self._outstanding

    def is_full(self) -> bool:
        """So much is waiting for the external system that the group should take no more events meanwhile."""
        with self._changed:
            return len(self._pending) >= MAX_ACTIONS_WAITING or self._pending_bytes >= MAX_BYTES_WAITING

    def settle(self, count: int) -> None:
        """The loop has taken note of the success of `count` actions."""
        with self._changed:
            self._outstanding -= count

    def stop(self) -> None:
        """Join: after this returns, the thread writes nothing any more."""
        with self._changed:
            self._stopping.set()
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while writes := self._take():
                self._executor.execute([self._bodies.loaded(w) for w in writes], self._recovered, self._stopping)
                self._done(
                    Applied(
                        self._operator,
                        self.connection,
                        writes[0].number,
                        writes[-1].number,
                        sum(write.records for write in writes),
                    )
                )
        except BaseException as error:
            self._failed(error)
        finally:
            self._executor.close()

    def _take(self) -> list[PendingWrite]:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._stopping.is_set())
            if self._stopping.is_set():
                return []
            taken: list[PendingWrite] = []
            records = 0
            while self._pending and len(taken) < self._writer.actions_at_once and records < GROUP_RECORDS:
                taken.append(self._pending.popleft())
                records += taken[-1].records
                self._pending_bytes -= len(taken[-1].body)
                if taken[-1].ref is not None:
                    break  # a body too large for the log: one at a time is enough for the memory
            return taken


class Writers:
    """The writer threads of an epoch, one per (operator, connection); they start at once."""

    def __init__(
        self,
        members: Mapping[str, Operator],
        slots: Mapping[int, int] | None,
        connections: Connections,
        bodies: Bodies,
        done: Callable[[Applied], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`slots` → how often they have moved; None for a group that is not replicated."""
        self._threads = {
            (name, operator.connection): WriterThread(
                name, operator, connections, bodies, done, failed, _moves(name, slots)
            )
            for name, operator in members.items()
            if isinstance(operator, ActionWriter)
        }

    def add(self, writes: Iterable[PendingWrite], *, recovered: bool = False) -> None:
        """As `WriterThread.add`, each to its own."""
        by_writer: dict[tuple[str, str], list[PendingWrite]] = {}
        for write in writes:
            by_writer.setdefault((write.operator, write.connection), []).append(write)
        for key, group in by_writer.items():
            self._threads[key].add(group, recovered=recovered)

    def is_full(self) -> bool:
        """One of them is."""
        return any(thread.is_full() for thread in self._threads.values())

    def are_idle(self) -> bool:
        """The success of everything is noted."""
        return all(thread.outstanding() == 0 for thread in self._threads.values())

    def settle(self, applied: Applied) -> None:
        """The loop has taken note of it."""
        self._threads[applied.operator, applied.connection].settle(applied.last - applied.first + 1)

    def stop(self) -> None:
        """Join all."""
        for thread in self._threads.values():
            thread.stop()


def _moves(operator: str, slots: Mapping[int, int] | None) -> int:
    slot = slot_of(operator)
    return 0 if slots is None or slot is None else slots[slot]

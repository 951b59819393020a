"""Writer threads: one per (operator, connection), write actions in order, applied in groups (Algorithms 5 and 8).

An action reaches this thread only after the commit that logged it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_logio.dataflow.writers import TableWriter
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.runtime.arrow import decode
from airflow_logio.runtime.external import Connections

log = logging.getLogger(__name__)

GROUP_ACTIONS = 4_096
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
        writer: TableWriter,
        connections: Connections,
        done: Callable[[Applied], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._operator = operator
        self._writer = writer
        self._connections = connections
        self._done = done
        self._failed = failed
        self._pending: deque[PendingWrite] = deque()
        self._pending_bytes = 0
        self._busy = False
        self._outstanding = 0
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"logio-writer-{operator}", daemon=True)
        self._thread.start()

    @property
    def connection(self) -> str:
        return self._writer.connection

    def add(self, writes: Sequence[PendingWrite]) -> None:
        with self._changed:
            self._pending.extend(writes)
            self._pending_bytes += sum(len(write.body) for write in writes)
            self._outstanding += len(writes)
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
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while writes := self._take():
                self._apply(writes)
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
            with self._changed:
                self._stopping = True
                self._changed.notify_all()
            self._failed(error)

    def _take(self) -> list[PendingWrite]:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while not self._pending and not self._stopping:
                self._changed.wait()
            if self._stopping:
                return []
            self._busy = True
            taken: list[PendingWrite] = []
            records = 0
            while self._pending and len(taken) < GROUP_ACTIONS and records < GROUP_RECORDS:
                taken.append(self._pending.popleft())
                records += taken[-1].records
                self._pending_bytes -= len(taken[-1].body)
            return taken

    def _apply(self, writes: Sequence[PendingWrite]) -> None:
        tables = [self._records(write) for write in writes]
        self._connections.apply(self._operator, self._writer, writes, tables, lambda: self._stopping)

    @staticmethod
    def _records(write: PendingWrite) -> pa.Table:
        if not write.body:
            return pa.table({})
        return decode(f"write action {write.number} of {write.operator}", write.body)

"""Connections to external systems as operators and writer threads see them."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import tenacity

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers import TableWriter
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, OperatorFailed
from airflow_logio.protocol.logic import Read, Write
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.runtime.warehouse import Marker, Warehouse

log = logging.getLogger(__name__)

T = TypeVar("T")

BEGIN, INSERT = "begin", "insert"

REPLAY_SECONDS = 900.0
"""How long actions on an external system that is away are replayed before the group is parked."""


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """Who writes: part of the marker of every write action of a group (DESIGN, "What is promised")."""

    run_uid: str
    token: int
    """Fencing token: the incarnation. A lower one is refused."""
    started_at: float
    """When the run was started."""


class Connections:
    """The external systems of a run, by the names the pipeline gives them; opened when first used."""

    def __init__(self, urls: Mapping[str, str], identity: WriterIdentity) -> None:
        self._urls = urls
        self._identity = identity
        self._open: dict[str, Warehouse] = {}
        self._opening = threading.Lock()
        self._one_at_a_time: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def warehouse(self, name: str) -> Warehouse:
        with self._opening:
            if name not in self._open:
                if name not in self._urls:
                    raise ConfigurationError(
                        f"connection {name!r} is used by the pipeline, but the run was started without it "
                        f"(it has: {', '.join(sorted(self._urls)) or 'none'})"
                    )
                self._open[name] = Warehouse(name, self._urls[name])
            return self._open[name]

    def read(self, read: TableRead, keys: pa.Array | None) -> pa.Table:
        """The effect of a side-effect read action (Algorithm 4); replayed with back-off while the system is away."""
        warehouse = self.warehouse(read.connection)
        crash_here(CrashPoint.BEFORE_READ)
        effect = replay(f"reading {read.table}", lambda: warehouse.read(read, keys), lambda: False)
        crash_here(CrashPoint.AFTER_READ)
        return effect

    def apply(
        self,
        operator: str,
        writer: TableWriter,
        writes: Sequence[PendingWrite],
        tables: list[pa.Table],
        is_over: Callable[[], bool],
    ) -> None:
        """Apply a gapless group of write actions of one operator, atomically conditional (Algorithms 5 and 8).

        Replayed with back-off while the system is away, until `is_over`: being conditional, a replay of what was applied
        changes nothing.
        """
        marker = Marker(
            self._identity.run_uid, operator, writer.connection, 0, self._identity.token, self._identity.started_at
        )
        warehouse = self.warehouse(writer.connection)
        crash_here(CrashPoint.BEFORE_WRITE)
        with self._one_at_a_time[writer.connection]:  # writes to one connection run one at a time
            replay(f"writing {writer.table}", lambda: warehouse.apply(marker, writer, writes, tables), is_over)
        crash_here(CrashPoint.AFTER_WRITE)

    def close(self) -> None:
        for warehouse in self._open.values():
            warehouse.close()


def replay(what: str, action: Callable[[], T], is_over: Callable[[], bool]) -> T:
    """Run an action on an external system until it does not raise `ExternalUnavailable` (Algorithm 5 Step 2)."""

    def report(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("%s: replaying (attempt %d): %s", what, state.attempt_number, error)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(ExternalUnavailable),
        wait=tenacity.wait_exponential(0.1, 5.0) + tenacity.wait_random(0, 0.1),
        stop=lambda state: (state.seconds_since_start or 0.0) >= REPLAY_SECONDS or is_over(),
        before_sleep=report,
        reraise=True,
    )
    return retrying(action)


class StepExternal:
    """`External` of one generation: performs reads at once, collects writes; both become part of the Output Set."""

    def __init__(self, name: str, operator: Operator, connections: Connections) -> None:
        self._name = name
        self._operator = operator
        self._connections = connections
        self.collected: list[Read | Write] = []

    def read(self, read: TableRead, keys: pa.Array | None = None) -> pa.Table:
        """A side-effect read action: its effect is obtained once, here."""
        table = self._connections.read(read, keys)
        self.collected.append(Read(read.connection, describe_read(read, keys), table, table.num_rows))
        return table

    def write(self, connection: str, table: pa.Table) -> None:
        """A write action: logged with the Output Set, executed after that commit."""
        if connection not in self._operator.writes():
            raise OperatorFailed(
                f"operator {self._name!r} writes to connection {connection!r}, but does not say so in writes(); declare it "
                "there or use Pipeline.writer, so that the guarantee of its write actions is known"
            )
        self.collected.append(Write(connection, {"action": INSERT}, table, table.num_rows))


def describe_read(read: TableRead, keys: pa.Array | None) -> dict[str, Any]:
    """The textual description of a read action, for READ_ACTION."""
    described: dict[str, Any] = {"table": read.table, "columns": list(read.columns), "key": read.key}
    if keys is not None:
        described["keys"] = len(keys)
    return described

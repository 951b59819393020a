"""Connections to external systems as operators and writer threads see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers import TableWriter
from airflow_logio.errors import ConfigurationError, OperatorFailed
from airflow_logio.protocol.logic import Read, Write
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.runtime.warehouse import Marker, Warehouse

BEGIN, INSERT = "begin", "insert"


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """Who writes: part of the marker of every write action of a group (DESIGN, "What is promised")."""

    run_uid: str
    token: int
    """Fencing token: the incarnation. A lower one is refused."""


class Connections:
    """The external systems of a run, by the names the pipeline gives them; opened when first used."""

    def __init__(self, urls: Mapping[str, str], identity: WriterIdentity) -> None:
        self._urls = urls
        self._identity = identity
        self._open: dict[str, Warehouse] = {}

    def warehouse(self, name: str) -> Warehouse:
        if name not in self._open:
            if name not in self._urls:
                raise ConfigurationError(
                    f"connection {name!r} is used by the pipeline, but the run was started without it "
                    f"(it has: {', '.join(sorted(self._urls)) or 'none'})"
                )
            self._open[name] = Warehouse(name, self._urls[name])
        return self._open[name]

    def apply(self, operator: str, writer: TableWriter, writes: Sequence[PendingWrite], tables: list[Any]) -> None:
        """Apply a gapless group of write actions of one operator, atomically conditional (Algorithms 5 and 8)."""
        marker = Marker(self._identity.run_uid, operator, writer.connection, 0, self._identity.token)
        self.warehouse(writer.connection).apply(marker, writer, writes, tables)

    def close(self) -> None:
        for warehouse in self._open.values():
            warehouse.close()


class StepExternal:
    """`External` of one generation: performs reads at once, collects writes; both become part of the Output Set.

    `before_read` waits for the group's earlier write actions on that connection (DESIGN decision 4).
    """

    def __init__(
        self, name: str, operator: Operator, connections: Connections, before_read: Callable[[str], None]
    ) -> None:
        self._name = name
        self._operator = operator
        self._connections = connections
        self._before_read = before_read
        self.collected: list[Read | Write] = []

    def read(self, read: TableRead, keys: pa.Array | None = None) -> pa.Table:
        """A side-effect read action: its effect is obtained once, here."""
        self._before_read(read.connection)
        table = self._connections.warehouse(read.connection).read(read, keys)
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

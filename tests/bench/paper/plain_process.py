"""One process of the baseline: the operators of a group over plain sockets. Nothing is logged.

The phases of the operators are called as LOG.io calls them. Frames are a port name and an Arrow stream, each behind its
length. What comes waits in a queue that is bounded as a connection of LOG.io is; TCP makes the sender wait.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg2
import pyarrow as pa

from airflow_logio.dataflow import (
    InputEvent,
    InputSet,
    Operator,
    Pipeline,
    PortTable,
    SourceOperator,
    StatefulOperator,
    StatelessOperator,
)
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.driver.mailbox import Bound, Mailbox
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import BacklogBound
from tests.bench.paper.processes import feeding, processes
from tests.bench.pipelines.paper_use_cases import COLUMNS, TABLE, paper
from tests.support.waiting import eventually

HEADER = struct.Struct(">HQ")
PATIENCE_SECONDS = 60.0


class Outgoing:
    """Connections from an operator's port to the processes of another group, which take turns."""

    def __init__(self, folder: Path, names: Sequence[str], receiver: Port) -> None:
        self._name = str(receiver).encode()
        self._sockets = [self._connected(folder / f"{name}.port") for name in names]
        self._sent = 0

    def send(self, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self._put(self._sockets[self._sent % len(self._sockets)], sink.getvalue())
        self._sent += 1

    def end(self) -> None:
        for each in self._sockets:
            self._put(each, b"")
            each.close()

    def _put(self, to: socket.socket, body: Any) -> None:
        to.sendall(HEADER.pack(len(self._name), len(body)) + self._name)
        to.sendall(body)

    @staticmethod
    def _connected(file: Path) -> socket.socket:
        port = int(eventually(lambda: file.is_file() and file.read_text(), what=str(file), timeout=PATIENCE_SECONDS))
        found = socket.create_connection(("127.0.0.1", port))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return found


class Incoming:
    """All connections to this process, each read by a thread; `inbox` gets (port, table), and None for each that ends."""

    def __init__(self, folder: Path, name: str) -> None:
        bound = BacklogBound()
        self.inbox = Mailbox(Bound(bound.events, bound.bytes))
        self._listener = socket.create_server(("127.0.0.1", 0))
        written = folder / f"{name}.port.new"
        written.write_text(str(self._listener.getsockname()[1]))
        written.rename(folder / f"{name}.port")

    def accept(self, connections: int) -> None:
        for _ in range(connections):
            one, _ = self._listener.accept()
            threading.Thread(target=self._read, args=(one.makefile("rb", buffering=1 << 20),), daemon=True).start()

    def _read(self, stream: Any) -> None:
        while True:
            name_size, size = HEADER.unpack(stream.read(HEADER.size))
            port = Port(*stream.read(name_size).decode().split("."))
            if not size:
                self.inbox.put_input((port, None), 0)
                return
            self.inbox.put_input((port, pa.ipc.open_stream(stream.read(size)).read_all()), size)


class PlainGroup:
    """The operators of a group, and where their events go."""

    params: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, pipeline: Pipeline, group: str, folder: Path, warehouse: str) -> None:
        names = [name for name in pipeline.operators if pipeline.home(name) == group]
        self._operators: dict[str, Operator] = {name: pipeline.operators[name] for name in names}
        self._states = {
            name: one.initial_state() for name, one in self._operators.items() if isinstance(one, StatefulOperator)
        }
        self._held: dict[str, dict[str, Any]] = {name: {} for name in names}
        self._numbers = dict.fromkeys(names, 0)
        self._receivers = {name: self._of(pipeline, name) for name in names}
        self._outgoing = {
            receiver: Outgoing(folder, processes(pipeline, pipeline.home(receiver.operator)), receiver)
            for receivers in self._receivers.values()
            for receiver in receivers
            if receiver.operator not in self._operators
        }
        writes = any(one.writes() for one in self._operators.values())
        self._warehouse = psycopg2.connect(warehouse) if writes else None

    @staticmethod
    def _of(pipeline: Pipeline, name: str) -> tuple[Port, ...]:
        outputs = pipeline.operators[name].outputs
        return tuple(receiver for output in outputs for receiver in pipeline.receivers(Port(name, output)))

    def send_all(self) -> None:
        """All that sources have."""
        for name, source in self._operators.items():
            if isinstance(source, SourceOperator):
                for batch in source.read({}, source.action({}), 0):
                    self._sent(name, [("out", batch.table)])

    def deliver(self, port: Port, table: pa.Table) -> None:
        operator = self._operators[port.operator]
        self._numbers[port.operator] += 1
        event = InputEvent(port.name, self._numbers[port.operator], table)
        if isinstance(operator, StatelessOperator):
            self._sent(port.operator, operator.process(event, self))
            return
        assert isinstance(operator, StatefulOperator)
        state, held = self._states[port.operator], self._held[port.operator]
        for inset_id, part in operator.assign(event, state).items():
            held[inset_id] = operator.accumulate(held.get(inset_id), part)
        self._generate(port.operator, operator, operator.triggered(state, list(held)))

    def end(self) -> None:
        for name, operator in self._operators.items():
            if isinstance(operator, StatefulOperator):
                state = self._states[name]
                self._generate(name, operator, operator.flush(state, list(self._held[name])))
        for one in self._outgoing.values():
            one.end()

    def read(self, read: DeclaredRead, keys: pa.Array | None = None) -> pa.Table:
        raise AssertionError("no use case of the paper has an operator that reads")

    def write(self, connection: str, table: pa.Table) -> None:
        """One transaction."""
        assert self._warehouse is not None
        marks = ", ".join(["%s"] * len(COLUMNS))
        with self._warehouse, self._warehouse.cursor() as cursor:
            rows = [[record[name] for name in COLUMNS] for record in table.to_pylist()]
            cursor.executemany(f"INSERT INTO {TABLE} VALUES ({marks})", rows)

    def _generate(self, name: str, operator: StatefulOperator, insets: Iterable[str]) -> None:
        for inset_id in insets:
            complete = InputSet(inset_id, self._held[name].pop(inset_id))
            self._sent(name, operator.generate(complete, self._states[name], self))

    def _sent(self, name: str, outputs: Iterable[PortTable]) -> None:
        for _, table in outputs:
            for receiver in self._receivers[name]:
                if receiver in self._outgoing:
                    self._outgoing[receiver].send(table)
                else:
                    self.deliver(receiver, table)


def main(folder: Path, name: str, warehouse: str) -> None:
    """Until all that comes has ended, or the source has."""
    group, senders = name.partition(".")[0], feeding(paper, name.partition(".")[0])
    incoming = Incoming(folder, name)
    plain = PlainGroup(paper, group, folder, warehouse)
    incoming.accept(len(senders))
    (folder / f"{name}.ready").touch()
    if not senders:
        eventually((folder / "go").is_file, what="all processes are up", timeout=PATIENCE_SECONDS, every=0.001)
        plain.send_all()
    ended = 0
    while ended < len(senders):
        item = incoming.inbox.get(PATIENCE_SECONDS, inputs=True)
        if item is None and os.getppid() == 1:
            return  # the bench is gone
        if item is not None:
            port, table = item
            if table is None:
                ended += 1
            else:
                plain.deliver(port, table)
    plain.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])

"""What the builder methods of a pipeline have gathered so far, and how ports are referred to in it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from airflow_logio.dataflow.call_limits import CallLimit
from airflow_logio.dataflow.column_lineage import MadeFrom
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.lineage_scopes import LineageScope
from airflow_logio.dataflow.local_defaults import LocalDefaults
from airflow_logio.dataflow.names import did_you_mean, quoted
from airflow_logio.dataflow.operator_groups import Group
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.replication.replicated import Replicated
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.values import Port


@dataclass
class Definition:
    """The parts of a pipeline; `senders` is receiver port → sender port, so that one input port has one sender."""

    name: str
    params: dict[str, type]
    connections: tuple[str, ...]
    fuse: bool = True
    """Whether operators without a group share one where nothing tells them apart."""
    environment: tuple[str, ...] = ()
    """Names of the environment variables that its drivers get. Deployment, no part of the graph."""
    operators: dict[str, Operator] = field(default_factory=dict)
    senders: dict[Port, Port] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    scopes: list[LineageScope] = field(default_factory=list)
    replicated: list[Replicated] = field(default_factory=list)
    replays: set[str] = field(default_factory=set)
    """Replay operators (Section 5): bodies of their events are not in the log."""
    limits: dict[str, CallLimit] = field(default_factory=dict)
    """Operator → limit of its calls. No part of the graph: another limit makes no other pipeline."""
    local: LocalDefaults = field(default_factory=LocalDefaults)
    columns: dict[Port, MadeFrom] = field(default_factory=dict)
    """Output port → what its columns are made from. Said of the graph, no part of it."""

    def refuse(self, sentence: str) -> NoReturn:
        """Raise PipelineDefinitionError with the name of the pipeline in front."""
        raise PipelineDefinitionError(f"pipeline {self.name!r}: {sentence}")

    def graph(self) -> Graph:
        """The graph as it is now."""
        return Graph(
            {name: tuple(operator.inputs) for name, operator in self.operators.items()},
            {name: tuple(operator.outputs) for name, operator in self.operators.items()},
            dict(self.senders),
        )

    def operator_named(self, name: str, user: str) -> Operator:
        """The operator of that name; `user` begins the sentence of the error, e.g. ``group 'x' contains``."""
        if name not in self.operators:
            self.refuse(f"{user} {name!r}, which is no operator.{did_you_mean(name, self.operators)}")
        return self.operators[name]

    def output(self, reference: str, user: str) -> Port:
        """The output port meant by ``operator.port``, or by ``operator`` if it has only one."""
        name, _, port = reference.partition(".")
        if name not in self.operators:
            self.refuse(f"{user} {reference!r}, but there is no operator {name!r}.{self._meant(reference, name)}")
        ports = self.operators[name].outputs
        if not ports:
            self.refuse(f"{user} {reference!r}, but {name!r} has no output port")
        if port in ports:
            return Port(name, port)
        if not port and len(ports) == 1:
            return Port(name, ports[0])
        if not port:
            meant = [f"{name}.{candidate}" for candidate in ports]
            self.refuse(
                f"{user} {reference!r}, which is ambiguous: {name!r} has several output ports. Write {_or(meant)}"
            )
        self.refuse_port(reference, user, ports)

    def input(self, reference: str) -> Port:
        """The input port meant by ``operator.port``, or by ``operator`` if it has only one."""
        name, _, port = reference.partition(".")
        ports = self.operator_named(name, f"connection to {reference!r}: there is").inputs
        if port in ports:
            return Port(name, port)
        if not port and len(ports) == 1:
            return Port(name, ports[0])
        if not port and ports:
            meant = [f"{name}.{candidate}" for candidate in ports]
            self.refuse(
                f"connection to {reference!r} is ambiguous: {name!r} has several input ports. Write {_or(meant)}"
            )
        self.refuse_port(reference, "connection to port", ports)

    def connect(self, sender: Port, receiver: Port) -> None:
        """Add a connection; raises PipelineDefinitionError if the input port has a sender already."""
        if receiver in self.senders:
            self.refuse(
                f"input port {str(receiver)!r} is connected to {str(self.senders[receiver])!r} and to "
                f"{str(sender)!r}: one input port has one sender. Give the operator one input port for each"
            )
        self.senders[receiver] = sender

    def refuse_port(self, reference: str, user: str, ports: Iterable[str]) -> NoReturn:
        """Raise PipelineDefinitionError for a port that is not among the operator's `ports`."""
        name, _, port = reference.partition(".")
        candidates = list(ports)
        if not candidates:
            self.refuse(f"{user} {reference!r}, but {name!r} has no such ports at all")
        only = "only " if len(candidates) == 1 else ""
        close = [f"{name}.{candidate}" for candidate in candidates]
        # With one such port there is nothing to guess.
        hint = f" Did you mean {close[0]!r}?" if len(close) == 1 else did_you_mean(f"{name}.{port}", close)
        self.refuse(f"{user} {reference!r}, but {name!r} has {only}{quoted(candidates)}.{hint}")

    def _meant(self, reference: str, name: str) -> str:
        ports = [f"{known}.{port}" for known, operator in self.operators.items() for port in operator.outputs]
        return did_you_mean(reference, ports) if "." in reference else did_you_mean(name, self.operators)


def _or(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)

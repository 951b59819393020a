"""The pipeline that runs: checked, unchangeable, with a fingerprint (design D13), replicated groups expanded (Section 7.1).

Each operator of a replicated group becomes one per slot, ``enrich[3]``. A Dispatcher joins the group that sends to it, a
Merger the group that receives from it, so that neither needs an application of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_logio.dataflow.describing import digest
from airflow_logio.dataflow.functions.several_functions import windows_at
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.pipeline.conditions import check_replicated
from airflow_logio.dataflow.pipeline.definition import Definition, Group, Replicated
from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.pipeline.grouping import groups_in_order
from airflow_logio.dataflow.pipeline.lineage import LineagePorts, LineageScope, lineage_ports, lineage_starts
from airflow_logio.dataflow.pipeline.validation import check_places, check_whole
from airflow_logio.dataflow.replication.dispatcher import Dispatcher, Merger, OrderedMerger
from airflow_logio.protocol.replicas import dispatcher_name, merger_name, slot_operator
from airflow_logio.protocol.values import Port


@dataclass(frozen=True)
class Frozen:
    """What runs. Operators in topological order; groups in the order of their first operator; (IN, OUT) of each operator.

    Operators of replicated groups are there once per slot, with their Dispatchers and Mergers.
    """

    authored: Definition
    """As the author wrote it, every operator in a group."""
    graph: Graph
    operators: dict[str, Operator]
    groups: dict[str, Group]
    homes: dict[str, str]
    """Operator → group."""
    replicated: dict[str, Replicated]
    scopes: tuple[LineageScope, ...]
    lineage: dict[str, LineagePorts]
    lineage_starts: dict[str, frozenset[str]]

    @classmethod
    def of(cls, definition: Definition) -> Frozen:
        """Check a definition and freeze it; raises PipelineDefinitionError."""
        authored, written = check_whole(definition)
        for one in definition.replicated:
            check_replicated(authored, written, one)
        runs = expanded(authored, written)
        graph = runs.graph()
        order = graph.topological()
        scopes = tuple(runs.scopes)
        return cls(
            authored,
            graph,
            {name: runs.operators[name] for name in order},
            runs.groups,
            {name: group.name for group in runs.groups.values() for name in group.operators},
            {one.group: one for one in definition.replicated},
            scopes,
            lineage_ports(graph, scopes),
            lineage_starts(graph, scopes),
        )

    def for_run(self, params: Mapping[str, Any]) -> Frozen:
        """With its operators as a run with these parameters has them; what describes it is as it was written.

        Raises ConfigurationError for values that cannot be, PipelineDefinitionError for operators that cannot be together.
        """
        filled = {id(operator): operator.for_run(params) for operator in self.operators.values()}
        operators = {name: filled[id(operator)] for name, operator in self.operators.items()}
        if all(operators[name] is operator for name, operator in self.operators.items()):
            return self
        authored = {name: filled.get(id(operator), operator) for name, operator in self.authored.operators.items()}
        check_places(replace(self.authored, operators=authored))
        return replace(self, operators=operators)

    def describe(self) -> dict[str, Any]:
        """JSON-able structure. Spark settings are left out: more memory must not make it another pipeline.

        The numbers of replicas are left out, too, but for the largest one: it is part of the graph.
        """
        authored = self.authored
        graph = authored.graph()
        described = {
            "pipeline": authored.name,
            "params": {name: kind.__name__ for name, kind in sorted(authored.given_params().items())},
            "connections": sorted(authored.connections),
            "operators": {name: self._described(name) for name in graph.topological()},
            "senders": {str(receiver): str(sender) for receiver, sender in graph.senders.items()},
            "groups": {name: list(group.operators) for name, group in authored.groups.items()},
            "lineage": sorted([str(scope.start), str(scope.target)] for scope in authored.scopes),
        }
        if authored.partition is not None:
            described["partition"] = authored.partition.describe()
        if authored.zone:
            described["zone"] = authored.zone
        if self.replicated:
            described["replicated"] = {
                name: {**one.partition.describe(), "slots": one.slots, "max": one.most, "ordered": one.ordered}
                for name, one in self.replicated.items()
            }
        return described

    def _described(self, operator: str) -> dict[str, Any]:
        described = self.authored.operators[operator].describe()
        return described | {"replay": True} if operator in self.authored.replays else described

    def fingerprint(self) -> dict[str, str]:
        """Hashes ``graph`` (of `describe`) and ``code`` (of the authors' source text)."""
        code = {name: operator.code() for name, operator in self.authored.operators.items()}
        return {"graph": digest(self.describe()), "code": digest(code)}


def expanded(definition: Definition, graph: Graph) -> Definition:
    """The definition of what runs; every operator is in a group. Raises PipelineDefinitionError for a lineage scope that
    names a port inside a replicated group."""
    if not definition.replicated:
        return definition
    expansion = _Expansion(definition, graph)
    for one in definition.replicated:
        expansion.add(one)
    result = expansion.result()
    groups_in_order(result, result.graph())
    return result


@dataclass
class _Expansion:
    definition: Definition
    graph: Graph
    operators: dict[str, Operator] = field(init=False)
    senders: dict[Port, Port] = field(init=False)
    members: dict[str, list[str]] = field(init=False)
    merged: dict[Port, Port] = field(default_factory=dict)
    """Output port as the author names it → the Merger's."""

    def __post_init__(self) -> None:
        self.operators = dict(self.definition.operators)
        self.senders = dict(self.definition.senders)
        self.members = {name: list(group.operators) for name, group in self.definition.groups.items()}
        self._home = {name: group.name for group in self.definition.groups.values() for name in group.operators}
        self._place = {name: place for place, name in enumerate(groups_in_order(self.definition, self.graph))}

    def add(self, one: Replicated) -> None:
        authored = self.definition.groups[one.group].operators
        for name in authored:
            operator = self.operators.pop(name)
            self.operators |= {slot_operator(name, slot): operator for slot in range(one.slots)}
        self.members[one.group] = [slot_operator(name, slot) for slot in range(one.slots) for name in authored]
        for receiver, sender in list(self._connections_of(one.group)):
            del self.senders[receiver]
            if self._home[sender.operator] == one.group:
                for slot in range(one.slots):
                    self.senders[_at(receiver, slot)] = _at(sender, slot)
            else:
                self._dispatch(one, sender, receiver)
        for name in authored:
            for sender in self.graph.outputs_of(name):
                self._merge(one, sender)

    def _connections_of(self, group: str) -> Iterator[tuple[Port, Port]]:
        """(receiver, sender) of the connections into the group and inside of it."""
        return (
            (receiver, self.senders[receiver])
            for receiver in self.graph.senders
            if self._home[receiver.operator] == group
        )

    def _dispatch(self, one: Replicated, sender: Port, receiver: Port) -> None:
        operator = self.definition.operators[receiver.operator]
        name = dispatcher_name(_short(receiver, operator.inputs))
        windows = windows_at(operator, receiver.name)
        dispatcher = Dispatcher(one.partition, one.slots, windows, ordered=one.ordered)
        self.operators[name] = dispatcher
        self.members[self._home[sender.operator]].append(name)
        self.senders[Port(name, "in")] = sender
        for slot, port in enumerate(dispatcher.outputs):
            self.senders[_at(receiver, slot)] = Port(name, port)

    def _merge(self, one: Replicated, sender: Port) -> None:
        outside = [port for port in self.graph.receivers(sender) if self._home[port.operator] != one.group]
        if not outside:
            return
        name = merger_name(_short(sender, self.definition.operators[sender.operator].outputs))
        merger = OrderedMerger(one.slots) if one.ordered else Merger(one.slots)
        self.operators[name] = merger
        # In any other group of them, events could come back to it by way of the first: groups would form a cycle.
        first = min(outside, key=lambda port: self._place[self._home[port.operator]])
        self.members[self._home[first.operator]].append(name)
        self.merged[sender] = Port(name, "out")
        for slot, port in enumerate(merger.inputs):
            self.senders[Port(name, port)] = _at(sender, slot)
        for receiver in outside:
            self.senders[receiver] = self.merged[sender]

    def result(self) -> Definition:
        scopes = [
            replace(scope, start=self._seen(scope.start), target=self._seen(scope.target))
            for scope in self.definition.scopes
        ]
        graph = replace(self.definition, operators=self.operators, senders=self.senders).graph()
        place = {name: index for index, name in enumerate(graph.topological())}
        groups = {
            name: replace(self.definition.groups[name], operators=tuple(sorted(members, key=place.__getitem__)))
            for name, members in self.members.items()
        }
        return replace(self.definition, operators=self.operators, senders=self.senders, groups=groups, scopes=scopes)

    def _seen(self, port: Port) -> Port:
        """The port of a lineage scope, where it can be seen from outside the group."""
        replicated = {one.group for one in self.definition.replicated}
        if self._home[port.operator] not in replicated:
            return port
        if port not in self.merged:
            self.definition.refuse(
                f"lineage scope names port {str(port)!r}, whose events do not leave replicated group "
                f"{self._home[port.operator]!r}: name a port outside of it, or one that leaves it"
            )
        return self.merged[port]


def _at(port: Port, slot: int) -> Port:
    return Port(slot_operator(port.operator, slot), port.name)


def _short(port: Port, ports: tuple[str, ...]) -> str:
    return port.operator if len(ports) == 1 else f"{port.operator}/{port.name}"

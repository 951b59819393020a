"""Data lineage scopes and paths (Section 3.1): for which ports of which operators lineage is captured.

A lineage path is a sequence of ports from the start to the target of a scope. Capture is enabled for the ports IN and
OUT of an operator that occur in a path as (OP.in, OP.out). The paths of a graph can be exponentially many, so IN and
OUT are computed by reachability: in a graph without cycles, a port is on a path if and only if the start reaches it and
it reaches the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airflow_logio.dataflow.graph import Graph
from airflow_logio.protocol.values import Port

LineagePorts = tuple[frozenset[str], frozenset[str]]
"""(IN, OUT): names of the input and output ports of an operator for which lineage is captured."""


@dataclass(frozen=True, slots=True)
class LineageScope:
    """A couple (start, target) of output ports between which lineage is captured."""

    start: Port
    target: Port
    retention_seconds: float | None = None
    """How long lineage of target events is kept (τ, Section 3.6); None for the life of the run."""

    def __str__(self) -> str:
        return f"({self.start}, {self.target})"


def lineage_paths(graph: Graph, scope: LineageScope) -> Iterator[tuple[Port, ...]]:
    """All lineage paths of a scope, in the order of ports and connections; there may be very many."""
    useful = _reaching(graph, scope.target)

    def walk(path: tuple[Port, ...]) -> Iterator[tuple[Port, ...]]:
        if path[-1] == scope.target:
            yield path
            return
        for receiver in graph.receivers(path[-1]):
            for sender in graph.outputs_of(receiver.operator):
                if sender in useful:
                    yield from walk((*path, receiver, sender))

    if scope.start != scope.target and scope.start in useful:
        yield from walk((scope.start,))


def has_path(graph: Graph, scope: LineageScope) -> bool:
    """Whether the scope has a lineage path."""
    return next(lineage_paths(graph, scope), None) is not None


def lineage_ports(graph: Graph, scopes: Iterable[LineageScope]) -> dict[str, LineagePorts]:
    """(IN, OUT) of every operator, over all scopes; both empty where no lineage is captured.

    The start port is in OUT of its operator: its events are what lineage leads back to, and are kept. IN of that operator
    gets nothing from the scope, because no path enters it; see `lineage_starts`.
    """
    entered: dict[str, set[str]] = {name: set() for name in graph.inputs}
    left: dict[str, set[str]] = {name: set() for name in graph.inputs}
    for scope in scopes:
        useful = _reaching(graph, scope.target)
        for port in _reached(graph, scope.start) & useful:
            side = left if port.name in graph.outputs[port.operator] else entered
            side[port.operator].add(port.name)
    return {name: (frozenset(entered[name]), frozenset(left[name])) for name in graph.inputs}


def lineage_starts(graph: Graph, scopes: Iterable[LineageScope]) -> dict[str, frozenset[str]]:
    """Output ports of every operator at which paths only start: nothing is recorded of how their events were made.

    Section 3.1 enables capture for a subsequence (OP.in, OP.out) of a path, and no path has an input port before its start.
    Another scope may pass through the same operator to another port, or through this port: then it is not listed.
    """
    scopes = list(scopes)
    passed = {
        port
        for scope in scopes
        for port in _reached(graph, scope.start) & _reaching(graph, scope.target)
        if port != scope.start
    }
    starts = {scope.start for scope in scopes} - passed
    return {name: frozenset(port.name for port in starts if port.operator == name) for name in graph.inputs}


def _reached(graph: Graph, start: Port) -> set[Port]:
    """Ports after `start` on some way forward, with `start`; other outputs of its operator are not on the way."""
    found, todo = {start}, [start]
    while todo:
        for receiver in graph.receivers(todo.pop()):
            for port in (receiver, *graph.outputs_of(receiver.operator)):
                if port not in found:
                    found.add(port)
                    if port != receiver:
                        todo.append(port)
    return found


def _reaching(graph: Graph, target: Port) -> set[Port]:
    """Ports before `target` on some way back, with `target`."""
    found, todo = {target}, [target]
    while todo:
        for port in graph.inputs_of(todo.pop().operator):
            sender = graph.senders.get(port)
            found.add(port)
            if sender is not None and sender not in found:
                found.add(sender)
                todo.append(sender)
    return found

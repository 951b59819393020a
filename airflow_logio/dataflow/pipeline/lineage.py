"""Lineage that an author declares: scopes and their paths (Section 3.1), and columns (ADR-101).

A lineage path is a sequence of ports from the start to the target of a scope. Capture is enabled for the ports IN and
OUT of an operator that occur in a path as (OP.in, OP.out). The paths of a graph can be exponentially many, so IN and
OUT are computed by reachability: in a graph without cycles, a port is on a path if and only if the start reaches it and
it reaches the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

from airflow_logio.dataflow.names import check_column, did_you_mean
from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.protocol.record_rules import Dependence
from airflow_logio.protocol.values import Port

LineagePorts = tuple[frozenset[str], frozenset[str]]
"""(IN, OUT): names of the input and output ports of an operator for which lineage is captured."""


@dataclass(frozen=True, slots=True)
class LineageScope:
    """Two output ports between which lineage is captured, as `Pipeline.lineage` returns it.

    :param start: the port that lineage leads back to.
    :param target: the port that lineage starts from.
    :param retention_seconds: how long lineage of target events is kept (τ, Section 3.6); None for the life of the run.
    """

    start: Port
    target: Port
    retention_seconds: float | None = None

    def __str__(self) -> str:
        return f"({self.start}, {self.target})"


def lineage_paths(graph: Graph, scope: LineageScope) -> Iterator[tuple[Port, ...]]:
    """All lineage paths of a scope, each as a tuple of ports from start to target. There may be very many.

    :param graph: the graph of a pipeline (`Pipeline.graph`).
    :param scope: the scope.

    They come in the order of ports and connections.
    """
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
    """Operator → (IN, OUT), the names of its ports for which lineage is captured; both empty where none is.

    :param graph: the graph of a pipeline (`Pipeline.graph`).
    :param scopes: the lineage scopes.

    The start port is in OUT of its operator: its events are what lineage leads back to, and are kept. IN of that
    operator gets nothing from the scope, because no path enters it; see `lineage_starts`.
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


@dataclass(frozen=True, slots=True)
class InputColumn:
    """A column of an input port, or of a declared read."""

    place: str
    """Name of the input port or of the read."""
    column: str


MadeFrom = Mapping[str, tuple[InputColumn, ...]]
"""Column of an output port → what it is made from."""


def columns_of_dependence(dependence: Dependence) -> MadeFrom:
    """What attribute dependencies say of columns: one with the same values is made from the other."""
    found: dict[str, list[InputColumn]] = {}
    for place, columns in (dependence.columns or {}).items():
        for name, column in columns.items():
            found.setdefault(name, []).append(InputColumn(place, column))
    return {name: tuple(columns) for name, columns in found.items()}


def declared_columns(
    port: Port, operator: Operator, columns: Mapping[str, str | Iterable[str]], refuse: Callable[[str], NoReturn]
) -> MadeFrom:
    """The declaration of an author, checked; `refuse` gets the sentence of an error."""
    if isinstance(operator, SourceOperator):
        refuse(f"column lineage of {str(port)!r}: {port.operator!r} is a source, which has no input ports")
    if not isinstance(columns, Mapping) or not columns:
        refuse(
            f"column lineage of {str(port)!r} is {columns!r}; give column → input columns, e.g. "
            '{"revenue": "sales_value"}'
        )
    return {check_column(name): _made_from(port, operator, given, refuse) for name, given in columns.items()}


def _made_from(
    port: Port,
    operator: Operator,
    given: str | Iterable[str],
    refuse: Callable[[str], NoReturn],
) -> tuple[InputColumn, ...]:
    places = (*operator.inputs, *getattr(operator, "reads", {}))
    found = []
    for one in [given] if isinstance(given, str) else given:
        place, dot, column = one.rpartition(".")
        if not dot:
            place = places[0]
            if len(operator.inputs) > 1:
                refuse(
                    f"column lineage of {str(port)!r} names column {one!r}, and {port.operator!r} has several input ports: "
                    f"write '{place}.{one}'"
                )
        if place not in places:
            refuse(
                f"column lineage of {str(port)!r} names {one!r}, but {port.operator!r} has no input port and no declared "
                f"read {place!r}.{did_you_mean(place, places)}"
            )
        found.append(InputColumn(place, check_column(column)))
    return tuple(dict.fromkeys(found))

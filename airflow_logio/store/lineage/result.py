"""What a lineage query returns: a graph in which every event, Input Set and read action appears once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from airflow_logio.errors import LineageUnknown
from airflow_logio.protocol.replicas import slot_operator
from airflow_logio.protocol.values import Port


def _in_log(operator: str, slot: int | None) -> str:
    return operator if slot is None else slot_operator(operator, slot)


def _place(slot: int | None) -> int:
    return -1 if slot is None else slot


class Direction(StrEnum):
    """Where a query goes from its events: to what they were made from, or to what was made from them."""

    BACKWARD = "backward"
    FORWARD = "forward"


@dataclass(frozen=True, slots=True)
class EventNode:
    """An event. `records` is None, and `about` empty, once retention has removed its data."""

    port: Port
    event_id: int
    records: int | None = field(default=None, compare=False)
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What its sender says about it. For a Parquet source: ``first`` and ``last`` row of the file, counted from 0."""
    slot: int | None = None
    """The slot that numbered it, if no Merger did: each slot of a replicated group counts its events on its own."""
    code: int = field(default=0, compare=False)
    """Number of the code that made it: 0 is that with which the run began, others are those of `LogStore.code_changes`."""

    def __str__(self) -> str:
        return f"{_in_log(self.port.operator, self.slot)}.{self.port.name} {self.event_id}"


@dataclass(frozen=True, slots=True)
class InputSetNode:
    """The Input Set of one generation."""

    operator: str
    inset_id: str
    slot: int | None = None
    """The slot that it belongs to, if the operator is replicated: each slot has Input Sets of its own."""

    def __str__(self) -> str:
        return f"Input Set {self.inset_id} of {self.operator_in_log}"

    @property
    def operator_in_log(self) -> str:
        """Its operator as the log names it: of one slot, if the author's operator is replicated."""
        return _in_log(self.operator, self.slot)


@dataclass(frozen=True, slots=True)
class ReadNode:
    """A read action of a source, or a side-effect read action of a generation (`is_source` tells)."""

    operator: str
    connection: str
    action_id: int
    is_source: bool = field(default=False, compare=False)
    records: int | None = field(default=None, compare=False)
    """The number of records in its stored effect; None if that is not kept."""
    description: Mapping[str, Any] = field(default_factory=dict, compare=False)
    slot: int | None = None
    """The slot that numbered it, if the operator is replicated."""

    def __str__(self) -> str:
        return f"read action {self.action_id} of {self.operator_in_log} on {self.connection}"

    @property
    def operator_in_log(self) -> str:
        """Its operator as the log names it: of one slot, if the author's operator is replicated."""
        return _in_log(self.operator, self.slot)


Node = EventNode | InputSetNode | ReadNode


class LineageStep(NamedTuple):
    """A node as `Lineage.walk` meets it; `again` says that it, and what is below it, has been shown before."""

    depth: int
    node: Node
    again: bool


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Operators and output ports of the graph that an answer speaks of, and what the log calls them otherwise."""

    run: str
    """For messages."""
    ports: frozenset[str]
    authored: Mapping[str, str] = field(default_factory=dict)
    """Port of a slot, Dispatcher or Merger → the author's port that stands for it in this answer."""

    def port(self, name: str) -> str:
        """`name`, if the graph has that output port. Raises `LineageUnknown`."""
        if name in self.ports:
            return name
        if name in self.authored:
            raise LineageUnknown(
                f"this answer has the author's ports: ask for {self.authored[name]!r} instead of {name!r}, or query with "
                "slots=True"
            )
        raise LineageUnknown(
            f"run {self.run} has no output port {name!r}; it has {', '.join(sorted(self.ports)) or 'none'}"
        )

    def operator(self, name: str) -> str:
        """`name`, if the graph has an operator of that name with an output port. Raises `LineageUnknown`."""
        every = {port.partition(".")[0] for port in self.ports}
        if name in every:
            return name
        raise LineageUnknown(
            f"run {self.run} has no operator {name!r} with outputs; there are {', '.join(sorted(every))}"
        )


@dataclass(frozen=True)
class Lineage:
    """The answer to a query. `edges` lead away from `roots`, in the direction of the query.

    Backward: event → Input Sets it was made from → their events on captured ports, and their read actions; an event of
    a source → its read action. Forward: event → Input Sets that used it → events made from them. Each node appears
    once, however many paths lead to it: there can be exponentially many.
    """

    direction: Direction
    roots: tuple[EventNode, ...]
    edges: Mapping[Node, tuple[Node, ...]]
    known: KnownNames
    """What may be asked for by name."""

    def after(self, node: Node) -> tuple[Node, ...]:
        """The nodes one edge further in the direction of the query; none at an end."""
        return self.edges.get(node, ())

    def nodes(self) -> Iterator[Node]:
        """Every node, once; the roots first."""
        seen: dict[Node, None] = dict.fromkeys(self.roots)
        for node, ends in self.edges.items():
            seen.setdefault(node)
            seen.update(dict.fromkeys(ends))
        yield from seen

    def events(self, port: Port | str | None = None) -> list[EventNode]:
        """The events of a port (``operator.port``), or of all, the roots included; in the order of event ids per
        port. Raises `LineageUnknown` for a port that the graph of this answer does not have."""
        wanted = None if port is None else self.known.port(str(port))
        found = (node for node in self.nodes() if isinstance(node, EventNode))
        return sorted(
            (e for e in found if wanted in (None, str(e.port))), key=lambda e: (e.port, _place(e.slot), e.event_id)
        )

    def input_sets(self, operator: str | None = None) -> list[InputSetNode]:
        """The Input Sets of an operator, or all. Raises `LineageUnknown` for an operator that the graph does not have."""
        wanted = None if operator is None else self.known.operator(operator)
        found = (node for node in self.nodes() if isinstance(node, InputSetNode))
        return sorted(
            (i for i in found if wanted in (None, i.operator)), key=lambda i: (i.operator, i.inset_id, _place(i.slot))
        )

    def reads(self, operator: str | None = None) -> list[ReadNode]:
        """The read actions of an operator, or all. Raises `LineageUnknown` for an operator that the graph does not have."""
        wanted = None if operator is None else self.known.operator(operator)
        found = (node for node in self.nodes() if isinstance(node, ReadNode))
        return sorted(
            (r for r in found if wanted in (None, r.operator)),
            key=lambda r: (r.operator, r.connection, _place(r.slot), r.action_id),
        )

    def relationships(self) -> set[tuple[EventNode | ReadNode, EventNode]]:
        """Data lineage relationships (a, b): b is an output event of an operator, a was used to make it (Section 3.1)."""
        backward = self.direction is Direction.BACKWARD
        return {
            (far, node) if backward else (node, far)  # type: ignore[misc]  # forward, every end is an event
            for node in self.edges
            if isinstance(node, EventNode)
            for inset in self.after(node)
            for far in ((inset,) if isinstance(inset, ReadNode) else self.after(inset))
            if not isinstance(far, InputSetNode)
        }

    def walk(self) -> Iterator[LineageStep]:
        """Depth first from the roots, as a tree is printed. Below a node that appears again, nothing is repeated."""
        seen: set[Node] = set()
        todo: list[tuple[int, Node]] = [(0, node) for node in reversed(self.roots)]
        while todo:
            depth, node = todo.pop()
            again = node in seen
            yield LineageStep(depth, node, again and bool(self.after(node)))
            if not again:
                seen.add(node)
                todo.extend((depth + 1, end) for end in reversed(self.after(node)))

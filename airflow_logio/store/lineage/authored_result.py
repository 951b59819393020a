"""A lineage result as its author drew the pipeline: without slots, Dispatchers and Mergers of replicated groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_logio.protocol.replicas import PLACE, PROGRESS, base_operator, is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, KnownNames, Lineage, Node
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.authored_ports import AuthoredPorts


def as_authored(result: Lineage, run: Run) -> Lineage:
    """The same relationships between the author's operators and ports.

    An event that a Merger has passed on counts as one with the event of the slot that it came from, and has the
    author's name of the port: ``hourly.out``. The parts that a Dispatcher has made of an event count as one with that
    event. What belongs to a slot has the author's name, with the slot beside it: Input Sets, read actions, and events that
    no Merger has taken (yet).
    """
    if not run.spec.replicated:
        return result
    same, ports = _same(result), AuthoredPorts(run.spec.operators)

    def seen(node: Node) -> Node:
        while node in same:
            node = same[node]
        return _named(node, ports)

    edges: dict[Node, dict[Node, None]] = {}
    for node, ends in result.edges.items():
        if not _passes(node):
            begin = seen(node)
            found = edges.setdefault(begin, {})
            found.update((end, None) for end in map(seen, filter(_stays, ends)) if end != begin)
    roots = dict.fromkeys(root for node in result.roots if isinstance(root := seen(node), EventNode))
    return Lineage(
        result.direction,
        tuple(roots),
        {node: tuple(ends) for node, ends in edges.items() if ends},
        _authored_names(result.known, ports),
    )


def _named(node: Node, ports: AuthoredPorts) -> Node:
    """The node under its author's name."""
    if not isinstance(node, EventNode):
        return replace(node, operator=base_operator(node.operator), slot=slot_of(node.operator))
    if is_dispatcher(
        node.port.operator
    ):  # a part that was asked for itself: it has no number among the author's events
        return node
    about = {key: value for key, value in node.about.items() if key not in (PROGRESS, PLACE)}
    return replace(node, port=ports.seen(node.port), about=about, slot=slot_of(node.port.operator))


def _authored_names(known: KnownNames, ports: AuthoredPorts) -> KnownNames:
    every = {name: str(ports.seen(Port(*name.split(".", 1)))) for name in known.ports}
    return KnownNames(
        known.run, frozenset(every.values()), {name: seen for name, seen in every.items() if name != seen}
    )


def _passes(node: Node) -> bool:
    """Whether it is an Input Set that only passes its event on, in parts or unchanged."""
    return isinstance(node, InputSetNode) and (is_dispatcher(node.operator) or is_merger(node.operator))


def _stays(node: Node) -> bool:
    return not _passes(node)


def _same(result: Lineage) -> Mapping[Node, Node]:
    """Event → the event that it counts as one with, over the Input Sets of Dispatchers and Mergers, which have one
    event each."""
    towards: dict[Node, list[Node]] = {}
    for node, ends in result.edges.items():
        for end in filter(_passes, ends):
            towards.setdefault(end, []).append(node)
    same: dict[Node, Node] = {}
    for inset, near in towards.items():
        far = result.after(inset)
        taken, made = (far, near) if result.direction is Direction.BACKWARD else (near, far)
        if isinstance(inset, InputSetNode) and is_merger(inset.operator):
            same.update((event, merged) for event in taken for merged in made)
        else:
            same.update((part, event) for part in made for event in taken)
    return same

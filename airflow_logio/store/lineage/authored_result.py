"""A lineage result as its author drew the pipeline: Dispatchers and Mergers of replicated groups are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_logio.protocol.replicas import is_dispatcher, is_merger
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, Lineage, Node
from airflow_logio.store.records import Run
from airflow_logio.store.rules.authored_ports import AuthoredPorts


def as_authored(result: Lineage, run: Run) -> Lineage:
    """The same relationships between the author's ports.

    An event that a Merger has passed on counts as one with the event of the slot that it came from, and has the
    author's name of the port: ``hourly.out``. The parts that a Dispatcher has made of an event count as one with that
    event. Input Sets keep the names of their slots, ``hourly[3]``, which tell them apart. So do events that no Merger
    has taken yet.
    """
    if not run.spec.replicated:
        return result
    same, ports = _same(result), AuthoredPorts(run.spec.operators)

    def seen(node: Node) -> Node:
        while node in same:
            node = same[node]
        if isinstance(node, EventNode) and is_merger(node.port.operator):
            return replace(node, port=ports.seen(node.port))
        return node

    edges: dict[Node, dict[Node, None]] = {}
    for node, ends in result.edges.items():
        if not _passes(node):
            begin = seen(node)
            found = edges.setdefault(begin, {})
            found.update((end, None) for end in map(seen, filter(_stays, ends)) if end != begin)
    roots = dict.fromkeys(root for node in result.roots if isinstance(root := seen(node), EventNode))
    return Lineage(result.direction, tuple(roots), {node: tuple(ends) for node, ends in edges.items() if ends})


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

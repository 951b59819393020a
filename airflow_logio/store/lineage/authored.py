"""Ports and lineage as the pipeline's author knows them: without slots, Dispatchers and Mergers of replicated groups.

In the log, ``hourly.out`` of a replicated group is the Merger's ``merge(hourly).out``; there each of its events has one
number. A Dispatcher sends parts of the events that it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from airflow_logio.protocol.replicas import PLACE, PROGRESS, base_operator, is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, KnownNames, Lineage, Node
from airflow_logio.store.records.run_records import OperatorShape, Run


class AuthoredPorts:
    """The ports of one run's operators, under the author's names."""

    def __init__(self, shapes: Mapping[str, OperatorShape]) -> None:
        self._shapes = shapes
        self._receivers: dict[str, list[Port]] = {}
        for name, shape in shapes.items():
            for port, sender in shape.inputs.items():
                self._receivers.setdefault(sender, []).append(Port(name, port))
        self._merged = {self._before(name): Port(name, port) for name, port in self._mergers()}
        self._behind = {merger.operator: port for port, merger in self._merged.items()}

    def seen(self, port: Port) -> Port:
        """An output port of the log, as its author named it."""
        if port.operator in self._behind:
            return self._behind[port.operator]
        if is_dispatcher(port.operator):
            (sender,) = self._shapes[port.operator].inputs.values()
            return self.seen(_port(sender))
        return Port(base_operator(port.operator), port.name)

    def told(self, port: Port, slots: int = 1) -> str:
        """An output port of the log in words; with `slots`, that port of so many slots."""
        seen, slot = self.seen(port), slot_of(port.operator)
        if is_dispatcher(port.operator):
            (receiver,) = self._to(port, port.name)
            parts = f"{slots} slots" if slots > 1 else f"slot {slot_of(receiver.operator)}"
            return f"{seen}, the parts for {parts} of {base_operator(receiver.operator)}"
        if slot is None:
            return str(seen)
        return f"{seen} in {slots} slots" if slots > 1 else f"{seen} in slot {slot}"

    def told_operator(self, operator: str) -> str:
        """An operator of the log in words."""
        shape = self._shapes[operator]
        if is_dispatcher(operator):
            (receiver,) = self._to(Port(operator, ""), shape.outputs[0])
            return f"the Dispatcher of {base_operator(receiver.operator)}"
        if is_merger(operator):
            return f"the Merger of {self._behind[operator].operator}"
        slot = slot_of(operator)
        return operator if slot is None else f"{base_operator(operator)} in slot {slot}"

    def seen_receivers(self, port: Port) -> list[Port]:
        """The input ports that an input port of the log stands for. A Merger's input stands for those that the Merger
        sends to."""
        if is_dispatcher(port.operator):
            slots = (
                receiver for output in self._shapes[port.operator].outputs[:1] for receiver in self._to(port, output)
            )
            return [Port(base_operator(one.operator), one.name) for one in slots]
        if is_merger(port.operator):
            return [
                far
                for output in self._shapes[port.operator].outputs
                for one in self._to(port, output)
                for far in self.seen_receivers(one)
            ]
        return [Port(base_operator(port.operator), port.name)]

    def as_seen(self, ports: Iterable[Port]) -> list[Port]:
        """Output ports as their author named them, each once. Ports whose events do not leave their slots are left
        out."""
        return list(dict.fromkeys(self.seen(port) for port in ports if slot_of(port.operator) is None))

    def in_log(self, port: Port) -> Port:
        """The reverse of `seen`: the output port of the log at which the events of an author's port have one number
        each."""
        return self._merged.get(port, port)

    def slots_of(self, port: Port) -> list[Port]:
        """The ports of the log that an author's port inside of a replicated group has become, one per slot."""
        named = (name for name in self._shapes if slot_of(name) is not None and base_operator(name) == port.operator)
        return [Port(name, port.name) for name in named if port.name in self._shapes[name].outputs]

    def _mergers(self) -> list[tuple[str, str]]:
        return [(name, port) for name, shape in self._shapes.items() if is_merger(name) for port in shape.outputs]

    def _before(self, merger: str) -> Port:
        sender = _port(next(iter(self._shapes[merger].inputs.values())))
        return Port(base_operator(sender.operator), sender.name)

    def _to(self, port: Port, output: str) -> list[Port]:
        return self._receivers.get(f"{port.operator}.{output}", [])


def _port(text: str) -> Port:
    operator, _, name = text.partition(".")
    return Port(operator, name)


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

"""The ports of a run as its author named them: without the slots, Dispatchers and Mergers of replicated groups.

In the log, ``hourly.out`` of a replicated group is the Merger's ``merge(hourly).out``; there each of its events has one
number. A Dispatcher sends parts of the events that it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_logio.protocol.replicas import base_operator, is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import OperatorShape


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

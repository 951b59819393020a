"""The ports of a run between which lineage was captured, from the graph that the log has of the run (Section 3.1)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from airflow_logio.errors import LineageUnknown
from airflow_logio.protocol.replicas import is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.lineage.result import Direction
from airflow_logio.store.records.run_records import Run


class CapturedPorts:
    """IN and OUT of every operator, and which output ports can be reached from which along them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._shapes = run.spec.operators
        self.operators = tuple(self._shapes)
        """The operators, in topological order."""
        self.authored = AuthoredPorts(self._shapes)
        mergers = (shape for name, shape in self._shapes.items() if is_merger(name))
        self._merged = {_port(sender) for shape in mergers for sender in shape.inputs.values()}
        self._next: dict[Port, list[Port]] = defaultdict(list)
        self._before: dict[Port, list[Port]] = defaultdict(list)
        for name, shape in self._shapes.items():
            for sender in {_port(shape.inputs[port]) for port in shape.lineage_in}:
                for output in self.recorded_outputs(name):
                    self._next[sender].append(output)
                    self._before[output].append(sender)

    def inputs(self, operator: str) -> tuple[str, ...]:
        """IN of an operator."""
        return self._shapes[operator].lineage_in

    def outputs(self, operator: str) -> list[Port]:
        """Output ports of an operator on a data lineage path."""
        return [Port(operator, name) for name in self._shapes[operator].lineage_out]

    def recorded_outputs(self, operator: str) -> list[Port]:
        """OUT of an operator: its outputs, except those at which paths only start."""
        shape = self._shapes[operator]
        return [Port(operator, name) for name in shape.lineage_out if name not in shape.lineage_starts]

    def passes_on(self, port: Port) -> bool:
        """Whether events of this port count as one with others: parts that a Dispatcher makes, and what a Merger takes."""
        return is_dispatcher(port.operator) or port in self._merged

    def named(self) -> list[tuple[str, Port]]:
        """(author's name, port of the log) of the ports in lineage scopes; those of slots, if no Merger takes their events,
        have the name of the log."""
        found = {}
        for place in (output for name in self.operators for output in self.outputs(name)):
            if not self.passes_on(place):
                found[str(place if slot_of(place.operator) is not None else self.authored.seen(place))] = place
        return list(found.items())

    def is_source(self, operator: str) -> bool:
        return not self._shapes[operator].inputs

    def checked(self, port: Port | str) -> Port:
        """An output port in a scope, as the log names it. Raises `LineageUnknown` for any other, and names those in a
        scope."""
        found = self.authored.in_log(_port(str(port)))
        every = [output for name in self.operators for output in self.outputs(name)]
        if found in every:
            return found
        if slots := self.authored.slots_of(found):
            raise LineageUnknown(
                f"the events of {str(found)!r} do not leave their replicated group, and each slot numbers its own: ask for "
                f"{str(slots[0])!r} to {str(slots[-1])!r}"
            )
        every = self.authored.as_seen(every)
        key, shape = self._run.spec.key, self._shapes.get(found.operator)
        there = (
            f"the ports in its lineage scopes are {', '.join(map(str, every))}" if every else "it has no lineage scope"
        )
        if shape is not None and found.name in shape.inputs:
            raise LineageUnknown(
                f"{str(found)!r} is an input port; ask for the events of {shape.inputs[found.name]!r}, which it receives "
                f"(run {key}: {there})"
            )
        if shape is None or found.name not in shape.outputs:
            raise LineageUnknown(f"run {key} has no port {str(found)!r}; {there}")
        raise LineageUnknown(
            f"port {str(found)!r} of run {key} is in no lineage scope, so nothing was recorded for it; {there}. For "
            f"runs to come, declare {self._scope_for(found)}"
        )

    def _scope_for(self, port: Port) -> str:
        """The declaration that captures what the events of a port were made from; of a source, what is made from them."""
        sources: list[Port] = []
        waiting, met = [port], {port}
        while waiting:
            at = waiting.pop()
            senders = [_port(sender) for sender in self._shapes[at.operator].inputs.values()]
            if not senders and at != port:
                sources.append(self.authored.seen(at))
            waiting += [sender for sender in senders if sender not in met]
            met.update(senders)
        target = str(self.authored.seen(port))
        if not sources:
            return f"a scope that starts there, Pipeline.lineage({target!r}, ...)"
        return " and ".join(f"Pipeline.lineage({str(start)!r}, {target!r})" for start in sorted(set(sources), key=str))

    def places(self, port: Port | str) -> list[Port]:
        """The output ports of the log where the events of a port are: one, or inside of a replicated group one per slot.

        Raises as `checked`.
        """
        found = self.authored.in_log(_port(str(port)))
        return [self.checked(slot) for slot in self.authored.slots_of(found)] or [self.checked(found)]

    def between(self, begin: Port, end: Port | None, direction: Direction) -> frozenset[Port]:
        """Output ports that a query from `begin` may touch; with `end` those on a path between the two.

        Raises `LineageUnknown` if there is no such path.
        """
        onwards, back = self._next, self._before
        if direction is Direction.BACKWARD:
            onwards, back = back, onwards
        reached = _closure(onwards, begin)
        if end is None:
            return reached
        if end == begin or end not in reached:
            others = ", ".join(map(str, sorted(self.authored.as_seen(reached - {begin}))))
            raise LineageUnknown(
                f"no lineage path leads {direction} from {str(self.authored.seen(begin))!r} to "
                f"{str(self.authored.seen(end))!r}; from there it leads "
                + (f"to {others}" if others else f"nowhere {direction}")
            )
        return reached & _closure(back, end)


def _closure(edges: Mapping[Port, Iterable[Port]], begin: Port) -> frozenset[Port]:
    found, todo = {begin}, [begin]
    while todo:
        for port in edges.get(todo.pop(), ()):
            if port not in found:
                found.add(port)
                todo.append(port)
    return frozenset(found)


def _port(text: str) -> Port:
    operator, _, name = text.partition(".")
    return Port(operator, name)

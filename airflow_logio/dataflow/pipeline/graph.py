"""The graph of a pipeline (Section 2): operators with their ports, and connections from output to input ports."""

from __future__ import annotations

import graphlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from airflow_logio.protocol.values import Port


@dataclass(frozen=True)
class Graph:
    """`inputs` and `outputs` are the port names of each operator; `senders` is receiver port → sender port.

    One input port has one sender; one output port may have several receivers, in the order of `senders`.
    """

    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    senders: Mapping[Port, Port]
    _receivers: dict[Port, tuple[Port, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        receivers: dict[Port, tuple[Port, ...]] = {port: () for name in self.outputs for port in self.outputs_of(name)}
        for receiver, sender in self.senders.items():
            receivers[sender] = (*receivers.get(sender, ()), receiver)
        object.__setattr__(self, "_receivers", receivers)

    def inputs_of(self, operator: str) -> tuple[Port, ...]:
        """Input ports of an operator, as declared."""
        return tuple(Port(operator, name) for name in self.inputs[operator])

    def outputs_of(self, operator: str) -> tuple[Port, ...]:
        """Output ports of an operator, as declared."""
        return tuple(Port(operator, name) for name in self.outputs[operator])

    def receivers(self, sender: Port) -> tuple[Port, ...]:
        """Input ports fed by an output port; KeyError if there is no such output port."""
        return self._receivers[sender]

    def after(self, operator: str) -> Iterator[str]:
        """Operators that receive from this one; one of them may come twice."""
        for port in self.outputs_of(operator):
            yield from (receiver.operator for receiver in self._receivers[port])

    def downstream(self, operator: str) -> set[str]:
        """Operators that events of this one can reach, itself left out."""
        found: set[str] = set()
        todo = list(self.after(operator))
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += self.after(name)
        return found

    def cycle(self) -> list[str] | None:
        """Operators of one cycle, the first repeated at the end; None if there is no cycle."""
        sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter({name: () for name in self.inputs})
        for receiver, sender in self.senders.items():
            sorter.add(receiver.operator, sender.operator)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            return list(error.args[1])
        return None

    def topological(self) -> list[str]:
        """Operators, each after those it receives from, otherwise in the order of definition; expects no cycle."""
        place = {name: index for index, name in enumerate(self.inputs)}
        names = list(place)
        waiting = dict.fromkeys(names, 0)
        for receiver in self.senders:
            waiting[receiver.operator] += 1
        ready = [place[name] for name in names if not waiting[name]]
        order = []
        while ready:
            name = names[heapq.heappop(ready)]
            order.append(name)
            for follower in self.after(name):
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, place[follower])
        return order

"""The walk of a lineage query: operator by operator in topological order, each once with all its events."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import islice
from typing import TypeVar

from airflow_logio.protocol.source import READ_ACTION_ID, READ_CONNECTION
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, Node, ReadNode
from airflow_logio.store.port.lineage_port import LineageLog

Edges = dict[Node, dict[Node, None]]
"""The nodes to which the edges of each node lead, in the order in which they were found; without descriptions yet."""

T = TypeVar("T")
_Uses = dict[str, dict[str, list[EventNode]]]
"""Operator → Input Set → events assigned to it."""


def walk(
    log: LineageLog,
    ports: CapturedPorts,
    direction: Direction,
    begin: Port,
    ids: Iterable[int],
    end: Port | None,
    *,
    one_step: bool = False,
) -> tuple[Edges, bool]:
    """The edges from these events, as `Lineage` has them; and whether `LineageLog.most_rows` may have left some out.
    Raises `LineageUnknown` if no path leads to `end`.

    With `one_step`, only to the next events of the author's ports, by way of Dispatchers and Mergers.
    """
    walking = _Walk(log, ports, ports.between(begin, end, direction), end, begin if one_step else None)
    if direction is Direction.BACKWARD:
        walking.backward(begin, ids)
    else:
        walking.forward(begin, ids)
    return walking.edges, walking.is_cut


class _Walk:
    def __init__(
        self, log: LineageLog, ports: CapturedPorts, allowed: Collection[Port], end: Port | None, only: Port | None
    ) -> None:
        self._log = log
        self._ports = ports
        self._allowed = allowed
        """Output ports that the query may touch."""
        self._end = end
        self._only = only
        """The port whose events alone are followed, but for ports inside of replicated groups that pass events on."""
        self._pending: dict[Port, set[int]] = defaultdict(set)
        """Events that were reached, by port."""
        self.edges: Edges = {}
        self.is_cut = False
        """A statement has given as many rows as it may: also of rows that no edge is made of."""

    def backward(self, begin: Port, ids: Iterable[int]) -> None:
        self._pending[begin].update(ids)
        for operator in reversed(self._ports.operators):
            insets: dict[str, None] = {}
            for port in self._ports.recorded_outputs(operator):
                if self._follows(port) and (reached := self._pending.get(port)):
                    insets |= dict.fromkeys(self._made_from(port, reached))
            if insets:
                self._inputs(operator, insets)
        self._keep_ways_to_the_end()
        self._reads_of_sources()

    def _follows(self, port: Port) -> bool:
        """Whether the walk continues from events of a port."""
        return port != self._end and (self._only in (None, port) or self._ports.passes_on(port))

    def _made_from(self, port: Port, ids: Collection[int]) -> Iterable[str]:
        for event_id, inset_id in self._some(self._log.input_sets_of(port, ids)):
            self._edge(EventNode(port, event_id), InputSetNode(port.operator, inset_id))
            yield inset_id

    def _inputs(self, operator: str, insets: Collection[str]) -> None:
        """Only events on ports in IN: the Input Set may hold others (the paper's c_1 was made from such events
        alone)."""
        captured = self._ports.inputs(operator)
        for inset_id, _, sender, event_id in self._some(self._log.events_in(operator, insets, captured)):
            if sender in self._allowed:
                self._edge(InputSetNode(operator, inset_id), EventNode(sender, event_id))
                self._pending[sender].add(event_id)
        for inset_id, connection, action_id in self._some(self._log.reads_in(operator, insets)):
            self._edge(InputSetNode(operator, inset_id), ReadNode(operator, connection, action_id))

    def _reads_of_sources(self) -> None:
        """An event of a source says in its header which read action it comes from."""
        for port, ids in self._pending.items():
            if self._ports.is_source(port.operator) and self._only in (None, port):
                for event_id, header in self._log.headers(port.operator, port.name, ids):
                    if isinstance(action_id := header.about.get(READ_ACTION_ID), int):
                        read = ReadNode(port.operator, READ_CONNECTION, action_id, is_source=True)
                        self._edge(EventNode(port, event_id), read)

    def forward(self, begin: Port, ids: Iterable[int]) -> None:
        self._pending[begin].update(ids)
        uses: _Uses = {}
        for operator in self._ports.operators:
            if operator in uses:
                self._outputs(operator, uses.pop(operator))
            for port in self._ports.outputs(operator):
                if self._follows(port) and (reached := self._pending.get(port)):
                    self._uses(port, reached, uses)
        self._keep_ways_to_the_end()

    def _uses(self, port: Port, ids: Collection[int], uses: _Uses) -> None:
        for event_id, receiver, inset_id in self._some(self._log.uses_of(port, ids)):
            if receiver.name in self._ports.inputs(receiver.operator):
                used = uses.setdefault(receiver.operator, {}).setdefault(inset_id, [])
                used.append(EventNode(port, event_id))

    def _outputs(self, operator: str, used: dict[str, list[EventNode]]) -> None:
        """Leaves out an Input Set from which nothing was made on a port in OUT: it is not a relationship."""
        for inset_id, port, event_id in self._some(self._log.outputs_of(operator, used)):
            if port in self._allowed:
                inset = InputSetNode(operator, inset_id)
                for event in used[inset_id]:
                    self._edge(event, inset)
                self._edge(inset, EventNode(port, event_id))
                self._pending[port].add(event_id)

    def _some(self, answer: Iterable[T]) -> Iterable[T]:
        taken = 0
        for row in islice(answer, self._log.most_rows):
            taken += 1
            yield row
        self.is_cut = self.is_cut or taken == self._log.most_rows

    def _edge(self, node: Node, end: Node) -> None:
        self.edges.setdefault(node, {})[end] = None

    def _keep_ways_to_the_end(self) -> None:
        """With an end port: keep only what leads to its events, and the read actions of the Input Sets on the way."""
        if self._end is None:
            return
        before: dict[Node, list[Node]] = defaultdict(list)
        for node, ends in self.edges.items():
            for end in ends:
                before[end].append(node)
        leading: set[Node] = {node for node in before if isinstance(node, EventNode) and node.port == self._end}
        todo = list(leading)
        while todo:
            for node in before.get(todo.pop(), ()):
                if node not in leading:
                    leading.add(node)
                    todo.append(node)
        self.edges = {
            node: {end: None for end in ends if end in leading or isinstance(end, ReadNode)}
            for node, ends in self.edges.items()
            if node in leading
        }

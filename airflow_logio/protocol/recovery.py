"""What recovery reads from the log, and the order in which it is reloaded (Algorithms 6 to 9)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_logio.protocol.values import FIRST_EVENT_ID, Event, Port, Value
from airflow_logio.protocol.writes import HeldGroup, PendingWrite, WriterKey


class LoggedEvent(Value, frozen=True):
    """An event read back from the log, and the Input Set of the row it was read from (None if unassigned)."""

    receiver: Port
    event: Event
    inset_id: str | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """What Algorithms 6 to 9 read: states, undone state events, acknowledged undone events, pending write actions."""

    states: Mapping[str, bytes]
    snapshots: tuple[tuple[str, str, bytes], ...]
    """(operator, Input Set, serialized state at the trigger)"""
    acknowledged: tuple[LoggedEvent, ...]
    """Acknowledged undone events, in event_id order per port."""
    writes: tuple[PendingWrite, ...]
    """Pending write actions, in order per (operator, connection); of writers that hold, the opening and the closing one."""
    held: Mapping[WriterKey, HeldGroup] = field(default_factory=dict)
    """What such writers hold, closing action not included. Their bodies stay in the log until it is executed."""


def reload_order(acknowledged: Iterable[LoggedEvent], orders: Mapping[str, PortOrder]) -> Sequence[LoggedEvent]:
    """Algorithm 9 Step 2: each operator's declared order over its ports, else round robin between them.

    `acknowledged` is in order of event_id per port, and so is the result. `orders` maps operators to their order.
    """
    by_operator: dict[str, dict[str, list[LoggedEvent]]] = {}
    for logged in acknowledged:
        by_operator.setdefault(logged.receiver.operator, {}).setdefault(logged.receiver.name, []).append(logged)
    ordered: list[LoggedEvent] = []
    for operator, by_port in by_operator.items():
        if operator in orders:
            order = orders[operator]
            rows = [logged for queue in by_port.values() for logged in queue]
            ordered += sorted(rows, key=lambda row: order.place(row.receiver.name, row.event.event_id))
        else:
            ordered += _round_robin(list(by_port.values()))
    return ordered


def _round_robin(queues: Sequence[Sequence[LoggedEvent]]) -> Iterable[LoggedEvent]:
    longest = max(map(len, queues), default=0)
    return [queue[index] for index in range(longest) for queue in queues if index < len(queue)]


class PortOrder:
    """A declared order over the input ports of an operator (Algorithm 9 Step 2: "the deterministic logic of OP").

    `pattern` is a cycle in which each port occurs at least once, say ``a`` fifty times and then ``b`` a hundred times. Event
    ids of a port have no gaps, so port and id alone give an event its place in the whole order, in normal processing as in
    recovery. A port whose stream has ended is skipped.
    """

    def __init__(self, pattern: Sequence[str]) -> None:
        self._turns: dict[str, list[int]] = {}
        for index, port in enumerate(pattern):
            self._turns.setdefault(port, []).append(index)

    def place(self, port: str, event_id: int) -> tuple[int, int]:
        """(round, turn in the round) of an event. Of two events on ports that have not ended, the lower one is used first."""
        turns = self._turns[port]
        rounds, turn = divmod(event_id - FIRST_EVENT_ID, len(turns))
        return rounds, turns[turn]

    def next_port(self, marks: Mapping[str, int], ended: Collection[str]) -> str | None:
        """The port whose next event is to be used now; None if all streams have ended.

        `marks` maps ports to the last event_id that was used.
        """
        waiting = [
            (self.place(port, marks.get(port, FIRST_EVENT_ID - 1) + 1), port)
            for port in self._turns
            if port not in ended
        ]
        return min(waiting)[1] if waiting else None

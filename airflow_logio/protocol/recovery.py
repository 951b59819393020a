"""What recovery reads from the log, and the order in which it is reloaded (Algorithms 6 to 9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_logio.protocol.ports import PortOrder
from airflow_logio.protocol.values import Event, Port, Value
from airflow_logio.protocol.writes import PendingWrite


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
    """Pending write actions, in order per (operator, connection)."""


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

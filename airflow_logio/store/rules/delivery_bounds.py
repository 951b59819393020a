"""How much of what waits in the log is delivered at once (design D5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_logio.protocol.values import Port


def share(waiting: Mapping[Port, Sequence[tuple[int, int]]], max_bytes: int) -> dict[Port, int]:
    """Receiver port → id of the last event that is delivered now, such that all of them fit into `max_bytes`.

    `waiting` has (event id, size) of each port, in order. The ports take turns, one event each. The first event always
    fits. A port whose next event does not fit gets no more turns: large events of one port do not set the pace of the
    others.
    """
    last: dict[Port, int] = {}
    total = 0
    taking = {port: iter(events) for port, events in waiting.items()}
    while taking:
        for port, events in list(taking.items()):
            event_id, size = next(events, (None, 0))
            if event_id is None or (last and total + size > max_bytes):
                del taking[port]
                continue
            last[port] = event_id
            total += size
    return last


def is_all(waiting: Mapping[Port, Sequence[tuple[int, int]]], last: Mapping[Port, int], max_events: int) -> bool:
    """Whether what is delivered now is all that waits. `waiting` has at most `max_events` of each port."""
    return all(
        not events or (len(events) < max_events and last.get(port) == events[-1][0]) for port, events in waiting.items()
    )

"""How much of what waits in the log is delivered at once (DESIGN decision 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from airflow_logio.protocol.values import Port


def share(waiting: Mapping[Port, Sequence[tuple[int, int]]], max_bytes: int) -> dict[Port, int]:
    """Receiver port → id of the last event that is delivered now, such that all of them fit into `max_bytes`.

    `waiting` has (event id, size) of each port, in order. The ports take turns, an event each; the first one always fits.
    """
    last: dict[Port, int] = {}
    total = 0
    for turn in zip_longest(*waiting.values()):
        for port, event in zip(waiting, turn, strict=True):
            if event is None:
                continue
            event_id, size = event
            total += size
            if last and total > max_bytes:
                return last
            last[port] = event_id
    return last

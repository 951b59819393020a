"""How much is read at once: of what waits in the log (design D5), and of the Input Sets that bodies are made of again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_logio.errors import LogInconsistent
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


def fitting(operator: str, inset_ids: Sequence[str], sizes: Mapping[str, int], max_bytes: int) -> Sequence[str]:
    """The first ones that fit, and the very first in any case. `sizes` has those that are in the log, in bytes.

    Only the first is needed for sure: of others, what was made may be done meanwhile. Raises `LogInconsistent` without it.
    """
    if inset_ids[0] not in sizes:
        raise gone(operator, inset_ids[0])
    chosen, total = [inset_ids[0]], sizes[inset_ids[0]]
    for inset_id in inset_ids[1:]:
        total += sizes.get(inset_id, 0)
        if total > max_bytes:
            break
        if inset_id in sizes:
            chosen.append(inset_id)
    return chosen


def gone(operator: str, inset_id: str) -> LogInconsistent:
    """The error where something undone was made of an Input Set that is not in the log."""
    return LogInconsistent(
        f"what Input Set {inset_id!r} of replay operator {operator!r} is made of is not in the log, and an event that was "
        "made of it is not done"
    )

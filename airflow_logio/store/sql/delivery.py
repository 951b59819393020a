"""How much of what waits in the log is delivered at once (DESIGN decision 5)."""

from __future__ import annotations

from collections.abc import Iterable


def prefix_within(rows: Iterable[tuple[int, int]], max_bytes: int) -> int | None:
    """Last event id such that all up to it fit into `max_bytes`; the first event always fits."""
    last: int | None = None
    total = 0
    for event_id, size in rows:
        total += size
        if last is not None and total > max_bytes:
            break
        last = event_id
    return last

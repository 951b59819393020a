"""Which Input Sets are read at once, of those that events are to be made of again (Section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_logio.errors import LogInconsistent


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
    """The error where an Input Set is not in the log of which something undone was made."""
    return LogInconsistent(
        f"what Input Set {inset_id!r} of replay operator {operator!r} is made of is not in the log, and an event that was "
        "made of it is not done"
    )

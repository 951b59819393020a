"""A group's state in words: what is known, and not more. A driver that is silent is not shown as if it ran."""

from __future__ import annotations

from airflow_logio.protocol.states import ALIVE, GroupState
from airflow_logio.store.records.status_records import GroupStatus

SILENT_SECONDS = 5.0
"""A driver gives a heartbeat twice a second. After so long without one, its state is what was last known."""
_BEATING = (GroupState.RUNNING, GroupState.DRAINING)


def silent_seconds(status: GroupStatus) -> float | None:
    """For how long a registered driver has given no heartbeat, if that is long; None otherwise."""
    age = status.silent_seconds
    return age if status.state in _BEATING and age is not None and age >= SILENT_SECONDS else None


def condition_of(status: GroupStatus) -> str:
    """Such as ``running``, or ``running, no heartbeat for 184 s``."""
    silent = silent_seconds(status)
    return status.state.value if silent is None else f"{status.state.value}, no heartbeat for {silent:.0f} s"


def standby_of(status: GroupStatus) -> str:
    """What stands by to take the place of its driver, with its memory: ``ready, 512 MB``; empty if nothing does."""
    found = None if status.load is None or status.state not in ALIVE else status.load.standby
    if found is None:
        return ""
    return f"{'ready' if found.is_ready else 'starting'}, {found.rss_bytes / 2**20:,.0f} MB"

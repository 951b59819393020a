"""A group with all its replicas as one: which groups of the log make it up, and the status that stands for all (Section 7.1).

Of an ordinary group this is the group itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import ALIVE, CONCLUDED, GroupState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus

_DECIDING = (GroupState.PARKED, GroupState.HALTED, GroupState.NEW, GroupState.DEAD)
"""States of a single replica that a person has to know, the most pressing first; then the working ones."""
AT_WORK = ALIVE | {GroupState.DEAD}
"""A dead replica is in use: it will be recovered."""


def members_of(run: Run, group: str) -> tuple[str, ...]:
    """The groups of the log that make up `group`: its replicas, or itself."""
    shape = run.spec.replicated.get(group)
    return (group,) if shape is None else tuple(shape.replicas)


def reports(run: Run, group: str, groups: Sequence[GroupStatus]) -> bool:
    """Whether the task of `group` reports the figures of its whole group: where each replica has a task, that of the first
    one at work does. `groups` are those of the whole run."""
    shape = run.spec.replicated.get(replicated_group(group))
    if shape is None or group not in shape.replicas:
        return True
    working = {one.group for one in groups if one.state in AT_WORK}
    return group == next((name for name in shape.replicas if name in working), shape.replicas[0])


def deciding(statuses: Iterable[GroupStatus]) -> GroupStatus:
    """The one status that stands for all of them."""
    rest = list(statuses)
    for state in _DECIDING:
        for status in rest:
            if status.state is state:
                return status
    return next((status for status in rest if status.state not in CONCLUDED), rest[0])


def in_use(statuses: Iterable[GroupStatus]) -> int:
    """How many replicas are working, or dead and about to be recovered."""
    return sum(status.state in AT_WORK for status in statuses)


def as_one(group: str, statuses: Sequence[GroupStatus]) -> GroupStatus:
    """The statuses of all replicas of a group as one: figures are sums, the state is that of the one that decides.

    Drivers and errors belong to replicas, and are reported there.
    """
    one = deciding(statuses)
    if any(status.state is GroupState.FINISHED for status in statuses) and one.state in CONCLUDED:
        one = structs.replace(one, state=GroupState.FINISHED)
    return structs.replace(
        one,
        group=group,
        incarnation=max(status.incarnation for status in statuses),
        recoveries=sum(status.recoveries for status in statuses),
        commits=sum(status.commits for status in statuses),
        rss_bytes=sum(status.rss_bytes for status in statuses if status.state in AT_WORK),
        beat_at=None,
        beat_age_seconds=None,
        state_age_seconds=None,
        killed=None,
        identity=None,
        error=None,
        log_path=None,
    )

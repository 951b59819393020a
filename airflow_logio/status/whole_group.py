"""A group with all its replicas as one (Section 7.1): its members in the log, the status that stands for all, its alerts.

An ordinary group is its only member.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from airflow_logio.protocol.replicas import base_operator, replicated_group
from airflow_logio.protocol.states import ALIVE, CONCLUDED, GroupState
from airflow_logio.status.recoveries import budget_left, latest_time
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, PortProgress, RunFigures
from airflow_logio.store.rules.run_rules import GroupStates

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


def states_of(store: LogStore, run: Run) -> GroupStates:
    """What the groups of a run do, and what is left of the replicated ones. Raises `LogUnavailable`."""
    states = {one.group: one.state for one in store.groups(run.run_id)}
    slots = store.slots_of_run(run.run_id)
    open_ = {group: sum(not slot.done for slot in of_group) for group, of_group in slots.items()}
    return GroupStates(states, {group: count for group, count in open_.items() if count})


def result(run: Run, group: str, statuses: Sequence[GroupStatus], progress: Sequence[PortProgress]) -> dict[str, Any]:
    """The result of the task of `group`, or of one replica: small and without secrets, sums over its slots and replicas.

    `statuses` are those of what the task watches. The records of a whole group are told once, by its first replica's task.
    """
    whole = replicated_group(group)
    tells = group == whole or group == run.spec.replicated[whole].replicas[0]
    records: dict[str, int] = {}
    for row in progress if tells else ():
        shape = run.spec.operators.get(row.port.operator)
        if shape is not None and shape.group == whole:
            name = f"{base_operator(row.port.operator)}.{row.port.name} {row.direction}"
            records[name] = records.get(name, 0) + row.records
    replicas = {status.group: status.incarnation for status in statuses if status.incarnation}
    return {
        "run": run.uid,
        "group": group,
        "incarnations": sum(status.incarnation for status in statuses),
        "recoveries": sum(status.recoveries for status in statuses),
        "records": records,
        **({"replicas": replicas} if whole in run.spec.replicated else {}),
    }


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


@dataclass(frozen=True, slots=True)
class AlertFigures:
    """One group with all its replicas, at one moment."""

    parked: int
    """Drivers: the group's own, or of so many replicas."""
    halted: int
    quarantined: int
    """Input Sets that are set aside."""
    recoveries_left: int
    """Within the window, before it is parked; 0 if its operators' code has used up those at one place. Of the replica that
    has fewest."""
    replicas: int | None
    """In use; None for a group that is not replicated."""


def alert_figures(run: Run, group: str, groups: Sequence[GroupStatus], figures: RunFigures) -> AlertFigures:
    """The figures of `group`, from what was read of its whole run."""
    members = members_of(run, group)
    ours = [one for one in groups if one.group in members]
    now = latest_time(figures.drivers)
    left = [
        budget_left(run.spec.budget, [one for one in figures.drivers if one.group == name], now) for name in members
    ]
    aside = figures.quarantined.get(group)
    return AlertFigures(
        parked=sum(one.state is GroupState.PARKED for one in ours),
        halted=sum(one.state is GroupState.HALTED for one in ours),
        quarantined=0 if aside is None else aside.input_sets,
        recoveries_left=min(0 if one.at_point == 0 else one.in_window for one in left),
        replicas=in_use(ours) if group in run.spec.replicated else None,
    )

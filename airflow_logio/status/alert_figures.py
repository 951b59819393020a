"""What alerts on a group are made of: how many of its drivers stand still, what is set aside, what is left of its budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_logio.protocol.states import GroupState
from airflow_logio.status.budget_left import budget_left, latest_time
from airflow_logio.status.whole_group import in_use, members_of
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunFigures


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
    """Of `group`, from what was read of its whole run."""
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

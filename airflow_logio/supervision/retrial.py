"""Which groups of a run a person may have launched again, and what is said where there are none."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus

STARTABLE = (GroupState.PARKED, GroupState.HALTED, GroupState.DEAD)


def nothing_to_retry(
    run: Run, statuses: Mapping[str, GroupStatus], asked: Collection[str], startable: Collection[GroupState] = STARTABLE
) -> str:
    """Why none of the groups that were `asked` for is launched again."""
    states = ", ".join(f"{name} is {statuses[name].state.value}" for name in asked)
    return (
        f"run {run.spec.key} has nothing to retry: {states}, and none of their Input Sets is quarantined; only a group that "
        f"is one of {', '.join(startable)} is launched again"
    )

"""Looking back: a run that has finished has a partition before its own computed again. Which, and why one is left alone."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.rules.start_rules import added_writers


@dataclass(frozen=True, slots=True)
class Left:
    """A partition before is not computed again: why."""

    why: str


def left_alone(newest: Run, dag_id: str) -> str | None:
    """Why what starts runs under the name `dag_id` does not compute the newest run of a partition again, whether that has
    finished or not, as half a sentence; None if it does."""
    uid, key = newest.uid[:8], newest.spec.key
    if newest.state is RunState.SUPERSEDED:
        return f"its run {uid} was given up, and the next one reads what has come since"
    if key.dag_id != dag_id and newest.spec.supervision is Supervision.PROCESS:
        return f"its run {uid} is of `logio run`: `logio again {uid}`, then that command with this partition"
    if key.dag_id != dag_id:
        return (
            f"its run {uid} is of DAG run {key.dag_run_id} of {key.dag_id}: clear that in Airflow, from the task that starts "
            "the run onwards"
        )
    if added := added_writers(newest):
        return (
            f"rows of {', '.join(added)} would be there twice. If they are to stay, or are removed: `logio again {uid}`, "
            "then the run of that partition"
        )
    return None


def own_params(before: Run, declared: Collection[str]) -> dict[str, Any]:
    """The parameters of a run that its next one gets: those that the pipeline still declares, so none of its partition."""
    return {name: value for name, value in before.spec.params.items() if name in declared}

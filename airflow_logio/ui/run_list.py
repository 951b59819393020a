"""All runs, as the page lists them: what runs, what is parked and why. Bounded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.run_report.as_json import run_document
from airflow_logio.run_report.causes import cause_of, most_pressing
from airflow_logio.run_report.report import IsPaused, condition_seen, not_known
from airflow_logio.status.condition import RunCondition, awaits_airflow
from airflow_logio.status.snapshot import SnapshotSeries
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunFigures, RunSight
from airflow_logio.supervision.presence import last_look

MOST_RUNS = 100
MOST_STOPPED = 10
"""Groups of a run that are named with the reason why they have stopped, the most pressing first."""
MOST_MEASURED = 25
"""Runs at the head of the list that say how far they are: that needs the counters of their ports."""


class ListedRuns(NamedTuple):
    runs: Sequence[dict[str, Any]]
    older: bool
    """Whether the log has more of them, which are older."""
    at: float
    """When that was seen, by this machine's clock, in seconds since the epoch."""


def listed_runs(
    store: LogStore,
    log: str | None,
    dag_ids: Collection[str] | None,
    *,
    dag_run_id: str | None = None,
    named: str | None = None,
    pipeline: str | None = None,
    partition: str | None = None,
    is_paused: IsPaused = not_known,
) -> ListedRuns:
    """Runs of these DAGs, or all (None): unfinished ones first, then the newest. Those of a DAG run are in the order in which
    they were begun, the newest first, and with the names of their groups. `named`, `pipeline`, `partition`: as for
    `LogStore.list_runs`; the runs of one partition are in their order, too.

    `log` is the connection id of the log; `is_paused` asks Airflow about the DAG of an unfinished run. Raises
    `LogUnavailable`.
    """
    at = time.time()

    def newest(state: RunState | None) -> Sequence[Run]:
        most = MOST_RUNS + 1
        return store.list_runs(
            dag_ids=dag_ids,
            dag_run_id=dag_run_id,
            state=state,
            named=named,
            pipeline=pipeline,
            partition=partition,
            limit=most,
        )

    latest = newest(None)
    unfinished = newest(RunState.RUNNING) if len(latest) > MOST_RUNS else [one for one in latest if _is_unfinished(one)]
    found = {run.uid: run for run in [*unfinished, *latest]}
    runs = list(found.values())[:MOST_RUNS]
    if dag_run_id is not None or partition is not None:
        runs.sort(key=lambda run: run.run_id, reverse=True)
    if not runs:
        return ListedRuns([], older=False, at=at)
    looks = store.supervisors()
    seen = {one.run.uid: one for one in store.sight([run.uid for run in runs])}
    whole = {uid for uid, one in seen.items() if one.run.damage is None}
    figures = store.figures([run.run_id for run in runs[:MOST_MEASURED] if run.uid in whole])
    paused = {name for name in {run.spec.key.dag_id for run in runs if awaits_airflow(run)} if is_paused(name)}

    def listed_run(one: RunSight) -> dict[str, Any]:
        found = condition_seen(
            one.run, one.groups, at, last_look(looks, one.run), log, is_paused=one.run.spec.key.dag_id in paused
        )
        return _listed(one, found, figures.get(one.run.run_id))

    listed = [listed_run(seen[run.uid]) for run in runs if run.uid in seen]
    if dag_run_id is not None:
        for one in listed:
            spec = seen[one["uid"]].run.spec
            one["groups"] = [*spec.groups, *spec.replicated]
    return ListedRuns(listed, older=len(found) > MOST_RUNS, at=at)


def _is_unfinished(run: Run) -> bool:
    return run.state is RunState.RUNNING


def _listed(one: RunSight, found: RunCondition, figures: RunFigures | None) -> dict[str, Any]:
    used = [group for group in one.groups if group.state is not GroupState.RETIRED]
    stopped = most_pressing(used)
    return {
        **run_document(one.run),
        "condition": found.word,
        "next_step": found.next_step,
        "progress": None if figures is None else _progress(one, figures),
        "states": dict(Counter(group.state.value for group in used)),
        "recoveries": sum(group.recoveries for group in used),
        "stopped": [_stopped(group) for group in stopped[:MOST_STOPPED]],
    }


def _stopped(group: GroupStatus) -> dict[str, Any]:
    cause = cause_of(group)
    found = {"reason": "", "place": ""} if cause is None else {"reason": cause.said, "place": cause.place}
    return {"group": group.group, "state": group.state.value, "is_error": bool(group.error), **found}


def _progress(one: RunSight, figures: RunFigures) -> float | None:
    return SnapshotSeries(one.run).next(one.groups, figures.ports, figures.under_way).done

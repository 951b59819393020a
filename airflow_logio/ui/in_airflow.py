"""The page's rights and retries in Airflow: its users see the runs of the DAGs that they may read, and clear tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastapi import Depends, Request

from airflow_logio import _compat
from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, GroupState, RunState
from airflow_logio.status.whole_group import members_of, states_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, RunKey
from airflow_logio.store.rules.removed_rules import when_and_why
from airflow_logio.store.rules.run_rules import check_not_given_up, in_the_way, may_be_in_the_way
from airflow_logio.supervision.retry import STARTABLE, nothing_to_retry
from airflow_logio.ui.access import Access
from airflow_logio.ui.actions import Retrying
from airflow_logio.ui.group_tasks import clear_group_tasks

_USER = Depends(_compat.user_dependency())


MOST_UNFINISHED = 1_000
"""Runs of a DAG that are looked at for what keeps another one from beginning."""


class AirflowAccess(Access):
    """Asks the auth manager of the deployment, as Airflow's own routes do."""

    async def user(self, request: Request, found: Any = _USER) -> Any:
        return found

    def may_read(self, user: Any, dag_id: str) -> bool:
        return _compat.may_read_runs(user, dag_id)

    def may_read_output(self, user: Any, dag_id: str) -> bool:
        return _compat.may_read_task_logs(user, dag_id)

    def may_read_data(self, user: Any, dag_id: str) -> bool:
        return _compat.may_read_data(user, dag_id)

    def may_change(self, user: Any, dag_id: str) -> bool:
        return _compat.may_change_runs(user, dag_id)

    def may_retry(self, user: Any, dag_id: str) -> bool:
        return self.may_change(user, dag_id) and _compat.may_clear_tasks(user, dag_id)

    def name_of(self, user: Any) -> str:
        return str(user.get_name())

    def note(self, user: Any, run: RunKey, action: str, asked: Mapping[str, Any]) -> None:
        _compat.audit(user, f"logio_{action}", run.dag_id, run.dag_run_id, asked)

    def readable(self, user: Any) -> Collection[str] | None:
        return _compat.readable_dags(user)


# --- a DAG run without a run in the log -------------------------------------------------------------------------------


def why_no_run(store: LogStore, dag_id: str, dag_run_id: str) -> str | None:
    """Why the log has no run of a DAG run, and what to do; None if it may just not have begun. Raises `LogUnavailable`."""
    failed = _compat.failed_starts(dag_id, dag_run_id)
    for removed in store.removed_runs(dag_run_id=dag_run_id):
        if removed.key.dag_id == dag_id and not failed:
            return f"The run of this DAG run {when_and_why(removed)}. Clear its tasks to compute it again."
    if not failed:
        waiting = _compat.waiting_starts([dag_id], dag_run_id)
        if waiting:
            said = "; ".join(f"its task {one.task_id} {one.said}" for one in waiting)
            return f"The log has no run of this DAG run yet: {said}."
        paused = _compat.is_paused(dag_id)
        return f"DAG {dag_id} is paused: Airflow starts no task of it until it is unpaused." if paused else None
    said = f"The log has no run of this DAG run, because its task {', '.join(failed)} has failed."
    running = store.list_runs(dag_ids=[dag_id], state=RunState.RUNNING, limit=MOST_UNFINISHED)
    found = ((run, states_of(store, run)) for run in running)
    reasons = (in_the_way(run, groups, run.spec.supervision) for run, groups in found if may_be_in_the_way(run, groups))
    reason = next(reasons, None)
    if reason is None:
        return f"{said} The task's log says why."
    return f"{said} In its way is {reason}. If that is not why, the task's log says it."


def waiting_for_input(dag_ids: Collection[str] | None) -> list[dict[str, str]]:
    """DAG runs of these DAGs, or of all (None), that wait for their input, with what that is: the log has no run of them."""
    return [
        {"dag_id": one.dag_id, "dag_run_id": one.dag_run_id, "said": one.said}
        for one in _compat.waiting_starts(dag_ids)
    ]


# --- retrying ---------------------------------------------------------------------------------------------------------


def retry_by_tasks(store: LogStore, run: Run, group: str | None) -> str:
    """Clear the tasks of groups that have ended in Airflow before the groups have finished: of one, or of all.

    Whatever ended them: a failure, a mark, also as successful, or a timeout of the DAG run, by which Airflow skips tasks.
    Raises `ProtocolViolation` if there is nothing to clear, or the run was given up: the tasks of its DAG run are then those
    of the fresh run. Raises `LogUnavailable`.

    Quarantined Input Sets stay: to put them back, what lies behind them is asked first, which needs the author's code.
    """
    check_not_given_up(run)
    statuses = {status.group: status for status in store.groups(run.run_id)}
    asked = list(statuses) if group is None else list(members_of(run, group))
    names = [name for name in asked if statuses[name].state not in CONCLUDED]
    slots = store.slots_of_run(run.run_id)
    unfinished = {*map(replicated_group, names), *(one for one in slots if not all(slot.done for slot in slots[one]))}
    wholes = {replicated_group(name): replicated_group(name) in unfinished for name in asked}
    key = run.spec.key
    cleared = clear_group_tasks(key.dag_id, key.dag_run_id, run.uid, wholes)
    if cleared.groups:
        beside = f", and {', '.join(cleared.beside)}, which had ended" if cleared.beside else ""
        named = ", ".join(cleared.groups) + beside
        when = f" once DAG {key.dag_id} is unpaused" if _compat.is_paused(key.dag_id) else ""
        return f"cleared, with what is behind: {named}. Airflow runs that again{when}, and the groups resume"
    stopped = [name for name in names if statuses[name].state in STARTABLE]
    if stopped:
        raise ProtocolViolation(
            f"no task that has ended launches {', '.join(stopped)} in DAG run {key.dag_run_id} of {key.dag_id}: wait until "
            f"its task has, or use `logio retry {run.uid[:8]}`"
        )
    new = [name for name in names if statuses[name].state is GroupState.NEW]
    if new:
        waits = f"until DAG {key.dag_id} is unpaused" if _compat.is_paused(key.dag_id) else "as Airflow's grid shows"
        raise ProtocolViolation(
            f"no task that has ended launches {', '.join(new)} in DAG run {key.dag_run_id} of {key.dag_id}: nothing has run "
            f"there yet, so there is nothing to retry; its task waits, {waits}, and launches it then"
        )
    if store.quarantined(run.run_id, None if group is None else asked[0], limit=1):
        raise ProtocolViolation(
            f"only quarantined Input Sets can be retried. That needs the pipeline's code, which Airflow's API server "
            f"does not load: `logio retry {run.uid[:8]}` puts them back"
        )
    raise ProtocolViolation(nothing_to_retry(run, statuses, asked))


CLEARING = Retrying(
    retry_by_tasks,
    "Its task is cleared, with the tasks behind it, and `supervise` with it if that has ended. A worker launches a new "
    "driver, with the code that it has by now, which resumes where the log ends, at no cost to the recovery budget.",
    puts_back=False,
)

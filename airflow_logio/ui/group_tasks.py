"""Clearing the tasks of groups in a DAG run, as a person does on Airflow's own page: of the right pipeline, and no more.

It uses parts of Airflow that are not public, of its API server, as `_compat` does; `_compat.PAGE_NEEDS` names them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_logio import _compat
from airflow_logio.errors import ProtocolViolation


class ClearedTasks(NamedTuple):
    """The names of the tasks that were cleared, without those behind them."""

    groups: Sequence[str]
    """The tasks that launch groups."""
    beside: Sequence[str]
    """Tasks that had ended and are needed again: the supervisor of the run, and the task that starts the run."""


def clear_group_tasks(dag_id: str, dag_run_id: str, uid: str, groups: Mapping[str, bool]) -> ClearedTasks:
    """Clear the tasks that launch these groups of a DAG run, with what is behind them, as Airflow's own page does.

    Only tasks that have ended: failed, skipped, or marked successful. `groups` says of each group whether it has work left;
    if it has none, its task is cleared if it is not green. The run's supervisor (``supervise``, ``notify``) ended when the
    last group stopped, so it is cleared as well, if it has ended; its place may be beside the groups. A DAG run may have runs
    of several pipelines with groups of one name: the task that starts a run has returned its `uid`. Where a deployment keeps
    that elsewhere, green tasks of such a DAG stay, and the names of the groups must tell which pipeline is meant.

    Raises `ProtocolViolation` if a task behind them is running, or if several pipelines have such groups, and Airflow does
    not say which one has started this run.
    """
    from airflow.models import DagRun
    from airflow.models.dagbag import DBDagBag
    from airflow.models.taskinstance import clear_task_instances, find_relevant_relatives
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from airflow.utils.state import State, TaskInstanceState
    from sqlalchemy import select

    with create_session() as session:
        dag_run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == dag_run_id))
        dag = None if dag_run is None else DBDagBag(load_op_links=False).get_dag_for_run(dag_run, session)
        if dag is None:
            return ClearedTasks([], [])
        returned = select(XComModel.task_id, XComModel.value).where(
            XComModel.dag_id == dag_id, XComModel.run_id == dag_run_id, XComModel.key == "return_value"
        )
        starts = {task for task, value in session.execute(returned) if task in dag.task_dict and _is_text(value, uid)}
        tasks = _of_pipeline(dag, starts or _start_of(dag, groups))
        is_sure = bool(starts) or len([task for task in dag.tasks if task.task_type == _compat.START_TASK]) <= 1

        def instances(names: Iterable[str]) -> list[Any]:
            wanted = sorted(set(names))
            found = dag.clear(dry_run=True, task_ids=wanted, run_id=dag_run_id, session=session) if wanted else []
            return list(found)

        of_task = {task.task_id: _groups_of(task) for task in tasks if _compat.launches_group(task)}
        launching = {name for name, found in of_task.items() if not groups.keys().isdisjoint(found)}

        def is_asked(one: Any) -> bool:
            """A green task only if its group has work left."""
            launched = _launched_by(of_task[one.task_id], one.map_index)
            if one.state == TaskInstanceState.SUCCESS:
                return is_sure and any(groups.get(group, False) for group in launched)
            return one.state in State.finished and not groups.keys().isdisjoint(launched)

        ended = [one for one in instances(launching) if is_asked(one)]
        if not ended:
            return ClearedTasks([], [])
        names = sorted({one.task_id for one in ended})
        supervisors = {task.task_id for task in tasks if task.task_type == _compat.SUPERVISOR_TASK}
        beside = [one for one in instances(supervisors) if one.state in State.finished]
        beside += [one for one in instances(starts) if one.state in State.finished - {TaskInstanceState.SUCCESS}]
        relatives = find_relevant_relatives(
            names, [], dag=dag, run_id=dag_run_id, direction="downstream", session=session
        )
        behind = instances({_task_id(one) for one in relatives} - supervisors - launching)
        if running := sorted(one.task_id for one in behind if one.state == TaskInstanceState.RUNNING):
            raise ProtocolViolation(
                f"behind {', '.join(names)}, {', '.join(running)} is running, and would be ended: wait until it has ended, "
                "and retry then"
            )
        clear_task_instances([*ended, *beside, *behind], session)
        return ClearedTasks(names, sorted({one.task_id for one in beside}))


def _groups_of(task: Any) -> list[str]:
    """The groups that a task of a stored DAG launches: of a mapped one those of its instances, in their order, or one for
    all. Empty where only a worker knows."""
    if not task.is_mapped:
        return [task.group]
    expanded = task._get_specified_expand_input().value
    default = task.partial_kwargs.get("group") or task.task_id.rpartition(".")[2]
    if isinstance(expanded, Mapping):
        if "group" not in expanded:
            return [default]
        found = expanded["group"] if len(expanded) == 1 else None
    else:
        found = [one.get("group", default) if isinstance(one, Mapping) else "" for one in _listed(expanded)]
    return [str(one) for one in _listed(found)]


def _listed(given: Any) -> Sequence[Any]:
    """What a task is mapped over; nothing if it is the result of another task."""
    return given if isinstance(given, list | tuple) else ()


def _launched_by(groups: Sequence[str], map_index: int) -> Sequence[str]:
    """Those of one instance; of one that is not mapped yet, all."""
    return groups[map_index : map_index + 1] if len(groups) > 1 and map_index >= 0 else groups


def _is_text(value: Any, text: str) -> bool:
    """Whether an XCom is that text: as the table has it, or once more in JSON."""
    return value in (text, json.dumps(text))


def _task_id(relative: str | tuple[str, int]) -> str:
    return relative if isinstance(relative, str) else relative[0]


def _start_of(dag: Any, groups: Collection[str]) -> set[str]:
    """The task that starts the run of these groups, where no result says it: all tasks of such groups are behind it.

    Empty if the DAG has one pipeline, or the tasks are behind none. Raises `ProtocolViolation` for tasks of several.
    """
    starts = {task.task_id for task in dag.tasks if task.task_type == _compat.START_TASK}
    launching = [
        task for task in dag.tasks if _compat.launches_group(task) and not set(groups).isdisjoint(_groups_of(task))
    ]
    behind = {frozenset(starts & task.get_flat_relative_ids(upstream=True)) for task in launching}
    if len(starts) <= 1 or not behind:
        return set()
    if len(behind) > 1:
        raise ProtocolViolation(
            f"DAG {dag.dag_id} starts several pipelines ({', '.join(sorted(starts))}), and tasks of more than one launch "
            f"{', '.join(sorted(groups))}. Which of them has started this run, its result would say, which Airflow's "
            f"database does not have: clear {' or '.join(sorted(task.task_id for task in launching))} in Airflow instead"
        )
    return set(behind.pop())


def _of_pipeline(dag: Any, starts: Collection[str]) -> list[Any]:
    """The tasks behind those that have started a run; all of the DAG if none is known."""
    if not starts:
        return list(dag.tasks)
    return [task for task in dag.tasks if starts & task.get_flat_relative_ids(upstream=True)]

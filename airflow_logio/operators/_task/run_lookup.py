"""Finds the run of an Airflow task in the log, and describes it for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_logio.commands import name_log
from airflow_logio.errors import ConfigurationError, LogioError, RunRemoved, UnknownRun
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import resolve
from airflow_logio.protocol.states import RunState
from airflow_logio.status.whole_group import states_of
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.store.rules.removed_rules import said_of
from airflow_logio.store.rules.run_rules import superseded
from airflow_logio.store.rules.session_rules import Patience

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run
    from airflow_logio.store.records.upkeep_records import RemovedRun


@contextmanager
def opened_log(logio_conn_id: str, *, create: bool = False) -> Iterator[LogStore]:
    """The opened log. Waits for it as a driver does: a short outage of the log fails nothing.

    Commands in errors that pass here name the log by this connection.
    """
    hook = LogioHook(logio_conn_id)
    store = Patience().call("opening the log", lambda: hook.get_store(create=create))
    try:
        yield store
    except (LogioError, AirflowException) as error:
        name_log(error, logio_conn_id)
        raise
    finally:
        store.dispose()


def identity(context: Mapping[str, Any]) -> tuple[str, str]:
    """(dag_id, run_id) of the DAG run that a task belongs to."""
    dag_run = context["dag_run"]
    return str(dag_run.dag_id), str(dag_run.run_id)


def map_index(context: Mapping[str, Any]) -> int:
    """Which instance of a mapped task the context is of; -1 if it is not mapped."""
    found = getattr(context["ti"], "map_index", -1)
    return -1 if found is None else int(found)


def task_key(context: Mapping[str, Any], task_id: str) -> str:
    """Names a task instance in the log, the same for all its attempts."""
    return json.dumps([*identity(context), task_id, map_index(context)])


def is_last_try(task_instance: Any) -> bool:
    """Whether Airflow does not try the task again by itself if this attempt fails."""
    return bool(task_instance.try_number > task_instance.max_tries)


def first_try(task_instance: Any, retries: int) -> int:
    """The number of the first attempt since the task was cleared last: a clear grants `retries` more, counted from the
    attempt before it."""
    return int(task_instance.max_tries) - retries + 1


def run_of(store: LogStore, pipeline: str, context: Mapping[str, Any], uid: str | None) -> Run:
    """The run of that uid, or else the newest run of this pipeline in this DAG run.

    Raises `UnknownRun`, which says what to do.
    """
    dag_id, run_id = identity(context)
    if uid:
        return store.find_run(uid)
    return run_in_dag(store, pipeline, dag_id, run_id)


def check_current(run: Run) -> None:
    """Raises AirflowFailException, which says what to do, if the run was given up for a fresh one."""
    if run.state is RunState.SUPERSEDED:
        raise AirflowFailException(superseded(run))


def work_left(store: LogStore, run: Run) -> list[str]:
    """What the run still has to do, in words; empty if it can finish. Raises `LogUnavailable`."""
    return states_of(store, run).left()


def run_in_dag(store: LogStore, pipeline: str, dag_id: str, dag_run_id: str | None) -> Run:
    """The newest run of a pipeline in a DAG, or in that DAG run of it. Raises `UnknownRun`, which says what to do."""
    if found := store.list_runs(pipeline=pipeline, dag_ids=[dag_id], dag_run_id=dag_run_id, limit=1):
        return check_whole(found[0])
    if dag_run_id is not None and (removed := removed_in_dag(store, pipeline, dag_id, dag_run_id)) is not None:
        raise RunRemoved(f"{said_of(removed)}. Clear the task that starts it, with downstream, to have another one")
    where = f"DAG {dag_id!r}" if dag_run_id is None else f"DAG run {dag_run_id!r} of {dag_id!r}"
    raise UnknownRun(
        f"the log has no run of pipeline {pipeline!r} for {where}: the task that starts it "
        "(LogioStartRunOperator) has to succeed first; clear it if it was skipped"
    )


def removed_in_dag(store: LogStore, pipeline: str, dag_id: str, dag_run_id: str) -> RemovedRun | None:
    """The last run that was removed of a pipeline in that DAG run."""
    found = store.removed_runs(pipeline=pipeline, dag_run_id=dag_run_id)
    return next((one for one in found if one.key.dag_id == dag_id), None)


def check_which_run(
    pipeline: str | None, run_uid: str | None, external_dag_id: str | None, external_dag_run_id: str | None
) -> None:
    """Check that a task names its run in exactly one way. Raises `ConfigurationError`."""
    if pipeline is None and run_uid is None:
        raise ConfigurationError("which run is meant? Give pipeline, or run_uid")
    if run_uid is not None and (external_dag_id or external_dag_run_id):
        raise ConfigurationError("run_uid names the run; leave out external_dag_id and external_dag_run_id")


def find_run(
    store: LogStore,
    context: Mapping[str, Any],
    pipeline: str | None,
    run_uid: str | None,
    external_dag_id: str | None,
    external_dag_run_id: str | None,
) -> Run:
    """The run that a task means (`check_which_run`); `pipeline` is ``module:attr``. Raises `UnknownRun`."""
    if run_uid is not None:
        return store.find_run(run_uid)
    assert pipeline is not None
    name = resolve(pipeline)[0].name
    if external_dag_id is None and external_dag_run_id is None:
        return run_of(store, name, context, None)
    return run_in_dag(store, name, external_dag_id or identity(context)[0], external_dag_run_id)

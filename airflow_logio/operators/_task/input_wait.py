"""The wait of `start_run` for the input of its run: deferred, before there is a run in the log, and without a JVM."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_logio import _compat
from airflow_logio.errors import LogioError, UnknownRun
from airflow_logio.launch.input_arrival import InputLook, Waiting, in_words, may_begin, waits
from airflow_logio.launch.start_run import given_to
from airflow_logio.launch.surroundings import machine_of_this_process
from airflow_logio.operators._task.run_lookup import identity, is_last_try, opened_log, run_in_dag
from airflow_logio.triggers.input_arrival import LOOK_SECONDS, LogioInputTrigger

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.dataflow.pipeline.days import PartitionKey
    from airflow_logio.operators.start_run import LogioStartRunOperator

NEXT_STEP = (
    "The retries of the task wait as long again. When the input is there, clear the task with those downstream; or give the "
    "source a longer wait"
)


def await_input(
    task: LogioStartRunOperator,
    context: Mapping[str, Any],
    pipeline: Pipeline,
    params: Mapping[str, Any],
    partition: PartitionKey | None,
    url_of: Callable[[str], str],
    since: str | None,
) -> None:
    """Return when the input of the run is there. Else defer the task, which comes back in the same try.

    `since` is when the first look of this try was, None for that one; `params` and `partition` are those of the run, and
    `url_of` gives the URL of a connection id. A run that resumes waits for nothing: it has noted what it reads.

    Raises `ConfigurationError` for input that is not there in time, and for what a run would be refused for.
    """
    if not waits(pipeline):
        return
    run_after = getattr(context["dag_run"], "run_after", None)
    own, checked = given_to(pipeline, params, task.connections, partition, run_after)
    began = datetime.now(UTC) if since is None else datetime.fromisoformat(since)
    is_resumed: bool | None = None
    while True:
        look = InputLook(own, checked, lambda name: url_of(task.connections[name]))
        try:
            waiting = look.waiting(began, datetime.now(UTC), NEXT_STEP)
            if waiting is None:
                look.check_rows()
        except LogioError:
            if resumes(task.logio_conn_id, context, pipeline.name):
                return
            raise
        if waiting is None:
            if since is not None or is_resumed is not None:
                waited = in_words((datetime.now(UTC) - began).total_seconds())
                task.log.info("The input is there, after %s", waited)
            return
        if since is None and is_resumed is None:
            is_resumed = resumes(task.logio_conn_id, context, pipeline.name)
            if is_resumed:
                return
        _wait(task, context, waiting)


def resumes(logio_conn_id: str, context: Mapping[str, Any], pipeline: str) -> bool:
    """Whether the log has a run of this DAG run that has not finished."""
    with opened_log(logio_conn_id, create=True) as store:
        found = None
        with suppress(UnknownRun):
            found = run_in_dag(store, pipeline, *identity(context))
        return not may_begin(found)


def _wait(task: LogioStartRunOperator, context: Mapping[str, Any], waiting: Waiting) -> None:
    places = waiting.places
    defer_until(
        task,
        context,
        str(waiting),
        waiting.since.timestamp(),
        waiting.until.timestamp(),
        None if places is None else [[place.kind, place.path] for place in places],
        {"since": waiting.since.isoformat()},
    )


def defer_until(
    task: LogioStartRunOperator,
    context: Mapping[str, Any],
    said: str,
    since: float,
    until: float,
    places: list[list[str]] | None,
    kwargs: Mapping[str, Any],
) -> None:
    """Defer the task until it is to look again, and resume it with `kwargs` then; where that is switched off, wait here.

    :param said: what the run waits for, in words: ``waits for ...``.
    :param since: when the wait has begun, in seconds since the epoch.
    :param until: when it looks again at the latest.
    :param places: as of `LogioInputTrigger`.
    """
    task.log.info("The run %s. There is no run and no driver yet", said)
    if not _compat.default_deferrable():
        time.sleep(max(0.0, min(LOOK_SECONDS, until - time.time())))
        return
    _compat.note_waiting(context["ti"], said)
    trigger = LogioInputTrigger(
        places=places,
        machine=machine_of_this_process(),
        since=since,
        until=until,
        last_try=is_last_try(context["ti"]),
    )
    task.defer(trigger=trigger, method_name="resume", kwargs=dict(kwargs))

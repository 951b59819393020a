"""A DAG run that task ``look_back`` of another one has made: what its conf says, and what it waits for.

Airflow gives such a DAG run no partition key: its client leaves the key out of the request (3.3). So its partition is in its
conf, beside what tells it from DAG runs of a schedule or a person.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError, UnknownRun
from airflow_logio.operators._task.input_wait import defer_until
from airflow_logio.operators._task.run_lookup import identity, opened_log, work_left
from airflow_logio.protocol.states import RunState
from airflow_logio.supervision.lookback import own_params

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.dataflow.pipeline.days import PartitionKey
    from airflow_logio.operators.start_run import LogioStartRunOperator
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run

CONF = "logio_lookback"
"""Where the conf of a DAG run has it."""
NO_CONF = "leave it out of the conf, and give the DAG run a partition key"
MOST_UNFINISHED = 50
"""Of one partition: there is one, but for those that earlier versions have let begin."""


@dataclass(frozen=True, slots=True)
class Lookback:
    """Why there is a DAG run: a run of `because_of` has finished, and has `partition` computed again."""

    pipeline: str
    partition: str
    because_of: str
    """The partition of the run that looked back."""
    run: str
    """The uid of that run."""
    replaces: str
    """The uid of the run whose parameters it has. The log has them: a conf may come from anywhere, and a DAG's author may
    have given the pipeline its parameters."""

    @property
    def dag_run_id(self) -> str:
        """One for each run that looks back: Airflow creates no second DAG run of a name."""
        return f"lookback__{self.partition}__{self.run}"

    def conf(self) -> dict[str, Any]:
        """What the DAG run gets."""
        return {CONF: asdict(self)}

    def check_pipeline(self, name: str) -> None:
        """Raises AirflowFailException for a task that starts a run of another pipeline: that one did not look back."""
        if name != self.pipeline:
            raise AirflowFailException(
                f"this DAG run computes {self.partition} of pipeline {self.pipeline!r} again, which has looked back; "
                f"pipeline {name!r} has not, and nothing of it is started. Put the two into DAGs of their own"
            )


def lookback_of(dag_run: Any) -> Lookback | None:
    """None for a DAG run that no look back has made. Raises `ConfigurationError` for what none has written."""
    conf = getattr(dag_run, "conf", None)
    said = conf.get(CONF) if isinstance(conf, Mapping) else None
    if said is None:
        return None
    names = {one.name for one in fields(Lookback)}
    if not isinstance(said, Mapping) or set(said) != names or not all(isinstance(one, str) for one in said.values()):
        raise ConfigurationError(
            f"the conf of the DAG run has {CONF!r}, which task look_back writes, in another form, {said!r}: {NO_CONF}"
        )
    return Lookback(**said)


def made_for(run: Run, before: Run) -> Lookback:
    """What is to be made when `run` has finished, so that the partition of `before` is computed again."""
    return Lookback(run.spec.key.pipeline, str(before.partition), str(run.partition), run.uid, before.uid)


def params_of(
    lookback: Lookback, task: LogioStartRunOperator, context: Mapping[str, Any], pipeline: Pipeline
) -> dict[str, Any]:
    """The parameters of the run that is replaced, as far as the pipeline declares them; those that this DAG run had before,
    if that is not in the log any more.

    Raises `UnknownRun`, and `ConfigurationError` for a run that this DAG run is not to replace.
    """
    dag_id, dag_run_id = identity(context)

    def find() -> Run:
        try:
            return store.find_run(lookback.replaces)
        except UnknownRun:
            own = store.list_runs(pipeline=pipeline.name, dag_ids=[dag_id], dag_run_id=dag_run_id, limit=1)
            if not own:
                raise
            return own[0]

    with opened_log(task.logio_conn_id) as store:
        before = store.patience.call("finding the run that is replaced", find)
    key = before.spec.key
    if (key.pipeline, key.dag_id, before.partition) != (pipeline.name, dag_id, lookback.partition):
        raise ConfigurationError(
            f"the conf of the DAG run says that it replaces run {before.uid[:8]}, which is of {before.partition} of pipeline "
            f"{key.pipeline!r} and DAG {key.dag_id!r}, and not of {lookback.partition} of this one: {NO_CONF}"
        )
    return own_params(before, pipeline.params)


def await_run_before(
    task: LogioStartRunOperator,
    context: Mapping[str, Any],
    pipeline: Pipeline,
    key: PartitionKey,
    since: str | None,
) -> None:
    """Return when Airflow runs no DAG run with an unfinished run of this partition, so also if there is one that nothing
    finishes: to begin beside it is refused, with what to do. Else defer the task.

    A DAG run that is queued is not waited for: where one may be active at a time, it may wait for this one.
    """
    began = datetime.now(UTC) if since is None else datetime.fromisoformat(since)
    while (before := _running(task, context, pipeline, key)) is not None:
        of = before.spec.key
        said = f"waits until run {before.uid[:8]} of {key.text}, in DAG run {of.dag_run_id}, has finished"
        later = time.time() + 3600.0
        defer_until(task, context, said, began.timestamp(), later, None, {"behind": began.isoformat()})


def _running(
    task: LogioStartRunOperator, context: Mapping[str, Any], pipeline: Pipeline, key: PartitionKey
) -> Run | None:
    """An unfinished run of the partition, of another DAG run of this DAG, which Airflow runs. None if this DAG run has one:
    that is resumed."""
    dag_id, dag_run_id = identity(context)
    with opened_log(task.logio_conn_id, create=True) as store:
        found = store.patience.call("looking for unfinished runs", lambda: _unfinished(store, pipeline.name, key.text))
    of_dag = [run for run in found if run.spec.key.dag_id == dag_id]
    if any(run.spec.key.dag_run_id == dag_run_id for run in of_dag):
        return None
    return next((run for run in of_dag if _compat.is_dag_run_running(dag_id, run.spec.key.dag_run_id)), None)


def _unfinished(store: LogStore, pipeline: str, partition: str) -> list[Run]:
    found = store.list_runs(pipeline=pipeline, partition=partition, state=RunState.RUNNING, limit=MOST_UNFINISHED)
    return [run for run in found if run.damage is None and work_left(store, run)]

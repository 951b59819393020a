"""Starting the run of a partition: which one it is, and that a clear of the task means *again* (`start_rules`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_logio import _compat
from airflow_logio.commands import with_log
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.days import PartitionKey
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.errors import ConfigurationError, RunRemoved, UnknownRun
from airflow_logio.hooks.connections import external_url
from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.operators._task.lookback_run import lookback_of
from airflow_logio.operators._task.pipeline_reference import launching_tasks
from airflow_logio.operators._task.run_lookup import (
    first_try,
    identity,
    opened_log,
    removed_in_dag,
    run_in_dag,
    work_left,
)
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.records.start_records import Attempt, Decision, Start
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.store.rules.run_rules import computed_already, digest_of
from airflow_logio.store.rules.start_rules import code_differs

if TYPE_CHECKING:
    from airflow_logio.operators.start_run import LogioStartRunOperator


def attempt_of(context: Mapping[str, Any], retries: int) -> Attempt:
    """The attempt of a task, as Airflow counts it. If its DAG has other `retries` than when Airflow cleared it, this one
    counts as the first."""
    task_instance, dag_run = context["ti"], context["dag_run"]
    number = int(task_instance.try_number)
    first = min(max(first_try(task_instance, retries), 1), number)
    began = None if dag_run.start_date is None else dag_run.start_date.timestamp()
    return Attempt(number, first, int(dag_run.clear_number or 0), began)


def partition_of(
    pipeline: Pipeline, dag_run: Any, former: Callable[[], PartitionKey | None] = lambda: None
) -> PartitionKey | None:
    """What a DAG run of a pipeline with partitions is for: its partition key, else its data interval. It is not guessed.

    One that has neither is for what it was for before: `former` knows, and is asked only then. One that a look back has made
    says it in its conf.
    Raises `ConfigurationError` if it has neither, or both and they are not the same partition.
    """
    if pipeline.partition is None:
        return None  # the schedule of a DAG may have keys that its pipeline needs not
    named = getattr(dag_run, "partition_key", None)
    begin, end = dag_run.data_interval_start, dag_run.data_interval_end
    has_interval = begin is not None and end is not None
    if (lookback := lookback_of(dag_run)) is not None:
        if named is not None or (has_interval and begin != end):
            raise ConfigurationError(
                f"the conf of the DAG run says that it looks back at {lookback.partition}, and it has a partition key or "
                "data interval of its own: leave one of the two out"
            )
        return pipeline.partition.key_of(lookback.partition)
    if named is None:
        if (begin is None or begin == end) and (found := former()) is not None:
            return found
        return pipeline.partition.of_interval(begin, end) if has_interval else None  # refused with the parameters
    if _is_of_utc(dag_run) and pipeline.partition.zone != "UTC" and not pipeline.partition.has_offset(named):
        raise ConfigurationError(
            f"Airflow names the partition {named!r} by the clock of UTC, as it does below 3.3, and the pipeline has one run "
            f"for each {pipeline.partition.what} of {pipeline.partition.zone}. Give the timetable keys with an offset, "
            "key_format='%Y-%m-%dT%H:%M%z', or intervals (CronDataIntervalTimetable), or upgrade Airflow"
        )
    key = pipeline.partition.key_of(named)
    if has_interval and begin != end and (other := pipeline.partition.of_interval(begin, end)) != key:
        raise ConfigurationError(
            f"the DAG run has the partition key {named!r}, which is {key.text} of {pipeline.partition.zone}, and a data "
            f"interval that is {other.text}: it can have one of the two"
        )
    at = getattr(dag_run, "partition_date", None)
    if pipeline.partition.is_of_clock(named) and at is not None and at != key.start:
        raise ConfigurationError(
            f"the DAG run has the partition key {named!r}, which the clock of {pipeline.partition.zone} shows at "
            f"{key.start.isoformat()}; its schedule means {at.isoformat()}. Give the timetable the zone of the pipeline, or "
            "keys with an offset: key_format='%Y-%m-%dT%H:%M%z'"
        )
    return key


def _is_of_utc(dag_run: Any) -> bool:
    """Whether a schedule of Airflow 3.2 may have named the partition. Later versions say what instant they mean by it."""
    by_hand = {"manual", _compat.BY_TASKS}
    kind = getattr(dag_run, "run_type", "manual")
    return not hasattr(dag_run, "partition_date") and str(getattr(kind, "value", kind)) not in by_hand


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """One attempt of the task that starts the run of a partition."""

    task: LogioStartRunOperator
    context: Mapping[str, Any]
    pipeline: Pipeline

    def check_followed(self) -> None:
        """Raises AirflowFailException if tasks behind this one, which launch groups, would not do so: a person has cleared
        this one alone. What Airflow raises if it does not answer is raised on."""
        launching = launching_tasks(self.task, self.task.pipeline)
        if launching:
            launching &= self.task.get_flat_relative_ids(upstream=False)
        if launching and (begun := _compat.begun_tasks(*identity(self.context), launching)):
            raise AirflowFailException(
                f"task {self.task.task_id!r} was cleared without the tasks that launch its groups: {', '.join(begun)}. "
                "Nothing was started, put back or given up. Clear it with downstream: then they launch what it starts"
            )

    def key(self) -> PartitionKey | None:
        """As `partition_of` says. Raises `ConfigurationError`."""
        return partition_of(self.pipeline, self.context["dag_run"], self._former)

    def _former(self) -> PartitionKey | None:
        """The partition that earlier attempts have started a run for: Airflow may have taken the DAG run's key away when it
        was cleared (`airflow partitions clear`)."""
        with opened_log(self.task.logio_conn_id, create=True) as store, suppress(UnknownRun):
            names = (self.pipeline.name, *identity(self.context))
            run: Run | RemovedRun | None
            try:
                run = store.patience.call("finding the run", lambda: run_in_dag(store, *names))
            except RunRemoved:
                run = store.patience.call("finding the run", lambda: removed_in_dag(store, *names))
            if run is not None and run.partition is not None and self.pipeline.partition is not None:
                return self.pipeline.partition.key_of(run.partition)
        return None

    def start(self, store: LogStore, spec: RunSpec, code: CodeBundle) -> Run:
        """The run that is begun, resumed or computed again, with what was quarantined put back. Raises as
        `LogStore.start_attempt` and `check_destinations`."""
        attempt = attempt_of(self.context, self.task.retries)
        start = store.patience.call(
            "starting the run",
            lambda: store.start_attempt(spec, attempt, concurrent=self.task.concurrent_runs, code=code.kept()),
        )
        if start.decision is Decision.AGAIN:
            self._say_again(store, start, spec)
        if start.decision is Decision.RESUMED:
            self._resume(store, start.run, code)
        if not start.is_new and not work_left(store, start.run):
            self.task.log.warning(with_log(computed_already(start.run), self.task.logio_conn_id))
        return start.run

    def _resume(self, store: LogStore, run: Run, code: CodeBundle) -> None:
        """As `logio retry` does. Repeated by every attempt that reads the decision: the first one may have died before. It
        finds nothing to put back then, or what living drivers have set aside since."""
        said = code_differs(run, _digests(store, run), code.digest)
        if said is not None:
            self.task.log.warning(with_log(said, self.task.logio_conn_id))
        from airflow_logio.supervision.retry import check_days, check_destinations  # with what writes to lakes

        resumed = ResumedRun(store, run, self.pipeline, _urls_of_writers(self.pipeline, run))
        aside = {one.operator for one in store.quarantined(run.run_id)}
        check_destinations(resumed, aside)
        check_days(resumed, run.spec.groups)
        if aside:
            retried = store.patience.call("putting Input Sets back", lambda: store.retry_quarantined(run.run_id))
            self.task.log.info("%d quarantined Input Set(s) are put back", len(retried.input_sets))

    def _say_again(self, store: LogStore, start: Start, spec: RunSpec) -> None:
        try:
            before = store.find_run(str(start.replaced))
            digests = _digests(store, before)
        except UnknownRun as gone:
            self.task.log.info("%s is computed again, as run %s. %s", start.run.partition, start.run.uid, gone)
        else:
            run = start.run
            which = f"another than before ({', '.join(sorted(map(str, digests)))})"
            if run.spec.code_digest in digests:
                which = (
                    "the same as before. Airflow gives a cleared task the code of its DAG run's own version, unless you "
                    "clear with *Run with latest bundle version*"
                )
            self.task.log.info(
                "%s is computed again, as run %s, in the place of %s (%s): its code is %s, %s",
                run.partition,
                run.uid,
                before.uid,
                before.because or "it was given up",
                run.spec.code_digest,
                which,
            )
            from airflow_logio.supervision.stop_run import computed_from

            if (readers := computed_from(store, before.uid)) is not None:
                self.task.log.warning(readers)
            if (given := _given(spec)) != (given_before := _given(before.spec)):
                self.task.log.info("Its parameters and connections are %s; before, they were %s", given, given_before)


@dataclass(frozen=True, slots=True)
class ResumedRun:
    """As `supervision.retry.Resumed`."""

    store: LogStore
    run: Run
    pipeline: Pipeline
    connections: Mapping[str, str]


def _urls_of_writers(pipeline: Pipeline, run: Run) -> dict[str, str]:
    writers = [one for one in pipeline.operators.values() if isinstance(one, OwningWriter)]
    return {one.connection: external_url(run.spec.connections[one.connection]) for one in writers}


def _given(spec: RunSpec) -> dict[str, Any]:
    return {**spec.params, **spec.connections}


def _digests(store: LogStore, run: Run) -> set[str | None]:
    """The codes that the groups of a run get, or had when it was given up."""
    groups, changes = store.groups(run.run_id), store.code_changes(run.run_id)
    return {digest_of(run, changes, one.code) for one in groups}

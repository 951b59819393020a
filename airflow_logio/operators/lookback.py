"""`LogioLookbackOperator`: has the partitions before computed again, because their late rows are there now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, BaseOperator

from airflow_logio import _compat
from airflow_logio.commands import with_log
from airflow_logio.dataflow.writers.run_shapes import writer_shapes
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import known_at_parse, reference, resolve
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.protocol.run_writers import Repeats
from airflow_logio.protocol.states import RunState
from airflow_logio.task_arguments import with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.dataflow.pipeline.days import PartitionKey
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.run_records import Run
    from airflow_logio.supervision.lookback import Left


@with_told_arguments
class LogioLookbackOperator(BaseOperator):
    """Have the partitions before that of a finished run computed again, once, each in a DAG run of its own of the same DAG.

    It creates the DAG runs and waits for none. A DAG run's name has the uid of the run that looks back, so a retry, a clear
    of this task alone, and a request that is repeated create no second one. If the partition itself is computed again, its
    new run looks back again. A DAG run that was created so looks no further back.

    It has the parameters of the run that it replaces, and begins when that has finished. A partition is left alone, with a
    sentence, if it has no run in the log, if its newest run was given up or is not of this DAG, or if rows would be there
    twice. If all of them are left alone, or the run has quarantined Input Sets, the task is skipped.

    :param pipeline: a `Pipeline` with a partition, or its location: ``"module:attr"``.
    :param lookback: how many partitions before.
    :param run_uid: uid of the run that has finished (templated); by default the run that this DAG run has of the pipeline.
    :param with_dag_params: whether the pipeline takes its parameters from the DAG's ``params`` of the same names: then the
        DAG run has those of the run that it replaces, and its other tasks see them, too.
    :param logio_conn_id: the connection of the log.

    Raises `PipelineDefinitionError` while the DAG is parsed.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid",)
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        lookback: int = 1,
        run_uid: str | None = None,
        with_dag_params: bool = True,
        logio_conn_id: str = LogioHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if checked_lookback(lookback) == 0:
            raise PipelineDefinitionError(f"task {self.task_id!r}: lookback is 0; leave the task out, or give 1")
        known = known_at_parse(pipeline)
        if known is not None:
            check_can_look_back(known)
        if self.has_dag() and not _compat.may_be_triggered_by_tasks(self.dag):
            raise PipelineDefinitionError(
                f"task {self.task_id!r} creates DAG runs of {self.dag.dag_id!r}, whose allowed_run_types do not allow that: "
                "add DagRunType.OPERATOR_TRIGGERED to them"
            )
        self.pipeline = reference(pipeline)
        self.lookback = lookback
        self.run_uid = run_uid
        self.with_dag_params = with_dag_params
        self.logio_conn_id = logio_conn_id

    def execute(self, context: Mapping[str, Any]) -> list[str]:
        """Create the DAG runs, and return their names. Raises `UnknownRun`, AirflowException if the run is not finished,
        `ConfigurationError` if Airflow refuses, AirflowSkipException."""
        from airflow_logio.operators._task.lookback_run import lookback_of, made_for
        from airflow_logio.operators._task.run_lookup import identity, opened_log
        from airflow_logio.supervision.lookback import Left, own_params

        made = lookback_of(context["dag_run"])
        if made is not None:
            raise AirflowSkipException(
                f"this DAG run is itself a look back, because {made.because_of} has finished, and looks no further back"
            )
        pipeline, _ = resolve(self.pipeline)
        dag_id, _ = identity(context)
        with opened_log(self.logio_conn_id) as store:
            run = store.patience.call("finding the run", lambda: self._finished(store, pipeline.name, context))
            keys = _before(pipeline, run, self.lookback)
            found = store.patience.call("looking back", lambda: [_newest(store, run, key, dag_id) for key in keys])
        created, left = [], []
        for key, before in zip(keys, found, strict=True):
            if isinstance(before, Left):
                left.append(with_log(before.why, self.logio_conn_id))
                self.log.warning("%s", left[-1])
                continue
            again = made_for(run, before)
            conf = {**(own_params(before, pipeline.params) if self.with_dag_params else {}), **again.conf()}
            is_new = _compat.create_dag_run(dag_id, again.dag_run_id, conf)
            said = "is created" if is_new else "was created before"
            self.log.info("%s is computed again by DAG run %s, which %s", key.text, again.dag_run_id, said)
            created.append(again.dag_run_id)
        if not created:
            raise AirflowSkipException("; ".join(left))
        return created

    def _finished(self, store: LogStore, pipeline: str, context: Mapping[str, Any]) -> Run:
        from airflow_logio.operators._task.run_lookup import check_current, run_of, work_left

        run = run_of(store, pipeline, context, self.run_uid)
        check_current(run)
        if left := work_left(store, run):
            raise AirflowException(f"run {run.spec.key} is not finished: {', '.join(left)}")
        if aside := len(store.quarantined(run.run_id)):
            raise AirflowSkipException(
                f"run {run.spec.key} is incomplete: {aside} Input Set(s) are in quarantine. It does not look back; when they "
                "are done, clear this task"
            )
        return run


def checked_lookback(given: object) -> int:
    """How many partitions before. Raises `PipelineDefinitionError`."""
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise PipelineDefinitionError(f"lookback is {given!r}; give a number of partitions before, such as 1, or 0")
    return given


def check_can_look_back(pipeline: Pipeline) -> None:
    """Raises `PipelineDefinitionError` for a pipeline that no partition is computed again of."""
    if pipeline.partition is None:
        raise PipelineDefinitionError(
            f"pipeline {pipeline.name!r} has no partition, so there is none before, and lookback computes nothing again: "
            'Pipeline(..., partition=Days("day"))'
        )
    shapes = writer_shapes(
        {base_operator(name): operator for name, operator in pipeline.operators.items()},
        {name: name for name in pipeline.connections},
        pipeline.partition.names,
    )
    if added := [one.writer for one in shapes if one.repeats is not Repeats.REPLACED]:
        raise PipelineDefinitionError(
            f"pipeline {pipeline.name!r}: when a partition is computed again, what {', '.join(added)} has written would stay "
            "beside what the new run writes, so lookback would never do it: let its writers own the partition, "
            'on_new_run="overwrite", by=..., or "supersede"'
        )


def _before(pipeline: Pipeline, run: Run, number: int) -> list[PartitionKey]:
    """The partitions before that of a run, the nearest first."""
    assert pipeline.partition is not None and run.partition is not None, run
    keys = [pipeline.partition.key_of(run.partition)]
    for _ in range(number):
        keys.append(pipeline.partition.preceding(keys[-1]))
    return keys[1:]


def _newest(store: LogStore, run: Run, key: PartitionKey, dag_id: str) -> Run | Left:
    """The run of a partition that is to be computed again."""
    from airflow_logio.supervision.lookback import Left, left_alone

    pipeline = run.spec.key.pipeline
    runs = store.list_runs(pipeline=pipeline, partition=key.text, limit=1)
    removed = store.removed_runs(pipeline=pipeline, partitions=(key.text, key.text), limit=1)
    if not runs and not removed:
        return Left(f"no run of {key.text} is there, so none is computed again")
    if not runs or runs[0].state is RunState.REMOVING:
        uid = (runs or removed)[0].uid[:8]
        why: str | None = (
            f"its run {uid} was removed from the log, with its parameters. A DAG run with that partition key computes it "
            "again"
        )
    else:
        why = runs[0].damage or left_alone(runs[0], dag_id)
    return runs[0] if why is None else Left(f"{key.text} is not computed again: {why}")

"""`LogioStartRunOperator`: the first task of a pipeline's DAG run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_logio import _compat
from airflow_logio.commands import with_log
from airflow_logio.dataflow.parameters import needed_param, unknown_param
from airflow_logio.dataflow.unavailability import check_replay_seconds
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import check_connections, known_at_parse, reference, resolve
from airflow_logio.protocol.liveness import RecoveryBudget, lease_of
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import ConcurrentRuns, Run, RunSpec, Supervision
from airflow_logio.task_arguments import mapping_of, with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.launch.code_bundle import CodeBundle
    from airflow_logio.operators._task.partition_start import PartitionStart
    from airflow_logio.store.port import LogStore

SUPERVISE, RECOVERY_DAG = "supervise", "dag"


def supervision_of(recovery: str) -> Supervision:
    """What recovers failed groups, from the word that a DAG author writes. Raises `PipelineDefinitionError`."""
    known = {SUPERVISE: Supervision.TASK, RECOVERY_DAG: Supervision.DAG}
    if recovery not in known:
        raise PipelineDefinitionError(
            f'recovery is {recovery!r}; give "supervise" (a task of the same DAG run recovers failed groups) or "dag" (a '
            "recovery DAG does, as `build_recovery_dag` makes it)"
        )
    return known[recovery]


def recovery_budget_of(given: RecoveryBudget | None) -> RecoveryBudget:
    """The given budget, or the default. Raises `ConfigurationError`."""
    if given is not None and not isinstance(given, RecoveryBudget):
        raise ConfigurationError(
            f"recovery_budget is {given!r}; give airflow_logio.protocol.liveness.RecoveryBudget(recoveries=..., "
            "window_seconds=...)"
        )
    return given or RecoveryBudget()


DERIVED = "derived"


def concurrent_runs_of(said: str) -> ConcurrentRuns:
    """When a run may begin beside others of its pipeline, from the word of a DAG's author. Raises
    `PipelineDefinitionError`."""
    if said not in set(ConcurrentRuns):
        raise PipelineDefinitionError(
            f'concurrent_runs is {said!r}; give "derived" (a run begins if its writers and those of the unfinished ones do '
            'not get in each other\'s way), "refuse" (only when the others of its pipeline have finished) or "isolated" '
            "(runs have nothing in common, and may run side by side)"
        )
    return ConcurrentRuns(said)


def _is_mapped(task_id: str) -> PipelineDefinitionError:
    return PipelineDefinitionError(
        f"task {task_id!r} is mapped, and a DAG run has one run of each pipeline: all its instances would share the first "
        "one's. Trigger a DAG run for each set of parameters (map a TriggerDagRunOperator)"
    )


@with_told_arguments
class LogioStartRunOperator(BaseOperator):
    """Get or create the run of this DAG run in the log, and return its uid.

    This is an ordinary task, not a setup task: clearing a task also clears its setups, and that must not start anything
    over. A retry finds the existing run, and so does a clear, unless the pipeline has a partition: then a clear of a run
    that has finished, with downstream, computes it again, with the code that Airflow gives the task, if its writers replace
    what they have written. A clear of an unfinished one resumes it, and puts quarantined Input Sets back; it begins anew if
    it was stuck and the code is another. A run keeps the parameters and connections that it was created with. Otherwise a
    fresh run starts only if a person has given the old one up (`LogioFreshRunOperator`, `logio fresh`, `logio again`). In an
    empty log database, this task creates the tables.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``.
    :param connections: the pipeline's connection names → Airflow connection ids (templated).
    :param pipeline_params: the pipeline's parameters (templated). By default the DAG run's ``params`` of the same names,
        which the DAG has to declare.
    :param recovery: what recovers failed groups: ``"supervise"``, a task of this DAG run, or ``"dag"``, a recovery DAG.
    :param concurrent_runs: ``"derived"``: beside an unfinished run of the pipeline, even a halted or parked one, this one
        begins only if their writers do not get in each other's way: all append, or each owns a partition of its own.
        Otherwise the task fails and starts nothing; its retries try again. ``"refuse"``: it fails beside any unfinished
        run. ``"isolated"``: the author declares that runs have nothing in common.
    :param logio_conn_id: the connection of the log.
    :param replay_seconds: how long to wait for an unavailable external system before its group is parked; by default
        15 minutes. A writer's own ``replay_seconds`` takes precedence.
    :param lease_seconds: a driver without a heartbeat for this long is dead; by default 10, at least 2. If the end of its
        process can be seen, recovery does not wait for the lease.
    :param launch_seconds: a driver that does not register within this time after its launch is dead; by default 120.
    :param recovery_budget: how often, within which time, a group may be recovered before it is parked; by default
        ``RecoveryBudget(recoveries=5, window_seconds=600)``.
    """

    template_fields: ClassVar[Sequence[str]] = ("pipeline_params", "connections")
    ui_color = "#e4f0e8"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        connections: Mapping[str, str] | None = None,
        pipeline_params: Mapping[str, Any] | None = None,
        recovery: str = SUPERVISE,
        concurrent_runs: str = DERIVED,
        logio_conn_id: str = LogioHook.default_conn_name,
        replay_seconds: float | None = None,
        lease_seconds: float | None = None,
        launch_seconds: float | None = None,
        recovery_budget: RecoveryBudget | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if _compat.is_in_mapped_group(self):
            raise _is_mapped(self.task_id)
        self.supervision = supervision_of(recovery)
        self.concurrent_runs = concurrent_runs_of(concurrent_runs)
        self.pipeline = reference(pipeline)
        self.connections = mapping_of("connections", connections)
        self.pipeline_params = None if pipeline_params is None else mapping_of("pipeline_params", pipeline_params)
        self.logio_conn_id = logio_conn_id
        check_replay_seconds(replay_seconds)
        self.replay_seconds = replay_seconds
        self.lease = lease_of(lease_seconds, launch_seconds)
        self.budget = recovery_budget_of(recovery_budget)
        known = known_at_parse(pipeline)
        check_connections(known, self.connections)
        if known is not None:
            self._check_param_names(known)

    @classmethod
    def partial(cls, *, task_id: str, **_: Any) -> NoReturn:
        """Refused, with `PipelineDefinitionError`: a DAG run has one run of each pipeline."""
        raise _is_mapped(task_id)

    def execute(self, context: Mapping[str, Any]) -> str:
        """As `resume`, for the first segment of a try."""
        return self.resume(context)

    def resume(
        self,
        context: Mapping[str, Any],
        event: Mapping[str, Any] | None = None,
        since: str | None = None,
        behind: str | None = None,
    ) -> str:
        """Start the run, or defer until its input is there; `since` is when this try has begun to wait for it, and `behind`
        when one that looks back has begun to wait for the run that it replaces.

        Raises `ConfigurationError` for a wrong parameter, and for tables in a database that is neither PostgreSQL nor
        SQLite, or a bucket that cannot be published into, `IncompatibleRun` for a changed pipeline.

        Raises `OtherRunUnfinished`, which says what to do.
        """
        from airflow_logio.hooks.connections import database_url, external_url
        from airflow_logio.launch.code_bundle import collect
        from airflow_logio.launch.days_read import with_days_read
        from airflow_logio.launch.start_run import (
            check_beside_log,
            check_published_places,
            check_table_databases,
            run_spec,
        )
        from airflow_logio.operators._task.input_wait import await_input, resumes
        from airflow_logio.operators._task.lookback_run import await_run_before, lookback_of, params_of
        from airflow_logio.operators._task.run_lookup import identity, opened_log

        pipeline, ref = resolve(self.pipeline)
        lookback = lookback_of(context["dag_run"])
        if lookback is not None:
            lookback.check_pipeline(pipeline.name)
        of_partition = self._of_partition(context, pipeline)
        params, partition = self._given(pipeline, context), None if of_partition is None else of_partition.key()
        if lookback is not None:
            params |= params_of(lookback, self, context, pipeline)
            if partition is not None and since is None:
                await_run_before(self, context, pipeline, partition, behind)
        await_input(self, context, pipeline, params, partition, external_url, since)
        code = collect(ref)
        dag_id, run_id = identity(context)
        spec = run_spec(
            pipeline,
            ref,
            dag_id=dag_id,
            dag_run_id=run_id,
            params=params,
            partition=partition,
            run_after=getattr(context["dag_run"], "run_after", None),
            connections=self.connections,
            replay_seconds=self.replay_seconds,
            lease=self.lease,
            budget=self.budget,
            payloads=LogioHook(self.logio_conn_id).get_payloads(),
            supervision=self.supervision,
            code=code,
        )
        check_table_databases(pipeline, lambda name: database_url(spec.connections[name]))
        check_published_places(pipeline, lambda name: external_url(spec.connections[name]))
        log_url = LogioHook(self.logio_conn_id).get_url()
        check_beside_log(pipeline, lambda name: external_url(spec.connections[name]), log_url)
        with opened_log(self.logio_conn_id, create=True) as store:
            spec = with_days_read(
                pipeline,
                spec,
                lambda name: database_url(spec.connections[name]),
                lambda: resumes(self.logio_conn_id, context, pipeline.name),
            )
            run = (of_partition.start if of_partition is not None else self._get_or_create)(store, spec, code)
        if _settings(run.spec) != _settings(spec):
            self.log.warning(
                "The run exists and keeps what it was created with: parameters %s, connections %s, replay seconds %g, %s, %s",
                *_settings(run.spec),
            )
        self.log.info(
            "Run %s of pipeline %s, run id %d, uid %s, digest of its code %s",
            run_id,
            pipeline.name,
            run.run_id,
            run.uid,
            run.spec.code_digest,
        )
        return run.uid

    def _of_partition(self, context: Mapping[str, Any], pipeline: Pipeline) -> PartitionStart | None:
        if pipeline.partition is None:
            return None
        from airflow_logio.operators._task.partition_start import PartitionStart

        made = PartitionStart(self, context, pipeline)
        made.check_followed()
        return made

    def _get_or_create(self, store: LogStore, spec: RunSpec, code: CodeBundle) -> Run:
        from airflow_logio.store.rules.run_rules import computed_already

        run = store.patience.call(
            "starting the run",
            lambda: store.start_run(spec, concurrent=self.concurrent_runs, code=code.kept()),
        )
        if run.state in (RunState.FINISHED, RunState.QUARANTINED):
            self.log.warning(with_log(computed_already(run), self.logio_conn_id))
        if run.spec.code_digest not in (None, code.digest):
            self.log.warning(
                "The code of pipeline %s has changed since the run was created, and the run keeps its own. To take the new "
                "code for a group, clear its task",
                spec.key.pipeline,
            )
        return run

    def _check_param_names(self, pipeline: Pipeline) -> None:
        """What is wrong whatever the values are, while the DAG is parsed. Raises `PipelineDefinitionError`."""
        if self.pipeline_params is None and not self.has_dag():
            return
        given = self.params if self.pipeline_params is None else self.pipeline_params
        for name in self.pipeline_params or ():
            if name not in pipeline.params:
                raise PipelineDefinitionError(unknown_param(pipeline.name, pipeline.params, name))
        for name in pipeline.params:
            if name in given:
                continue
            said = needed_param(pipeline.name, pipeline.params, name)
            if self.pipeline_params is None:
                said += (
                    f": DAG {self.dag.dag_id!r} has no param of that name. Declare it, params={{{name!r}: Param(...)}}, or "
                    f"give it to the task group, LogioPipelineGroup(params={{{name!r}: ...}})"
                )
            raise PipelineDefinitionError(said)

    def _given(self, pipeline: Pipeline, context: Mapping[str, Any]) -> dict[str, Any]:
        if self.pipeline_params is not None:
            return dict(self.pipeline_params)
        params = context["params"]
        return {name: params[name] for name in pipeline.params if name in params}


def _settings(spec: RunSpec) -> tuple[object, ...]:
    return (spec.params, spec.connections, spec.replay_seconds, spec.lease, spec.budget)

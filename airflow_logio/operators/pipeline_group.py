"""`LogioPipelineGroup`: the tasks of a whole pipeline, as a task group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import TaskGroup
from airflow.sdk import Asset

from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.pipeline_reference import check_connections, imported, reference
from airflow_logio.operators.assets import LogioAssetsOperator
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.lookback import LogioLookbackOperator, check_can_look_back, checked_lookback
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import DERIVED, SUPERVISE, LogioStartRunOperator, supervision_of
from airflow_logio.operators.supervise import MANY, SOON, LogioSuperviseOperator, is_beside_groups
from airflow_logio.store.records.run_records import Supervision
from airflow_logio.task_arguments import mapping_of, with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.operators._task.callbacks import Callbacks
    from airflow_logio.protocol.liveness import RecoveryBudget

START, FINISH, ASSETS, NOTIFY, LOOK_BACK = "start_run", "finish_run", "assets", "notify", "look_back"
PER_REPLICA = "task_per_replica"
"""In `groups`: whether each replica of a group has a task, and so a place, of its own."""
AT_ONCE: Mapping[str, Any] = {"retries": MANY, "retry_delay": SOON, "retry_exponential_backoff": 0}
"""Settings of task `supervise`; they override the DAG's ``default_args``, since no group is recovered until it is back."""


@with_told_arguments
class LogioPipelineGroup(TaskGroup):
    """``start_run >> [one task per operator group] >> finish_run``, and task ``supervise``, which begins with the groups.

    The groups run side by side: the log connects them, not the order of tasks. Task ``supervise`` finds failed groups and
    recovers them. Without it (``recovery="dag"``), a recovery DAG must do so. It lies behind ``start_run`` and the groups,
    with trigger rule ``one_success``: so it begins when the run has started, and whatever clears a group with the tasks
    behind it clears ``supervise`` as well. What is behind the task group waits for ``finish_run`` (and ``assets``) only.

    Task ``supervise`` also calls the callbacks; without it, task ``notify`` does, if there are any. Each is a function of the
    context, a notifier, or a list of them, and ``context["notice"]`` says what has occurred (docs/how-to/recover.md).

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``.
    :param logio_conn_id: the connection of the log.
    :param conn_id: connection of type ``spark`` or ``spark_connect``; None means drivers with master ``local[1]``.
    :param connections: the pipeline's connection names → Airflow connection ids (templated).
    :param params: the pipeline's parameters (templated); by default the DAG's ``params`` of the same names.
    :param spark: arguments of `LogioSparkOperator` for every group, e.g. ``{"driver_memory": "1g"}``.
    :param groups: group name → arguments of `LogioSparkOperator` for that group; they override `spark`. With
        ``"task_per_replica": True``, a replicated group has a task for each replica that it may have: ``hourly_1``,
        ``hourly_2``, ...
    :param replay_seconds: how long to wait for an unavailable external system before its group is parked; by default
        15 minutes.
    :param lease_seconds: a driver without a heartbeat for this long is dead; by default 10.
    :param launch_seconds: a driver that does not register within this time after its launch is dead; by default 120.
    :param recovery_budget: a `RecoveryBudget`: how often, within which time, a group may be recovered before it is parked.
    :param recovery: ``"supervise"``, or ``"dag"`` for a pipeline whose groups a recovery DAG recovers.
    :param concurrent_runs: ``"derived"``, ``"refuse"`` or ``"isolated"``: whether a run begins beside an unfinished one (see
        `LogioStartRunOperator`).
    :param on_recovery_callback: called after a group was relaunched, or parked by task ``supervise``.
    :param on_parked_callback: called after a group was parked, whatever parked it.
    :param on_halted_callback: called after a group was halted.
    :param on_quarantine_callback: called after Input Sets were set aside; of each group at most every ten minutes.
    :param on_scaling_callback: called after a request to scale a group was carried out or refused.
    :param on_budget_callback: called after a recovery that nearly spends the group's budget.
    :param on_queued_callback: called when a driver has waited for room on its cluster for `launch_seconds`, then each time
        that this has doubled.
    :param assets: True, or writer → asset or URI: an Airflow asset event for each table and dataset when the run has finished
        (`LogioAssetsOperator`), by a last task ``assets``.
    :param assets_with_quarantine: also when it has finished with quarantine, and ``finish_run`` fails.
    :param lookback: how many partitions before its own a run has computed again when it has finished, because their late rows
        are there then: by a last task ``look_back``, in a DAG run of its own for each (`LogioLookbackOperator`).
    :param group_id: by default the pipeline's name.

    Further arguments are passed to TaskGroup. Raises `PipelineDefinitionError` or `ConfigurationError` while the DAG is
    parsed.
    """

    def __init__(
        self,
        pipeline: Pipeline | str,
        *,
        logio_conn_id: str = LogioHook.default_conn_name,
        conn_id: str | None = "spark_default",
        connections: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        spark: Mapping[str, Any] | None = None,
        groups: Mapping[str, Mapping[str, Any]] | None = None,
        replay_seconds: float | None = None,
        lease_seconds: float | None = None,
        launch_seconds: float | None = None,
        recovery_budget: RecoveryBudget | None = None,
        recovery: str = SUPERVISE,
        concurrent_runs: str = DERIVED,
        on_recovery_callback: Callbacks = None,
        on_parked_callback: Callbacks = None,
        on_halted_callback: Callbacks = None,
        on_quarantine_callback: Callbacks = None,
        on_scaling_callback: Callbacks = None,
        on_budget_callback: Callbacks = None,
        on_queued_callback: Callbacks = None,
        assets: bool | Mapping[str, str | Asset] = False,
        assets_with_quarantine: bool = False,
        lookback: int = 0,
        group_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        supervised = supervision_of(recovery) is Supervision.TASK
        text = reference(pipeline)
        known = imported(pipeline)
        callbacks: dict[str, Any] = {
            "on_recovery_callback": on_recovery_callback,
            "on_parked_callback": on_parked_callback,
            "on_halted_callback": on_halted_callback,
            "on_quarantine_callback": on_quarantine_callback,
            "on_scaling_callback": on_scaling_callback,
            "on_budget_callback": on_budget_callback,
            "on_queued_callback": on_queued_callback,
        }
        notifies = not supervised and any(callbacks.values())
        if checked_lookback(lookback):
            check_can_look_back(known)
        optional = ((ASSETS, assets), (NOTIFY, notifies), (LOOK_BACK, lookback))
        reserved = [START, FINISH, SUPERVISE, *(name for name, is_there in optional if is_there)]
        of_groups = {name: mapping_of(f"groups[{name!r}]", one) for name, one in mapping_of("groups", groups).items()}
        of_all = mapping_of("spark", spark)
        if params is not None:
            params = mapping_of("params", params)
        check_connections(known, mapping_of("connections", connections))
        _check_names(known, of_groups, reserved)
        super().__init__(group_id=group_id or known.name, **kwargs)
        with self:
            start = LogioStartRunOperator(
                task_id=START,
                pipeline=text,
                connections=connections,
                pipeline_params=params,
                recovery=recovery,
                concurrent_runs=concurrent_runs,
                logio_conn_id=logio_conn_id,
                replay_seconds=replay_seconds,
                lease_seconds=lease_seconds,
                launch_seconds=launch_seconds,
                recovery_budget=recovery_budget,
            )
            _check_only_start(start)
            supervisor: LogioSuperviseOperator | None = None
            if supervised or notifies:
                supervisor = LogioSuperviseOperator(
                    task_id=SUPERVISE if supervised else NOTIFY,
                    pipeline=text,
                    run_uid=start.output,
                    logio_conn_id=logio_conn_id,
                    recover=supervised,
                    **callbacks,
                    **AT_ONCE,
                )
                start >> supervisor
            finish = LogioFinishRunOperator(
                task_id=FINISH, pipeline=text, run_uid=start.output, logio_conn_id=logio_conn_id
            )
            tasks = []
            for name in known.groups:
                arguments = {"conn_id": conn_id, **of_all, **of_groups.get(name, {})}
                for task_id, replica in _tasks_of(known, name, each=arguments.pop(PER_REPLICA, False)):
                    task = LogioSparkOperator(
                        task_id=task_id,
                        pipeline=text,
                        group=name,
                        replica=replica,
                        run_uid=start.output,
                        logio_conn_id=logio_conn_id,
                        **arguments,
                    )
                    start >> task >> finish
                    tasks.append(task)
            if supervisor is not None and not is_beside_groups(start.dag):
                tasks >> supervisor
            last = [finish]
            if assets:
                told = LogioAssetsOperator(
                    task_id=ASSETS,
                    pipeline=pipeline,
                    connections=connections or {},
                    assets=None if assets is True else assets,
                    run_uid=start.output,
                    logio_conn_id=logio_conn_id,
                    with_quarantine=assets_with_quarantine,
                )
                # With quarantine `finish_run` fails, and stays a leaf: the DAG run must not be green.
                (tasks if assets_with_quarantine else finish) >> told
                last.append(told)
            if lookback:
                last >> LogioLookbackOperator(
                    task_id=LOOK_BACK,
                    pipeline=text,
                    lookback=lookback,
                    run_uid=start.output,
                    with_dag_params=params is None,
                    logio_conn_id=logio_conn_id,
                )
            _check_looks_back_alone(start)

    def __iter__(self) -> Iterator[Any]:
        """Its tasks, without those that say nothing of the data: the supervisor, which ends later, and what looks back, which
        may be skipped. Airflow looks here for the tasks that ``group >> next`` waits for, also for a group around this one.
        """
        return (
            task for task in super().__iter__() if not isinstance(task, LogioSuperviseOperator | LogioLookbackOperator)
        )


def _tasks_of(pipeline: Pipeline, group: str, *, each: bool) -> list[tuple[str, int | None]]:
    """(task id, number of the replica): one task for the group, or one for `each` replica that it may have."""
    if not each:
        return [(group, None)]
    if group not in pipeline.replicated:
        raise PipelineDefinitionError(
            f"pipeline {pipeline.name!r}: {PER_REPLICA} is for replicated groups, and group {group!r} is not replicated; its "
            f"replicated groups are {list(pipeline.replicated)}"
        )
    return [(f"{group}_{number}", number) for number, _ in enumerate(pipeline.replicated[group].replicas, start=1)]


def _check_only_start(start: LogioStartRunOperator) -> None:
    """A DAG run has one run of a pipeline: the start of a second one would find the first, whatever its parameters."""
    for other in start.dag.tasks:
        if isinstance(other, LogioStartRunOperator) and other is not start and other.pipeline == start.pipeline:
            raise PipelineDefinitionError(
                f"tasks {other.task_id!r} and {start.task_id!r} of DAG {start.dag.dag_id!r} start a run of the same "
                f"pipeline, {start.pipeline!r}, and a DAG run has one run of each pipeline: put them into two DAGs, "
                "or define the pipeline twice, under two names"
            )


def _check_looks_back_alone(start: LogioStartRunOperator) -> None:
    """A look back is a DAG run of the whole DAG, and would compute other pipelines again as well, for which it has no
    partition."""
    starts = [one for one in start.dag.tasks if isinstance(one, LogioStartRunOperator)]
    looks_back = any(isinstance(one, LogioLookbackOperator) for one in start.dag.tasks)
    if looks_back and len(starts) > 1:
        raise PipelineDefinitionError(
            f"DAG {start.dag.dag_id!r} has several pipelines, {', '.join(one.pipeline for one in starts)}, and one with "
            "lookback: it creates DAG runs in which the others would be computed again, too. Put them into DAGs of their own"
        )


def _check_names(pipeline: Pipeline, groups: Mapping[str, Any], reserved: Sequence[str]) -> None:
    if unknown := [name for name in groups if name not in pipeline.groups]:
        raise PipelineDefinitionError(pipeline.no_group(*unknown))
    if taken := [name for name in reserved if name in pipeline.groups]:
        raise PipelineDefinitionError(
            f"pipeline {pipeline.name!r}: LogioPipelineGroup needs the task id {taken[0]!r} for itself; rename that group"
        )

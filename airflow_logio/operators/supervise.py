"""`LogioSuperviseOperator`: supervises one run from its own DAG run, and recovers the groups that fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator

from airflow_logio import _compat
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.callbacks import Callbacks, as_callbacks
from airflow_logio.operators._task.pipeline_reference import reference
from airflow_logio.task_arguments import with_told_arguments

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.launch.launcher import Launcher

MANY = 100
"""The task may be woken for as long as its run lasts. If it wakes before its worker has reported the deferral, which takes up
to five seconds, Airflow counts it as failed. The retry continues from the log, but such retries add up."""


SOON = timedelta(seconds=5)


@with_told_arguments
class LogioSuperviseOperator(BaseOperator):
    """Wait for failed groups of a run and recover them, until all its groups have ended. The run is that of this DAG run.

    It waits in the triggerer and holds no worker slot, unless it is told otherwise. A retry or a clear continues from the
    log. Its trigger recovers drivers that ran beside the triggerer (``[logio] recover_in_triggerer``), or on nodes of a
    cluster that it can submit to, unless this task has a queue, a pool or an executor. It handles all others as
    `LogioRecoverGroupOperator` does. It also carries out all requests to scale a replicated group, and wakes a group that is
    scaled to zero when there is work for it.

    :param pipeline: a `Pipeline`, or its location: ``"module:attr"``.
    :param run_uid: uid of the run (templated); by default the run that this DAG run has of the pipeline.
    :param logio_conn_id: the connection of the log.
    :param poll_interval: seconds between two polls; by default ``[logio] poll_interval``.
    :param on_recovery_callback: called after a group was relaunched, by this task or otherwise, or parked by it. As all
        that follow: a function of the context, a notifier, or a list of them. ``context["notice"]`` says what has occurred.
    :param on_parked_callback: called after a group was parked, whatever parked it.
    :param on_halted_callback: called after a group was halted.
    :param on_quarantine_callback: called after Input Sets were set aside; of each group at most every ten minutes.
    :param on_scaling_callback: called after a request to scale a group was carried out or refused.
    :param on_budget_callback: called after a recovery that leaves the group one or none, or none at the place where its
    :param on_queued_callback: called when a driver has waited for room on its cluster for `launch_seconds`, then each time
        that this has doubled.
        operator's code has failed.
    :param recover: False: only call callbacks; a recovery DAG recovers and scales.
    :param deferrable: False: look from the worker, which holds a slot for as long as the run lasts; default as for
        `LogioSparkOperator`.
    :param trigger_rule: by default ``"one_success"``: it begins once the task that starts the run has succeeded, although the
        tasks of the groups lie before it, too (``[start, *groups] >> supervise``). So it is cleared with any of them.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid",)
    ui_color = "#f7d9d9"

    def __init__(
        self,
        *,
        pipeline: Pipeline | str,
        run_uid: str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        poll_interval: float | None = None,
        on_recovery_callback: Callbacks = None,
        on_parked_callback: Callbacks = None,
        on_halted_callback: Callbacks = None,
        on_quarantine_callback: Callbacks = None,
        on_scaling_callback: Callbacks = None,
        on_budget_callback: Callbacks = None,
        on_queued_callback: Callbacks = None,
        recover: bool = True,
        deferrable: bool | None = None,
        retries: int = MANY,
        retry_delay: timedelta = SOON,
        trigger_rule: str | None = None,
        **kwargs: Any,
    ) -> None:
        if trigger_rule is None:
            trigger_rule = _trigger_rule(kwargs.get("dag"))
        super().__init__(retries=retries, retry_delay=retry_delay, trigger_rule=trigger_rule, **kwargs)
        self.pipeline = reference(pipeline)
        self.run_uid = run_uid
        self.logio_conn_id = logio_conn_id
        self.poll_interval = poll_interval
        self.on_recovery_callback = as_callbacks("on_recovery_callback", on_recovery_callback)
        self.on_parked_callback = as_callbacks("on_parked_callback", on_parked_callback)
        self.on_halted_callback = as_callbacks("on_halted_callback", on_halted_callback)
        self.on_quarantine_callback = as_callbacks("on_quarantine_callback", on_quarantine_callback)
        self.on_scaling_callback = as_callbacks("on_scaling_callback", on_scaling_callback)
        self.on_budget_callback = as_callbacks("on_budget_callback", on_budget_callback)
        self.on_queued_callback = as_callbacks("on_queued_callback", on_queued_callback)
        self.recover = recover
        self.has_place = _compat.has_own_place(kwargs, is_mapped=_compat.is_from_mapped(self))
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Raises AirflowFailException if there is no such run, or this version cannot use the log."""
        return self._work(context, {})

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        """The trigger has found something."""
        if event.get("error"):
            raise AirflowException(f"the triggerer cannot look for failed groups: {event['error']}")
        return self._work(context, event)

    def _work(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> dict[str, Any]:
        # What looks after a run is imported when there is one: a DAG is parsed much more often.
        from airflow_logio.operators._task.run_supervision import RunSupervision

        return RunSupervision(self, context).work(event)

    def make_launcher(self) -> Launcher:
        """The launcher, which starts claimed drivers as processes on the worker's machine."""
        from airflow_logio.launch.launcher import LocalProcessLauncher

        return LocalProcessLauncher(_compat.work_dir())


def is_beside_groups(dag: Any) -> bool:
    """Whether this task cannot lie behind those of the groups: a DAG with ``fail_fast`` takes no rule but its own."""
    return bool(getattr(dag, "fail_fast", False))


def _trigger_rule(dag: Any) -> str:
    return "all_success" if is_beside_groups(dag) else "one_success"

"""`LogioRecoverGroupOperator`: acts on one finding. It is short: it waits for neither the cluster nor the new driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowFailException, BaseOperator

from airflow_logio import _compat
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch.launcher import Launcher, LocalProcessLauncher
from airflow_logio.operators._task.callbacks import Callbacks, as_callbacks, call_back
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators._task.recovery_round import GroupRecovery, explain_kill
from airflow_logio.operators._task.run_lookup import opened_log
from airflow_logio.operators._task.scaling_round import GroupScaling
from airflow_logio.supervision.findings import DueScaling, UnexplainedKill, finding_of
from airflow_logio.supervision.notices import recovery_notice
from airflow_logio.supervision.tend import RecoveryOutcome
from airflow_logio.task_arguments import with_told_arguments


@with_told_arguments
class LogioRecoverGroupOperator(BaseOperator):
    """Claim a failed group, end its old driver, and launch a new one with the settings that the log keeps of the last launch.

    Two recoveries of one failure are harmless: one claim succeeds; the other task reports "not needed" and is green. A group
    whose recovery budget is spent is parked with the causes of all attempts; this task fails, and so does the group's own.
    Retries help when the log is unavailable. If the finding is a request to scale a group, this task takes its next step.

    :param finding: one item of what `LogioFailedGroupSensor` returns: a failed group, or a request to scale one
        (templated; ``expand`` over the sensor's output).
    :param logio_conn_id: the connection of the log.
    :param on_recovery_callback: called like Airflow's own callbacks after a group was launched or parked, with
        ``context["notice"]``, and ``context["recovery"]``: run, group, cause, outcome and times. It may be a list of
        callbacks, or notifiers. `LogioPipelineGroup` has callbacks for what else occurs.

    Returns that ``recovery`` as a dict.
    """

    template_fields: ClassVar[Sequence[str]] = ("finding",)
    ui_color = "#f7d9d9"

    def __init__(
        self,
        *,
        finding: Mapping[str, Any],
        logio_conn_id: str = LogioHook.default_conn_name,
        on_recovery_callback: Callbacks = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.finding = finding
        self.logio_conn_id = logio_conn_id
        self.on_recovery_callback = as_callbacks("on_recovery_callback", on_recovery_callback)

    def execute(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `ConfigurationError`, `UnknownRun`, AirflowFailException."""
        finding = finding_of(self.finding)
        with opened_log(self.logio_conn_id) as store:
            launching = Launching(store, self.logio_conn_id, self.make_launcher(), self.executor)
            if isinstance(finding, DueScaling):
                return GroupScaling(launching).carry_on(finding)
            if isinstance(finding, UnexplainedKill):
                return explain_kill(store, finding)
            recovery = GroupRecovery(launching).recover(finding)
        self.log.info("%s: %s", finding, recovery["why"])
        if recovery["outcome"] == RecoveryOutcome.NOT_NEEDED.value:
            return recovery
        call_back(self.on_recovery_callback, context, recovery_notice(recovery))
        if recovery["outcome"] == RecoveryOutcome.PARKED.value:
            raise AirflowFailException(
                f"{finding} is parked: {recovery['why']}\nFix the cause, then clear the group's own task: it resumes "
                "where it stopped"
            )
        self.log.info("%s is launched as incarnation %s", finding, recovery["launched_incarnation"])
        return recovery

    def make_launcher(self) -> Launcher:
        """The launcher, which starts claimed drivers as processes on the worker's machine."""
        return LocalProcessLauncher(_compat.work_dir())

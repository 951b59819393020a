"""`LogioFailedGroupSensor`: waits for findings, which are failed groups and requests to scale a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, BaseOperator

from airflow_logio import _compat
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.run_lookup import identity
from airflow_logio.runtime.supervision.findings import FailedGroup, finding_of
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger


class LogioFailedGroupSensor(BaseOperator):
    """Wait in the triggerer until at least one group is dead or has to be scaled, and return these findings.

    A group is dead if its driver process has ended although the log does not say that the group finished or is parked, if
    its lease has expired, or if it is stuck in a launch state past its deadline. While the log database is unreachable, no
    group is considered dead. Runs of `logio run` are left to the process that started them.

    A DAG that uses it with schedule ``@continuous`` needs a ``start_date``: without one, Airflow creates only its first run.

    :param run_uid: only this run (templated).
    :param pipeline: only runs of the pipeline of this name (templated). By default the runs of all pipelines.
    :param logio_conn_id: the connection of the log.
    :param poll_interval: seconds between two polls; by default ``[logio] poll_interval``. With a log in PostgreSQL, a failure
        that the driver itself reports is found at once.
    :param give_up_after: return an empty list after this time without a failure; by default wait forever.

    Returns a list of findings, each a dict: ``expand`` `LogioRecoverGroupOperator` over it. There is one finding per failed
    group, with ``run_uid``, ``pipeline``, ``dag_run_id``, ``group``, ``incarnation``, ``cause`` and ``detected_at`` (seconds
    since the epoch). And there is one per request to scale a replicated group that can take its next step, with
    ``request_id`` and ``replicas`` instead of the last three; that operator takes the step.
    """

    template_fields: ClassVar[Sequence[str]] = ("run_uid", "pipeline")
    ui_color = "#f7d9d9"

    def __init__(
        self,
        *,
        run_uid: str | None = None,
        pipeline: str | None = None,
        logio_conn_id: str = LogioHook.default_conn_name,
        poll_interval: float | None = None,
        give_up_after: timedelta | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        if poll_interval is not None and poll_interval <= 0:
            raise ValueError(f"poll_interval is {poll_interval}; it must be above 0 seconds")
        if give_up_after is not None and give_up_after <= timedelta(0):
            raise ValueError(f"give_up_after is {give_up_after}; it must be above 0 seconds")
        self.run_uid = run_uid
        self.pipeline = pipeline
        self.logio_conn_id = logio_conn_id
        self.poll_interval = poll_interval
        self.give_up_after = give_up_after

    def execute(self, context: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Defers at once: the first look of the trigger costs no more than one here."""
        dag_id, _ = identity(context)
        trigger = LogioFailedGroupTrigger(
            logio_conn_id=self.logio_conn_id,
            supervisor=f"DAG {dag_id}, task {self.task_id}",
            pipeline=self.pipeline,
            run_uid=self.run_uid,
            poll_interval=self.poll_interval or _compat.poll_interval(),
            give_up_after=None if self.give_up_after is None else self.give_up_after.total_seconds(),
        )
        self.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer does not return")

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The trigger has found something, or has given up."""
        if event.get("error"):
            raise AirflowException(f"the triggerer cannot look for failed groups: {event['error']}")
        findings: list[dict[str, Any]] = list(event["findings"])
        for one in findings:
            found = finding_of(one)
            if isinstance(found, FailedGroup):
                self.log.warning("Dead: %s: %s", found, found.cause)
            else:
                self.log.info("Asked for: %s", found)
        return findings

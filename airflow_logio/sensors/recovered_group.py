"""`LogioRecoveredGroupSensor`: waits for the end of a recovery, for deadlines and alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.triggers.recovered_group import LogioRecoveredGroupTrigger


class LogioRecoveredGroupSensor(BaseOperator):
    """Wait in the triggerer until the driver that a recovery launched has made its first commit; return the seconds it took.

    Recovery itself waits for nothing. So this sensor belongs into a DAG of its own, where it delays no recovery: one run per
    recovery, with Airflow's deadline on it (`dags/logio_recovered.py`). Fails if the driver ends before its first commit.

    :param recovery: what `LogioRecoverGroupOperator` returned (templated), such as ``"{{ dag_run.conf }}"``.
    :param logio_conn_id: the connection of the log.
    :param poll_interval: seconds between two polls; by default ``[logio] poll_interval``.
    """

    template_fields: ClassVar[Sequence[str]] = ("recovery",)
    ui_color = "#f7d9d9"

    def __init__(
        self,
        *,
        recovery: Mapping[str, Any] | str,
        logio_conn_id: str = LogioHook.default_conn_name,
        poll_interval: float | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.recovery = recovery
        self.logio_conn_id = logio_conn_id
        self.poll_interval = poll_interval

    def execute(self, context: Mapping[str, Any]) -> float | None:
        """Raises `ConfigurationError`. A recovery that launched nothing is over."""
        found = self._recovery(context)
        if found["launched_incarnation"] is None:
            self.log.info("Nothing was launched (%s): there is nothing to wait for", found["why"])
            return None
        trigger = LogioRecoveredGroupTrigger(
            logio_conn_id=self.logio_conn_id,
            run_uid=found["run_uid"],
            group=found["group"],
            incarnation=found["launched_incarnation"],
            poll_interval=self.poll_interval or _compat.poll_interval(),
        )
        self.defer(trigger=trigger, method_name="resume")
        raise AssertionError("defer does not return")

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> float:
        """The recovery is over."""
        if event["state"] == "error":
            raise AirflowException(f"the triggerer cannot watch the recovery: {event['why']}")
        if event["state"] == "failed":
            raise AirflowFailException(f"the recovery has failed: {event['why']}")
        seconds = float(event["seconds"])
        self.log.info("The first commit came %.1f s after the death was detected (%s)", seconds, event["why"])
        return seconds

    def _recovery(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self.recovery
        if not isinstance(found, Mapping):
            found = context["dag_run"].conf or {}
        if missing := [name for name in ("run_uid", "group", "launched_incarnation") if name not in found]:
            raise ConfigurationError(
                f"a recovery is expected as LogioRecoverGroupOperator returns it; {', '.join(missing)} missing in "
                f"{found!r:.100}"
            )
        return found

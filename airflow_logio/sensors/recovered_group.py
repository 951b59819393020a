"""`LogioRecoveredGroupSensor`: waits for the end of a recovery, for deadlines and alerts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    BaseSensorOperator,
    PokeReturnValue,
)

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators._task.run_lookup import is_last_try, opened_log
from airflow_logio.status.recoveries import end_of_recovery
from airflow_logio.task_arguments import with_told_arguments
from airflow_logio.triggers.recovered_group import LogioRecoveredGroupTrigger


@with_told_arguments
class LogioRecoveredGroupSensor(BaseSensorOperator):
    """Wait until the driver that a recovery launched has made its first commit; return the seconds it took.

    Recovery itself waits for nothing. So this sensor belongs into a DAG of its own, where it delays no recovery: one run per
    recovery, with Airflow's deadline on it (`dags/logio_recovered.py`). Fails if the driver ends before its first commit.

    :param recovery: what `LogioRecoverGroupOperator` returned (templated), such as ``"{{ dag_run.conf }}"``.
    :param logio_conn_id: the connection of the log.
    :param poke_interval: seconds between two looks; by default ``[logio] poll_interval``.
    :param deferrable: wait in the triggerer; default as for `LogioSparkOperator`. Otherwise `mode` says how the worker waits.

    `timeout`, `soft_fail`, `never_fail`, `mode` and so on are those of every sensor of Airflow.
    """

    template_fields: ClassVar[Sequence[str]] = ("recovery",)
    ui_color = "#f7d9d9"

    def __init__(
        self,
        *,
        recovery: Mapping[str, Any] | str,
        logio_conn_id: str = LogioHook.default_conn_name,
        deferrable: bool | None = None,
        poke_interval: timedelta | float | None = None,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        interval = _compat.poll_interval() if poke_interval is None else poke_interval
        super().__init__(poke_interval=interval, retries=retries, retry_delay=retry_delay, **kwargs)
        if self.poke_interval <= 0:
            raise ValueError(f"poke_interval is {poke_interval}; it must be above 0 seconds")
        self.deferrable = _compat.default_deferrable() if deferrable is None else deferrable
        self.recovery = recovery
        self.logio_conn_id = logio_conn_id

    def execute(self, context: Mapping[str, Any]) -> float | None:
        """Raises `ConfigurationError`. A recovery that launched nothing is over."""
        found = self._recovery(context)
        if found["launched_incarnation"] is None:
            self.log.info("Nothing was launched (%s): there is nothing to wait for", found["why"])
            return None
        if self.deferrable:
            trigger = LogioRecoveredGroupTrigger(
                logio_conn_id=self.logio_conn_id,
                run_uid=found["run_uid"],
                group=found["group"],
                incarnation=found["launched_incarnation"],
                last_try=is_last_try(context["ti"]),
                poll_interval=self.poke_interval,
            )
            self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))
        with opened_log(self.logio_conn_id) as store:
            self._store = store
            seconds: float = super().execute(context)
        return seconds

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """One look. Raises AirflowFailException if the recovery has failed."""
        found, call = self._recovery(context), self._store.patience.call
        run = call("finding the run", lambda: self._store.find_run(found["run_uid"]))
        status = call("reading the group", lambda: self._store.group(run.run_id, found["group"]))
        incarnation = int(found["launched_incarnation"])
        end = call("reading its drivers", lambda: end_of_recovery(self._store, run.run_id, status, incarnation))
        if end is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._told(end.why, end.seconds))

    def resume(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> float:
        """The recovery is over."""
        if event["state"] == "error":
            raise AirflowException(f"the triggerer cannot watch the recovery: {event['why']}")
        return self._told(event["why"], event["seconds"])

    def _told(self, why: str, seconds: float | None) -> float:
        if seconds is None:
            raise AirflowFailException(f"the recovery has failed: {why}")
        self.log.info("The first commit came %.1f s after the death was detected (%s)", seconds, why)
        return float(seconds)

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

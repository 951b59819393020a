"""`LogioRecoveredGroupTrigger`: watches one recovery from the triggerer until its driver has committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.status.recoveries import end_of_recovery
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import RunSight
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.log_poller import LogLook


class LogioRecoveredGroupTrigger(LogTrigger):
    """Fires one event: ``{"state": ..., "why": ..., "seconds": ...}``.

    ``state`` is ``recovered`` once incarnation `incarnation` of the group has made its first commit (``seconds`` after the
    death was detected), ``failed`` if it ended before that, ``error`` if the trigger cannot watch it.

    :param logio_conn_id: the connection of the log.
    :param run_uid: uid of the run.
    :param group: name of the group, or of the replica.
    :param incarnation: the number of the driver that the recovery has launched.
    :param last_try: whether Airflow would not try the task again by itself: then its event waits until the task can be woken
        without the loss of a try.
    :param poll_interval: seconds between two looks at the log.
    """

    arguments = ("run_uid", "group", "incarnation", "last_try")

    def __init__(
        self,
        *,
        logio_conn_id: str,
        run_uid: str,
        group: str,
        incarnation: int,
        last_try: bool = False,
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__(logio_conn_id, poll_interval, last_try=last_try)
        self.run_uid = run_uid
        self.group = group
        self.incarnation = int(incarnation)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until a look has found the end of the recovery."""
        try:
            event = await self._seen(self._see, uid=self.run_uid)
        except (LogioError, AirflowException) as error:
            event = {"state": "error", "why": f"{type(error).__name__}: {error}", "seconds": None}
        if self.last_try:
            await self._settled()
        yield TriggerEvent(event)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _see(self, look: LogLook) -> dict[str, Any] | None:
        try:
            return None if look.store is None else self._judge(look.store, look.runs.get(self.run_uid))
        except LogUnavailable as error:
            self.log.debug("the log cannot be reached: %s", error)
            return None

    def _judge(self, store: LogStore, sight: RunSight | None) -> dict[str, Any] | None:
        if sight is None:
            store.find_run(self.run_uid)  # its error says what to do
            return None  # it has begun since the look
        check_whole(sight.run)
        run_id = sight.run.run_id
        status = next((one for one in sight.groups if one.group == self.group), None) or store.group(run_id, self.group)
        end = end_of_recovery(store, run_id, status, self.incarnation)
        if end is None:
            return None
        return {"state": "failed" if end.seconds is None else "recovered", "why": end.why, "seconds": end.seconds}

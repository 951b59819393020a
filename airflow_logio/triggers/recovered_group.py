"""`LogioRecoveredGroupTrigger`: watches one recovery from the triggerer until its driver has committed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.states import ENDED
from airflow_logio.runtime.figures.recoveries import recoveries
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import RunSight
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.log_poller import LogLook


class LogioRecoveredGroupTrigger(LogTrigger):
    """Fires one event: ``{"state": ..., "why": ..., "seconds": ...}``.

    ``state`` is ``recovered`` once incarnation `incarnation` of the group has made its first commit (``seconds`` after the
    death was detected), ``failed`` if it ended before that, ``error`` if the trigger cannot watch it.
    """

    arguments = ("run_uid", "group", "incarnation")

    def __init__(
        self, *, logio_conn_id: str, run_uid: str, group: str, incarnation: int, poll_interval: float = 1.0
    ) -> None:
        super().__init__(logio_conn_id, poll_interval)
        self.run_uid = run_uid
        self.group = group
        self.incarnation = int(incarnation)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until a look has found the end of the recovery."""
        try:
            event = await self._seen(self._see, uid=self.run_uid)
        except (LogioError, AirflowException) as error:
            event = {"state": "error", "why": f"{type(error).__name__}: {error}", "seconds": None}
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
        run_id = sight.run.run_id
        status = next((one for one in sight.groups if one.group == self.group), None) or store.group(run_id, self.group)
        found = [
            one
            for one in recoveries(store.drivers(run_id))
            if (one.group, one.incarnation) == (self.group, self.incarnation)
        ]
        if found and found[0].first_commit_at is not None:
            return {"state": "recovered", "why": found[0].cause, "seconds": found[0].seconds}
        if status.incarnation > self.incarnation:
            why = f"incarnation {self.incarnation} was replaced before it had committed anything"
        elif status.state in ENDED:
            why = f"the group is {status.state.value}: {status.error or 'no error'}"
        else:
            return None
        return {"state": "failed", "why": why, "seconds": None}

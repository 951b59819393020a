"""`LogioRecoveredGroupTrigger`: watches one recovery from the triggerer until its driver has committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.states import ENDED
from airflow_logio.runtime.figures.recoveries import recoveries
from airflow_logio.store.port import LogStore
from airflow_logio.triggers.base import LogTrigger


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
        self._run_id = 0

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread."""
        while True:
            try:
                found = await self._in_thread(self._look)
            except LogUnavailable as error:
                self.log.debug("the log cannot be reached: %s", error)
                found = None
            except (LogioError, AirflowException) as error:
                found = {"state": "error", "why": f"{type(error).__name__}: {error}", "seconds": None}
            if found is not None:
                yield TriggerEvent(found)
                return
            await asyncio.sleep(self.poll_interval)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _look(self) -> dict[str, Any] | None:
        store = self._open()
        status = store.group(self._run_id, self.group)
        found = [
            one
            for one in recoveries(store.drivers(self._run_id))
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

    def _open(self) -> LogStore:
        if self._store is None:
            store, run = self._open_run(self.run_uid)
            self._run_id = run.run_id
            return store
        return self._store

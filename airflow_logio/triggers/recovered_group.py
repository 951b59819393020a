"""`LogioRecoveredGroupTrigger`: watches one recovery from the triggerer until its driver has committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import BaseTrigger, TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.protocol.states import ENDED
from airflow_logio.runtime.recoveries import recoveries
from airflow_logio.store.sql.drivers import driver_records
from airflow_logio.store.sql.store import SqlLogStore


class LogioRecoveredGroupTrigger(BaseTrigger):
    """Fires one event: ``{"state": ..., "why": ..., "seconds": ...}``.

    ``state`` is ``recovered`` once incarnation `incarnation` of the group has made its first commit (``seconds`` after the
    death was detected), ``failed`` if it ended before that, ``error`` if it cannot be watched.
    """

    def __init__(
        self, *, logio_conn_id: str, run_uid: str, group: str, incarnation: int, poll_interval: float = 1.0
    ) -> None:
        super().__init__()
        self.logio_conn_id = logio_conn_id
        self.run_uid = run_uid
        self.group = group
        self.incarnation = int(incarnation)
        self.poll_interval = float(poll_interval)
        self._store: SqlLogStore | None = None
        self._run_id = 0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path, and the arguments that make an equal trigger in another process."""
        return (
            "airflow_logio.triggers.recovered_group.LogioRecoveredGroupTrigger",
            {
                "logio_conn_id": self.logio_conn_id,
                "run_uid": self.run_uid,
                "group": self.group,
                "incarnation": self.incarnation,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread."""
        while True:
            try:
                found = await asyncio.to_thread(self._look)
            except LogUnavailable as error:
                self.log.debug("the log cannot be reached: %s", error)
                found = None
            except (LogioError, AirflowException) as error:
                found = {"state": "error", "why": f"{type(error).__name__}: {error}", "seconds": None}
            if found is not None:
                yield TriggerEvent(found)
                return
            await asyncio.sleep(self.poll_interval)

    async def cleanup(self) -> None:
        """Close connections; a triggerer that restarts comes here too."""
        store, self._store = self._store, None
        if store is not None:
            await asyncio.to_thread(store.dispose)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _look(self) -> dict[str, Any] | None:
        store = self._open()
        status = store.group(self._run_id, self.group)
        found = [
            one
            for one in recoveries(driver_records(store, self._run_id))
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

    def _open(self) -> SqlLogStore:
        if self._store is None:
            store = LogioHook(self.logio_conn_id).get_store()
            try:
                self._run_id = store.find_run(self.run_uid).run_id
            except BaseException:
                store.dispose()
                raise
            self._store = store
        return self._store

"""`LogioScaleTrigger`: waits from the triggerer until something can be done about a request to scale a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import BaseTrigger, TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.protocol.states import OPEN_SCALING
from airflow_logio.runtime.scaling import is_due
from airflow_logio.runtime.whole import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run


class LogioScaleTrigger(BaseTrigger):
    """Fires one event when the request is settled or its next step can be taken: ``{}``, or ``{"error": ...}``.

    It launches and moves nothing: the task does. All arguments are plain data; the database is named by its connection id.
    """

    def __init__(
        self, *, logio_conn_id: str, run_uid: str, group: str, request_id: int, poll_interval: float = 1.0
    ) -> None:
        super().__init__()
        if poll_interval <= 0:
            raise ValueError(f"poll_interval is {poll_interval}; it must be above 0 seconds")
        self.logio_conn_id = logio_conn_id
        self.run_uid = run_uid
        self.group = group
        self.request_id = int(request_id)
        self.poll_interval = float(poll_interval)
        self._store: LogStore | None = None
        self._run: Run | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path, and the arguments that make an equal trigger in another process."""
        return (
            "airflow_logio.triggers.scale.LogioScaleTrigger",
            {
                "logio_conn_id": self.logio_conn_id,
                "run_uid": self.run_uid,
                "group": self.group,
                "request_id": self.request_id,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread; a log that is away is asked again."""
        while True:
            await asyncio.sleep(self.poll_interval)  # the task has just looked
            try:
                if await asyncio.to_thread(self._look):
                    yield TriggerEvent({})
                    return
            except (LogioError, AirflowException) as error:
                yield TriggerEvent({"error": f"{type(error).__name__}: {error}"})
                return

    async def cleanup(self) -> None:
        """Close connections; the request stays in the log."""
        store, self._store, self._run = self._store, None, None
        if store is not None:
            await asyncio.to_thread(store.dispose)

    def _look(self) -> bool:
        """Whether the task has something to do, in a thread; False if that cannot be seen."""
        try:
            store, run = self._open()
            found = store.scalings(run.run_id, self.group)
            request = next((one for one in found if one.request_id == self.request_id), None)
            if request is None or request.state not in OPEN_SCALING:
                return True
            members = members_of(run, self.group)
            return is_due(store, request, [one for one in store.groups(run.run_id) if one.group in members])
        except LogUnavailable as error:
            self.log.warning("The log cannot be reached, so nothing is known; asking on: %s", error)
            return False

    def _open(self) -> tuple[LogStore, Run]:
        if self._store is None or self._run is None:
            store = LogioHook(self.logio_conn_id).get_store()
            try:
                self._run = store.find_run(self.run_uid)
            except BaseException:
                store.dispose()
                raise
            self._store = store
        return self._store, self._run

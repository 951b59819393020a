"""`LogioScaleTrigger`: waits in the triggerer until a request to scale a group can take a step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.states import OPEN_SCALING
from airflow_logio.runtime.figures.whole_group import members_of
from airflow_logio.runtime.scaling.requests import is_due
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run
from airflow_logio.triggers.base import LogTrigger


class LogioScaleTrigger(LogTrigger):
    """Fires one event when the request is settled or its next step can be taken: ``{}``, or ``{"error": ...}``.

    It launches and moves nothing: the task does.
    """

    arguments = ("run_uid", "group", "request_id")

    def __init__(
        self, *, logio_conn_id: str, run_uid: str, group: str, request_id: int, poll_interval: float = 1.0
    ) -> None:
        super().__init__(logio_conn_id, poll_interval)
        self.run_uid = run_uid
        self.group = group
        self.request_id = int(request_id)
        self._run: Run | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread. While the log is unavailable, keep trying."""
        while True:
            await asyncio.sleep(self.poll_interval)  # the task has just looked
            try:
                if await self._in_thread(self._look):
                    yield TriggerEvent({})
                    return
            except (LogioError, AirflowException) as error:
                yield TriggerEvent({"error": f"{type(error).__name__}: {error}"})
                return

    def _look(self) -> bool:
        """Whether the task has something to do; False if that cannot be seen. Runs in a thread."""
        try:
            store, run = self._open()
            found = store.scalings(run.run_id, self.group)
            request = next((one for one in found if one.request_id == self.request_id), None)
            if request is None or request.state not in OPEN_SCALING:
                return True
            members = members_of(run, self.group)
            return is_due(store, request, [one for one in store.groups(run.run_id) if one.group in members])
        except LogUnavailable as error:
            self.log.warning("The log cannot be reached, so the state of the request is unknown; retrying: %s", error)
            return False

    def _open(self) -> tuple[LogStore, Run]:
        if self._store is None or self._run is None:
            _, self._run = self._open_run(self.run_uid)
        assert self._store is not None
        return self._store, self._run

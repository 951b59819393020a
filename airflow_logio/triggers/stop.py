"""`LogioStopTrigger`: waits in the triggerer until groups that were asked to drain or to halt have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.runtime.supervision.stop_run import States, StopMode, StopRun
from airflow_logio.triggers.base import LogTrigger


class LogioStopTrigger(LogTrigger):
    """Fires one event: ``{"states": {group: state}}`` when the stop is over, or ``{"error": ...}`` if it cannot watch.

    It makes no request: the operator has made it.
    """

    arguments = ("run_uid", "mode", "group")

    def __init__(
        self, *, logio_conn_id: str, run_uid: str, mode: str, group: str | None = None, poll_interval: float = 1.0
    ) -> None:
        super().__init__(logio_conn_id, poll_interval)
        self.run_uid = run_uid
        self.mode = StopMode(mode).value
        self.group = group
        self._stop: StopRun | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread. While the log is unavailable, keep trying."""
        while True:
            try:
                states = await self._in_thread(self._look)
            except (LogioError, AirflowException) as error:
                yield TriggerEvent({"error": f"{type(error).__name__}: {error}"})
                return
            if states is not None:
                yield TriggerEvent({"states": {name: state.value for name, state in states.items()}})
                return
            await asyncio.sleep(self.poll_interval)

    def _look(self) -> States | None:
        """The states when the stop is over; None while it is not, or cannot be seen. Runs in a thread."""
        try:
            if self._store is None or self._stop is None:
                self._stop = self._open()
            states = self._stop.look()
        except LogUnavailable as error:
            self.log.warning("The log cannot be reached, so the state of the run is unknown; retrying: %s", error)
            return None
        return states if states is not None and self._stop.is_over(states) else None

    def _open(self) -> StopRun:
        store, run = self._open_run(self.run_uid)
        return StopRun(store, run, StopMode(self.mode), self.group)

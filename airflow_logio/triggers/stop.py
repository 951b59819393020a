"""`LogioStopTrigger`: waits from the triggerer until groups that were asked to drain or to halt have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import BaseTrigger, TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.runtime.stop_run import States, StopMode, StopRun
from airflow_logio.store.port import LogStore


class LogioStopTrigger(BaseTrigger):
    """Fires one event: ``{"states": {group: state}}`` when the stop is over, or ``{"error": ...}`` if it cannot watch.

    It asks for nothing: the operator has. All arguments are plain data; the database is named by its connection id.
    """

    def __init__(
        self, *, logio_conn_id: str, run_uid: str, mode: str, group: str | None = None, poll_interval: float = 1.0
    ) -> None:
        super().__init__()
        if poll_interval <= 0:
            raise ValueError(f"poll_interval is {poll_interval}; it must be above 0 seconds")
        self.logio_conn_id = logio_conn_id
        self.run_uid = run_uid
        self.mode = StopMode(mode).value
        self.group = group
        self.poll_interval = float(poll_interval)
        self._store: LogStore | None = None
        self._stop: StopRun | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path, and the arguments that make an equal trigger in another process."""
        return (
            "airflow_logio.triggers.stop.LogioStopTrigger",
            {
                "logio_conn_id": self.logio_conn_id,
                "run_uid": self.run_uid,
                "mode": self.mode,
                "group": self.group,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread; a log that is away is asked again."""
        while True:
            try:
                states = await asyncio.to_thread(self._look)
            except (LogioError, AirflowException) as error:
                yield TriggerEvent({"error": f"{type(error).__name__}: {error}"})
                return
            if states is not None:
                yield TriggerEvent({"states": {name: state.value for name, state in states.items()}})
                return
            await asyncio.sleep(self.poll_interval)

    async def cleanup(self) -> None:
        """Close connections; the wish stays in the log."""
        store, self._store, self._stop = self._store, None, None
        if store is not None:
            await asyncio.to_thread(store.dispose)

    def _look(self) -> States | None:
        """The states when the stop is over, in a thread; None while it is not, or cannot be seen."""
        try:
            if self._stop is None:
                self._stop = self._open()
            states = self._stop.look()
        except LogUnavailable as error:
            self.log.warning("The log cannot be reached, so nothing is known; asking on: %s", error)
            return None
        return states if states is not None and self._stop.is_over(states) else None

    def _open(self) -> StopRun:
        store = LogioHook(self.logio_conn_id).get_store()
        try:
            stop = StopRun(store, store.find_run(self.run_uid), StopMode(self.mode), self.group)
        except BaseException:
            store.dispose()
            raise
        self._store = store
        return stop

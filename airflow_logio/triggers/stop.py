"""`LogioStopTrigger`: waits in the triggerer until groups that were asked to drain or to halt have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.supervision.stop_run import States, StopMode, StopRun
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.log_poller import LogLook


class LogioStopTrigger(LogTrigger):
    """Fires one event: ``{"states": {group: state}}`` when the stop is over, or ``{"error": ...}`` if it cannot watch.

    It makes no request: the operator has made it.

    :param logio_conn_id: the connection of the log.
    :param run_uid: uid of the run.
    :param mode: ``drain`` or ``halt``: what was asked for.
    :param group: only this group; by default all groups of the run.
    :param last_try: whether Airflow would not try the task again by itself: then its event waits until the task can be woken
        without the loss of a try.
    :param poll_interval: seconds between two looks at the log.
    """

    arguments = ("run_uid", "mode", "group", "last_try")

    def __init__(
        self,
        *,
        logio_conn_id: str,
        run_uid: str,
        mode: str,
        group: str | None = None,
        last_try: bool = False,
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__(logio_conn_id, poll_interval, last_try=last_try)
        self.run_uid = run_uid
        self.mode = StopMode(mode).value
        self.group = group
        self._stop: StopRun | None = None
        self._store: LogStore | None = None

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until a look has found that the stop is over. While the log is unavailable, keep looking."""
        try:
            states = await self._seen(self._see)
        except (LogioError, AirflowException) as error:
            event: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"}
        else:
            event = {"states": {name: state.value for name, state in states.items()}}
        if self.last_try:
            await self._settled()
        yield TriggerEvent(event)

    def _see(self, look: LogLook) -> States | None:
        """The states when the stop is over; None while it is not, or cannot be seen. Runs in a thread."""
        try:
            if look.store is None:
                raise look.error or LogUnavailable("no answer")
            stop = self._on(look.store)
            states = stop.look()
        except LogUnavailable as error:
            self.log.warning("The log cannot be reached, so the state of the run is unknown; retrying: %s", error)
            return None
        return states if states is not None and stop.is_over(states) else None

    def _on(self, store: LogStore) -> StopRun:
        if self._stop is None or self._store is not store:
            self._store = store
            mode = StopMode(self.mode)
            run = store.find_run(self.run_uid, damaged=mode is StopMode.HALT)  # one that is given up may be damaged
            self._stop = StopRun(store, run, mode, self.group)
        return self._stop

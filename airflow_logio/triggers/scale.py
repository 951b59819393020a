"""`LogioScaleTrigger`: waits in the triggerer until a request to scale a group can take a step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.states import OPEN_SCALING
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import RunSight
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.supervision.scaling import is_due
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.log_poller import LogLook


class LogioScaleTrigger(LogTrigger):
    """Fires one event when the request is settled or its next step can be taken: ``{}``, or ``{"error": ...}``.

    It launches and moves nothing: the task does.

    :param logio_conn_id: the connection of the log.
    :param run_uid: uid of the run.
    :param group: name of the replicated group in the pipeline.
    :param request_id: the number of the request, as `LogioScaleOperator` returns it.
    :param last_try: whether Airflow would not try the task again by itself: then its event waits until the task can be woken
        without the loss of a try.
    :param poll_interval: seconds between two looks at the log.
    """

    arguments = ("run_uid", "group", "request_id", "last_try")

    def __init__(
        self,
        *,
        logio_conn_id: str,
        run_uid: str,
        group: str,
        request_id: int,
        last_try: bool = False,
        poll_interval: float = 1.0,
    ) -> None:
        super().__init__(logio_conn_id, poll_interval, last_try=last_try)
        self.run_uid = run_uid
        self.group = group
        self.request_id = int(request_id)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until a look has found something to do. While the log is unavailable, keep looking."""
        try:
            event = await self._seen(self._see, uid=self.run_uid)
        except (LogioError, AirflowException) as error:
            event = {"error": f"{type(error).__name__}: {error}"}
        if self.last_try:
            await self._settled()
        yield TriggerEvent(event)

    def _see(self, look: LogLook) -> dict[str, Any] | None:
        """The event if the task has something to do; None also if that cannot be seen. Runs in a thread."""
        try:
            if look.store is None:
                raise look.error or LogUnavailable("no answer")
            return {} if self._has_work(look.store, look.runs.get(self.run_uid)) else None
        except LogUnavailable as error:
            self.log.warning("The log cannot be reached, so the state of the request is unknown; retrying: %s", error)
            return None

    def _has_work(self, store: LogStore, sight: RunSight | None) -> bool:
        if sight is None:
            store.find_run(self.run_uid)  # its error says what to do
            return False
        check_whole(sight.run)
        request = next((one for one in sight.requests if one.request_id == self.request_id), None)
        if request is None or request.state not in OPEN_SCALING:
            return True
        found = {one.group: one for one in sight.groups}
        return is_due(store, request, [found[name] for name in members_of(sight.run, self.group)])

"""`LogioFailedGroupTrigger`: looks for failed groups from the triggerer, and wakes the task that recovers them.

It also finds requests to scale a group as soon as a step can be taken. It is level-triggered: it finds what the log says
now. If an event is lost, or a task dies before it has acted, the next look finds the same again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.runtime.supervision.findings import FailureFinder, Findings
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.bell import FailureBell

NOTE_SECONDS = 5.0
"""How often the log is told that a supervisor is looking."""
_SILENT_LOOKS = 60


class LogioFailedGroupTrigger(LogTrigger):
    """Fires one event: ``{"findings": [...]}``, or ``{"error": ...}`` if it cannot look.

    The items of the list come from `FailedGroup.as_dict` and `DueScaling.as_dict`.

    The list is empty if all groups of `run_uid` have ended, or nothing has failed for `give_up_after` seconds.
    """

    arguments = ("supervisor", "pipeline", "run_uid", "give_up_after")

    def __init__(
        self,
        *,
        logio_conn_id: str,
        supervisor: str,
        pipeline: str | None = None,
        run_uid: str | None = None,
        poll_interval: float = 1.0,
        give_up_after: float | None = None,
    ) -> None:
        super().__init__(logio_conn_id, poll_interval)
        self.supervisor = supervisor
        self.pipeline = pipeline
        self.run_uid = run_uid
        self.give_up_after = give_up_after
        self._finder: FailureFinder | None = None
        self._noted_at = float("-inf")
        self._silent = 0

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once per `poll_interval`, each time in a thread, and whenever a driver reports its failure."""
        began = time.monotonic()
        bell = FailureBell(self.poll_interval)
        try:
            while True:
                try:
                    findings = await self._in_thread(self._look)
                    if self._store is not None:
                        bell.listen(self._store)
                except (LogioError, AirflowException) as error:
                    yield TriggerEvent({"findings": [], "error": f"{type(error).__name__}: {error}"})
                    return
                if findings.items or self._is_over(findings, time.monotonic() - began):
                    yield TriggerEvent({"findings": [one.as_dict() for one in findings.items]})
                    return
                await bell.wait()
        finally:
            bell.close()

    def _is_over(self, findings: Findings, seconds: float) -> bool:
        if findings.failed is None:
            return False
        all_ended = self.run_uid is not None and not findings.going_on
        return all_ended or (self.give_up_after is not None and seconds >= self.give_up_after)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _look(self) -> Findings:
        try:
            findings = self._open().look()
            self._note()
        except LogUnavailable as error:
            findings = Findings(None, unavailable=str(error))
        if findings.failed is not None:
            self._silent = 0
        else:
            if self._silent % _SILENT_LOOKS == 0:
                self.log.warning(
                    "The log is unavailable, so the state of the groups is unknown; retrying: %s", findings.unavailable
                )
            self._silent += 1
        return findings

    def _open(self) -> FailureFinder:
        if self._store is None or self._finder is None:
            self._finder = FailureFinder(self._open_log(), pipeline=self.pipeline, run_uid=self.run_uid)
        return self._finder

    def _note(self) -> None:
        """Note in the log that this supervisor is looking; owners of runs can see it."""
        if self._store is not None and time.monotonic() - self._noted_at >= NOTE_SECONDS:
            self._store.note_supervisor(self.supervisor, pipeline=self.pipeline, run_uid=self.run_uid)
            self._noted_at = time.monotonic()

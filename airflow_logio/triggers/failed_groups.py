"""`LogioFailedGroupTrigger`: looks for failed groups from the triggerer, and wakes the task that recovers them.

It also finds requests to scale a group as soon as a step can be taken. It is level-triggered: it finds what the log says
now. If an event is lost, or a task dies before it has acted, the next look finds the same again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from airflow_logio._compat import TriggerEvent
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.status_records import SupervisorNote
from airflow_logio.supervision.findings import FailureFinder, Findings, only_watched
from airflow_logio.supervision.notices import Notice, NoticeKind, Seen, notices, recovery_notice
from airflow_logio.triggers.base import LogTrigger
from airflow_logio.triggers.log_poller import LogLook
from airflow_logio.triggers.recovery import TriggererRecovery

_SILENT_LOOKS = 60
UNANSWERED_SECONDS = 20.0
"""How long the task is not woken for what has just found no answer of a cluster manager: each time takes a worker."""


class LogioFailedGroupTrigger(LogTrigger):
    """Fires one event: ``{"findings": [...]}``, or ``{"error": ...}`` if it cannot look.

    The items of the list come from `FailedGroup.as_dict` and `DueScaling.as_dict`.

    The list is empty if all groups of `run_uid` have ended, or nothing has failed for `give_up_after` seconds. With
    `rest_seconds`, the event has them, too, as ``rested``.

    With `kinds` (of `NoticeKind`), the event also has ``notices``: what has occurred in `run_uid` and was not told yet, from
    `Notice.as_dict`; and ``seen``, what was told, as this trigger was given it. It then fires for notices alone, too.
    Without `supervisor` it looks for nothing else, and the log is not told that a supervisor looks.

    :param logio_conn_id: the connection of the log.
    :param supervisor: what looks, in words; the log notes it, so that others know that dead groups are being recovered.
    :param pipeline: only runs of the pipeline of this name; by default the runs of all pipelines.
    :param run_uid: only this run.
    :param poll_interval: seconds between two looks at the log.
    :param give_up_after: seconds without a failure after which it ends; by default it never does.
    :param rest_seconds: seconds for which it looks at least, although all groups have ended: a task may launch one again.
    :param kinds: which notices it looks for; by default none.
    :param seen: what was told before, as the last event's ``seen`` has it.
    :param last_try: whether Airflow would not try the task again by itself: then its event waits until the task can be woken
        without the loss of a try.
    :param recovers: whether it recovers groups by itself where it may (`TriggererRecovery`). Findings then have the others.
    :param unanswered: keys of findings for which the task has just found no answer of a cluster manager: it is woken for them
        again after a while.
    """

    arguments = (
        "supervisor",
        "pipeline",
        "run_uid",
        "give_up_after",
        "rest_seconds",
        "kinds",
        "seen",
        "last_try",
        "recovers",
        "unanswered",
    )

    def __init__(
        self,
        *,
        logio_conn_id: str,
        supervisor: str | None,
        pipeline: str | None = None,
        run_uid: str | None = None,
        poll_interval: float = 1.0,
        give_up_after: float | None = None,
        rest_seconds: float | None = None,
        kinds: Sequence[str] = (),
        seen: Seen | None = None,
        last_try: bool = False,
        recovers: bool = False,
        unanswered: Sequence[str] = (),
    ) -> None:
        super().__init__(logio_conn_id, poll_interval, last_try=last_try)
        self.supervisor = supervisor
        self.pipeline = pipeline
        self.run_uid = run_uid
        self.give_up_after = give_up_after
        self.rest_seconds = rest_seconds
        self.kinds = list(kinds)
        self.seen = {kind: dict(groups) for kind, groups in (seen or {}).items()}
        self.recovers = recovers
        self.unanswered = list(unanswered)
        self._recovery: TriggererRecovery | None = None
        self._finder: FailureFinder | None = None
        self._store: LogStore | None = None
        self._began = time.monotonic()
        self._silent = 0

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until a look has found something. It looks once per `poll_interval`, and when a driver reports its failure."""
        note = None if self.supervisor is None else SupervisorNote(self.supervisor, self.pipeline, self.run_uid)
        all_runs, figures = self.run_uid is None, bool(self.kinds)
        self._began = time.monotonic()
        if self.recovers:
            self._recovery = TriggererRecovery(self.logio_conn_id, self._in_poller())
        try:
            event = await self._seen(self._see, uid=self.run_uid, all_runs=all_runs, figures=figures, note=note)
        except (LogioError, AirflowException) as error:
            event = {"findings": [], "error": f"{type(error).__name__}: {error}"}
        if self.last_try:
            await self._settled()
        yield TriggerEvent(event)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def _see(self, look: LogLook) -> dict[str, Any] | None:
        """The event, if there is one."""
        findings = self._to_be_told(self._left(self._judge(look), look.asked_at))
        untold = [*self._untold(look), *self._parked()]
        if not (findings.items or untold or self._is_over(findings, time.monotonic() - self._began)):
            return None
        event: dict[str, Any] = {"findings": [one.as_dict() for one in findings.items]}
        if self.kinds:
            event |= {"notices": [one.as_dict() for one in untold], "seen": self.seen}
        if self.rest_seconds is not None:
            event["rested"] = self.rest_seconds
        return event

    def _left(self, findings: Findings, asked_at: float) -> Findings:
        """Without what is recovered here."""
        if self._recovery is None or not findings.failed:
            return findings
        return replace(findings, failed=self._recovery.left(findings.failed, asked_at))

    def _to_be_told(self, findings: Findings) -> Findings:
        """Without what the task could do nothing about a moment ago."""
        if not self.unanswered or time.monotonic() - self._began >= UNANSWERED_SECONDS:
            return findings
        failed = findings.failed and tuple(one for one in findings.failed if one.key not in self.unanswered)
        return replace(
            findings, failed=failed, due=tuple(one for one in findings.due if one.key not in self.unanswered)
        )

    def _parked(self) -> list[Notice]:
        """The log does not lead to the notice of a recovery that has parked its group instead."""
        if self._recovery is None:
            return []
        told = [recovery_notice(one) for one in self._recovery.parked()]
        return told if NoticeKind.RECOVERY in self.kinds else []

    def _untold(self, look: LogLook) -> list[Notice]:
        sight = look.runs.get(self.run_uid or "")
        if not self.kinds or look.store is None or sight is None:
            return []
        run_id = sight.run.run_id
        try:
            return notices(
                sight,
                look.figures.get(run_id),
                self.seen,
                kinds=self.kinds,
                now=time.time(),
                all_requests=partial(look.store.scalings, run_id),
            )
        except LogUnavailable:  # the next look finds them
            return []

    def _judge(self, look: LogLook) -> Findings:
        try:
            findings = self._not_answered(look.error) if look.store is None else self._find(look.store, look)
        except LogUnavailable as error:
            findings = self._not_answered(error)
        if findings.failed is not None:
            self._silent = 0
        else:
            if self._silent % _SILENT_LOOKS == 0:
                self.log.warning(
                    "The log is unavailable, so the state of the groups is unknown; retrying: %s", findings.unavailable
                )
            self._silent += 1
        return findings

    def _find(self, store: LogStore, look: LogLook) -> Findings:
        if self.supervisor is None:
            return only_watched(look.runs.get(self.run_uid or ""))
        if self._finder is None or self._store is not store:
            self._store, self._finder = store, FailureFinder(store, pipeline=self.pipeline, run_uid=self.run_uid)
        mine = look.runs.get(self.run_uid) if self.run_uid is not None else None
        sights = look.going_on if self.run_uid is None else [] if mine is None else [mine]
        return self._finder.judge(sights, look.asked_at, look.slots)

    def _not_answered(self, error: LogUnavailable | None) -> Findings:
        why = str(error)
        return Findings(None, unavailable=why) if self._finder is None else self._finder.not_answered(why)

    def _is_over(self, findings: Findings, seconds: float) -> bool:
        if findings.failed is None or (self._recovery is not None and self._recovery.is_busy()):
            return False
        all_ended = self.run_uid is not None and not findings.going_on and seconds >= (self.rest_seconds or 0.0)
        return all_ended or (self.give_up_after is not None and seconds >= self.give_up_after)

"""RUNNING events of a group's task, at most every five minutes, from whatever watches the group (ADR-101).

They say what the log says of the group (`LogioRunFacet`), and nothing of datasets: those were in the START event. So the
triggerer, which must not import an author's pipeline, can make them, and no worker is woken for them. A thread of their
own makes them. A transport that hangs delays the next event, and nothing else: an event that had to wait is dropped, because
COMPLETE or FAIL may be sent meanwhile, and each has the time of the look that it tells of.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunFigures

EVENT_SECONDS = 300.0
STALE_SECONDS = 30.0
"""An event that has waited for so long is not sent."""

log = logging.getLogger(__name__)
_sending = ThreadPoolExecutor(1, thread_name_prefix="logio OpenLineage")
"""One for all groups of a triggerer: a server for lineage that hangs must not hold many threads."""


class RunningEvents:
    """The RUNNING events of one group. `task` identifies its task: `TaskIdentity.given`; None: there are none."""

    def __init__(
        self, task: Mapping[str, Any] | None, run: Run, group: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._task = task
        self._run = run
        self._group = group
        self._clock = clock
        self._last = clock()
        self._event: Future[None] | None = None
        self._is_closed = False
        self._has_failed = False

    def is_due(self) -> bool:
        """Whether five minutes have passed since the last event was sent, or since the beginning, and none is on its way."""
        if self._task is None or self._is_closed or self._clock() - self._last < EVENT_SECONDS:
            return False
        return self._event is None or self._event.done()

    def ask(self, store: LogStore) -> None:
        """As `look`, for code that does not read these figures anyway."""
        run_id = self._run.run_id
        self._try(lambda: self.look(store.groups(run_id), store.figures([run_id])[run_id]))

    def look(self, statuses: Sequence[GroupStatus], figures: RunFigures) -> None:
        """Send an event if one is due. Never raises, never waits."""
        if self.is_due():
            self._try(lambda: self._submit(statuses, figures))

    def close(self) -> None:
        """Send no more: the task is about to end. An event that is being sent has the time of an earlier look."""
        self._is_closed = True
        if self._event is not None:
            self._event.cancel()

    def _submit(self, statuses: Sequence[GroupStatus], figures: RunFigures) -> None:
        self._event = _sending.submit(self._send, statuses, figures, datetime.now(UTC), self._clock())

    def _try(self, act: Callable[[], None]) -> None:
        """Lineage stops no watching. While the log does not answer, nothing is sent."""
        try:
            act()
            self._has_failed = False
        except Exception as error:
            if not self._has_failed:  # each look would say it again
                self._warn(error)
            self._has_failed = True

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _send(self, statuses: Sequence[GroupStatus], figures: RunFigures, at: datetime, asked: float) -> None:
        """An error here is no error of the group: this process may have no OpenLineage at all."""
        if self._task is None or self._is_closed or self._clock() - asked > STALE_SECONDS:
            return
        try:
            from airflow_logio.openlineage.run_facet import run_facet
            from airflow_logio.openlineage.task_identity import TaskIdentity

            TaskIdentity.of_given(self._task).emit_running(run_facet(self._run, self._group, statuses, figures), at)
        except Exception as error:
            self._warn(error)
        self._last = self._clock()

    def _warn(self, error: Exception) -> None:
        log.warning("Group %s: no RUNNING event of OpenLineage: %s: %s", self._group, type(error).__name__, error)

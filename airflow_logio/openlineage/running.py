"""RUNNING events of a group's task, at most every five minutes, from whatever watches the group (ADR-101).

They say what the log says of the group (`LogioRunFacet`), and nothing of datasets: those were in the START event. So the
triggerer, which must not import an author's pipeline, can make them, and no worker is woken for them. A thread of their
own makes them. A transport that hangs delays the next event, and nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from airflow_logio.errors import LogUnavailable
from airflow_logio.store.port import LogStore
from airflow_logio.store.quarantine_records import QuarantinedInputSet
from airflow_logio.store.records import GroupStatus, Run, RunFigures

EVENT_SECONDS = 300.0

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
        self._sent: Future[None] | None = None

    def is_due(self) -> bool:
        """Whether five minutes have passed since the last event, or the beginning, and that event is on its way."""
        if self._task is None or self._clock() - self._last < EVENT_SECONDS:
            return False
        return self._sent is None or self._sent.done()

    def ask(self, store: LogStore) -> None:
        """As `look`, for code that does not read these figures anyway. While the log does not answer, nothing is sent."""
        with suppress(LogUnavailable):
            run_id = self._run.run_id
            self.look(store, store.groups(run_id), store.figures([run_id])[run_id])

    def look(self, store: LogStore, statuses: Sequence[GroupStatus], figures: RunFigures) -> None:
        """Send an event if one is due. Raises `LogUnavailable`."""
        if self._task is None or not self.is_due():
            return
        aside = store.quarantined(self._run.run_id)
        self._last = self._clock()
        self._sent = _sending.submit(_send, self._task, self._run, self._group, statuses, figures, aside)


def _send(
    task: Mapping[str, Any],
    run: Run,
    group: str,
    statuses: Sequence[GroupStatus],
    figures: RunFigures,
    aside: Sequence[QuarantinedInputSet],
) -> None:
    """An error here is no error of the group: this process may have no OpenLineage at all."""
    try:
        from airflow_logio.openlineage.run_facet import run_facet
        from airflow_logio.openlineage.task_identity import TaskIdentity

        facet = run_facet(run, group, statuses, figures.ports, figures.under_way, aside)
        TaskIdentity.of_given(task).emit_running(facet, datetime.now(UTC))
    except Exception as error:
        log.warning("Group %s: no RUNNING event of OpenLineage: %s: %s", group, type(error).__name__, error)

"""What the trigger of a group reports while it watches: progress lines for the task's log, metrics for Airflow's Stats."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from airflow_logio import metrics
from airflow_logio.errors import LogUnavailable
from airflow_logio.runtime.figures.progress_lines import ProgressLines
from airflow_logio.runtime.figures.recoveries import Recovery, RecoveryNews
from airflow_logio.runtime.figures.snapshot import Observer
from airflow_logio.runtime.figures.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run

LOOK_SECONDS = 10.0
LINE_SECONDS = 30.0


class GroupReporter:
    """The one reporter of a group and all its replicas.

    `report` is called with every poll; it reads the log once in ten seconds.
    """

    def __init__(
        self,
        store: LogStore,
        run: Run,
        group: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._run = run
        self._group = group
        self._members = members_of(run, group)
        self._say = say
        self._clock = clock
        self._observer = Observer(store, run)
        self._lines = ProgressLines(LINE_SECONDS, clock)
        self._news = RecoveryNews()
        self._looked_at = float("-inf")

    def report(self, *, at_once: bool = False) -> None:
        """Look if it is time to, or `at_once` for the last time. The polling trigger reports an unavailable log."""
        if not at_once and self._clock() - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = self._clock()
        try:
            self._report_figures(at_once=at_once)
            self._report_recoveries()
        except LogUnavailable as error:
            logging.getLogger(__name__).debug("nothing to report: %s", error)

    def _report_figures(self, *, at_once: bool) -> None:
        snapshot = self._observer.take()
        metrics.report_group(snapshot, self._group)
        view = snapshot.group(self._group)
        if view is not None and (at_once or self._lines.is_due()) and (line := self._lines.line(view)) is not None:
            self._say(line)

    def _report_recoveries(self) -> None:
        begun, committed = self._news.of(self._store.drivers(self._run.run_id))
        pipeline = self._run.spec.key.pipeline
        for one in self._ours(begun):
            metrics.report_recovery_begun(pipeline, one)
            self._say(f"{one.group} is being recovered as incarnation {one.incarnation}: {one.cause}")
        for one in self._ours(committed):
            metrics.report_recovered(pipeline, one)
            steps = ", ".join(f"{step} {seconds:.1f} s" for step, seconds in one.seconds_of_steps.items())
            self._say(f"{one.group} has recovered {one.seconds or 0:.1f} s after its death was detected: {steps}")

    def _ours(self, found: Sequence[Recovery]) -> list[Recovery]:
        return [one for one in found if one.group in self._members]

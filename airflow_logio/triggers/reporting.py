"""What the trigger of a group reports while it watches: progress lines for the task's log, metrics for Airflow's Stats."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from airflow_logio import metrics
from airflow_logio.runtime.figures.progress_lines import ProgressLines
from airflow_logio.runtime.figures.recoveries import Recovery, RecoveryNews
from airflow_logio.runtime.figures.snapshot import SnapshotSeries
from airflow_logio.runtime.figures.whole_group import members_of
from airflow_logio.store.records import DriverRecord, GroupStatus, Run, RunFigures

LINE_SECONDS = 30.0


class GroupReporter:
    """The one reporter of a group and all its replicas. `report` is called with what was read, every ten seconds or so."""

    def __init__(
        self, run: Run, group: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run = run
        self._group = group
        self._members = members_of(run, group)
        self._say = say
        self._series = SnapshotSeries(run, clock)
        self._lines = ProgressLines(LINE_SECONDS, clock)
        self._news = RecoveryNews()

    def report(self, groups: Sequence[GroupStatus], figures: RunFigures, *, at_once: bool = False) -> None:
        """`at_once` for the last time: then the progress is said, whenever that was done before."""
        snapshot = self._series.next(groups, figures.ports, figures.under_way)
        metrics.report_group(snapshot, self._group)
        view = snapshot.group(self._group)
        if view is not None and (at_once or self._lines.is_due()) and (line := self._lines.line(view)) is not None:
            self._say(line)
        self._report_recoveries(figures.drivers)

    def _report_recoveries(self, drivers: Sequence[DriverRecord]) -> None:
        begun, committed = self._news.of(drivers)
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

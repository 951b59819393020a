"""What the trigger of a group reports while it watches: progress lines for the task's log, metrics for Airflow's Stats."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from airflow_logio import metrics
from airflow_logio.protocol.states import OPEN_SCALING
from airflow_logio.status.alert_figures import alert_figures
from airflow_logio.status.progress_lines import ProgressLines
from airflow_logio.status.recoveries import Recovery, RecoveryNews
from airflow_logio.status.snapshot import SnapshotSeries
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.records.driver_records import DriverRecord
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunFigures, ScalingRequest

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
        self._settled: set[int] | None = None
        """Requests to scale the group of which the outcome is old; None before the first look."""

    def report(
        self,
        groups: Sequence[GroupStatus],
        figures: RunFigures,
        requests: Sequence[ScalingRequest] = (),
        *,
        at_once: bool = False,
    ) -> None:
        """`requests` as in `RunSight`. `at_once` for the last time: then the progress is said, whenever that was done
        before."""
        snapshot = self._series.next(groups, figures.ports, figures.under_way)
        pipeline = self._run.spec.key.pipeline
        if self._settled is None:
            replicated = self._group in self._run.spec.replicated
            metrics.report_beginning(pipeline, self._group, is_replicated=replicated)
        metrics.report_group(snapshot, self._group)
        alerting = alert_figures(self._run, self._group, groups, figures)
        metrics.report_alert_figures(pipeline, self._group, alerting)
        self._report_scalings([one for one in requests if one.group == self._group])
        view = snapshot.group(self._group)
        if view is not None and (at_once or self._lines.is_due()) and (line := self._lines.line(view)) is not None:
            self._say(line)
        self._report_recoveries(figures.drivers)

    def _report_scalings(self, requests: Sequence[ScalingRequest]) -> None:
        """What the first look finds is old."""
        settled = {one.request_id: one for one in requests if one.state not in OPEN_SCALING}
        for number in settled.keys() - (settled.keys() if self._settled is None else self._settled):
            metrics.report_scaled(self._run.spec.key.pipeline, settled[number])
        self._settled = (self._settled or set()) | settled.keys()

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

"""Follows a DAG run: its progress comes from the log, its end from Airflow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_logio.cli.display import Progress
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import LogUnavailable, UnknownRun
from airflow_logio.protocol.states import CONCLUDED, GroupState
from airflow_logio.status.run_summary import Outcome, RunSummary, summarize
from airflow_logio.status.snapshot import Observer
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from demo.rest import Airflow, AirflowUnavailable

POLL_SECONDS = 0.5
ASK_AIRFLOW_SECONDS = 2.0
ENDED = ("success", "failed")


@dataclass(slots=True)
class Followed:
    """How a DAG run went; `run` is None if the DAG run ended before its first task started a run in the log."""

    state: str
    run: Run | None
    summary: RunSummary | None
    seconds: float


@dataclass(slots=True)
class Follower:
    """`follow` blocks until the DAG run has ended."""

    store: LogStore
    pipeline: Pipeline
    airflow: Airflow
    look_after_airflow: Callable[[], None]
    dag_id: str
    _run: Run | None = None
    _observer: Observer | None = None
    _peak: dict[str, int] = field(default_factory=dict)
    _finished: bool = False

    def follow(self, run_id: str, progress: Progress) -> Followed:
        began, asked, state = time.monotonic(), float("-inf"), "queued"
        while True:
            self.look_after_airflow()
            self._look(run_id, progress)
            if self._finished or time.monotonic() - asked >= ASK_AIRFLOW_SECONDS:
                asked = time.monotonic()
                state = self._state(run_id, state)
                if state in ENDED:
                    break
            time.sleep(POLL_SECONDS)
        self._look(run_id, progress)
        seconds = time.monotonic() - began
        return Followed(state, self._run, self._summary(seconds), seconds)

    def _look(self, run_id: str, progress: Progress) -> None:
        try:
            if self._run is None or self._observer is None:
                self._run = self.store.find_run(run_id)
                self._observer = Observer(self.store, self._run)
            snapshot = self._observer.take()
        except UnknownRun:
            return
        except LogUnavailable as error:
            progress.say(f"the log does not answer: {error}")
            return
        for view in snapshot.groups:
            self._peak[view.name] = max(self._peak.get(view.name, 0), view.status.rss_bytes)
        self._finished = snapshot.finished
        progress.show(snapshot)

    def _state(self, run_id: str, last: str) -> str:
        try:
            return self.airflow.run_state(self.dag_id, run_id)
        except AirflowUnavailable:
            return last  # busy; the next look asks again

    def _summary(self, seconds: float) -> RunSummary | None:
        if self._run is None:
            return None
        groups = self.store.groups(self._run.run_id)
        states = {group.state for group in groups}
        outcome = Outcome.FINISHED if states <= CONCLUDED else Outcome.HALTED
        if GroupState.PARKED in states:
            outcome = Outcome.PARKED
        return summarize(self.store, self._run, self.pipeline, outcome, seconds, self._peak)

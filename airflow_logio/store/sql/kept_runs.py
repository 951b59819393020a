"""Descriptions of runs that were read: they never change, but for their columns' types, and are read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from airflow_logio.store.records.run_records import Run

MOST_RUNS = 256
"""Runs that are kept: a process that reads a log for weeks meets many."""


class KeptRuns:
    """Run id → run, those that were used last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, Run] = OrderedDict()

    def get(self, run_id: int) -> Run | None:
        return self.of([run_id]).get(run_id)

    def of(self, run_ids: Iterable[int]) -> dict[int, Run]:
        """Those of them that are kept."""
        found = {}
        with self._lock:
            for run_id in run_ids:
                if run_id in self._runs:
                    found[run_id] = self._runs[run_id]
                    self._runs.move_to_end(run_id)
        return found

    def keep(self, *runs: Run) -> None:
        """At least these stay until others are kept, however many they are."""
        with self._lock:
            for run in runs:
                self._runs[run.run_id] = run
                self._runs.move_to_end(run.run_id)
            while len(self._runs) > max(MOST_RUNS, len(runs)):
                self._runs.popitem(last=False)

    def drop(self, run_id: int) -> None:
        with self._lock:
            self._runs.pop(run_id, None)

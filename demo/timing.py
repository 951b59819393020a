"""Where the seconds of the demonstration go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_logio.status.run_summary import RunSummary


@dataclass(slots=True)
class Stopwatch:
    """Named stretches of time, in the order in which they ended."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = round(self.clock() - began, 3)

    @property
    def total(self) -> float:
        return round(self.clock() - self._began, 3)


def run_stages(summary: RunSummary, triggered_at: float, ended_at: float) -> dict[str, float]:
    """Stages of the DAG run, from the log's times. Both arguments are seconds since the epoch.

    Each stage is the time since the previous one, so they add up to the DAG run.
    """
    firsts = [driver for driver in summary.drivers if driver.incarnation == 1]
    sources = [row.first_at for row in summary.ports if row.direction == "out" and row.events]
    points = [
        ("trigger_to_run_in_log", summary.run.created_at),
        ("to_first_driver_claimed", min((driver.claimed_at for driver in firsts), default=None)),
        ("to_first_driver_registered", min((d.registered_at for d in firsts if d.registered_at), default=None)),
        ("to_first_event", min(sources, default=None)),
        ("to_last_event", max((row.last_at for row in summary.ports), default=None)),
        ("to_end_of_dag_run", ended_at),
    ]
    stages, before = {}, triggered_at
    for name, at in points:
        if at is not None:
            stages[name] = round(at - before, 3)
            before = at
    return stages

"""Records per second from the first event to the last, drivers already up."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from airflow_logio.status.run_summary import Outcome, RunSummary
from tests.bench.databases import Databases
from tests.bench.sales import sales_run


class WrongResult(Exception):
    """A measured run did not finish, or its result was not exact: its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Throughput:
    database: str
    runs: tuple[RunSummary, ...]

    def as_json(self) -> dict[str, Any]:
        speeds = [run.records_per_second or 0.0 for run in self.runs]
        groups = self.runs[0].peak_rss
        return {
            "database": self.database,
            "records_per_second": {"median": round(median(speeds)), "all": [round(speed) for speed in speeds]},
            "event_seconds": [round(run.event_seconds or 0.0, 2) for run in self.runs],
            "rss_mb": {group: max(run.peak_rss.get(group, 0) for run in self.runs) >> 20 for group in groups},
        }

    def line(self) -> str:
        figures = self.as_json()
        speed, memory = figures["records_per_second"], figures["rss_mb"]
        return (
            f"{self.database:9} {speed['median']:>9,} records/s (median of {len(self.runs)}: {speed['all']}), "
            f"exact, RSS MB {memory}"
        )


def measure(databases: Databases, runs: int) -> Throughput:
    """Raises `WrongResult`."""
    summaries = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
            folder = Path(name)
            with sales_run(databases.fresh(folder), folder) as sales:
                summary = sales.local.run()
                if summary.outcome is not Outcome.FINISHED:
                    raise WrongResult(f"the run is {summary.outcome}: {[group.error for group in summary.parked]}")
                if not sales.is_exact():
                    raise WrongResult("the result of the run is not exact")
                summaries.append(summary)
    return Throughput(databases.name, tuple(summaries))

"""How many events per second pass through groups without Spark if each event is one small record, or one of 10 kB.

The clock is strict: from the time at which the source makes its first record to PostgreSQL's own time of the commit that
has the last row. All drivers are up before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psycopg2

from airflow_logio.launch import bundle
from airflow_logio.status.run_summary import Outcome
from airflow_logio.supervision.local_run import LocalRun
from tests.bench.bench_run import bench_run
from tests.bench.databases import Postgres
from tests.bench.figure import Figure
from tests.bench.throughput import WrongResult

PIPELINES = Path(__file__).parent / "pipelines" / "floods.py"


@dataclass(frozen=True, slots=True)
class Flood:
    pipeline: str
    groups: int
    size: int
    events: int
    target: str


FLOODS = (Flood("two", 2, 100, 60_000, "15000"), Flood("five", 5, 10_000, 10_000, "2000"))


def measure(databases: Postgres, runs: int) -> Iterator[Figure]:
    """They take turns. Raises `WrongResult` if a row is missing."""
    rates: dict[Flood, list[float]] = {flood: [] for flood in FLOODS}
    for _ in range(runs):
        for flood, found in rates.items():
            found.append(_rate(databases, flood))
    for flood, found in rates.items():
        listed = ", ".join(f"{rate:,.0f}" for rate in sorted(found))
        details = f"{flood.events:,} events a run: {listed}"
        what = f"events of {flood.size:,} B, {flood.groups} groups"
        yield Figure(databases.name, what, median(found), "events/s", flood.target, details)


def _rate(databases: Postgres, flood: Flood) -> float:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, warehouse_url = databases.fresh(folder)
        ref = bundle.parse_ref(f"{PIPELINES}:{flood.pipeline}")
        params = {"events": flood.events, "bytes": flood.size}
        with bench_run(ref, log_url, folder, params, {"warehouse": warehouse_url}) as context:
            outcome = LocalRun(context).run().outcome
        return flood.events / _seconds(warehouse_url, flood.events, outcome)


def _seconds(warehouse_url: str, events: int, outcome: Outcome) -> float:
    with closing(psycopg2.connect(warehouse_url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*), count(DISTINCT number), min(number), max(number), "
            "max(extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8) - min(read_at) FROM flood"
        )
        rows, different, first, last, seconds = cursor.fetchone()
    if outcome is not Outcome.FINISHED or (rows, different, first, last) != (events, events, 0, events - 1):
        raise WrongResult(f"the run is {outcome}, with {rows:,} rows of {events:,}, {different:,} of them different")
    return float(seconds)

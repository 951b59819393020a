"""What a hop costs: from the read of an event to the commit of its row, through five groups, where commits take longer.

The clock begins when the source has its record, and ends with PostgreSQL's own time of the commit that has the row in the
warehouse. That time is taken before the commit's flush, so the last flush is not in it. A log that loses its last commits
when its machine dies is measured too: nothing that sends before its rows are durable can be faster than that one (ADR-118).
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from statistics import median

import psutil
import psycopg2
import psycopg2.extensions

from airflow_logio.launch import bundle
from airflow_logio.status.run_summary import Outcome
from airflow_logio.supervision.local_run import LocalRun
from tests.bench.bench_run import bench_run
from tests.bench.cpu import metered
from tests.bench.databases import Postgres
from tests.bench.figure import Figure
from tests.bench.pipelines.hops import HOPS
from tests.bench.throughput import WrongResult

PIPELINE = Path(__file__).parent / "pipelines" / "hops.py"
DELAYS_MS = (0, 1, 5, 10)
"""How much longer each commit of the server takes: commits that wait at the same time share it, as they share an fsync."""
EVENTS = 400
WARM = 100
"""Of them, read before everything is warm: not counted."""
PER_SECOND = 20.0


CONDITIONS: dict[str, dict[str, str]] = {
    **{f"commits that take {delay} ms more": {"commit_delay": str(1_000 * delay)} for delay in DELAYS_MS},
    "commits that wait for no disk": {"fsync": "off"},
}
"""Name → settings of the server beside `USUAL`."""
USUAL = {"fsync": "on", "commit_delay": "0", "commit_siblings": "0"}


def measure(databases: Postgres, runs: int) -> Iterator[Figure]:
    """The conditions take turns, and each time another one begins. Raises `WrongResult` if a row is missing."""
    took: dict[str, list[list[float]]] = {what: [] for what in CONDITIONS}
    costs: list[float] = []
    try:
        names = list(CONDITIONS)
        for number in range(runs):
            for what in names[number % len(names) :] + names[: number % len(names)]:
                databases.configure(**{**USUAL, **CONDITIONS[what]})
                latencies, cost = _run(databases)
                took[what].append(sorted(latencies))
                costs.append(cost)
    finally:
        databases.configure(**USUAL)
    for what, of_runs in took.items():
        middle, late = (median(_share(seconds, share) for seconds in of_runs) for share in (0.5, 0.99))
        listed = ", ".join(f"{_share(seconds, 0.5):.1f}" for seconds in of_runs)
        details = f"from read to row p50 {middle:.1f} ms ({listed}), p99 {late:.1f} ms, {EVENTS - WARM} events a run"
        details += f", {HOPS} hops and a write"
        yield Figure(databases.name, what, middle / (HOPS + 1), "ms a hop", "none", details)
    listed = ", ".join(f"{1_000 * cost:.1f}" for cost in sorted(costs))
    details = f"drivers and server, {PER_SECOND:g} events/s, one event a commit, with all that is not commits: {listed}"
    yield Figure(databases.name, f"CPU of a commit, {HOPS + 1} groups", 1_000 * median(costs), "ms", "4", details)


def _share(seconds: Sequence[float], share: float) -> float:
    """Milliseconds below which so many of them are."""
    return 1_000 * seconds[int(share * len(seconds))]


def _run(databases: Postgres) -> tuple[list[float], float]:
    """How long each event took, and CPU seconds per commit."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, warehouse_url = databases.fresh(folder)
        ref = bundle.parse_ref(f"{PIPELINE}:hops")
        params = {"events": EVENTS, "per_second": PER_SECOND}
        with bench_run(ref, log_url, folder, params, {"warehouse": warehouse_url}) as context:
            ended = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                cost = pool.submit(_cpu_of_a_commit, log_url, context.run.run_id, ended)
                try:
                    outcome = LocalRun(context).run().outcome
                finally:
                    ended.set()
            return _read(warehouse_url, outcome), cost.result()


def _cpu_of_a_commit(log_url: str, run_id: int, ended: threading.Event) -> float:
    """Of all drivers and of the server, while events pass and everything is warm. Raises `WrongResult` if they do not."""
    with closing(psycopg2.connect(log_url)) as log:
        while _commits(log, run_id) <= WARM * HOPS:
            if ended.wait(0.25):
                raise WrongResult("the run has ended before everything was warm")
        with metered(child.pid for child in psutil.Process().children()) as meter:
            before, began = _commits(log, run_id), meter.read()
            if ended.wait((EVENTS - 2 * WARM) / PER_SECOND):
                raise WrongResult("the run has ended while it was measured")
            return (meter.read() - began) / (_commits(log, run_id) - before)


def _commits(log: psycopg2.extensions.connection, run_id: int) -> int:
    with log, log.cursor() as cursor:
        cursor.execute("SELECT coalesce(sum(commit_no), 0) FROM logio_fence WHERE run_id = %s", (run_id,))
        return int(cursor.fetchone()[0])


def _read(warehouse_url: str, outcome: Outcome) -> list[float]:
    connection = psycopg2.connect(warehouse_url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT number, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 - read_at"
                " FROM hop_results ORDER BY number"
            )
            rows = cursor.fetchall()
    finally:
        connection.close()
    if outcome is not Outcome.FINISHED or [number for number, _ in rows] != list(range(EVENTS)):
        raise WrongResult(f"the run is {outcome}, with {len(rows)} rows of {EVENTS}")
    return [seconds for _, seconds in rows[WARM:]]

"""Bodies in the log, against bodies that go from driver to driver and are made again where they do not come (Section 5)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
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
from tests.bench.pipelines.replay_chain import EVENTS_PER_SET, ITEMS
from tests.bench.throughput import WrongResult

PIPELINE = Path(__file__).parent / "pipelines" / "replay_chain.py"
KINDS = ("in_the_log", "replayed")
SIZES = ((600, 1_000), (120, 20_000))
"""(events, records of each)"""


RECEIVERS = ("per_item", "longer", "left", "right")
"""Operators that get events of replay operators, where these are."""
LEAST_SHARE = 0.5
"""Of their events that must come directly: otherwise it is measured how they are made again."""
CAME = re.compile(r"(\d+) events of replay operators came directly")


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds from the first event to the last action, and bytes that PostgreSQL has written ahead."""

    seconds: float
    wal: float
    received: int
    """Events that `RECEIVERS` got."""
    directly: int
    """Of them, by the direct channel, as the drivers say."""


def measure(databases: Postgres, runs: int) -> Iterator[Figure]:
    """The kinds take turns, in alternating order. Raises `WrongResult`."""
    for events, records in SIZES:
        took: dict[str, list[Took]] = {kind: [] for kind in KINDS}
        for number in range(runs):
            for kind in KINDS if number % 2 == 0 else reversed(KINDS):
                took[kind].append(_timed(databases, kind, events, records))
        _check_channel(*(took[kind] for kind in KINDS))
        for kind in KINDS:
            listed = ", ".join(f"{one.seconds:.1f}" for one in took[kind])
            wal = median(one.wal for one in took[kind]) / 1e6
            details = f"{events} events of {records:,} records: {listed} s; {wal:,.0f} MB of write-ahead log"
            if kind == "replayed":
                ways = ", ".join(f"{one.directly:,} and {one.received - one.directly:,}" for one in took[kind])
                details += f"; came directly and were made again: {ways}"
            value = median(one.seconds for one in took[kind])
            yield Figure(databases.name, f"three operators, {kind.replace('_', ' ')}", value, "s", "none", details)


def _check_channel(in_the_log: Sequence[Took], replayed: Sequence[Took]) -> None:
    """Raises `WrongResult` unless the runs differ in what they are measured for."""
    shares = [one.directly / one.received for one in replayed]
    if any(one.directly for one in in_the_log) or not all(LEAST_SHARE <= share <= 1 for share in shares):
        came = [one.directly for one in in_the_log]
        raise WrongResult(
            f"bodies are to come directly where they are not in the log, and only there: {came} came so where they are, "
            f"and shares of {shares} where they are not"
        )
    if max(one.wal for one in replayed) >= min(one.wal for one in in_the_log):
        raise WrongResult("the log has got as many bytes without bodies as with them")


def _timed(databases: Postgres, kind: str, events: int, records: int) -> Took:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        log_url, warehouse_url = databases.fresh(folder)
        ref = bundle.parse_ref(f"{PIPELINE}:{kind}")
        before, params = _written(log_url), {"events": events, "records": records}
        with bench_run(ref, log_url, folder, params, {"warehouse": warehouse_url}) as context:
            summary = LocalRun(context).run()
        _check(warehouse_url, summary.outcome, events, records)
        written = _written(log_url) - before
        received = sum(row.events for row in summary.ports if row.direction == "in" and row.port.operator in RECEIVERS)
        return Took(summary.event_seconds or 0.0, written, received, _came_directly(folder / "drivers"))


def _came_directly(drivers: Path) -> int:
    """What they have said at their ends."""
    said = [path.read_text(errors="replace") for path in drivers.rglob("*") if path.is_file()]
    return sum(int(count) for text in said for count in CAME.findall(text))


def _written(url: str) -> float:
    """Bytes of the server's write-ahead log."""
    (written,) = _row(url, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8")
    return written


def _row(url: str, query: str) -> tuple[float, ...]:
    connection = psycopg2.connect(url)
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            found: tuple[float, ...] = cursor.fetchone()
            return found
    finally:
        connection.close()


def _check(warehouse_url: str, outcome: Outcome, events: int, records: int) -> None:
    """Raises `WrongResult`. The texts are products of numbers; what they have is counted here once more."""
    letters = sum(len(f"{7_919 * number}-{104_729 * number}") for number in range(events * records))
    wanted = (events // EVENTS_PER_SET * ITEMS, events * records, letters)
    for table in ("left", "right"):
        found = _row(warehouse_url, f'SELECT count(*), sum(records), sum(letters) FROM "{table}"')
        if outcome is not Outcome.FINISHED or tuple(map(int, found)) != wanted:
            raise WrongResult(f"the run is {outcome}, and table {table} has {found} instead of {wanted}")

"""Hours of sales, and a kill every half minute: exact to the end, and nothing grows or is left over.

`make soak HOURS=8` says for how long, one hour otherwise. One group is spared, so that its driver's memory and open files
are those of a process that has lived for hours; of the others, the one to be killed is drawn.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import pytest

from airflow_logio.launch import bundle
from airflow_logio.launch.driver_folders import processes_under
from airflow_logio.launch.launcher import LocalProcessLauncher
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from tests.support.bundle.paced_sales import BEGIN, EVENTS_PER_BATCH, RECORDS_PER_EVENT, sale
from tests.support.postgres import PostgresServer
from tests.support.running import Running, running
from tests.support.warehouse import rows_of

log = logging.getLogger(__name__)

HOURS = float(os.environ.get("LOGIO_SOAK_HOURS", "1"))
REF = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'paced_sales.py'}:sales")
EVENTS_PER_SECOND = 4.0
KILL_SECONDS = 30.0
SPARED, KILLED = "publish", ("ingest", "totals", "hourly")
WARM_SECONDS = 120.0
"""What a driver needs in its first minutes is no leak."""

Rows = dict[tuple[object, ...], tuple[int, int]]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(HOURS * 3600 + 1200)]


@dataclass(frozen=True)
class Sample:
    """What the run holds at one moment."""

    rows: int
    """Of events in the log."""
    log_bytes: int
    """Of the log's tables and indexes."""
    memory: int
    """Bytes of the driver that is spared."""
    files: int
    """That it has open."""
    sessions: int
    """Of PostgreSQL, all drivers and this test together."""


@pytest.fixture
def servers(postgres_server: PostgresServer) -> Iterator[tuple[str, str]]:
    """A log and a warehouse."""
    log, warehouse = postgres_server.new_database(), postgres_server.new_database()
    yield log, warehouse
    for url in (log, warehouse):
        postgres_server.drop_database(url)


def sampled(run: Running, log_url: str) -> Sample | None:
    """None while the driver that is spared has not begun."""
    if not run.is_running(SPARED):
        return None
    count = "(SELECT count(*) FROM logio_event_log) + (SELECT count(*) FROM logio_event_data)"
    size = "(SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE 'logio_event%' AND relkind = 'r')"
    sessions = "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')"
    [(rows, log_bytes, alive)] = rows_of(log_url, f"SELECT {count}, {size}, {sessions}")
    process = run.process(SPARED)
    return Sample(int(rows), int(log_bytes), process.memory_info().rss, process.num_fds(), int(alive))


def kill(run: Running, dice: random.Random) -> None:
    """One driver; that of `hourly` with its JVM, or its Python alone."""
    group = dice.choice(KILLED)
    if run.is_running(group):
        run.signal(group, signal.SIGKILL, jvm=group == "hourly" and dice.random() < 0.5)


def blown(run: Running, log_url: str, dice: random.Random) -> list[Sample]:
    """Supervise, sample and kill until the hours are over."""
    samples: list[Sample] = []
    begun = next_kill = time.monotonic()
    next_kill += KILL_SECONDS
    while (now := time.monotonic()) < begun + HOURS * 3600:
        run.tend()
        if now >= next_kill:
            if now - begun > WARM_SECONDS and (sample := sampled(run, log_url)) is not None:
                samples.append(sample)
                log.info("%.1f minutes: %s", (now - begun) / 60, sample)
            kill(run, dice)
            next_kill += KILL_SECONDS
        time.sleep(0.2)
    return samples


def expected(events: int) -> tuple[Rows, Rows]:
    """The rows of both tables, from the numbers of the sales alone."""
    items: Rows = defaultdict(lambda: (0, 0))
    hours: Rows = defaultdict(lambda: (0, 0))
    for number in range(events * RECORDS_PER_EVENT):
        at, store, product, quantity, cents = sale(number)
        item = number // (RECORDS_PER_EVENT * EVENTS_PER_BATCH) + 1, product
        hour = at.replace(minute=0, second=0), store
        for rows, key in ((items, item), (hours, hour)):
            rows[key] = rows[key][0] + quantity, rows[key][1] + cents
    return dict(items), dict(hours)


def written(url: str, query: str) -> Rows:
    rows = rows_of(url, query)
    found: Rows = {(first, second): (int(quantity), int(cents)) for first, second, quantity, cents in rows}
    assert len(found) == len(rows)
    return found


def assert_flat(samples: list[Sample], what: str, value: Callable[[Sample], int], *, slack: float, least: int) -> None:
    """The last quarter of the hours needs no more than the first, but for `slack`, or `least` of it."""
    quarter = max(1, len(samples) // 4)
    first, last = (median(map(value, part)) for part in (samples[:quarter], samples[-quarter:]))
    assert last <= max(first * (1 + slack), first + least), f"{what} has grown from {first:,.0f} to {last:,.0f}"


@pytest.mark.soak
def test_hours_of_sales_with_a_kill_every_half_minute(
    servers: tuple[str, str], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    log_url, warehouse_url = servers
    seed = random.SystemRandom().randrange(1_000_000)
    drivers = tmp_path / "drivers"
    log.info("seed %d", seed)
    arguments = (log_url, warehouse_url, tmp_path, LocalProcessLauncher(drivers))
    settings = {"ref": REF, "params": {"events_per_second": EVENTS_PER_SECOND}, "lease": Lease(15, 120)}
    with running(*arguments, **settings) as run:
        samples = blown(run, log_url, random.Random(seed))
        run.store.request(run.run.run_id, "ingest", GroupState.DRAINING)
        run.finish(timeout=600)
        events = run.count("ingest.out", "out")
        recoveries = {group: run.status(group).recoveries for group in (*KILLED, SPARED)}
    record_property("stability", f"{HOURS:g} hours, {events:,} events, {sum(recoveries.values())} recoveries")
    log.info("%d events, recoveries %s; first %s, last %s", events, recoveries, samples[:1], samples[-1:])
    items, hours = expected(events)
    assert written(warehouse_url, "SELECT batch, product_id, quantity, sales_cents FROM item_totals") == items
    assert written(warehouse_url, "SELECT hour, store_id, quantity, sales_cents FROM hourly_sales") == hours
    assert events > HOURS * 3600 * EVENTS_PER_SECOND * 0.3 and BEGIN in {hour for hour, _ in hours}
    assert recoveries[SPARED] == 0 and sum(recoveries.values()) > HOURS * 3600 / KILL_SECONDS * 0.5
    assert_flat(samples, "the log", lambda one: one.rows, slack=0.5, least=5_000)
    assert_flat(samples, "the log on the disk", lambda one: one.log_bytes, slack=0.5, least=32 << 20)
    assert_flat(samples, "the memory of a driver", lambda one: one.memory, slack=0.1, least=16 << 20)
    assert_flat(samples, "the open files of a driver", lambda one: one.files, slack=0.0, least=4)
    assert_flat(samples, "PostgreSQL", lambda one: one.sessions, slack=0.0, least=8)
    assert processes_under(drivers) == []
    left = psutil.Process().children(recursive=True)
    assert sum(one.status() == psutil.STATUS_ZOMBIE for one in left) <= len((*KILLED, SPARED)), (
        "each launch reaps the last"
    )
    [(slots, sessions)] = rows_of(
        log_url,
        "SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name LIKE 'logio%' AND pid <> pg_backend_pid())",
    )
    assert (slots, sessions) == (0, 0)

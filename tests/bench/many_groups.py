"""What each group costs the log when there are many: one process stands for all drivers of a run, each of which makes one
commit and one heartbeat a second, and for the supervisor, which looks at all of them every second.

The work is trivial, so that what is measured is the log: the time of commits, of looks, and of the server's processes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind, Status
from airflow_logio.store import open_store
from airflow_logio.store.records.run_records import Run
from tests.bench.cpu import metered
from tests.bench.databases import Postgres, server_pid
from tests.bench.figure import Figure
from tests.support.logs import IN, OUT, Driver, spec, start_driver

GROUPS = (10, 50, 200)
SECONDS = 20
CONNECTIONS = 16
"""Of the one process; drivers have two each."""
BODY = b"x" * 100


def measure(databases: Postgres) -> Iterator[Figure]:
    """Per group and second; raises what a commit raises."""
    for groups in GROUPS:
        with tempfile.TemporaryDirectory(prefix="logio-bench-") as folder:
            log_url, _ = databases.fresh(Path(folder))
            found = _Many(log_url, groups)
            found.work()
        commits, looks = sorted(found.commits), sorted(found.looks)
        middle, late = (1_000 * commits[int(share * len(commits))] for share in (0.5, 0.99))
        details = (
            f"{len(commits) / found.seconds:,.0f} commits/s, p50 {middle:.1f} ms, p99 {late:.1f} ms; "
            f"a look at all groups {1_000 * median(looks):.1f} ms; {found.late} of {SECONDS} rounds took longer than a second"
        )
        share = 1_000 * found.server_cpu / found.seconds / groups
        yield Figure(databases.name, f"{groups} groups, CPU of the server", share, "ms/group/s", "none", details)


@dataclass
class _Many:
    log_url: str
    groups: int
    commits: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    late: int = 0
    seconds: float = 0.0
    server_cpu: float = 0.0

    def work(self) -> None:
        store = open_store(self.log_url, application="logio bench", connections=CONNECTIONS)
        try:
            names = [f"g{number}" for number in range(self.groups)]
            run = store.start_run(spec(*names))
            drivers = [start_driver(store, group=name, run=run) for name in names]
            with ThreadPoolExecutor(CONNECTIONS) as pool, metered([server_pid(self.log_url)]) as meter:
                before, began = meter.read(), time.perf_counter()
                for number in range(1, SECONDS + 1):
                    self._round(pool, drivers, run, number)
                    left = began + number - time.perf_counter()
                    self.late += left < 0
                    time.sleep(max(0.0, left))
                self.seconds = time.perf_counter() - began
                self.server_cpu = meter.read() - before
        finally:
            store.dispose()

    def _round(self, pool: ThreadPoolExecutor, drivers: Sequence[Driver], run: Run, number: int) -> None:
        self.commits += pool.map(lambda driver: _one_second(driver, number), drivers)
        began = time.perf_counter()
        found = drivers[0].store.groups(run.run_id)
        self.looks.append(time.perf_counter() - began)
        if len(found) != self.groups:
            raise RuntimeError(f"{len(found)} of {self.groups} groups are in the log")


def _one_second(driver: Driver, number: int) -> float:
    """A heartbeat, and the seconds of a commit that uses one event up and sends another one."""
    driver.store.heartbeat(driver.ref, number, ready=True, rss_bytes=0)
    sender, receiver = (port._replace(operator=f"{port.operator}_{driver.ref.group}") for port in (OUT, IN))
    delivery = fx.Delivery(receiver, ((str(number), Status.DONE),), fused=True, kept=True)
    event = Event(sender, number, Kind.DATA, 1, None, BODY)
    began = time.perf_counter()
    driver.session.commit([fx.LogEvent(event, (delivery,), kept=True), fx.CountEvents(sender, "out", 1, 1)])
    return time.perf_counter() - began

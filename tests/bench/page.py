"""What the page costs the server: one look at a run of 110 groups and 500 replicas, with all its statements."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from airflow_logio.store import open_store
from airflow_logio.ui.looks import FRESH_SECONDS, Looks
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.support.large_runs import large_run

LOOKS = 15


def measure(databases: Databases) -> Iterator[Figure]:
    """Medians of so many looks: CPU time of this process, and time; and of a request within a second of one."""
    with tempfile.TemporaryDirectory() as folder:
        log_url, _ = databases.fresh(Path(folder))
        yield from _measured(databases.name, log_url)


def _measured(name: str, log_url: str) -> Iterator[Figure]:
    store = open_store(log_url)
    try:
        run = large_run(store)
        clock = [0.0]
        looks = Looks(store, None, lambda: clock[0])
        looks.at(run.uid)
        fresh: list[Cost] = []
        shared: list[Cost] = []
        for _ in range(LOOKS):
            clock[0] += FRESH_SECONDS
            fresh.append(_cost(looks, run.uid))
            shared.append(_cost(looks, run.uid))
        size = len(looks.at(run.uid).encoded(errors=True, ids=True))
    finally:
        store.dispose()
    details = f"{len(run.spec.groups)} groups of the log, {size / 1000:.0f} kB of JSON; least {min(fresh).cpu:.0f} ms"
    yield Figure(name, "page, one look", median(one.cpu for one in fresh), "ms CPU", "50", details)
    waits = "with the time of the database"
    yield Figure(name, "page, one look, from begin to end", median(one.wall for one in fresh), "ms", "50", waits)
    yield Figure(name, "page, a look that another has just taken", median(one.cpu for one in shared), "ms CPU", "1", "")


class Cost(NamedTuple):
    """Milliseconds of one look."""

    cpu: float
    wall: float


def _cost(looks: Looks, uid: str) -> Cost:
    cpu, wall = time.process_time(), time.perf_counter()
    looks.at(uid).encoded(errors=True, ids=True)
    return Cost((time.process_time() - cpu) * 1000, (time.perf_counter() - wall) * 1000)

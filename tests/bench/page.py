"""What the page costs the server: one look at a run of 110 groups and 500 replicas, with all its statements."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from airflow_logio.store import open_store
from airflow_logio.ui.looks import FRESH_SECONDS, Looks
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.support.large_runs import large_run

LOOKS = 15


def measure(databases: Databases) -> Iterator[Figure]:
    """CPU time of this process, as the median of so many looks: the first one, and a request within a second of a look."""
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
        fresh, shared = [], []
        for _ in range(LOOKS):
            clock[0] += FRESH_SECONDS
            fresh.append(_milliseconds(looks, run.uid))
            shared.append(_milliseconds(looks, run.uid))
        size = len(looks.at(run.uid).encoded)
    finally:
        store.dispose()
    details = f"{len(run.spec.groups)} groups of the log, {size / 1000:.0f} kB of JSON; least {min(fresh):.0f} ms"
    yield Figure(name, "page, one look", median(fresh), "ms CPU", "50", details)
    yield Figure(name, "page, a look that another has just taken", median(shared), "ms CPU", "1", "")


def _milliseconds(looks: Looks, uid: str) -> float:
    before = time.process_time()
    _ = looks.at(uid).encoded
    return (time.process_time() - before) * 1000

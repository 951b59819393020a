"""What lineage adds to commits: two runs of one log commit in turn, and only one of them is in a lineage scope.

Whole runs that are compared one after the other differ by more than lineage costs, because the speed of a host does. Commits
that take turns every few milliseconds meet the same host.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Port, Status
from airflow_logio.store.sql.store import SqlLogStore
from tests.bench.cpu import cpu_seconds
from tests.bench.databases import Postgres
from tests.bench.log_commits import fill
from tests.support.logs import IN, OUT, open_sql_store, spec, start_driver

SETS, BODY = 20, bytes(index * 7 % 256 for index in range(1000)) * 10
"""Output Sets of a commit, and the body of each: one event is used up, and one is made of it."""
COMMITS = 1_500
"""Of each run."""
COLLECTED_EVERY = 10
"""Commits after which what is done is removed: without lineage all of it, with lineage none."""
MADE, AFTER = Port("receiver", "out"), Port("after", "in")


@dataclass(frozen=True, slots=True)
class Added:
    """Microseconds of CPU time per Output Set, the driver's and its backends' of PostgreSQL together."""

    without: float
    having: float


@dataclass(slots=True)
class _Committing:
    """A run whose group commits, with the processes of PostgreSQL that serve it."""

    store: SqlLogStore
    commit: Callable[[int], None]
    backends: Collection[int]
    driver_seconds: float = field(default=0.0)

    def backend_seconds(self) -> float:
        return sum(cpu_seconds(psutil.Process(pid)) for pid in self.backends)


def added(databases: Postgres) -> Added:
    """Medians would hide what comes seldom, such as the removal of what is done: these are sums of all commits."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as folder:
        log_url, _ = databases.fresh(Path(folder))
        runs = {lineage: _committing(log_url, lineage=lineage) for lineage in (False, True)}
        before = {lineage: one.backend_seconds() for lineage, one in runs.items()}
        for number in range(COMMITS):
            for lineage in (bool(number % 2), not number % 2):
                one = runs[lineage]
                began = time.process_time()
                one.commit(number)
                one.driver_seconds += time.process_time() - began
        costs = {
            lineage: (one.driver_seconds + one.backend_seconds() - before[lineage]) / (COMMITS * SETS) * 1e6
            for lineage, one in runs.items()
        }
        for one in runs.values():
            one.store.dispose()
    return Added(costs[False], costs[True])


def _committing(log_url: str, *, lineage: bool) -> _Committing:
    store, backends = open_sql_store(log_url), set[int]()

    @sa.event.listens_for(store.engine, "connect")
    def connected(connection: Any, _: Any) -> None:
        backends.add(connection.info.backend_pid)

    store.engine.dispose()
    run = store.start_run(spec(dag_run=f"lineage {lineage}"))
    fill(store, run.run_id, 1, COMMITS * SETS, Status.UNDONE, "NULL", kept=lineage)
    driver = start_driver(store, run=run)

    def commit(number: int) -> None:
        first = number * SETS + 1
        driver.session.commit(
            [
                *(effect for one in range(first, first + SETS) for effect in _output_set(one, lineage=lineage)),
                fx.StoreState("receiver", b"state"),
                fx.CountEvents(IN, "in", SETS, SETS, SETS * 100),
                fx.CountEvents(MADE, "out", SETS, SETS, SETS * len(BODY)),
            ]
        )
        if number % COLLECTED_EVERY == COLLECTED_EVERY - 1:
            driver.session.commit([fx.Collect(("receiver",), 2 * COLLECTED_EVERY * SETS)])

    return _Committing(store, commit, backends)


def _output_set(number: int, *, lineage: bool) -> list[fx.Effect]:
    inset = str(number)
    effects: list[fx.Effect] = [
        fx.Acknowledge(OUT, IN, number, ((inset, Status.UNDONE),), kept=lineage),
        fx.LogEvent(Event(MADE, number, records=1, body=BODY), (fx.Delivery(AFTER, kept=lineage),), kept=lineage),
        fx.MarkDone("receiver", inset, 1),
    ]
    return [*effects, fx.RecordLineage(MADE, number, inset)] if lineage else effects

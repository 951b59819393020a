"""What lineage costs a run: the chain of the paper's use case 1, as fast as it can, with and without a scope over all of it.

The paper's own series are paced by sleeps, behind which such costs disappear; one of them is run, too. Two runs that are
compared are neighbours, and take turns in who is first. What lineage adds to the commits alone is measured in turns of
milliseconds (`lineage_commits`), which is finer than whole runs can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import psutil

from tests.bench.cpu import cpu_seconds
from tests.bench.databases import Postgres
from tests.bench.figure import Figure
from tests.bench.lineage_commits import added
from tests.bench.paper.experiments import Experiment
from tests.bench.paper.measured_run import measured
from tests.bench.paper.scaled import Scaled
from tests.bench.paper.series import Shape

EVENTS, TRIGGER = 24_000, 100
EVENT_BYTES = 10_000
PACED, FACTOR = "1c", 0.1
"""The series with the most events: one every 30 ms."""
PAIRS = 5
TARGET = "1"


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    cpu: float
    """Seconds of drivers, PostgreSQL and supervision, starts included."""


def measure(databases: Postgres, runs: int) -> Iterator[Figure]:
    """Each pair gives a difference in percent; the medians of `PAIRS` and all of them. Raises `WrongResult`."""
    paced = Experiment(PACED).scaled(FACTOR)
    yield from _compared(databases, f"series {PACED} of the paper, {paced.events} events", paced, max(PAIRS, runs))
    fast = f"{EVENTS:,} events of {EVENT_BYTES // 1000} kB, no sleeps"
    yield from _compared(databases, fast, _unpaced(), max(PAIRS, runs))
    commits = [added(databases) for _ in range(max(PAIRS, runs))]
    what = f"CPU time of commits, {EVENT_BYTES // 1000} kB an Output Set"
    yield _figure(databases.name, what, [(one.without / 1e6, one.having / 1e6) for one in commits])


def _compared(databases: Postgres, what: str, wanted: Scaled, many: int) -> Iterator[Figure]:
    pairs = []
    for number in range(many):
        costs = {lineage: _cost(databases, wanted, lineage=lineage) for lineage in (bool(number % 2), not number % 2)}
        pairs.append((costs[False], costs[True]))
    yield _figure(databases.name, f"time, {what}", [(without.seconds, having.seconds) for without, having in pairs])
    yield _figure(databases.name, f"CPU time, {what}", [(without.cpu, having.cpu) for without, having in pairs])


def _cost(databases: Postgres, wanted: Scaled, *, lineage: bool) -> Cost:
    this = psutil.Process()
    before = cpu_seconds(this)
    taken = measured(databases, Experiment(PACED, lineage=lineage), wanted)
    return Cost(taken.seconds, cpu_seconds(this) - before)


def _unpaced() -> Scaled:
    return Scaled(
        shape=Shape.LINEAR,
        events=EVENTS,
        every=0.0,
        event_bytes=EVENT_BYTES,
        op2_seconds=0.0,
        op3_seconds=0.0,
        trigger=TRIGGER,
        op2_trigger=0,
        end=EVENTS // 2 // TRIGGER,
        fails="",
        points=(),
    )


def _figure(database: str, what: str, pairs: list[tuple[float, float]]) -> Figure:
    more = [100 * (having / without - 1) for without, having in pairs]
    told = ", ".join(f"{one:+.1f}" for one in more)
    details = f"{_told(median(without for without, _ in pairs))} without; all: {told}"
    return Figure(database, f"lineage, more {what}", median(more), "%", TARGET, details)


def _told(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1e6:.0f} microseconds"

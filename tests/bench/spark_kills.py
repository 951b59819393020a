"""What a killed driver of a chain of DataFrames costs: seconds that its run takes longer than runs that nothing disturbs.

They take turns. At most one event and a restart may be lost (a range is read again), and how long these take is known from
the runs without a kill. A restart is what the start of any driver costs: until it is up, and then the seconds that a JVM
loses which has compiled nothing.
"""

from __future__ import annotations

import itertools
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.spark import CHAIN, LONG, LOOK_SECONDS, ChainRun, Up, supervised, work_of
from tests.bench.throughput import WrongResult
from tests.support.waiting import eventually

LEAST_EVENTS = 8


@dataclass(frozen=True, slots=True)
class Whole:
    """A run that nothing has disturbed: its seconds, those until its driver was up, and those of each of its events."""

    seconds: float
    start: float
    steps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Killed:
    """A run whose driver was killed: its seconds, and those until the next driver was up."""

    seconds: float
    restart: float


def measure(databases: Databases, kills: int, events: int, event_mb: int) -> Iterator[Figure]:
    """So many kills, in the middle of so many events of about `event_mb` MB. Raises `WrongResult`."""
    if events < LEAST_EVENTS:
        raise WrongResult(f"{events} events have no middle: ask for at least {LEAST_EVENTS}")
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        work = work_of(Path(name), events, event_mb)
        wholes, killed = list[Whole](), list[Killed]()
        for _ in range(kills):
            wholes.append(supervised(databases, work, CHAIN, lambda run, up, _: _undisturbed(run, up, events)))
            killed.append(supervised(databases, work, CHAIN, lambda run, up, _: _killed(run, up, events)))
        yield _lost(databases.name, wholes, killed, f"{events} events of {event_mb} MB")


def _undisturbed(run: ChainRun, up: Up, events: int) -> Whole:
    times = [up.at, *(_published(run, number) for number in range(1, events + 1))]
    steps = tuple(later - earlier for earlier, later in itertools.pairwise(times))
    return Whole(run.last_at() - up.at, up.after, steps)


def _killed(run: ChainRun, up: Up, events: int) -> Killed:
    """Its driver is killed in the middle, when the next event is nearly done: the most that can be lost."""
    times = [_published(run, number) for number in range(1, events // 2 + 1)]
    # Nothing tells how far an event is: the log knows it when it is done.
    time.sleep(0.8 * median(later - earlier for earlier, later in itertools.pairwise(times)))
    if run.published() >= events:
        raise WrongResult("the driver was to be killed in the middle, and was done: ask for more events")
    killed_at = time.time()
    psutil.Process(run.pids()[0]).send_signal(signal.SIGKILL)
    eventually(lambda: run.are_ready(2), what="the next driver is up", timeout=LONG, every=LOOK_SECONDS)
    restart = time.time() - killed_at
    _published(run, events)
    return Killed(run.last_at() - up.at, restart)


def _lost(database: str, wholes: Sequence[Whole], kills: Sequence[Killed], more: str) -> Figure:
    """Against what is known without the kill: how long a driver takes to start, and an event."""
    whole = median(one.seconds for one in wholes)
    start = median(one.start for one in wholes)
    steps = [step for one in wholes for step in one.steps[_half(one) :]]
    event = median(steps)
    lost = [one.seconds - whole for one in kills]
    compiling = median(sum(step - event for step in one.steps[: _half(one)]) for one in wholes)
    details = (
        f"{more}; lost {_each(lost)}; restart {_each(one.restart for one in kills)}; undisturbed "
        f"{_each(one.seconds for one in wholes)}: a driver starts in {start:.1f} s, an event takes {event:.2f} s "
        f"({min(steps):.2f} to {max(steps):.2f}), a new JVM is slow for {compiling:.1f} s"
    )
    what = "chain, its driver killed in the middle"
    return Figure(database, what, median(lost), "s lost", f"{start + compiling + event:.1f}", details)


def _half(run: Whole) -> int:
    """Of its events."""
    return len(run.steps) // 2


def _each(seconds: Iterable[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in seconds) + " s"


def _published(run: ChainRun, events: int) -> float:
    """When so many were seen to be published."""
    eventually(lambda: run.published() >= events, what=f"{events} are published", timeout=LONG, every=LOOK_SECONDS)
    return time.time()

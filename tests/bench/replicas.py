"""Replicas: how throughput grows with their number, what a dead one costs, and how long scaling takes."""

from __future__ import annotations

import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from airflow_logio.launch import bundle
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.supervision.local_run import LocalRun
from airflow_logio.supervision.scaling import Stage, carry_out
from tests.bench.bench_run import bench_run
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.throughput import WrongResult
from tests.support.waiting import eventually

PIPELINES = Path(__file__).parent / "pipelines" / "replicas.py"
SECONDS_EACH = 10
"""How long a throughput run is to take, at the speed that is hoped for."""
MERGED = "merge(work)"
LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Measured:
    """A run that is under way, supervised by a thread of ours."""

    context: LaunchContext
    local: LocalRun

    def merged(self) -> int:
        """Events that the Merger has taken from the replicas."""
        rows = self.context.store.progress(self.context.run.run_id)
        return sum(row.events for row in rows if row.port.operator == MERGED and row.direction == "in")

    def state(self, name: str) -> GroupState:
        return self.context.store.group(self.context.run.run_id, name).state


def measure(databases: Databases, runs: int) -> Iterator[Figure]:
    """Raises `WrongResult` if a run is not exact."""
    yield from _growth(databases, "waiting", (2, 4, 8), runs, per_second=10.0, target=0.95)
    yield from _growth(databases, "computing", (2,), runs, per_second=20.0, target=0.8)
    yield _with_one_dead(databases)
    yield from _scaling(databases, runs)


def _growth(
    databases: Databases, kind: str, numbers: tuple[int, ...], runs: int, *, per_second: float, target: float
) -> Iterator[Figure]:
    """Throughput with so many replicas, against so many times that of one."""
    one = median(_speed(databases, kind, 1, per_second) for _ in range(runs))
    for number in numbers:
        speeds = [_speed(databases, kind, number, per_second) for _ in range(runs)]
        share = median(speeds) / (number * one)
        details = f"one {one:.1f} events/s, {number} {[round(speed, 1) for speed in speeds]}"
        yield Figure(databases.name, f"{kind}, {number} replicas", share, "of linear", f"{target:g}", details)


def _speed(databases: Databases, kind: str, replicas: int, per_second: float) -> float:
    """Events per second, from the first to the last."""
    events = int(SECONDS_EACH * per_second * replicas)
    with _run(databases, f"{kind}_{replicas}", events) as run:
        summary = run.local.run()
    _check(summary, run, events)
    return events / (summary.event_seconds or 1.0)


def _check(summary: RunSummary, run: Measured, events: int) -> None:
    if summary.outcome is not Outcome.FINISHED:
        raise WrongResult(f"the run is {summary.outcome}: {[group.error for group in summary.parked]}")
    if (found := run.merged()) != events:
        raise WrongResult(f"{found} events came out of {events}")


def _with_one_dead(databases: Databases) -> Figure:
    """Throughput while one of four replicas is unavailable, against that before: from the kill to its first commit again."""
    with _run(databases, "waiting_4", 40 * 40) as run, _supervised(run) as finish:
        eventually(lambda: run.merged() > 100, what="the replicas are at work", timeout=300)
        before = _rate(run, lambda elapsed: elapsed > 5)
        identity = run.context.store.group(run.context.run.run_id, "work.4").identity
        assert identity is not None
        psutil.Process(identity.pid).send_signal(signal.SIGKILL)
        away = _rate(run, lambda _: _has_committed(run, "work.4", incarnation=2))
        finish()
    details = f"{before:.1f} events/s before, {away:.1f} while it was away"
    return Figure(databases.name, "waiting, 1 of 4 replicas killed", away / before, "of before", "0.7", details)


def _rate(run: Measured, until: Callable[[float], bool]) -> float:
    began, first = time.monotonic(), run.merged()
    while not until(time.monotonic() - began):
        time.sleep(LOOK_SECONDS)
    return (run.merged() - first) / (time.monotonic() - began)


def _has_committed(run: Measured, name: str, *, incarnation: int) -> bool:
    records = run.context.store.drivers(run.context.run.run_id)
    return any(
        one.group == name and one.incarnation == incarnation and one.first_commit_at is not None for one in records
    )


def _scaling(databases: Databases, runs: int) -> Iterator[Figure]:
    """A new replica's first commit after it was ready, and the end of a replica after it was asked for."""
    measured = [_up_and_down(databases) for _ in range(runs)]
    starts, ups, downs = ([one[part] for one in measured] for part in range(3))
    details = f"driver's own start {median(starts):.1f} s before that; {[round(one, 2) for one in ups]}"
    yield Figure(databases.name, "ready replica to its first commit", median(ups), "s", "0.5", details)
    yield Figure(
        databases.name, "request to retirement", median(downs), "s", "0.5", f"{[round(one, 2) for one in downs]}"
    )


def _up_and_down(databases: Databases) -> tuple[float, float, float]:
    """Seconds until a new replica is ready, from then to its first commit, and from the next request to its end."""
    with _run(databases, "waiting_1", 10 * 60) as run, _supervised(run) as finish:
        eventually(lambda: run.merged() > 20, what="the replica is at work", timeout=300)
        asked, up = time.monotonic(), _Up(run)
        _carry_out(run, 2, up.look)
        eventually(
            lambda: _has_committed(run, "work.2", incarnation=1), what="the new replica commits", every=LOOK_SECONDS
        )
        committed, again = time.monotonic(), time.monotonic()
        _carry_out(run, 1)
        if run.state("work.2") is not GroupState.RETIRED:
            raise WrongResult("the replica is not retired")
        retired = time.monotonic()
        run.local.halt()
        finish()
    return up.ready_at - asked, committed - up.ready_at, retired - again


class _Up:
    """Notes when the new replica was first seen ready: what comes after that is the protocol's."""

    def __init__(self, run: Measured) -> None:
        self._run = run
        self.ready_at = 0.0

    def look(self) -> None:
        status = self._run.context.store.group(self._run.context.run.run_id, "work.2")
        if not self.ready_at and status.state is GroupState.RUNNING and status.ready:
            self.ready_at = time.monotonic()


def _carry_out(run: Measured, replicas: int, look: Callable[[], None] = lambda: None) -> None:
    request = run.context.store.request_scaling(run.context.run.run_id, "work", replicas, by="bench")
    while True:
        look()
        step = carry_out(run.context, request)
        if step.stage is Stage.DONE:
            return
        if step.stage is Stage.REFUSED:
            raise WrongResult(step.sentence)
        time.sleep(LOOK_SECONDS)


@contextmanager
def _run(databases: Databases, name: str, events: int) -> Iterator[Measured]:
    """Its sources begin when all drivers that it begins with are up."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as folder:
        log_url, _ = databases.fresh(Path(folder))
        ref = bundle.parse_ref(f"{PIPELINES}:{name}")
        with bench_run(ref, log_url, Path(folder), {"events": events}, {}) as context:
            yield Measured(context, LocalRun(context))


@contextmanager
def _supervised(run: Measured) -> Iterator[Callable[[], None]]:
    """Supervised by a thread; the value waits for its end."""
    failed: list[BaseException] = []

    def supervise() -> None:
        try:
            run.local.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=supervise)
    thread.start()

    def finish() -> None:
        thread.join()
        if failed:
            raise failed[0]

    try:
        yield finish
    finally:
        run.local.halt()
        thread.join()

"""The rounds: in each of them all sides in turn, so that what else the machine does meanwhile meets all of them.

A run that is not exact ends the bench. Structured Streaming is given at most `MOST_BATCHES` micro-batches in a run, so fewer
records than the others: small batches take minutes otherwise, and its speed hardly depends on their number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.databases import Postgres
from tests.bench.figure import Figure
from tests.bench.paper.flink_setup import NoFlink
from tests.bench.peers.flink_run import run_flink
from tests.bench.peers.logged_run import run_logged
from tests.bench.peers.streaming_run import run_streaming
from tests.bench.peers.strict_clock import Taken, create_table, taken
from tests.bench.peers.work import BATCHES, Work, prepared

RECORDS = (2_000_000, 10_000_000)
MOST_BATCHES = 50


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run has its files and its rows."""

    folder: Path
    reads: Path
    log_url: str
    warehouse: str


@dataclass(frozen=True, slots=True)
class Side:
    """What is measured: a name, how it runs, and the thousands of records per second that it is to reach."""

    name: str
    run: Callable[[Work, Place], None]
    target: str = "none"
    batch: int = 0
    """Records of a micro-batch; 0 if there are none."""

    def records(self, size: int) -> int:
        """How many it is given of so many."""
        return min(size, self.batch * MOST_BATCHES) if self.batch else size


def measure(databases: Postgres, runs: int, sizes: Sequence[int] | None = None) -> Iterator[Figure]:
    """Raises `WrongResult` if a run is not exact."""
    measured: set[tuple[str, int]] = set()
    for size in sizes or RECORDS:
        wanted = [(side, side.records(size)) for side in sides() if (side.name, side.records(size)) not in measured]
        measured.update((side.name, records) for side, records in wanted)
        with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
            works = {records: prepared(Path(name) / str(records), records) for records in {many for _, many in wanted}}
            found = _rounds(databases, [(side, works[records]) for side, records in wanted], runs)
        yield from (_figure(databases.name, side, found[side.name]) for side, _ in wanted if side.name in found)


def _rounds(databases: Postgres, wanted: Sequence[tuple[Side, Work]], runs: int) -> dict[str, list[Taken]]:
    """By name of the side. One that cannot be had here is left out, with a sentence."""
    found: dict[str, list[Taken]] = {}
    missing: set[str] = set()
    for side, work in [one for _ in range(runs) for one in wanted]:
        if side.name in missing:
            continue
        try:
            found.setdefault(side.name, []).append(_taken(databases, side, work))
        except NoFlink as error:
            print(f"{side.name} is left out: {error}", flush=True)
            missing.add(side.name)
            del found[side.name]
    return found


def sides() -> Iterator[Side]:
    """Ours before the others, the targets of the project beside them."""
    yield _ours("four", 10_000, "four groups", "1000")
    yield _ours("fused", 10_000, "fused", "2500")
    yield _ours("four", 1_000, "four groups", "600")
    yield _ours("fused", 1_000, "fused", "none")
    yield Side("Flink", lambda work, at: run_flink(work, at.folder, at.reads, at.warehouse))
    yield from map(_streaming, BATCHES)


def _ours(form: str, size: int, told: str, target: str) -> Side:
    def run(work: Work, at: Place) -> None:
        run_logged(f"{form}_{size}", work, at.folder, at.reads, at.log_url, at.warehouse)

    return Side(f"LOG.io, {told}, {size:,} an event", run, target)


def _streaming(size: int) -> Side:
    def run(work: Work, at: Place) -> None:
        run_streaming(size, work, at.folder, at.reads, at.warehouse)

    return Side(f"Structured Streaming, {size:,} a batch", run, batch=size)


def _taken(databases: Postgres, side: Side, work: Work) -> Taken:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        at = Place(folder, folder / "reads", *databases.fresh(folder))
        create_table(at.warehouse)
        side.run(work, at)
        return taken(side.name, work, at.reads, at.warehouse)


def _figure(database: str, side: Side, runs: list[Taken]) -> Figure:
    speeds = sorted(run.speed for run in runs)
    details = (
        f"{runs[0].records:,} records; least {speeds[0]:,.0f}, most {speeds[-1]:,.0f} of {len(runs)}; a minute's last record "
        f"to its rows {median(run.latency for run in runs):.2f} s; load {os.getloadavg()[0]:.1f}"
    )
    return Figure(database, side.name, median(speeds) / 1e3, "k records/s", side.target, details)

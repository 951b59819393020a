"""The experiments: which series is run how. Those that are compared are neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.paper.scaled import Scaled, scaled
from tests.bench.paper.series import BY_NAME, SERIES, SIZES, Series

COMMITS_MS = (1, 5, 10)
"""How much longer each commit of the log takes."""
SIZED = "1a"
"""The series in which the paper varies the size of events."""
SAME_AS = {"1b-OP3": "1b"}
"""Nothing but the operator that fails is another one: runs without failures are not repeated."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One way to run a series. `run` counts repetitions from 1."""

    series: str
    plain: bool = False
    """The baseline."""
    flink: bool = False
    """Asynchronous barrier snapshots on Apache Flink, as the paper's ABS."""
    lineage: bool = False
    replay: bool = False
    failures: int = 0
    standby: bool = False
    """A process stands by for the operator that fails (ADR-108); the paper has none."""
    commit_ms: int = 0
    event_bytes: int | None = None
    run: int = 1

    @property
    def kind(self) -> str:
        """In words; with series, factor and run it names what was measured."""
        words = ["baseline" if self.plain else "ABS on Flink" if self.flink else "LOG.io"]
        words += ["lineage"] if self.lineage and not self.replay else []
        words += ["replay"] if self.replay else []
        words += [f"{self.failures} failed"] if self.failures else []
        words += ["standby"] if self.standby else []
        words += [f"commits +{self.commit_ms} ms"] if self.commit_ms else []
        words += [f"{self.event_bytes // 10**6} MB"] if self.event_bytes else []
        return ", ".join(words)

    def key(self, factor: float) -> str:
        return f"{self.series} | {self.kind} | x{factor:g} | run {self.run}"

    def of(self) -> Series:
        return BY_NAME[self.series]

    def scaled(self, factor: float) -> Scaled:
        return scaled(self.of(), factor, event_bytes=self.event_bytes)


def experiments(runs: int = 1) -> Iterator[Experiment]:
    """All of them, most wanted first."""
    for run in range(1, runs + 1):
        for series in SERIES:
            yield from _first(series.name, run)
        for series in SERIES:
            yield from _flink(series.name, run)
        for size in SIZES:
            yield Experiment(SIZED, plain=True, event_bytes=size, run=run)
            yield Experiment(SIZED, event_bytes=size, run=run)
        yield from _slow_commits((10,), run)
        for series in SERIES:
            if series.name not in SAME_AS:
                yield Experiment(series.name, lineage=True, replay=True, run=run)
        for failures in (2, 3):
            for series in SERIES:
                yield Experiment(series.name, failures=failures, run=run)
                yield Experiment(series.name, flink=True, failures=failures, run=run)
        for series in SERIES:
            yield Experiment(series.name, failures=1, standby=True, run=run)
        yield from _slow_commits((1, 5), run)


def _first(name: str, run: int) -> Iterator[Experiment]:
    if name not in SAME_AS:
        yield Experiment(name, plain=True, run=run)
        yield Experiment(name, run=run)
        yield Experiment(name, lineage=True, run=run)
    yield Experiment(name, failures=1, run=run)


def _flink(name: str, run: int) -> Iterator[Experiment]:
    if name not in SAME_AS:
        yield Experiment(name, flink=True, run=run)
    yield Experiment(name, flink=True, failures=1, run=run)


def _slow_commits(delays: tuple[int, ...], run: int) -> Iterator[Experiment]:
    for delay in delays:
        for series in SERIES:
            if series.name not in SAME_AS:
                yield Experiment(series.name, commit_ms=delay, run=run)

"""Runs many schedules of many scenarios, on several processes, with a state file: even a million in the background.

Schedules run in chunks of consecutive seeds. The state file records each chunk that is done, so an interrupted campaign
resumes where it stopped, and no seed is counted twice.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from airflow_logio.errors import ConfigurationError
from airflow_logio.testing.scenario_lookup import load_scenario
from airflow_logio.testing.simulator.actions import Site
from airflow_logio.testing.simulator.shrink import without_trace
from airflow_logio.testing.simulator.simulated_logs import shown_name
from airflow_logio.testing.simulator.simulation import FailedSchedule, Simulator

CHUNK = 50
"""Number of schedules of a scenario that a process gets at once."""
SLICE_SECONDS = 1.0
"""After so long, what was run is counted: more than that is not lost if a campaign is interrupted."""
VERSION = 1
KEPT_FAILURES = 100
"""Number of failures per scenario that are kept with their seeds. Further ones are only counted."""


@dataclass
class Tally:
    """Totals over schedules of one scenario, and what failed."""

    schedules: int = 0
    seconds: float = 0.0
    """CPU time."""
    steps: int = 0
    events: int = 0
    commits: int = 0
    crashes: int = 0
    drained: int = 0
    """Schedules in which a person asked for a drain. They are shorter, so the fewest_ fields leave them out."""
    fewest_events: int = 0
    """The fewest in one schedule that was not drained; the next two likewise."""
    fewest_commits: int = 0
    fewest_crashes: int = 0
    violations: int = 0
    sites: dict[str, int] = field(default_factory=dict)
    failures: list[FailedSchedule] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the figures of another chunk."""
        for name in ("events", "commits", "crashes"):
            fewest = [getattr(tally, f"fewest_{name}") for tally in (self, other) if tally.schedules > tally.drained]
            setattr(self, f"fewest_{name}", min(fewest, default=0))
        for name in ("schedules", "seconds", "steps", "events", "commits", "crashes", "drained", "violations"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.sites = {
            site: self.sites.get(site, 0) + other.sites.get(site, 0) for site in {**self.sites, **other.sites}
        }
        self.failures = (self.failures + other.failures)[:KEPT_FAILURES]


@dataclass(frozen=True)
class Chunk:
    """Consecutive seeds of one scenario: `number` counts chunks of CHUNK schedules."""

    scenario: str
    number: int
    first: int
    count: int

    def split(self, count: int) -> tuple[Chunk, Chunk]:
        """The first `count` schedules, and the rest, which may be empty."""
        return replace(self, count=count), replace(self, first=self.first + count, count=self.count - count)


@dataclass
class Campaign:
    """`schedules` in total, spread evenly over `scenarios` (names, or references of pipelines), starting at seed `seed`."""

    scenarios: Sequence[str]
    schedules: int
    seed: int = 0
    store: str = "memory"
    params: tuple[tuple[str, str], ...] = ()
    """Run parameters of a pipeline."""
    deterministic: bool = True
    """False: a pipeline makes another result each time. It is held against its log alone (`pipeline_scenario`)."""
    partition: str | None = None
    """What the run of a pipeline is for, if it has partitions."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    done: dict[str, dict[int, int]] = field(default_factory=dict)
    """Scenario → chunk → number of its schedules that are counted."""

    def simulator(self, scenario: str) -> Simulator:
        """The simulator of one of its scenarios in this process."""
        return simulator_of(scenario, self.store, self.params, self.deterministic, self.partition)

    def chunks(self) -> Iterator[Chunk]:
        """The chunks still to run, scenarios in turn."""
        share, rest = divmod(self.schedules, len(self.scenarios))
        wanted = {name: share + (index < rest) for index, name in enumerate(self.scenarios)}
        for number in range(-(-max(wanted.values()) // CHUNK)):
            for name in self.scenarios:
                counted = self.done.get(name, {}).get(number, 0)
                count = min(CHUNK, wanted[name] - number * CHUNK) - counted
                if count > 0:
                    yield Chunk(name, number, self.seed + number * CHUNK + counted, count)

    def count(self, chunk: Chunk, tally: Tally) -> None:
        """Record that a chunk, or part of one, was run."""
        self.tallies.setdefault(chunk.scenario, Tally()).add(tally)
        done = self.done.setdefault(chunk.scenario, {})
        done[chunk.number] = done.get(chunk.number, 0) + chunk.count

    @property
    def ran(self) -> int:
        return sum(tally.schedules for tally in self.tallies.values())

    @property
    def drained(self) -> int:
        """Schedules that ran and in which a person asked for a drain; they are shorter than the others."""
        return sum(tally.drained for tally in self.tallies.values())

    @property
    def violations(self) -> int:
        return sum(tally.violations for tally in self.tallies.values())

    # --- the state file -----------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Everything, for a state file or a report."""
        return {
            "version": VERSION,
            "scenarios": list(self.scenarios),
            "seed": self.seed,
            "store": shown_name(self.store),
            "deterministic": self.deterministic,
            "schedules": self.ran,
            "drained": self.drained,
            "violations": self.violations,
            "tallies": {name: _tally_json(tally) for name, tally in self.tallies.items()},
            "done": {name: sorted(counts.items()) for name, counts in self.done.items()},
        }

    def save(self, path: Path) -> None:
        """Replace the whole state file."""
        fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        fresh.write_text(json.dumps(self.as_json()))
        fresh.replace(path)

    def resume(self, path: Path) -> None:
        """Take over the counts of a state file. Raises `ConfigurationError` if it belongs to another campaign."""
        if not path.exists():
            return
        try:
            state = json.loads(path.read_text())
            mine = (VERSION, list(self.scenarios), self.seed, shown_name(self.store), self.deterministic)
            its = [state[name] for name in ("version", "scenarios", "seed", "store")]
            if (*its, state.get("deterministic", True)) != mine:
                raise ConfigurationError(
                    f"{path} is the state of another campaign: {', '.join(state['scenarios'])} from seed {state['seed']} on "
                    f"store {state['store']}; name another file, or the same pipelines, seed and store"
                )
            self.tallies = {name: _tally(tally) for name, tally in state["tallies"].items()}
            self.done = {name: dict(counts) for name, counts in state["done"].items()}
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{path} is not a state file of `logio simulate`: {error}") from error


def _tally_json(tally: Tally) -> dict[str, Any]:
    return {**asdict(tally), "failures": [asdict(without_trace(failure)) for failure in tally.failures]}


def _tally(state: dict[str, Any]) -> Tally:
    return Tally(**{**state, "failures": [FailedSchedule(**failure) for failure in state["failures"]]})


def run_chunk(
    chunk: Chunk,
    store: str,
    params: tuple[tuple[str, str], ...] = (),
    *,
    deterministic: bool = True,
    partition: str | None = None,
    seconds: float = math.inf,
) -> Tally:
    """Run schedules of a chunk in this process, the first ones: all, or as many as begin within so many `seconds`, at least
    one."""
    simulator = simulator_of(chunk.scenario, store, params, deterministic, partition)
    started, until = time.process_time(), time.monotonic() + seconds
    tally, sites = Tally(), Counter[Site]()
    for seed in range(chunk.first, chunk.first + chunk.count):
        figures, failure = simulator.run(seed)
        one = Tally(1, 0.0, figures.steps, figures.events, figures.commits, figures.crashes)
        one.drained = int(figures.drained)
        if failure is None:
            one.fewest_events, one.fewest_commits, one.fewest_crashes = one.events, one.commits, one.crashes
        else:
            one.violations, one.failures = 1, [without_trace(failure)]
        tally.add(one)
        sites.update(figures.sites)
        if time.monotonic() >= until:
            break
    gc.collect()
    tally.sites = {site.value: sites[site] for site in Site if sites[site]}
    tally.seconds = time.process_time() - started
    return tally


@cache
def simulator_of(
    scenario: str,
    store: str,
    params: tuple[tuple[str, str], ...] = (),
    deterministic: bool = True,
    partition: str | None = None,
) -> Simulator:
    """One simulator per process, so that its failure-free run is made once."""
    return load_scenario(scenario, store, params, deterministic=deterministic, partition=partition)


def run(
    campaign: Campaign,
    *,
    processes: int = 1,
    state: Path | None = None,
    progress: Callable[[Chunk, Tally], None] | None = None,
) -> None:
    """Run the rest of a campaign; `progress` gets what was added, about every second.

    The state file is replaced at most once a second.
    """
    saved = 0.0
    for chunk, tally in _results(campaign, processes):
        campaign.count(chunk, tally)
        if progress is not None:
            progress(chunk, tally)
        if state is not None and time.monotonic() - saved >= 1:
            campaign.save(state)
            saved = time.monotonic()
    if state is not None:
        campaign.save(state)


def _results(campaign: Campaign, processes: int) -> Iterator[tuple[Chunk, Tally]]:
    slice_of = partial(
        run_chunk,
        store=campaign.store,
        params=campaign.params,
        deterministic=campaign.deterministic,
        partition=campaign.partition,
        seconds=SLICE_SECONDS,
    )
    chunks = campaign.chunks()
    if processes <= 1:
        for chunk in chunks:
            rest = chunk
            while rest.count:
                tally = slice_of(rest)
                done, rest = rest.split(tally.schedules)
                yield done, tally
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[Tally], Chunk] = {}
        while True:
            for chunk in itertools.islice(chunks, 2 * processes - len(running)):
                running[pool.submit(slice_of, chunk)] = chunk
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                tally = future.result()
                done, rest = running.pop(future).split(tally.schedules)
                if rest.count:
                    running[pool.submit(slice_of, rest)] = rest
                yield done, tally

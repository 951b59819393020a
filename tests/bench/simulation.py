"""Schedules per second of one process of the simulator, with the log in memory; every schedule is judged.

Beside the scenarios of `tests/simulator`, a pipeline with ten lineage scopes and eight slots: what lineage costs shows there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

from airflow_logio.testing.campaign import Chunk, run_chunk
from tests.bench.figure import Figure
from tests.bench.throughput import WrongResult
from tests.simulator import SCENARIOS, reference

SCOPES = f"{Path(__file__).parent / 'pipelines' / 'scopes.py'}:scopes"
ARROW = ("sales", "scaled", SCOPES)
"""Their operators work on Arrow tables; those of the others are plain Python."""
SCHEDULES = {True: 30, False: 200}
TARGET = {True: "10", False: "100"}
FIRST_SEED = 20_000_000


def measure(runs: int) -> Iterator[Figure]:
    """One figure per scenario, by CPU time: the median of `runs` over the same seeds. Raises `WrongResult`."""
    for name in (*SCENARIOS, SCOPES):
        arrow, where = name in ARROW, name if name == SCOPES else reference(name)
        run_chunk(Chunk(where, 0, FIRST_SEED - 1, 1), "memory")  # imports, and the run without failures
        tallies = [run_chunk(Chunk(where, 0, FIRST_SEED, SCHEDULES[arrow]), "memory") for _ in range(runs)]
        if any(tally.violations for tally in tallies):
            raise WrongResult(f"logio simulate {where}: {tallies[0].failures or 'violations'}")
        speeds = [tally.schedules / tally.seconds for tally in tallies]
        one = tallies[0]
        per = f"{one.events / one.schedules:.0f} events, {one.commits / one.schedules:.0f} commits, "
        details = f"{per}{one.crashes / one.schedules:.1f} crashes each; runs {[round(speed, 1) for speed in speeds]}"
        label = "ten scopes, eight slots" if name == SCOPES else name
        yield Figure("memory", f"simulator, {label}", median(speeds), "schedules/s", TARGET[arrow], details)

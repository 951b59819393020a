"""What the ten thousand schedules of `make test` do not show: forty thousand of each scenario, two thousand on SQLite."""

from __future__ import annotations

from functools import cache

import pytest

from airflow_logio.testing import Simulator
from tests.simulator import SCENARIOS, reference

FIRST = 1_000_000
"""Seeds that `make test` does not run."""
CHUNK = 2_000
CHUNKS = {"memory": 20, "sqlite": 1}


@cache
def simulator(name: str, store: str) -> Simulator:
    return Simulator(SCENARIOS[name](), store=store)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("store", "chunk"), [(store, chunk) for store, chunks in CHUNKS.items() for chunk in range(chunks)]
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_schedule_changes_what_comes_out(name: str, store: str, chunk: int) -> None:
    begin = FIRST + chunk * CHUNK
    for seed in range(begin, begin + CHUNK):
        _, failure = simulator(name, store).run(seed)
        assert failure is None, f"logio simulate {reference(name)} --log {store} --seed {seed} --schedules 1: {failure}"

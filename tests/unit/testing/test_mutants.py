"""The simulator can fail: every broken variant is caught, by some invariant or by the oracle, within 2,000 schedules."""

from __future__ import annotations

import pytest

from airflow_logio.testing.scenarios import SCENARIOS
from airflow_logio.testing.schedule import Simulator
from tests.unit.testing.mutants import MUTANTS

SCHEDULES = 2_000


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 50


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_variant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    simulator = Simulator(SCENARIOS[mutant.scenario](), world_class=mutant.world)
    simulator.reference()  # what is right is known before anything is broken
    mutant.install(monkeypatch)
    caught = next((seed for seed in range(SCHEDULES) if simulator.run(seed)[1] is not None), None)
    assert caught is not None, f"nobody noticed: {mutant.about}"

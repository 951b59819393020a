"""The simulator can fail: every broken variant is caught, by some invariant or by the oracle, within 2,000 schedules."""

from __future__ import annotations

import pytest

from airflow_logio.testing.simulator.simulation import FailedSchedule, Simulator
from tests.simulator import SCENARIOS
from tests.simulator.day_runs.schedule import PLACES, DaySimulator, FailedDays
from tests.unit.testing.mutants import MUTANTS, Mutant

SCHEDULES = 2_000
CRASHED = "no_step_raises"
"""A step that raised what is no error of this package: a variant that merely crashes shows nothing about the simulator."""


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 50


def simulator_of(mutant: Mutant) -> Simulator | DaySimulator:
    if mutant.scenario in PLACES:
        return DaySimulator(mutant.scenario)
    simulator = Simulator(SCENARIOS[mutant.scenario](), world_class=mutant.world)
    simulator.reference()  # what is right is known before anything is broken
    return simulator


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_variant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the right reason: by an invariant that it names. A refusal of log, protocol or external system parks a group,
    which is an invariant as well; a TypeError on the way there is none."""
    mutant = MUTANTS[name]
    simulator = simulator_of(mutant)
    mutant.install(monkeypatch)
    crashed: FailedSchedule | FailedDays | None = None
    for seed in range(mutant.rare, mutant.rare + SCHEDULES):
        _, failure = simulator.run(seed)
        if failure is not None and failure.invariant != CRASHED:
            assert failure.invariant in mutant.caught_by, (
                f"caught for another reason, by {failure.invariant}: {failure}"
            )
            return
        crashed = crashed or failure
    raise AssertionError(f"not noticed: {mutant.about} (it crashed: {crashed})" if crashed else mutant.about)

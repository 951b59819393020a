"""How a broken variant is described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.world import World

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """`scenario` is where it shows, and `caught_by` names the invariants that may find it first: it is caught for the right
    reason. `install` breaks what all drivers share, `world` what its class says."""

    name: str
    about: str
    scenario: str
    caught_by: tuple[str, ...]
    install: Break
    world: type[World] = World
    rare: int = 0


MUTANTS: dict[str, Mutant] = {}


def mutant(
    scenario: str,
    *caught_by: str,
    driver: type[SimulatedDriver] | None = None,
    world: type[World] = World,
    rare: int = 0,
) -> Callable[[Break], Break]:
    """Register a broken variant under the name of the function that breaks it."""
    if driver is not None:
        world = type(f"WorldOf{driver.__name__}", (world,), {"driver_class": driver})

    def register(install: Break) -> Break:
        assert install.__doc__, install.__name__
        assert caught_by, f"{install.__name__} names no invariant"
        MUTANTS[install.__name__] = Mutant(install.__name__, install.__doc__, scenario, caught_by, install, world, rare)
        return install

    return register

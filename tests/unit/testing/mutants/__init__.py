"""Deliberately broken variants of protocol, store and driver, which the simulator must catch.

Each is a function that breaks one thing by a `pytest.MonkeyPatch` and says in its docstring what; some come with a driver
or world of their own.
"""

from __future__ import annotations

from tests.unit.testing.mutants import (
    closing,
    dataset_retention,
    datasets,
    day_runs,
    draining,
    fencing,
    filling,
    keeping,
    looping,
    recovering,
    replaying,
    requesting,
    scaling,
    staging,
    storing,
    updating,
    warehouse,
    writing,
)
from tests.unit.testing.mutants.registry import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "closing",
    "dataset_retention",
    "datasets",
    "day_runs",
    "draining",
    "fencing",
    "filling",
    "keeping",
    "looping",
    "recovering",
    "replaying",
    "requesting",
    "scaling",
    "staging",
    "storing",
    "updating",
    "warehouse",
    "writing",
]

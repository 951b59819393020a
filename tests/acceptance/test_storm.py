"""Random pipelines in random weather, on real processes: exact, and with the right lineage, whatever happens to them.

Every seed is another pipeline (`tests/support/storm`), and other kills, stops, outages of log and warehouse, full disks,
halts, drains, retries and scalings. What comes out is compared with plain Python. What must happen is planned, seed by seed,
and no source ends before it has happened. Of ten seeds, two are runs of the command `logio`, in a process that is killed;
one of them with drivers that spark-submit starts. `make soak` does this for an hour.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from tests.support.storm.places import place_of
from tests.support.storm.plan import Happening, plan_of
from tests.support.storm.shape import Kind, Minutes, Outlet, Shape, Sums, Terminal, drawn
from tests.support.storm.storms import storm

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]

SEEDS = range(10)
SHAPES = [drawn(seed) for seed in SEEDS]


def param(seed: int) -> object:
    return pytest.param(seed, marks=[pytest.mark.spark] if drawn(seed).terminal is Terminal.SPARK else [])


@pytest.mark.parametrize("seed", [param(seed) for seed in SEEDS])
def test_a_storm(seed: int, postgres_server: PostgresServer, tmp_path: Path) -> None:
    with place_of(seed, postgres_server, tmp_path) as place, storm(seed, place) as one:
        one.blow()
        one.check()
        assert not one.weather.failed, "the weather has not brought it"


def test_the_ten_bring_everything() -> None:
    """Every kind of source, window, writer and replica; and every happening, each of which a storm does not end without."""
    chains = [chain for shape in SHAPES for chain in shape.chains]
    steps = [step for chain in chains for step in chain.steps]
    assert {chain.kind for chain in chains} == set(Kind)
    assert {type(step) for step in steps} >= {Sums, Minutes} and any(shape.meet for shape in SHAPES)
    assert {shape.outlet for shape in SHAPES} == set(Outlet)
    assert {shape.table.on_new_run for shape in SHAPES} == {"replace", "append", "error"}
    for flag in ("sends_after_writes", "lineage_column"):
        assert {getattr(shape.table, flag) for shape in SHAPES} == {True, False}
    spreads = {(spread.by_key, spread.ordered, type(spread.step)) for shape in SHAPES if (spread := shape.spread)}
    assert len(spreads) == 4 and any(shape.spread is None for shape in SHAPES)
    assert any(shape.noise for shape in SHAPES) and any(shape.picky for shape in SHAPES)
    assert [shape.terminal for shape in SHAPES].count(Terminal.HERE) == 8
    assert sum(shape.drained for shape in SHAPES) >= 2
    assert {one for shape in SHAPES for one in planned(shape)} == set(Happening) - {Happening.MEND, Happening.LEAVE}


def planned(shape: Shape) -> tuple[Happening, ...]:
    return plan_of(shape, ("log", "warehouse", "power" if shape.seed >= 5 else "disk"))

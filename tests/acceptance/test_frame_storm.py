"""Random pipelines of DataFrames with hostile records, zones, names and keys, in random weather, on real processes: exact.

Every seed is another pipeline (`tests/support/frame_storm`); what comes out is compared with DuckDB, and with what SQL's own
join finds for the keys. `make soak` does this with new seeds for as long as it is asked to.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.frame_storm.keys import KEYS
from tests.support.frame_storm.shape import CHANGES, NAMES, Files, Kind, drawn
from tests.support.frame_storm.storms import storm
from tests.support.postgres import PostgresServer

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(900)]

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_of_data_frames(seed: int, postgres_server: PostgresServer, tmp_path: Path) -> None:
    storm(seed, postgres_server, tmp_path)


def test_twelve_seeds_bring_everything() -> None:
    """Those that one session goes through (`unit/spark/test_frame_storms.py`); the first four have every kind of source."""
    shapes = [drawn(seed) for seed in range(12)]
    assert {shape.source for shape in shapes[: len(SEEDS)]} == set(Kind)
    assert {shape.keys.name for shape in shapes} == {keys.name for keys in KEYS}
    assert {shape.zone for shape in shapes} == set(CHANGES) and {shape.name for shape in shapes} == set(NAMES)
    assert {writer for shape in shapes for writer in shape.files} == set(Files)
    assert {shape.on_server for shape in shapes} == {(one, other) for one in (True, False) for other in (True, False)}

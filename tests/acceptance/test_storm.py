"""Random pipelines in random weather, on real processes: exact, and with the right lineage, whatever happens to them.

Every seed is another pipeline (`tests/support/storm`), and other kills, stops, outages, full disks, halts, drains, retries
and scalings. What comes out is compared with plain Python. `make soak` does this for an hour.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from tests.support.storm.places import on_postgres, on_sqlite
from tests.support.storm.storms import storm

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]


@pytest.mark.parametrize("seed", range(5))
def test_on_sqlite(seed: int, tmp_path: Path) -> None:
    with on_sqlite(tmp_path) as place, storm(seed, place) as one:
        one.blow()
        one.check()


@pytest.mark.parametrize("seed", range(5, 10))
def test_on_postgresql(seed: int, postgres_server: PostgresServer, tmp_path: Path) -> None:
    with on_postgres(seed, postgres_server, tmp_path) as place, storm(seed, place) as one:
        one.blow()
        one.check()

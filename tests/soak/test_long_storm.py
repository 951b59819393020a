"""An hour of storms: as `tests/acceptance/test_storm.py`, with seeds that `make test` does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres import PostgresServer
from tests.support.storm.places import on_postgres, on_sqlite
from tests.support.storm.storms import storm

pytestmark = pytest.mark.timeout(600)

SEEDS = range(1_000, 1_400)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm(seed: int, postgres_server: PostgresServer, tmp_path: Path) -> None:
    place = on_sqlite(tmp_path) if seed // 2 % 2 else on_postgres(seed, postgres_server, tmp_path)
    with place as somewhere, storm(seed, somewhere) as one:
        one.blow()
        one.check()

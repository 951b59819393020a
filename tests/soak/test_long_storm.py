"""An hour of storms: as `tests/acceptance/test_storm.py`, `test_frame_storm.py` and `test_day_storm.py`, with seeds that were
never run, in every process of pytest-xdist.

`LOGIO_STORM_SECONDS` is another time, `LOGIO_STORM_SEED` one seed to be repeated (`-k data_frames` or `-k of_days` for one of
those).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_logio.store.sql import migrate
from tests.support import day_storm
from tests.support.frame_storm import storms as frame_storms
from tests.support.postgres import PostgresServer
from tests.support.storm.places import place_of
from tests.support.storm.storms import MOST_SECONDS, storm

SECONDS = float(os.environ.get("LOGIO_STORM_SECONDS", "3600"))
SEED = os.environ.get("LOGIO_STORM_SEED")
AGAIN = "LOGIO_STORM_SEED={} .venv/bin/python -m pytest -n0 -m soak tests/soak/test_long_storm.py"
PROCESSES = 1 if SEED else int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@pytest.mark.timeout(SECONDS + 2 * MOST_SECONDS)
@pytest.mark.parametrize("process", range(PROCESSES))
def test_storms(
    process: int, postgres_server: PostgresServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dice, ends_at = random.SystemRandom(), time.monotonic() + SECONDS
    mild = 0
    for count in itertools.count(1):
        seed = int(SEED) if SEED else dice.randrange(1_000, 1_000_000_000)
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            with place_of(seed, postgres_server, folder) as place, storm(seed, place) as one:
                one.blow()
                one.check()
                mild += bool(one.weather.failed)
        except BaseException as error:
            error.add_note(f"the storm of seed {seed}, after {count - 1} others; again: {AGAIN.format(seed)}")
            raise
        shutil.rmtree(folder)
        if SEED or time.monotonic() > ends_at:
            record_property("storms", count)
            record_property("storms without something that was planned", mild)
            assert mild <= 1 + count // 10
            return


@pytest.mark.timeout(SECONDS + 5 * frame_storms.MOST_SECONDS)
@pytest.mark.parametrize("process", range(PROCESSES))
def test_storms_of_data_frames(
    process: int, postgres_server: PostgresServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dice, ends_at = random.SystemRandom(), time.monotonic() + SECONDS
    for count in itertools.count(1):
        seed = int(SEED) if SEED else dice.randrange(1_000, 1_000_000_000)
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            frame_storms.storm(seed, postgres_server, folder)
        except BaseException as error:
            error.add_note(f"after {count - 1} others; again: {AGAIN.format(seed)} -k data_frames")
            raise
        shutil.rmtree(folder)
        if SEED or time.monotonic() > ends_at:
            record_property("storms", count)
            return


@pytest.mark.timeout(SECONDS + 2 * day_storm.MOST_SECONDS)
@pytest.mark.parametrize("process", range(PROCESSES))
def test_storms_of_days(
    process: int, postgres_server: PostgresServer, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The last digit of a seed says on which database."""
    dice, ends_at = random.SystemRandom(), time.monotonic() + SECONDS
    for count in itertools.count(1):
        seed = int(SEED) if SEED else dice.randrange(1_000, 1_000_000_000)
        folder = tmp_path / str(seed)
        folder.mkdir()
        with day_databases(seed, postgres_server, folder) as urls:
            storm = day_storm.DayStorm(seed, *urls, folder, days=4, again=8)
            try:
                with contextlib.closing(storm):
                    storm.blow()
            except BaseException as error:
                error.add_note(f"after {count - 1} others: {dict(storm.told)}; again: {AGAIN.format(seed)} -k of_days")
                raise
        shutil.rmtree(folder)
        if SEED or time.monotonic() > ends_at:
            record_property("storms", count)
            return


@contextlib.contextmanager
def day_databases(seed: int, server: PostgresServer, folder: Path) -> Iterator[tuple[str, str]]:
    """A log with its tables, and a database without any."""
    if seed % 2:
        log, tables = f"sqlite:///{folder}/log.db", f"sqlite:///{folder}/tables.db"
        migrate.upgrade(log)
        yield log, tables
        return
    log, tables = server.new_database(), server.new_database(migrated=False)
    try:
        yield log, tables
    finally:
        server.drop_database(log)
        server.drop_database(tables)

"""Storms of days, on real processes: in tables of both databases, in a folder and in a bucket. Whatever happens, each day is
exactly that of one run.

A seed that fails is in the message; `-k "storm_of_days and 3"` repeats that one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.day_storm import MOST_SECONDS, DayStorm
from tests.support.lake_storm import LakeStorm
from tests.support.lakes import BucketLake, FolderLake, reached
from tests.support.object_store import ObjectStore

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(MOST_SECONDS + 100)]


def test_a_small_storm_of_days(log_url: str, tables_url: str, tmp_path: Path) -> None:
    with closing(DayStorm(0, log_url, tables_url, tmp_path, days=2, again=2)) as storm:
        storm.blow()
        assert storm.told["again, finished"] + storm.told["again, at work"] == 2 and storm.told["looks"]


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_storm_of_days(
    seed: int, log_url: str, tables_url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with closing(DayStorm(seed, log_url, tables_url, tmp_path, days=3, again=6)) as storm:
        storm.blow()
        record_property(f"storm of days {seed}", dict(storm.told))


@pytest.mark.parametrize("seed", range(8))
def test_a_storm_of_days_in_a_folder(seed: int, tmp_path: Path) -> None:
    with closing(LakeStorm(seed, FolderLake(tmp_path), tmp_path)) as storm:
        storm.blow()
        assert storm.told["killed"] or storm.told["stood still"]


@pytest.mark.parametrize("seed", range(2))
def test_a_storm_of_days_in_a_bucket(seed: int, objects: ObjectStore, tmp_path: Path) -> None:
    with reached(objects):
        lake = BucketLake(objects, objects.new_bucket())
        with closing(LakeStorm(seed, lake, tmp_path, objects.variables, runs=2)) as storm:
            storm.blow()

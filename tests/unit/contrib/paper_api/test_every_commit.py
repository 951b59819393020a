"""The pipeline by hand, its drivers dying before or behind each of their commits: the result is exact."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from airflow_logio.launch import bundle
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.by_hand import BY_HAND, assert_days, write
from tests.unit.contrib.paper_api.support import Bench, Died


def new_bench(store: LogStore, folder: Path) -> Bench:
    write(folder / "readings.parquet", 1)
    params = {"readings": str(folder / "readings.parquet"), "store": str(folder / "store")}
    return Bench(store, bundle.load(BY_HAND), params, {"warehouse": f"sqlite:///{folder}/by_hand.db"})


def run_to_the_end(bench: Bench, operator: str, number: int, *, made: bool) -> int:
    """Every driver dies at its commit of that number; how many were needed."""
    while bench.store.group(bench.run.run_id, operator).state is not GroupState.FINISHED:
        bench.die_at[operator] = (number, made)
        with contextlib.suppress(Died):
            assert bench.epoch(operator).run()
    return bench.incarnations[operator]


def check(bench: Bench, number: int, *, made: bool) -> None:
    drivers = [run_to_the_end(bench, operator, number, made=made) for operator in ("readings", "days")]
    assert_days(bench.urls["warehouse"], bench.run.uid, 1)
    assert min(drivers) > 20 // (number if made else number - 1), f"each of some twenty commits and more: {drivers}"


def test_drivers_that_die_behind_every_commit_come_to_the_end(store: LogStore, tmp_path: Path) -> None:
    check(new_bench(store, tmp_path), 1, made=True)


@pytest.mark.parametrize(("number", "made"), [(2, False), (2, True), (3, False), (3, True)])
def test_drivers_that_die_between_other_commits_change_nothing(number: int, made: bool, tmp_path: Path) -> None:
    check(new_bench(MemoryLogStore(), tmp_path), number, made=made)

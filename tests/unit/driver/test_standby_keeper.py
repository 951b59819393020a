"""What a driver does about its standby when none can be started."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_logio.driver import standby_keeper
from airflow_logio.driver.standby_keeper import StandbyKeeper
from airflow_logio.launch import driver_process
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import start_driver
from tests.support.own_calls import as_seen


def test_one_that_cannot_be_started_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again as long as the driver lives."""
    driver = start_driver(MemoryLogStore())
    config: Any = SimpleNamespace(
        claim=driver.claim,
        standby=SimpleNamespace(settings=SparkSettings(), conf={}),
        module="module",
        attr="pipeline",
        bundle_root=str(tmp_path),
    )
    own = tmp_path / "g" / "1"
    own.mkdir(parents=True)
    (own / "driver.log").write_text("of the driver itself")
    keeper = StandbyKeeper(config, driver.store, own, lambda: True, lambda: False)
    keeper._run = driver.run
    tried: list[Path] = []

    def fails(folder: Path, *_: Any) -> int:
        tried.append(folder)
        (folder / "code").mkdir()
        raise FileNotFoundError("no module orders.py")

    monkeypatch.setattr(standby_keeper, "code_for", lambda *_: None)
    monkeypatch.setattr(standby_keeper, "launch_of_standby", lambda *_: None)
    monkeypatch.setattr(driver_process, "start_standby", fails)
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            keeper._look()
    assert len(tried) == 3
    assert list((tmp_path / "g").iterdir()) == [own] and (own / "driver.log").exists()


def test_the_driver_that_has_taken_over_gets_its_work_done_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of the next standby would compete with it; the first driver of a group has nothing that waits."""
    driver = start_driver(MemoryLogStore())
    started: list[int] = []
    now = [1000.0]
    monkeypatch.setattr(standby_keeper, "time", as_seen(time, monotonic=lambda: now[0]))
    monkeypatch.setattr(StandbyKeeper, "_start", lambda keeper: started.append(keeper._config.claim.incarnation))
    for incarnation, waits in ((1, False), (2, True)):
        config: Any = SimpleNamespace(claim=replace(driver.claim, incarnation=incarnation), standby=None)
        ready = [False]
        keeper = StandbyKeeper(config, driver.store, tmp_path, lambda ready=ready: ready[0], lambda: False)  # type: ignore[misc]
        keeper.begin(driver.run)
        keeper._look()
        now[0] += 2 * standby_keeper.AGAIN_SECONDS  # until it is ready
        assert incarnation not in started
        ready[0] = True
        keeper._look()
        assert (incarnation not in started) is waits
        now[0] += standby_keeper.AGAIN_SECONDS
        keeper._look()
        assert incarnation in started

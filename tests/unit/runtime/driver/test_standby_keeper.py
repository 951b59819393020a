"""What a driver does about its standby when none can be started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_logio.runtime.driver import standby_keeper
from airflow_logio.runtime.driver.standby_keeper import StandbyKeeper
from airflow_logio.runtime.launch import driver_process
from airflow_logio.runtime.launch.spark_submit import SparkSettings
from airflow_logio.store.memory import MemoryLogStore
from tests.support.logs import start_driver


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
    monkeypatch.setattr(driver_process, "start_standby", fails)
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            keeper._look()
    assert len(tried) == 3
    assert list((tmp_path / "g").iterdir()) == [own] and (own / "driver.log").exists()

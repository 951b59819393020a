"""Chains of DataFrames on real spark-submit processes, which die, stop and wake up: what is published is exact."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.protocol.liveness import Lease
from tests.support.lake_runs import LAKE_SITES, LakeFolders
from tests.support.running import ArmedSparkLauncher, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """On another file system."""
    with TemporaryDirectory(dir="/dev/shm") as made:
        assert Path(made).stat().st_dev != tmp_path.stat().st_dev
        yield Path(made)


def test_dying_around_jobs_manifests_and_publication(
    log_url: str, warehouse_url: str, tmp_path: Path, elsewhere: Path
) -> None:
    """Published by executors' copies."""
    one = LakeFolders(tmp_path, warehouse_url, elsewhere)
    armed = {
        (group, number): point for group, points in LAKE_SITES.items() for number, point in enumerate(points, start=1)
    }
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(log_url, warehouse_url, one.orders, launcher, **one.settings()) as run:
        run.finish(timeout=800)
        died = {group: run.status(group).incarnation - 1 for group in LAKE_SITES}
        assert died == {group: len(points) for group, points in LAKE_SITES.items()}, "every one of them was passed"
        one.assert_exact()
        one.assert_nothing_left(run.store, run)


@pytest.mark.postgres
def test_a_zombie_that_publishes_beside_its_successor(
    postgres_url: str, postgres_warehouse_url: str, tmp_path: Path
) -> None:
    """Stopped with its files in the folder, links of those in the payload store, and no receipt; the ending of old processes
    is switched off."""
    one = LakeFolders(tmp_path, postgres_warehouse_url)
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("back", 1): f"{CrashPoint.IN_PUBLICATION}:1:stop"})
    arguments = (postgres_url, postgres_warehouse_url, one.orders, launcher)
    with running(*arguments, end_old_drivers=False, lease=Lease(8, 90), **one.settings()) as run:
        run.until(lambda: run.is_running("back"), "back runs")
        zombie = run.process("back")
        jvm = zombie.parent()
        assert jvm is not None
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "back has stopped while it publishes")
        run.until(lambda: run.is_running("back", 2), "back is replaced")
        run.until(lambda: run.count("orders.lake", "write") > 0, "its successor has published")
        zombie.resume()
        eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=60)
        run.finish()
        assert run.status("back").incarnation == 2
        one.assert_exact()
        one.assert_nothing_left(run.store, run)

"""Crash points of chains, publications, stagings and sweeps, with jobs on a cluster of two workers: the result is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from airflow_logio.crash import CrashPoint
from tests.acceptance import test_staging
from tests.support.crash_sites import IN_LAKES
from tests.support.lake_runs import LAKE_SITES, LakeFolders
from tests.support.postgres import PostgresServer
from tests.support.running import ArmedSparkLauncher, running
from tests.support.spark_cluster import Cluster, spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(3_600)]

AROUND_SWEEPS = (f"{CrashPoint.BEFORE_SWEEP}:1", f"{CrashPoint.AFTER_SWEEP}:1")
"""Of what earlier incarnations have left: there are some by then."""
SITES = {group: (*points, *AROUND_SWEEPS) for group, points in LAKE_SITES.items()}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with spark_cluster(tmp_path, cores=4, memory="2400m") as found:
        found.wait_for_workers()
        yield found


@pytest.fixture
def warehouse_url(postgres_server: PostgresServer) -> Iterator[str]:
    url = postgres_server.new_database(migrated=False)
    yield url
    postgres_server.drop_database(url)


@pytest.mark.parametrize("how", ["links", "copies"])
def test_dying_around_jobs_manifests_publications_and_sweeps(
    how: str, postgres_url: str, warehouse_url: str, cluster: Cluster, tmp_path: Path
) -> None:
    points = {point.partition(":")[0] for points in SITES.values() for point in points}
    assert points >= set(map(str, IN_LAKES)), "every one of them"
    armed = {(group, number): point for group, points in SITES.items() for number, point in enumerate(points, start=1)}
    with TemporaryDirectory(dir="/dev/shm") as elsewhere:
        one = LakeFolders(tmp_path, warehouse_url, Path(elsewhere) if how == "copies" else None)
        launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
        with running(postgres_url, warehouse_url, one.orders, launcher, **one.settings()) as run:
            run.context = replace(run.context, settings=cluster.settings({}, total_executor_cores=2))
            run.finish(timeout=3_000)
            died = {group: run.status(group).incarnation - 1 for group in SITES}
            assert died == {group: len(points) for group, points in SITES.items()}, "every one of them was passed"
            one.assert_exact()
            one.assert_nothing_left(run.store, run)


def test_dying_around_stagings_and_moves(
    postgres_url: str, warehouse_url: str, cluster: Cluster, tmp_path: Path
) -> None:
    deaths = (*test_staging.DEATHS, *AROUND_SWEEPS)
    orders, payloads = test_staging.write_orders(tmp_path / "orders"), tmp_path / "payloads"
    launcher = ArmedSparkLauncher(
        tmp_path / "drivers", {("back", number): point for number, point in enumerate(deaths, start=1)}
    )
    settings = {"ref": test_staging.STAGED, "params": {"orders": str(orders)}, "payloads": str(payloads)}
    with running(postgres_url, warehouse_url, orders, launcher, **settings) as run:
        run.context = replace(run.context, settings=cluster.settings({}, total_executor_cores=2))
        run.finish(timeout=3_000)
        assert run.status("back").incarnation == 1 + len(deaths), "every one of them was passed"
        test_staging.assert_moved(run, orders, warehouse_url, payloads)

"""Windows of a zone that are open when their driver dies, while its clock is changed, and while its rules are."""

from __future__ import annotations

import datetime as dt
import importlib.resources
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import TZPATH

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.crash import VARIABLE
from airflow_logio.launch import bundle, spark_submit
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.states import GroupState
from tests.support.bundle.zone_days import ZONE
from tests.support.running import PlainLauncher, Running, running
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

DAYS = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'zone_days.py'}:zone_days")
FIRST = dt.datetime(2024, 3, 29, 12, tzinfo=dt.UTC)
HOURS = 5 * 24
"""The clock is put forward in the second night."""
DEATHS = 2


def write_orders(path: Path) -> Path:
    """One every twenty minutes, so that events begin and end within days."""
    at = [FIRST + dt.timedelta(minutes=20 * number) for number in range(3 * HOURS)]
    cents = [number * 7 % 101 for number in range(3 * HOURS)]
    pq.write_table(pa.table({"at": pa.array(at, pa.timestamp("us", "UTC")), "cents": cents}), path)
    return path


def expected(orders: Path) -> list[tuple[str, int, int]]:
    days = f"SELECT CAST(CAST(timezone('{ZONE}', \"at\") AS DATE) AS VARCHAR) AS day, count(*), sum(cents)::BIGINT"
    with duckdb.connect() as database:
        return database.execute(f"{days} FROM '{orders}' GROUP BY day ORDER BY day").fetchall()


def found(url: str) -> list[tuple[Any, ...]]:
    return rows_of(url, "SELECT CAST(day AS TEXT), orders, cents FROM days ORDER BY day")


def test_a_window_of_a_zone_that_is_open_when_its_driver_dies_is_that_day_and_no_other(
    log_url: str, warehouse_url: str, tmp_path: Path
) -> None:
    """Killed while the source is held in the middle of the day that has 23 hours, and that day is open."""
    orders, over = write_orders(tmp_path / "orders.parquet"), tmp_path / "over"
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, warehouse_url, orders, launcher, **settings(orders, over)) as run:
        for death in range(1, DEATHS + 1):
            run.until(partial(is_open, warehouse_url), "the second day is written")
            run.until(partial(run.is_running, "days", death), "there is a driver")
            assert found(warehouse_url) == expected(orders)[:2]
            run.signal("days", signal.SIGKILL)
            run.until(partial(run.is_running, "days", death + 1), "its driver is replaced")
        over.touch()
        run.finish()
        assert run.status("days").incarnation == DEATHS + 1
    assert found(warehouse_url) == expected(orders)
    sizes = [count for _, count, _ in found(warehouse_url)]
    assert sizes[1:3] == [72, 69], "a day of 24 hours, and the one of 23"


def settings(orders: Path, over: Path) -> dict[str, Any]:
    return {"ref": DAYS, "params": {"orders": str(orders), "over": str(over)}}


def is_open(url: str) -> bool:
    """Two days are written, so the third has begun."""
    try:
        return len(found(url)) == 2
    except sa.exc.DBAPIError:  # there is no table yet
        return False


@dataclass
class FreshLauncher(PlainLauncher):
    """Each driver is a Python of its own: those that are forked have read the rules of zones already."""

    def start(  # type: ignore[override]
        self, config: Path, log: Path, point: str | None, variables: Mapping[str, str] | None = None, *, seed: int = 0
    ) -> subprocess.Popen[bytes]:
        environment = spark_submit.environment(SparkSettings()) | {"PYTHONPATH": str(Path(__file__).parents[2])}
        environment |= {**(variables or {}), **({VARIABLE: point} if point else {})}
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, str(APPLICATION), "--config", str(config)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.children.append(child)  # type: ignore[arg-type]
        return child


def rules_of(name: str) -> bytes:
    """What is installed here for a zone."""
    for folder in map(Path, TZPATH):
        if (folder / name).is_file():
            return (folder / name).read_bytes()
    return importlib.resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def test_a_driver_with_other_rules_of_the_zone_parks_its_group_until_they_are_as_they_were(
    sqlite_url: str, warehouse_url: str, tmp_path: Path
) -> None:
    """As if the zone had given up its summer time in a release of tzdata that only the second driver has."""
    orders, over = write_orders(tmp_path / "orders.parquet"), tmp_path / "over"
    others = tmp_path / "zones" / ZONE
    others.parent.mkdir(parents=True)
    others.write_bytes(rules_of("Africa/Algiers"))
    variables = {("days", 2): {"PYTHONTZPATH": str(tmp_path / "zones")}}
    launcher = FreshLauncher(tmp_path / "drivers", variables=variables)
    with running(sqlite_url, warehouse_url, orders, launcher, **settings(orders, over)) as run:
        run.until(lambda: is_open(warehouse_url), "the second day is written")
        run.signal("days", signal.SIGKILL)
        run.until(lambda: is_parked(run), "the group is parked")
        assert run.status("days").incarnation == 2
        said = run.status("days").error or ""
        assert (
            "where time zones had other rules than on this host" in said and "operator 'daily', window, rules" in said
        )
        assert "Install the package `tzdata` that it began with and `logio retry" in said
        over.touch()
        run.relaunch("days")
        run.finish()
    assert found(warehouse_url) == expected(orders)


def is_parked(run: Running) -> bool:
    return run.status("days").state is GroupState.PARKED

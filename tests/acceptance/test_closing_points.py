"""A day that is replaced as a whole, on real driver processes: at any moment it is the old one, or all of the new one.

Compared with DuckDB's answer, and with what readers have seen meanwhile.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from tests.support.crash_sites import IN_CLOSINGS
from tests.support.running import PlainLauncher, Running, running

pytestmark = pytest.mark.acceptance

HELD_DAY = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'held_day.py'}:pipeline")
OLD = [(-1, 1), (-2, 2)]


class Warehouse:
    """A table with the day as it was, and a reader that looks at it all the time."""

    def __init__(self, folder: Path, transactions: Path) -> None:
        self.path = folder / "day.db"
        self.fault = folder / "fault"
        with contextlib.closing(sqlite3.connect(self.path)) as client:
            client.execute("PRAGMA journal_mode=WAL")
            client.execute("CREATE TABLE day (store_id INTEGER, quantity INTEGER)")
            client.executemany("INSERT INTO day VALUES (?, ?)", OLD)
            client.commit()
        with duckdb.connect() as connection:
            query = f"SELECT store_id::bigint, quantity::bigint FROM read_parquet('{transactions}')"
            self.wanted = sorted(connection.execute(query).fetchall())
        self.seen: set[tuple[int, int]] = set()
        """(rows, sum of quantities), as readers have found the day."""
        self._over = threading.Event()

    def rows(self) -> list[tuple[int, int]]:
        with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as client:
            return sorted(client.execute("SELECT store_id, quantity FROM day").fetchall())

    def _look(self) -> None:
        while not self._over.wait(0.02):
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as client:
                self.seen.add(client.execute("SELECT count(*), sum(quantity) FROM day").fetchone())

    @contextlib.contextmanager
    def read_all_the_time(self) -> Iterator[None]:
        reader = threading.Thread(target=self._look)
        reader.start()
        try:
            yield
        finally:
            self._over.set()
            reader.join()

    def assert_exact(self) -> None:
        assert self.rows() == self.wanted
        days = [(len(rows), sum(quantity for _, quantity in rows)) for rows in (OLD, self.wanted)]
        assert self.seen <= set(days), f"readers have seen other days than the old one and the new one: {self.seen}"


@pytest.fixture
def warehouse(tmp_path: Path, small_transactions: Path) -> Warehouse:
    return Warehouse(tmp_path, small_transactions)


@contextlib.contextmanager
def started(
    log_url: str, warehouse: Warehouse, transactions: Path, launcher: PlainLauncher, **settings: Any
) -> Iterator[Running]:
    given = {
        "connections": {"warehouse": str(warehouse.path)},
        "params": {"transactions": str(transactions), "fault": str(warehouse.fault)},
    }
    with (
        warehouse.read_all_the_time(),
        running(log_url, "", transactions, launcher, ref=HELD_DAY, **given, **settings) as run,
    ):
        yield run


def deaths(*points: str) -> dict[tuple[str, int], str]:
    """Where the first drivers of the group of the day die."""
    return {("replacing", incarnation): point for incarnation, point in enumerate(points, 1)}


POINTS = [
    "after_recovery:1",
    "before_commit:2",
    "after_commit:2",
    "before_write:1",
    "after_write:1",
    *(f"{point}:1" for point in IN_CLOSINGS),
    "before_write:2",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    "after_write:2",
    "before_finish:1",
]


@pytest.mark.parametrize("point", POINTS)
def test_dying_there_leaves_the_old_day_or_the_whole_new_one(
    point: str, log_url: str, warehouse: Warehouse, small_transactions: Path, tmp_path: Path
) -> None:
    again = point.replace(":2", ":1")  # the opening may be done already
    launcher = PlainLauncher(tmp_path / "drivers", deaths(point, again))
    with started(log_url, warehouse, small_transactions, launcher) as run:
        run.finish()
        assert run.status("replacing").incarnation > 1, f"{point} was not passed"
    warehouse.assert_exact()


@pytest.mark.parametrize("point", ["before_closing:1", "in_warehouse_transaction:1", "before_write:2"])
def test_a_zombie_that_wakes_up_changes_nothing(
    point: str, postgres_url: str, warehouse: Warehouse, small_transactions: Path, tmp_path: Path
) -> None:
    """Stopped within its transaction, it is ended before its successor begins: it holds the lock of a SQLite file."""
    launcher = PlainLauncher(tmp_path / "drivers", deaths(f"{point}:stop"))
    lease = Lease(seconds=2, launch_seconds=60)
    with started(postgres_url, warehouse, small_transactions, launcher, lease=lease) as run:
        run.until(lambda: run.status("replacing").incarnation == 2, "another driver was launched")
        run.finish()
    warehouse.assert_exact()


def test_input_sets_that_are_set_aside_keep_the_old_day(
    log_url: str, warehouse: Warehouse, small_transactions: Path, tmp_path: Path
) -> None:
    """The group parks and says why; when they are put back, the whole day is replaced."""
    warehouse.fault.touch()
    launcher = PlainLauncher(tmp_path / "drivers")
    with started(log_url, warehouse, small_transactions, launcher) as run:
        run.until(lambda: run.status("replacing").state is GroupState.PARKED, "the day is not replaced")
        error = run.status("replacing").error
        assert error is not None
        assert "'day' replaces nothing, because" in error
        assert "Input Sets of 'clean' are set aside" in error
        assert warehouse.rows() == sorted(OLD)
        warehouse.fault.unlink()
        run.store.retry_quarantined(run.run.run_id)
        for group in run.groups:
            run.relaunch(group)
        run.finish()
    warehouse.assert_exact()

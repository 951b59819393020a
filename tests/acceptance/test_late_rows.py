"""Late rows behind `OwnPartition`, on real drivers: a new run of a day replaces what earlier runs of that day have brought,
wherever its values lie, and nothing else. Compared with DuckDB's answer.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.dataflow import Days
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.store.records.day_records import PartitionBounds
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.crash_sites import OPENING, QUESTION, SWITCH
from tests.support.owned_day import LEASE, NOT_FIRST, until_alone, until_stopped
from tests.support.running import PlainLauncher, Running, has_ended, running
from tests.support.slow_driver import Slowness, sessions_wait_for_a_lock
from tests.support.waiting import eventually
from tests.support.warehouse import change, rows_of

pytestmark = pytest.mark.acceptance

LATE_ROWS = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'late_rows.py'}:late")
ZONE = Days("day", zone="Europe/Berlin")
D1, D2 = "2026-03-28", "2026-03-29"
READING = (f"{CrashPoint.BEFORE_COMMIT}:1", f"{CrashPoint.IN_LOG_TRANSACTION}:1", f"{CrashPoint.AFTER_COMMIT}:1")


class LateRows:
    """A table of rows that came late, and what is to be in it."""

    def __init__(self, log_url: str, warehouse_url: str, folder: Path) -> None:
        self.log_url, self.warehouse_url, self.folder = log_url, warehouse_url, folder
        self._begun = 0

    def reads(self, day: str, first: int, count: int = 600) -> list[tuple[Any, ...]]:
        """From now on the day has so many clicks, numbered from `first`: each third is of a day before. Those of these."""
        start = ZONE.key_of(day).start
        hours = [-(one % 70) - 1 if one % 3 == 0 else one % 20 for one in range(first, first + count)]
        times = [(start + timedelta(hours=hour)).replace(tzinfo=None) for hour in hours]
        ids = [one % 400 for one in range(first, first + count)]
        ids[0], times[0] = 1_000, datetime(2026, 3, 1, tzinfo=UTC).replace(tzinfo=None)  # in each day
        table = pa.table({"id": ids, "ts": pa.array(times, pa.timestamp("us")), "page": [f"p{first}"] * count})
        path = self.folder / f"{day}.parquet"
        pq.write_table(table, path)
        with duckdb.connect() as connection:
            query = "SELECT id::bigint, ts::text, page FROM read_parquet(?) WHERE ts < ? OR ts >= ?"
            key = ZONE.key_of(day)
            bounds = [one.replace(tzinfo=None) for one in (key.start, key.end)]
            return connection.execute(query, [str(path), *bounds]).fetchall()

    def run(
        self, name: str, day: str, armed: Mapping[tuple[str, int], str] | None = None, launcher: Any = None, **more: Any
    ) -> Any:
        self._begun += 1
        launcher = launcher or PlainLauncher(self.folder / "drivers" / f"{self._begun}_{name}", armed or {})
        given = {"params": {"data": str(self.folder)}, "partition": ZONE.key_of(day), "ref": LATE_ROWS, "name": name}
        return running(self.log_url, self.warehouse_url, self.folder, launcher, **given, **more)

    def counted(self, run: Running, day: str) -> dict[str, int]:
        """Day → how many rows of it the log has counted, as having come with the run of this day that stands."""
        found = run.store.late_arrivals(
            "late_rows", PartitionBounds("2026", "2027"), PartitionBounds(day, day), {"own"}
        )
        return {one.partition: one.records for one in found if one.stands}

    def there(self) -> list[tuple[Any, ...]]:
        rows = rows_of(self.warehouse_url, "SELECT id, ts, page FROM late")
        return sorted((row[0], str(row[1]).removesuffix(".000000"), row[2]) for row in rows)


def days_of(rows: list[tuple[Any, ...]]) -> dict[str, int]:
    times = (datetime.fromisoformat(row[1]).replace(tzinfo=UTC) for row in rows)
    return dict(Counter(str(at.astimezone(ZoneInfo(ZONE.zone)).date()) for at in times))


@pytest.fixture
def late(log_url: str, tables_url: str, tmp_path: Path) -> LateRows:
    """With the log and the table in one kind of database."""
    return LateRows(log_url, tables_url, tmp_path)


def test_late_rows_are_exact_whatever_dies(late: LateRows) -> None:
    """Two days, then the first one again with other rows. Each run dies in and around its transactions, and while it reads:
    the log has counted each row once, by the day that it is of."""
    wanted: dict[str, list[tuple[Any, ...]]] = {}
    plans = (("one", D1, 0, OPENING), ("two", D2, 100, QUESTION), ("again", D1, 5_000, OPENING))
    for name, day, first, points in plans:
        wanted[day] = late.reads(day, first)
        armed = {("replacing", number): point for number, point in enumerate((*points, *SWITCH), 1)}
        reading = {("reading", number): point for number, point in enumerate(READING if name == "two" else (), 1)}
        with late.run(name, day, armed | reading) as run:
            run.finish(timeout=600)
            assert run.status("replacing").incarnation == 1 + len(armed), "each point was passed"
            assert run.status("reading").incarnation == 1 + len(reading), "each point was passed"
            assert late.counted(run, day) == days_of(wanted[day])
        if name == "one":
            change(late.warehouse_url, "INSERT INTO late (id, ts, page) VALUES (-1, '2026-01-01 00:00:00', 'by hand')")
            wanted["by hand"] = [(-1, "2026-01-01 00:00:00", "by hand")]
        assert late.there() == sorted(row for rows in wanted.values() for row in rows)
    assert len([row for row in late.there() if row[0] == 1_000]) == 2, "each day has brought a row with that key"


def give_up(run: Running) -> None:
    assert run.store.declare_dead(GroupRef(run.run.run_id, "replacing", 1), "test")
    assert run.store.supersede(run.run.run_id)


def wake(process: psutil.Process) -> None:
    process.send_signal(signal.SIGCONT)
    eventually(lambda: has_ended(process), what="it has ended", timeout=120)


@pytest.mark.parametrize(
    ("log_url", "where"),
    [
        ("sqlite", f"{CrashPoint.BEFORE_WRITE}:2"),
        pytest.param("postgres", f"{CrashPoint.BEFORE_WRITE}:2", marks=pytest.mark.postgres),
        pytest.param("postgres", f"{CrashPoint.IN_DAY_SWITCH}:1", marks=pytest.mark.postgres),
    ],
    indirect=["log_url"],
)
def test_a_stopped_driver_of_the_replaced_run_changes_nothing(late: LateRows, where: str) -> None:
    """In its closing transaction, the server ends its session."""
    late.reads(D1, 0)
    with late.run("old", D1, {("replacing", 1): f"{where}:stop"}, lease=LEASE, end_old_drivers=False) as old:
        zombie = until_stopped(old)
        give_up(old)
        wanted = late.reads(D1, 5_000)
        with late.run("young", D1) as young:
            young.finish()
        assert late.there() == sorted(wanted)
        wake(zombie)
    assert late.there() == sorted(wanted)


@pytest.mark.postgres
@pytest.mark.parametrize("log_url", ["postgres"], indirect=True)
def test_a_slow_driver_of_the_replaced_run_was_first(late: LateRows, tmp_path: Path) -> None:
    """It is about to commit, and keeps its locks: the younger run waits, and then replaces its rows."""
    slow = Slowness(tmp_path / "slow", 'UPDATE "public".logio_scope SET live_ordinal')
    late.reads(D1, 0)
    launcher = PlainLauncher(tmp_path / "drivers" / "old", variables={("replacing", 1): slow.variables})
    with late.run("old", D1, launcher=launcher, lease=LEASE, end_old_drivers=False) as old:
        old.until(slow.is_reached, "it is about to commit")
        until_alone(old)
        give_up(old)
        wanted = late.reads(D1, 5_000)
        with late.run("young", D1) as young:
            young.until(lambda: sessions_wait_for_a_lock(late.warehouse_url), "the younger run waits")
            slow.end()
            young.finish()
        assert launcher.drivers["replacing", 1].wait(timeout=120) in NOT_FIRST, old.last_words()
    assert late.there() == sorted(wanted)

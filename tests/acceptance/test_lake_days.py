"""A day in a lake on real spark-submit processes, which die, stop and wake up: the old day or the new one, by DuckDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import Days, published_files
from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.day_records import PartitionBounds
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Allowed
from airflow_logio.store.sql import migrate
from tests.support.frame_groups import orders_at, query
from tests.support.running import ArmedSparkLauncher, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

BUNDLE = Path(__file__).parents[1] / "support" / "bundle" / "lake_days.py"
LAKE_DAYS, AUDITED, LATE, FILLED = (
    bundle.parse_ref(f"{BUNDLE}:{name}") for name in ("days", "audited", "late", "filled")
)
DAY, NEXT_DAY = (Days("day").key_of(day) for day in ("2024-03-09", "2024-03-10"))
COLUMNS = "id, epoch_us(ts), store, cents"
OLD = (orders_at(1, 2, 3, 25), orders_at(4, 5, first=10))
NEW = (orders_at(7, 8, 30, first=50), orders_at(5, 9, first=100))
LATER = (orders_at(7, 33, first=200), orders_at(30, 31, 32, 8, first=300))

MARCH = PartitionBounds("2024-03-01", "2024-03-31")


class Lake:
    """One day of it, and the runs that compute it."""

    def __init__(self, root: Path, log_url: str) -> None:
        self.folder = root / "lake"
        self.folder.mkdir()
        self._root, self._log_url = root, log_url

    def run(
        self, name: str, orders: tuple[pa.Table, ...], armed: dict[int, str], *, log_url: str = "", **settings: Any
    ) -> Any:
        """With drivers that die where they are armed, by incarnation; of another log, if it is given."""
        where = self.orders(name)
        where.mkdir()
        for number, table in enumerate(orders):
            pq.write_table(table, where / f"{number}.parquet")
        launcher = ArmedSparkLauncher(self._root / "drivers", {("all", one): point for one, point in armed.items()})
        return running(
            log_url or self._log_url,
            "",
            where,
            launcher,
            name=name,
            params={"orders": str(where)},
            connections={"lake": str(self.folder)},
            payloads=str(self._root / "payloads"),
            **{"ref": LAKE_DAYS, "partition": DAY, **settings},
        )

    def orders(self, name: str) -> Path:
        return self._root / f"orders_{name}"

    def late(self) -> list[tuple[Any, ...]]:
        """Orders of other days than their run's that count, by the receipts."""
        return self._read([file.path for file in published_files(self.folder / "late")])

    def expected_late(self, **days: str) -> list[tuple[Any, ...]]:
        """Those of runs by their names, each of its day."""
        parts = [
            f"SELECT {COLUMNS} FROM '{self.orders(name)}/*.parquet' WHERE ts::DATE <> DATE '{day}'"
            for name, day in days.items()
        ]
        return query(f"{' UNION ALL '.join(parts)} ORDER BY ALL")

    def expected(self, name: str) -> list[tuple[Any, ...]]:
        day = f"WHERE ts::DATE = DATE '{DAY.text}'"
        return query(f"SELECT {COLUMNS} FROM '{self._root}/orders_{name}/*.parquet' {day} ORDER BY ALL")

    def counted(self) -> list[tuple[Any, ...]]:
        return self._read([file.path for file in published_files(self.folder / "kept" / f"day={DAY.text}")])

    def listed(self) -> list[tuple[Any, ...]]:
        return self._read([str(path) for path in (self.folder / "kept").rglob("*.parquet")])

    def late_listed(self) -> list[tuple[Any, ...]]:
        return self._read([str(path) for path in (self.folder / "late").rglob("*.parquet")])

    def _read(self, files: list[str]) -> list[tuple[Any, ...]]:
        if not files:
            return []
        return query(f"SELECT {COLUMNS} FROM read_parquet({files}, hive_partitioning=true) ORDER BY ALL")


@pytest.fixture
def lake(tmp_path: Path, log_url: str) -> Lake:
    """Its day is that of a run which has finished."""
    one = Lake(tmp_path, log_url)
    with one.run("old", OLD, {}) as run:
        run.finish()
    assert one.counted() == one.listed() == one.expected("old") != []
    return one


def test_dying_between_links_around_the_receipt_and_within_the_clear(lake: Lake) -> None:
    armed = (
        f"{CrashPoint.IN_PLACING}:2",
        f"{CrashPoint.IN_PUBLICATION}:1",
        f"{CrashPoint.IN_CLEARING}:1",
        f"{CrashPoint.IN_CLEARING}:2",
    )
    with lake.run("new", NEW, dict(enumerate(armed, start=1))) as run:
        for number in range(2, len(armed) + 2):
            run.until(lambda number=number: run.is_running("all", number), f"driver {number} runs")
            counted = lake.counted()
            assert counted in ((lake.expected("old"),) if number <= 2 else (lake.expected("old"), lake.expected("new")))
        run.finish()
        assert run.status("all").incarnation == len(armed) + 1, "every one of them was passed"
    assert lake.counted() == lake.listed() == lake.expected("new") != []


def test_a_zombie_between_look_and_receipt_brings_nothing_back(lake: Lake) -> None:
    """It stands still with its files in the day, a younger run replaces the day, and it wakes up."""
    with lake.run("zombie", NEW, {1: f"{CrashPoint.IN_PUBLICATION}:1:stop"}, lease=Lease(300, 600)) as old:
        old.until(lambda: old.is_running("all"), "the driver runs")
        zombie = old.process("all")
        jvm = zombie.parent()
        assert jvm is not None
        eventually(
            lambda: zombie.status() == psutil.STATUS_STOPPED, what="it has stopped while it publishes", timeout=120
        )
        assert old.store.declare_dead(GroupRef(old.run.run_id, "all", 1), "test")
        assert old.store.supersede(old.run.run_id)
        with lake.run("young", OLD, {}) as young:
            young.finish()
        zombie.resume()
        eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=60)
    assert lake.counted() == lake.expected("young")


def test_an_audit_that_refuses_keeps_the_old_day_until_a_person_asks_again(lake: Lake) -> None:
    """Drivers die in its function, behind its query, and behind both; no file of the new day is there until all let pass."""
    fault, allows = (Path(f"{lake.orders('new')}.{name}") for name in ("fault", "allowed"))
    fault.touch()
    armed = {2: f"{CrashPoint.IN_AUDIT}:1", 4: f"{CrashPoint.IN_AUDIT}:2"}
    with lake.run("new", NEW, armed, ref=AUDITED) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked", timeout=300)
        assert run.status("all").incarnation == 3 and not fault.exists()
        said = str(run.status("all").error)
        assert (
            "audit 'allowed' refuses the rows of run" in said and "2 orders of store 2. The day stays as it is" in said
        )
        assert lake.counted() == lake.listed() == lake.expected("old")
        allows.touch()
        run.relaunch("all")
        run.until(lambda: run.is_running("all", 5), "the driver behind the one that died runs", timeout=300)
        run.finish()
    assert lake.counted() == lake.listed() == lake.expected("new") != []


def test_a_day_that_is_filled_at_once_is_whole_in_the_end(lake: Lake) -> None:
    """Drivers die while the old day is removed, and around files and receipts; readers see what of the new one is there."""
    armed = {
        1: f"{CrashPoint.IN_CLEARING}:2",
        2: f"{CrashPoint.IN_PUBLICATION}:1",
        3: f"{CrashPoint.IN_PUBLICATION}:2",
    }
    with lake.run("new", NEW, armed, ref=FILLED) as run:
        for number in (2, 3, 4):
            run.until(lambda number=number: run.is_running("all", number), f"driver {number} runs", timeout=300)
            assert set(lake.counted()) <= set(lake.expected("new")), "the old day is hidden"
        run.finish(timeout=400)
        assert run.status("all").incarnation == 4, "every one of them was passed"
    assert lake.counted() == lake.listed() == lake.expected("new") != []


def test_late_orders_are_superseded_by_those_of_the_next_run_of_their_day(tmp_path: Path, log_url: str) -> None:
    """Drivers die around files, receipts and removal. Those that the next day has for the same stores stay."""
    lake = Lake(tmp_path, log_url)
    for name, orders, day in (("old", OLD, DAY), ("next", OLD[::-1], NEXT_DAY)):
        with lake.run(name, orders, {}, ref=LATE, partition=day) as run:
            run.finish(timeout=400)
    before = lake.expected_late(old=DAY.text, next=NEXT_DAY.text)
    assert lake.late() == lake.late_listed() == before != []
    armed = {1: f"{CrashPoint.IN_PUBLICATION}:2", 2: f"{CrashPoint.IN_CLEARING}:1"}  # of either writer
    with lake.run("new", LATER, armed, ref=LATE) as run:
        run.until(lambda: run.is_running("all", 3), "the driver behind those that died runs", timeout=400)
        run.finish(timeout=400)
        counted = run.store.late_arrivals("lake_days", MARCH, MARCH, {"own"})
    after = lake.expected_late(new=DAY.text, next=NEXT_DAY.text)
    assert lake.late() == lake.late_listed() == after != before
    assert sum(one.records for one in counted if one.stands) == len(after), "as the log has counted them"
    assert lake.counted() == lake.expected("new")


def test_a_run_without_records_keeps_the_old_day(lake: Lake) -> None:
    with lake.run("empty", (orders_at(30),), {}) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked")
        assert "has none to put in their place" in str(run.status("all").error)
    assert lake.counted() == lake.listed() == lake.expected("old")


def test_another_log_replaces_the_day_only_by_a_persons_word(lake: Lake, tmp_path: Path) -> None:
    """It is killed before it claims the day, and before its receipt; a run of the first log sleeps before its own."""
    laptop = f"sqlite:///{tmp_path}/laptop.db"
    migrate.upgrade(laptop)
    with lake.run("refused", NEW, {}, log_url=laptop) as run:
        run.until(lambda: run.status("all").state is GroupState.PARKED, "the group is parked", timeout=300)
        assert f"`logio again --pipeline lake_days --partition {DAY.text} --take-over`" in str(run.status("all").error)
        assert run.store.supersede(run.run.run_id)
    assert lake.counted() == lake.listed() == lake.expected("old"), "and no claim of it is left"
    with lake.run("zombie", NEW, {1: f"{CrashPoint.IN_PUBLICATION}:1:stop"}, lease=Lease(300, 600)) as old:
        old.until(lambda: old.is_running("all"), "the driver runs", timeout=300)
        zombie = old.process("all")
        stopped = psutil.STATUS_STOPPED
        eventually(lambda: zombie.status() == stopped, what="it has stopped while it publishes", timeout=300)
        armed = {1: f"{CrashPoint.BEFORE_WRITE}:1", 2: f"{CrashPoint.IN_PUBLICATION}:1"}
        with lake.run("taken", OLD, armed, log_url=laptop, allowed={Allowed.TAKE_OVER}) as run:
            run.finish()
            assert run.status("all").incarnation == 3, "both were passed"
        assert lake.counted() == lake.expected("taken") != []
        zombie.resume()
        old.until(lambda: old.status("all").state is GroupState.PARKED, "the zombie is parked", timeout=300)
        assert "was taken over by run" in str(old.status("all").error)
    assert lake.counted() == lake.listed() == lake.expected("taken"), "its files are gone, and never counted"
    with lake.run("next", NEW, {}, log_url=laptop) as run:
        run.finish()
    assert lake.counted() == lake.listed() == lake.expected("next"), "the day is of that log: it needs no word any more"

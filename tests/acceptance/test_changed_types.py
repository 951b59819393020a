"""A type of a column that nothing could be written to is mended while the run waits, and the run continues exactly."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.errors import IncompatibleRun
from airflow_logio.launch.bundle import load, parse_ref
from airflow_logio.launch.taken_types import take_types
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records import GroupRef, Run
from tests.support.faults import Injected, around_commit, inject
from tests.support.running import PlainLauncher, Running, running
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

PRICES = Path(__file__).parents[1] / "support" / "bundle" / "prices.py"
EXPECTED = [(item, f"{item}.25") for item in range(100)]


@dataclass
class Mended:
    """A run whose group `store` is parked, the file of its pipeline, and the table."""

    run: Running
    file: Path
    warehouse: str

    def edit(self, kind: str) -> None:
        self.file.write_text(PRICES.read_text().replace('TYPE = "double"', f'TYPE = "{kind}"'))

    def take(self) -> Run:
        """What a person's command does, in a process that has imported the file as it is now."""
        copy = self.file.parent / f"prices_{uuid4().hex}.py"
        shutil.copy(self.file, copy)
        run = self.run.store.find_run(self.run.run.uid)
        return take_types(self.run.store, run, load(parse_ref(f"{copy}:prices")), lambda _: self.warehouse)

    def until_parked(self) -> str:
        self.run.until(lambda: self.run.status("store").state is GroupState.PARKED, "store is parked")
        return self.run.status("store").error or ""

    def last_write(self) -> int:
        """Number of the last write action that is applied: the opening has 1, and may not have come when the group parks."""
        if not rows_of(self.warehouse, "SELECT 1 FROM sqlite_master WHERE name = 'logio_marker'"):
            return 0
        return sum(number for (number,) in rows_of(self.warehouse, "SELECT last_write FROM logio_marker"))

    def rows(self) -> list[tuple[int, str]]:
        return [
            (item, str(price))
            for item, price in rows_of(self.warehouse, "SELECT item, price FROM prices ORDER BY item")
        ]


@contextmanager
def parked(log_url: str, tmp_path: Path, armed: dict[tuple[str, int], str] | None = None) -> Iterator[Mended]:
    file, warehouse = tmp_path / "bundle" / "prices.py", f"sqlite:///{tmp_path / 'warehouse.db'}"
    file.parent.mkdir()
    shutil.copy(PRICES, file)
    prices = [f"{item}.25" for item in range(100)]
    table = pa.table({"item": range(100), "price": pa.array(prices).cast(pa.decimal128(20, 2))})
    pq.write_table(table, tmp_path / "prices.parquet")
    launcher = PlainLauncher(tmp_path / "drivers", armed or {})
    ref = parse_ref(f"{file}:prices")
    with running(log_url, warehouse, tmp_path / "prices.parquet", launcher, ref=ref) as run:
        mended = Mended(run, file, warehouse)
        assert "column 'price' (double)" in mended.until_parked()
        yield mended


@pytest.mark.parametrize(
    "point",
    [
        f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",  # the table is made anew, and not committed
        f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:2",  # it has its types, and not its rows
        f"{CrashPoint.AFTER_WRITE}:1",
    ],
)
def test_the_run_continues_with_the_other_type_wherever_drivers_die(point: str, log_url: str, tmp_path: Path) -> None:
    with parked(log_url, tmp_path, {("store", 2): point}) as mended:
        mended.edit("decimal(20,2)")
        assert mended.take().spec.former_types == {"save": {"price": ("double",)}}
        assert mended.take() == mended.take(), "a second time is no harm"
        mended.run.relaunch("store")
        mended.run.finish()
        assert mended.run.status("store").incarnation == 3, f"{point} was not passed"
        assert mended.rows() == EXPECTED


def test_code_of_before_is_refused_after_the_change_and_the_change_after_a_row(sqlite_url: str, tmp_path: Path) -> None:
    with parked(sqlite_url, tmp_path) as mended:
        mended.edit("decimal(20,2)")
        mended.run.relaunch("store")
        error = mended.until_parked()
        assert "price was 'double', is now 'decimal(20,2)'. `logio retry" in error, "nobody has taken the change"
        mended.take()
        mended.edit("double")
        mended.run.relaunch("store")
        assert "price was 'decimal(20,2)', is now 'double'" in mended.until_parked()
        mended.edit("text")
        mended.take()
        mended.edit("decimal(20,2)")
        mended.take()
        mended.run.relaunch("store")
        mended.run.finish()
        assert mended.rows() == EXPECTED
        mended.edit("text")
        with pytest.raises(IncompatibleRun, match="it is finished: start a fresh run"):
            mended.take()


def test_a_command_that_dies_between_warehouse_and_log_has_changed_nothing(sqlite_url: str, tmp_path: Path) -> None:
    """The writer's marker has the token of the next incarnation, which may be one with the types of before."""
    with parked(sqlite_url, tmp_path) as mended:
        mended.edit("decimal(20,2)")
        applied = mended.last_write()
        with around_commit(mended.run.store, before=inject), pytest.raises(Injected):
            mended.take()
        assert mended.last_write() == applied
        assert rows_of(mended.warehouse, "SELECT token FROM logio_marker") == [(2,)]
        mended.edit("double")
        mended.run.relaunch("store")
        assert "column 'price' (double)" in mended.until_parked()
        mended.edit("decimal(20,2)")
        mended.take()
        mended.run.relaunch("store")
        mended.run.finish()
        assert mended.rows() == EXPECTED


def test_rows_that_are_there_keep_their_type(sqlite_url: str, tmp_path: Path) -> None:
    """The driver dies behind its first rows; a person halts the group and changes the type."""
    with parked(sqlite_url, tmp_path, {("store", 2): f"{CrashPoint.AFTER_WRITE}:1"}) as mended:
        mended.edit("decimal(20,2)")
        mended.take()
        mended.run.relaunch("store")
        process = mended.run.context.launcher.drivers["store", 2]  # type: ignore[attr-defined]
        process.wait(timeout=60)
        mended.edit("text")
        with pytest.raises(IncompatibleRun, match=r"a run takes that only while the group is parked or halted"):
            mended.take()
        store = mended.run.store
        assert store.park(GroupRef(mended.run.run.run_id, "store", 2), "by a person")
        with pytest.raises(IncompatibleRun, match=r"has written to table 'prices' of connection 'warehouse' already"):
            mended.take()
        mended.edit("decimal(20,2)")
        mended.run.relaunch("store")
        mended.run.finish()
        assert mended.rows() == EXPECTED

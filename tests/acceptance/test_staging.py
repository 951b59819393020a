"""A table that executors stage and the driver moves, on real drivers that die around each step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.dataflow import Days
from airflow_logio.launch import bundle
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import Launched
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.spark.table_staging import STAGED_BYTES
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.payloads import Payloads, sweep_run
from tests.support.commands import Terminal
from tests.support.crash_sites import IN_STAGINGS
from tests.support.running import ArmedSparkLauncher, PlainLauncher, Running, has_ended, running
from tests.support.waiting import eventually
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres, pytest.mark.timeout(900)]

STAGED = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'staged_orders.py'}:staged")
DAYS, FILLED, SUPERSEDED = (
    bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'staged_days.py'}:{name}")
    for name in ("staged", "filled", "superseded")
)
UPSERTS = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'staged_upserts.py'}:staged")
DAY, OTHER = "2026-03-01", "2026-03-02"
FILES, ROWS, PICTURE = 2, 3_000, 4_000
DEATHS = (
    f"{CrashPoint.BEFORE_STAGING_SWEEP}:1",
    f"{CrashPoint.BEFORE_STAGING}:1",
    f"{CrashPoint.AFTER_STAGING}:1",
    f"{CrashPoint.AFTER_STAGING_SWEEP}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    f"{CrashPoint.BEFORE_UNSTAGING}:1",
    f"{CrashPoint.AFTER_UNSTAGING}:1",
)
"""Where the drivers of the table die, one incarnation after the other."""
DEATHS_OF_A_DAY = (
    f"{CrashPoint.BEFORE_STAGING_SWEEP}:1",
    f"{CrashPoint.BEFORE_STAGING}:1",
    f"{CrashPoint.AFTER_STAGING}:1",
    f"{CrashPoint.IN_DAY_SWITCH}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    f"{CrashPoint.BEFORE_UNSTAGING}:1",
)
"""The same for a table whose day is replaced: the first one has opened it, only the last one has switched it."""
DEATHS_AT_ONCE = (
    f"{CrashPoint.BEFORE_STAGING_SWEEP}:1",
    f"{CrashPoint.IN_DAY_SWITCH}:1",
    f"{CrashPoint.AFTER_STAGING}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    f"{CrashPoint.AFTER_UNSTAGING}:1",
)
"""The same for a table that is emptied of the day first, and then gets what is staged for each dataset."""
BEHIND_A_JOB = (
    f"{CrashPoint.IN_DAY_SWITCH}:1",
    f"{CrashPoint.AFTER_STAGING}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    f"{CrashPoint.BEFORE_UNSTAGING}:1",
    f"{CrashPoint.AFTER_UNSTAGING}:1",
)


class Launcher(PlainLauncher):
    """spark-submit, but for drivers that need no Spark: they die before a job, or find all of it applied."""

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        if claim.group == "front" or self.armed.get((claim.group, claim.incarnation)) in BEHIND_A_JOB:
            return ArmedSparkLauncher(self.work_dir, self.armed).launch(claim, launch)
        return super().launch(claim, launch)


def write_orders(folder: Path, day: str | None = None, files: int = FILES) -> Path:
    """Of other pictures for another number of files."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(files)
    for number in range(files):
        pictures = [rng.bytes(PICTURE) for _ in range(ROWS)]
        ids = np.arange(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "picture": pictures})
        if day is not None:
            table = table.append_column("day", pa.array([date.fromisoformat(day)] * ROWS))
        pq.write_table(table, folder / f"orders-{number}.parquet")
    return folder


def test_dying_around_staging_and_move(postgres_url: str, postgres_warehouse_url: str, tmp_path: Path) -> None:
    assert {point.partition(":")[0] for point in DEATHS} >= set(map(str, IN_STAGINGS)), "every one of them"
    assert STAGED_BYTES < ROWS * PICTURE
    orders, payloads = write_orders(tmp_path / "orders"), tmp_path / "payloads"
    armed = {("back", number): point for number, point in enumerate(DEATHS, start=1)}
    settings = {"ref": STAGED, "params": {"orders": str(orders)}, "payloads": str(payloads)}
    launcher = Launcher(tmp_path / "drivers", armed)
    with running(postgres_url, postgres_warehouse_url, orders, launcher, **settings) as run:
        run.finish(timeout=800)
        assert run.status("back").incarnation == 1 + len(DEATHS), "every one of them was passed"
        assert_moved(run, orders, postgres_warehouse_url, payloads)


@pytest.mark.parametrize(("pipeline", "deaths"), [(DAYS, DEATHS_OF_A_DAY), (FILLED, DEATHS_AT_ONCE)])
def test_dying_around_the_staging_of_a_day(
    pipeline: bundle.PipelineRef,
    deaths: tuple[str, ...],
    postgres_url: str,
    postgres_warehouse_url: str,
    tmp_path: Path,
) -> None:
    """Two datasets in one staging table take the place of the rows that a script has left for that day; or one after the
    other fills it."""
    orders, payloads = tmp_path / "orders", tmp_path / "payloads"
    write_orders(orders / f"dt={DAY}", DAY)
    change(
        postgres_warehouse_url,
        "CREATE TABLE orders (day date, id bigint, picture bytea, signature text, drawn uuid, PRIMARY KEY (day, id))",
    )
    for day in (DAY, OTHER):
        change(postgres_warehouse_url, f"INSERT INTO orders VALUES ('{day}', -1), ('{day}', 1)")
    armed = {("back", number): point for number, point in enumerate(deaths, start=1)}
    settings = {"ref": pipeline, "params": {"orders": str(orders)}, "payloads": str(payloads)}
    key = Days("day", zone="UTC").key_of(DAY)
    launcher = Launcher(tmp_path / "drivers", armed)
    with running(postgres_url, postgres_warehouse_url, orders, launcher, partition=key, **settings) as run:
        run.finish(timeout=800)
        assert run.status("back").incarnation == 1 + len(deaths), "every one of them was passed"
        with duckdb.connect() as database:
            query = f"SELECT id, md5(picture) FROM '{orders}/dt={DAY}/*.parquet' ORDER BY id"
            expected = database.execute(query).fetchall()
        found = f"SELECT id, md5(picture) FROM orders WHERE day = '{DAY}' ORDER BY id"
        assert rows_of(postgres_warehouse_url, found) == expected
        others = f"SELECT id, picture FROM orders WHERE day <> '{DAY}' ORDER BY id"
        assert rows_of(postgres_warehouse_url, others) == [(-1, None), (1, None)]
        same = "SELECT count(*), count(DISTINCT drawn) FROM orders WHERE signature = md5(picture)"
        assert rows_of(postgres_warehouse_url, same) == [(FILES * ROWS, FILES * ROWS)]
        live = "SELECT live_run, live_ordinal FROM logio_scope"
        assert rows_of(postgres_warehouse_url, live) == [(run.run.uid, run.run.ordinal)]
        assert_nothing_is_left(run, postgres_warehouse_url, payloads)


def test_dying_around_the_staging_of_what_runs_of_a_day_own(
    postgres_url: str, postgres_warehouse_url: str, tmp_path: Path
) -> None:
    """The rows of the second run take the place of those of the first one, with the same keys. One of no run stays."""
    payloads, key = tmp_path / "payloads", Days("day", zone="UTC").key_of(DAY)
    points = (
        CrashPoint.AFTER_STAGING,
        CrashPoint.IN_DAY_SWITCH,
        CrashPoint.IN_WAREHOUSE_TRANSACTION,
        CrashPoint.BEFORE_UNSTAGING,
    )
    drawn = "SELECT count(*), count(DISTINCT drawn) FROM orders WHERE signature = md5(picture)"
    begun: list[Run] = []
    for name, files, deaths in (("old", FILES, ()), ("new", 1, points)):
        orders = tmp_path / name
        write_orders(orders / f"dt={DAY}", DAY, files)
        armed = {("back", number): f"{point}:1" for number, point in enumerate(deaths, start=1)}
        settings = {"ref": SUPERSEDED, "params": {"orders": str(orders)}, "payloads": str(payloads), "name": name}
        launcher = Launcher(tmp_path / "drivers" / name, armed)
        with running(postgres_url, postgres_warehouse_url, orders, launcher, partition=key, **settings) as run:
            run.finish(timeout=800)
            assert run.status("back").incarnation == 1 + len(deaths), "every one of them was passed"
            with duckdb.connect() as database:
                query = f"SELECT id, md5(picture) FROM '{orders}/dt={DAY}/*.parquet' ORDER BY id"
                expected = database.execute(query).fetchall()
            assert rows_of(postgres_warehouse_url, drawn) == [(files * ROWS, files * ROWS)]
            rows = rows_of(postgres_warehouse_url, "SELECT id, md5(picture) FROM orders ORDER BY id")
            if name == "old":
                change(postgres_warehouse_url, f"INSERT INTO orders (day, id) VALUES ('{OTHER}', -1)")
            else:
                expected = [(-1, None), *expected]
                assert_nothing_is_left(run, postgres_warehouse_url, payloads, *begun)
            assert rows == expected
            begun.append(run.run)


@pytest.mark.parametrize("point", [CrashPoint.AFTER_STAGING, CrashPoint.IN_DAY_SWITCH])
def test_a_stopped_driver_of_the_replaced_run_moves_nothing(
    point: CrashPoint,
    postgres_url: str,
    postgres_warehouse_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of its day is staged, and it stands still before the switch or in it; a person gives its run up. The younger run
    has the day, also when the other one wakes up. What that had staged goes with `logio gc`."""
    payloads, key = tmp_path / "payloads", Days("day", zone="UTC").key_of(DAY)

    def begun(name: str, files: int, armed: Mapping[tuple[str, int], str]) -> AbstractContextManager[Running]:
        orders = tmp_path / name
        write_orders(orders / f"dt={DAY}", DAY, files)
        settings = {"ref": DAYS, "params": {"orders": str(orders)}, "payloads": str(payloads), "name": name}
        launcher = ArmedSparkLauncher(tmp_path / "drivers" / name, dict(armed))
        given = {"partition": key, "lease": Lease(seconds=600, launch_seconds=600), **settings}
        return running(postgres_url, postgres_warehouse_url, orders, launcher, end_old_drivers=False, **given)

    with begun("old", FILES, {("back", 1): f"{point}:1:stop"}) as old:
        old.until(lambda: old.is_running("back"), "its driver runs", timeout=300)
        zombie = old.process("back")
        old.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "it stands still", timeout=300)
        old.until(lambda: old.status("front").state is GroupState.FINISHED, "the other one has ended", timeout=300)
        assert old.store.declare_dead(GroupRef(old.run.run_id, "back", 1), "test")
        assert old.store.supersede(old.run.run_id)
        with begun("new", 1, {}) as young:
            young.finish(timeout=600)
            with duckdb.connect() as database:
                query = f"SELECT id, md5(picture) FROM '{tmp_path}/new/dt={DAY}/*.parquet' ORDER BY id"
                expected = database.execute(query).fetchall()
            found = "SELECT id, md5(picture) FROM orders ORDER BY id"
            assert rows_of(postgres_warehouse_url, found) == expected
            zombie.resume()
            eventually(lambda: has_ended(zombie), what="it has ended", timeout=120)
            assert rows_of(postgres_warehouse_url, found) == expected
            live = "SELECT live_run, live_ordinal FROM logio_scope"
            assert rows_of(postgres_warehouse_url, live) == [(young.run.uid, young.run.ordinal)]
            monkeypatch.setenv("LOGIO_PAYLOADS", str(payloads))
            code, _, said = Terminal(young, monkeypatch, capsys).logio("gc")
            assert code == 0, said
            assert_nothing_is_left(young, postgres_warehouse_url, payloads, old.run)


def test_dying_around_the_staging_of_rows_that_are_updated(
    postgres_url: str, postgres_warehouse_url: str, tmp_path: Path
) -> None:
    """Of each customer the order of the greatest number is left, also where one was there already."""
    orders, payloads = write_orders(tmp_path / "orders"), tmp_path / "payloads"
    change(
        postgres_warehouse_url,
        "CREATE TABLE orders (customer bigint PRIMARY KEY, id bigint, picture bytea, signature text)",
    )
    change(postgres_warehouse_url, "INSERT INTO orders VALUES (1, -1, '', 'older'), (2, 99999, '', 'newer')")
    points = (CrashPoint.IN_WAREHOUSE_TRANSACTION, CrashPoint.BEFORE_UNSTAGING)
    armed = {("back", number): f"{point}:1" for number, point in enumerate(points, start=1)}
    settings = {"ref": UPSERTS, "params": {"orders": str(orders)}, "payloads": str(payloads)}
    launcher = Launcher(tmp_path / "drivers", armed)
    with running(postgres_url, postgres_warehouse_url, orders, launcher, **settings) as run:
        run.finish(timeout=800)
        assert run.status("back").incarnation == 1 + len(points), "every one of them was passed"
        with duckdb.connect() as database:
            query = f"""SELECT id % 2000, max(id), arg_max(md5(picture), id) FROM '{orders}/*.parquet'
                WHERE id % 2000 <> 2 GROUP BY 1 ORDER BY 1"""
            expected = database.execute(query).fetchall()
        found = "SELECT customer, id, md5(picture) FROM orders WHERE customer <> 2 ORDER BY 1"
        assert rows_of(postgres_warehouse_url, found) == expected
        assert rows_of(postgres_warehouse_url, "SELECT id FROM orders WHERE customer = 2") == [(99999,)]
        assert_nothing_is_left(run, postgres_warehouse_url, payloads)


def assert_moved(run: Running, orders: Path, warehouse_url: str, payloads: Path) -> None:
    """The table is what DuckDB makes of the files, and nothing is left beside it."""
    with duckdb.connect() as database:
        query = f"SELECT id, md5(picture), id // {ROWS} + 1 FROM '{orders}/*.parquet' ORDER BY id"
        expected = database.execute(query).fetchall()
    found = "SELECT id, md5(picture), came_with FROM orders ORDER BY id"
    assert rows_of(warehouse_url, found) == expected
    same = "SELECT count(*), count(DISTINCT drawn) FROM orders WHERE signature = md5(picture)"
    assert rows_of(warehouse_url, same) == [(FILES * ROWS, FILES * ROWS)]
    assert_nothing_is_left(run, warehouse_url, payloads)


def assert_nothing_is_left(run: Running, warehouse_url: str, payloads: Path, *others: Run) -> None:
    """Of the run, and of others in its log."""
    tables = "SELECT count(*) FROM pg_class WHERE relname LIKE 'logio_staging_%' AND relkind = 'r'"
    assert rows_of(warehouse_url, tables) == [(0,)]
    assert rows_of(warehouse_url, "SELECT count(*) FROM logio_staging") == [(0,)]
    store, named = Payloads(str(payloads)), set()
    for one in (run.run, *others):
        sweep_run(store, run.store, one)
        refs = run.store.references(one.run_id, f"{one.uid}/")
        named |= {path for ref in refs for path in store.dataset("a row", ref).paths()}
        named |= {str(payloads / ref.partition("#")[0]) for ref in refs}
    assert {str(path) for path in payloads.rglob("*") if path.is_file()} == named

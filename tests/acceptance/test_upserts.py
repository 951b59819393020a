"""Rows that are updated by their keys, on real drivers that die around each transaction, or wake up when they were replaced.

Compared with DuckDB's answer.
"""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.errors import OtherRunUnfinished
from airflow_logio.launch.bundle import PipelineRef, parse_ref
from airflow_logio.launch.driver_config import REPLACED
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import ConcurrentRuns, Run
from tests.support.owned_day import NOT_FIRST
from tests.support.running import PlainLauncher, Running, running
from tests.support.slow_driver import Slowness, sessions_wait_for_a_lock
from tests.support.warehouse import change, rows_of

pytestmark = pytest.mark.acceptance

MODULE = Path(__file__).parents[1] / "support" / "bundle" / "upserted.py"
START = datetime.fromisoformat("2026-03-01")
REPLICAS = ("writing.1", "writing.2")
THERE = [(0, START + timedelta(days=99), "newer than all"), (1, START - timedelta(days=1), "older than all")]


def ref(name: str) -> PipelineRef:
    return parse_ref(f"{MODULE}:{name}")


def write_changes(folder: Path, seed: int, *, numbered: bool = False) -> Path:
    """1,000 changes of 200 customers in no order of their times, or in that of their lines. What a customer is at a time
    follows from both, so that files that overlap agree."""
    rng = random.Random(seed)
    ids = [rng.randrange(200) for _ in range(1_000)]
    if numbered:  # none twice in an event
        ids = [one for _ in range(5) for one in rng.sample(range(200), 200)]
    times = [START + timedelta(seconds=one if numbered else rng.randrange(5_000)) for one in range(1_000)]
    who = [f"{one} at {time:%d %H:%M:%S}" for one, time in zip(ids, times, strict=True)]
    folder.mkdir(exist_ok=True)
    path = folder / f"changes{seed}.parquet"
    pq.write_table(pa.table({"id": ids, "at": pa.array(times, pa.timestamp("us")), "who": who}), path)
    return path


def greatest(*files: Path, there: bool = False) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute('CREATE TABLE changes (id BIGINT, "at" TIMESTAMP, who VARCHAR)')
        if there:
            connection.executemany("INSERT INTO changes VALUES (?, ?, ?)", THERE)
        connection.execute(f"INSERT INTO changes SELECT * FROM read_parquet({[str(one) for one in files]})")
        query = 'SELECT id, max("at"), arg_max(who, "at") FROM changes GROUP BY id ORDER BY id'
        return connection.execute(query).fetchall()


def found(url: str, table: str) -> list[tuple[Any, ...]]:
    rows = rows_of(url, f"SELECT id, at, who FROM {table} ORDER BY id")
    return [(one, datetime.fromisoformat(at) if isinstance(at, str) else at, who) for one, at, who in rows]


@pytest.fixture
def warehouse(log_url: str, request: pytest.FixtureRequest) -> str:
    return str(
        request.getfixturevalue("postgres_warehouse_url" if log_url.startswith("postgresql") else "warehouse_url")
    )


def begin_beside(run: Running) -> Run:
    """Begin one more run of the pipeline, if its writers let it; nothing of it is launched."""
    key = replace(run.run.spec.key, dag_run_id="one more")
    return run.store.start_run(replace(run.run.spec, key=key), concurrent=ConcurrentRuns.DERIVED)


def deaths(*points: str) -> dict[tuple[str, int], str]:
    """The drivers of both replicas die there, one incarnation after the other."""
    return {(group, incarnation): point for group in REPLICAS for incarnation, point in enumerate(points, 1)}


def test_two_runs_at_once_leave_the_greatest_versions_whatever_dies(
    log_url: str, warehouse: str, tmp_path: Path
) -> None:
    """Beside rows that another program has put there."""
    change(warehouse, "CREATE TABLE versions (id BIGINT PRIMARY KEY, at TIMESTAMP, who TEXT)")
    for one, at, who in THERE:
        change(warehouse, f"INSERT INTO versions VALUES ({one}, '{at:%Y-%m-%d %H:%M:%S}.000000', '{who}')")
    first, second = write_changes(tmp_path, 1), write_changes(tmp_path, 2)
    armed = deaths("before_write:2", f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1", "after_write:1")
    launchers = [PlainLauncher(tmp_path / "drivers" / name, armed) for name in ("first", "second")]

    def started(path: Path, launcher: PlainLauncher) -> Any:
        given = {"ref": ref("versions"), "name": path.stem, "params": {"changes": str(path)}}
        return running(log_url, warehouse, path, launcher, **given)

    with started(first, launchers[0]) as one, started(second, launchers[1]) as other:
        begin_beside(one)
        one.tend()
        other.finish()
        one.finish()
        assert {run.status(group).incarnation > 2 for run in (one, other) for group in REPLICAS} == {True}
        assert found(warehouse, "versions") == greatest(first, second, there=True)
    with started(write_changes(tmp_path / "again", 1), PlainLauncher(tmp_path / "drivers" / "again")) as again:
        again.finish()
    assert found(warehouse, "versions") == greatest(first, second, there=True)


@pytest.mark.parametrize("point", ["before_write:2", f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:2", "after_write:2"])
def test_without_a_version_the_last_line_wins_whatever_dies(
    point: str, log_url: str, warehouse: str, tmp_path: Path
) -> None:
    """Each key has one slot, whose write actions are applied in their order, once."""
    path = write_changes(tmp_path, 3, numbered=True)
    launcher = PlainLauncher(tmp_path / "drivers", deaths(point, point.replace(":2", ":1")))
    given = {"ref": ref("lasts"), "params": {"changes": str(path)}}
    with running(log_url, warehouse, path, launcher, **given) as run:
        run.tend()
        with pytest.raises(OtherRunUnfinished, match="save"):
            begin_beside(run)
        run.finish()
        assert all(run.status(group).incarnation > 1 for group in REPLICAS), f"{point} was not passed"
    assert found(warehouse, "lasts") == greatest(path)


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["versions", "lasts"])
def test_a_zombie_that_wakes_up_changes_nothing(
    name: str, postgres_url: str, postgres_warehouse_url: str, tmp_path: Path
) -> None:
    path = write_changes(tmp_path, 4, numbered=True)
    launcher = PlainLauncher(tmp_path / "drivers", {("writing.1", 1): f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:2:stop"})
    given = {"ref": ref(name), "params": {"changes": str(path)}, "lease": Lease(seconds=6, launch_seconds=60)}
    with running(postgres_url, postgres_warehouse_url, path, launcher, end_old_drivers=False, **given) as run:
        run.until(lambda: run.is_running("writing.1"), "it runs")
        zombie = run.process("writing.1")
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "it has stopped in its transaction")
        run.finish()
        assert found(postgres_warehouse_url, name) == greatest(path)
        zombie.send_signal(signal.SIGCONT)
        child = next(child for child in launcher.children if child.pid == zombie.pid)
        assert child.wait(timeout=60) == REPLACED
    assert found(postgres_warehouse_url, name) == greatest(path)


@pytest.mark.postgres
@pytest.mark.parametrize("is_replaced", [True, False], ids=["of the replaced run", "of the same run"])
@pytest.mark.parametrize("name", ["versions", "lasts"])
def test_a_slow_driver_that_holds_its_rows_was_first(
    name: str, is_replaced: bool, postgres_url: str, postgres_warehouse_url: str, tmp_path: Path
) -> None:
    """It has updated rows and is about to commit, and keeps its locks: what follows waits, and updates them again."""
    path = write_changes(tmp_path, 5, numbered=True)
    slow = Slowness(tmp_path / "slow", f'INSERT INTO "public"."{name}"', 2)
    launcher = PlainLauncher(tmp_path / "drivers" / "old", variables={("writing.1", 1): slow.variables})
    lease = Lease(seconds=600, launch_seconds=600)
    given: dict[str, Any] = {"ref": ref(name), "params": {"changes": str(path)}, "lease": lease}

    def is_waited_for() -> bool:
        return sessions_wait_for_a_lock(postgres_warehouse_url)

    arguments = (postgres_url, postgres_warehouse_url, path)
    with running(*arguments, launcher, end_old_drivers=False, name="old", **given) as old:
        old.until(slow.is_reached, "it is about to commit")
        assert old.store.declare_dead(GroupRef(old.run.run_id, "writing.1", 1), "it is slow")
        if is_replaced:
            for group in ("reading", "writing.2"):  # they may have finished
                if old.store.declare_dead(GroupRef(old.run.run_id, group, 1), "it is killed"):
                    launcher.drivers[group, 1].kill()
            assert old.store.supersede(old.run.run_id)
            with running(*arguments, PlainLauncher(tmp_path / "drivers" / "young"), name="young", **given) as young:
                young.until(is_waited_for, "the younger run waits")
                slow.end()
                young.finish()
        else:
            old.until(is_waited_for, "its successor waits")
            slow.end()
            old.finish()
        assert launcher.drivers["writing.1", 1].wait(timeout=120) in NOT_FIRST, old.last_words()
    assert found(postgres_warehouse_url, name) == greatest(path)

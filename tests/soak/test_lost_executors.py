"""Executors that are lost while mode ``dataframe`` evaluates, with what tasks had shuffled: no record is of two computations.

`.ci/versions` runs this with earlier versions of Spark as well (ADR-199).
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from airflow_logio.launch import bundle
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.status.spark_ui import application_of
from tests.support.bundle.drawn_orders import BETWEEN, PARTITIONS, RESULT
from tests.support.running import ArmedSparkLauncher, Running, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

ORDERS = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'drawn_orders.py'}:drawn")
ROWS = 4_000
LONG = 900.0
"""Seconds that anything may take. No driver dies here: none that is slow to begin, or to say that it lives, is replaced."""
GROUP = "all"
MASTER = "local-cluster[2,2,768]"
"""Two executors of two cores each, which the driver's JVM starts."""
CONF = {
    "spark.executor.memory": "768m",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    # No job begins before both are there.
    "spark.cores.max": "4",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "200s",
}


@dataclass(frozen=True)
class Gates:
    folder: Path

    def open(self, *names: str) -> None:
        for name in names:
            (self.folder / name).touch()

    def standing(self, name: str) -> dict[int, int]:
        """Partition → the process of a task that stands at a gate, or has stood there."""
        found = [path.name.split("-")[-2:] for path in self.folder.glob(f"stands-{name}-*")]
        return {int(partition): int(pid) for partition, pid in found}


def write_orders(folder: Path, files: int) -> Path:
    folder.mkdir()
    with duckdb.connect() as database:
        for file in range(files):
            columns = (
                f"id, {file}::BIGINT AS file, (hash(id) % 7)::INT AS store, (hash(id + 1) % 9999)::BIGINT AS cents"
            )
            query = f"SELECT {columns} FROM range({file * ROWS}, {(file + 1) * ROWS}) AS one(id)"
            database.execute(f"COPY ({query}) TO '{folder}/orders-{file}.parquet'")
    return folder


def assert_exact(orders: Path, published: Path) -> None:
    """Each order is there once, with a token of its own; and each store's sum is that of what is there."""
    with duckdb.connect() as database:
        columns = "id, file, store, cents"
        given = database.execute(f"SELECT {columns} FROM '{orders}/*.parquet' ORDER BY id").fetchall()
        rows = database.execute(
            f"SELECT {columns}, token, total FROM '{published}/orders/*.parquet' ORDER BY id"
        ).fetchall()
    assert [row[:4] for row in rows] == given
    assert len({row[4] for row in rows}) == len(rows)
    sums: dict[tuple[int, int], int] = {}
    for *order, _ in rows:
        store = order[1], order[2]
        sums[store] = sums.get(store, 0) + zlib.crc32(" ".join(map(str, order)).encode())
    assert {(row[1:3], row[5]) for row in rows} == set(sums.items())


def executors(run: Running) -> list[psutil.Process]:
    found = []
    jvm = run.process(GROUP).parent()
    assert jvm is not None
    for process in jvm.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) and process.name() == "java":
                found.append(process)
    return found


def executor_of(run: Running, pid: int) -> psutil.Process:
    ancestors = {one.pid for one in psutil.Process(pid).parents()}
    [found] = [one for one in executors(run) if one.pid in ancestors]
    return found


def kill(run: Running, victim: psutil.Process) -> None:
    """Returns when Spark knows that it has lost the executor."""
    lost = text_of(run).count("Lost executor")
    victim.kill()
    eventually(lambda: text_of(run).count("Lost executor") > lost, what="Spark knows of its loss", timeout=LONG)


def text_of(run: Running) -> str:
    path = run.status(GROUP).log_path
    assert path is not None
    return Path(path).read_text(errors="replace")


def shuffled(run: Running) -> int:
    """How many stages have shuffled what was drawn, or what was made of it."""
    if (application := application_of(run.status(GROUP))) is None:
        return 0  # its driver has not said it yet
    address = f"{application.ui_url}/api/v1/applications/{application.id}/stages?status=complete"
    with urllib.request.urlopen(address, timeout=120) as answer:
        stages = json.load(answer)
    return sum(stage["numTasks"] == PARTITIONS and stage["shuffleWriteBytes"] > 0 for stage in stages)


def lost_between(run: Running, gates: Gates, file: int, others: int) -> None:
    """All that can be computed without the job that stands is there: the executor with a part of it is lost.

    `others` is how many stages behind the draw have ended then.
    """
    name = f"{BETWEEN}-{file}"
    run.until(lambda: gates.standing(name), "a job stands between the others", timeout=LONG)
    [pid] = gates.standing(name).values()
    stays = executor_of(run, pid)
    run.until(lambda: shuffled(run) == others, "the jobs before it have ended", timeout=LONG)
    [victim] = [one for one in executors(run) if one.pid != stays.pid]
    kill(run, victim)
    gates.open(name)
    run.until(lambda: run.count("orders.in", "in") == file + 1, "the event is done", timeout=LONG)


def lost_after_a_result(run: Running, gates: Gates, file: int) -> None:
    name = f"{RESULT}-{file}"
    run.until(lambda: len(gates.standing(name)) > 1, "tasks of the result stand", timeout=LONG)
    first, second = sorted(gates.standing(name))[:2]
    gates.open(f"{name}-{first}")
    payloads = Path(run.context.payloads or "")
    has_written = lambda: any(path.stat().st_size for path in payloads.rglob("*.parquet"))  # noqa: E731
    run.until(has_written, "a task has delivered", timeout=LONG)
    kill(run, executor_of(run, gates.standing(name)[second]))
    gates.open(name)
    run.until(lambda: run.count("orders.in", "in") == file + 1, "the event is done", timeout=LONG)


def shaken(sqlite_url: str, folder: Path, *, reused: bool) -> contextlib.AbstractContextManager[Running]:
    gates, orders = folder / "gates", folder / "orders"
    (folder / "lake").mkdir()
    gates.mkdir()
    arguments: dict[str, Any] = {
        "ref": ORDERS,
        "params": {"orders": str(orders), "gates": str(gates), "reused": reused},
        "connections": {"lake": str(folder / "lake")},
        "payloads": str(folder / "payloads"),
        "lease": Lease(60, LONG),
        "spark": SparkSettings(MASTER, conf=CONF),
    }
    return running(sqlite_url, "", orders, ArmedSparkLauncher(folder / "drivers"), **arguments)


def test_between_two_jobs_and_between_two_results_with_a_shuffle_that_two_stages_read(
    sqlite_url: str, tmp_path: Path
) -> None:
    orders, gates = write_orders(tmp_path / "orders", 3), Gates(tmp_path / "gates")
    with shaken(sqlite_url, tmp_path, reused=True) as run:
        gates.open(f"{RESULT}-0", f"{BETWEEN}-1", f"{BETWEEN}-2", f"{RESULT}-2")
        lost_between(run, gates, 0, 2)
        said = text_of(run)
        lost_after_a_result(run, gates, 1)
        run.finish(timeout=LONG)
        assert run.status(GROUP).incarnation == 1, "the driver has tried again by itself, and no operator is to blame"
    assert_exact(orders, tmp_path / "lake")
    assert "had made: records of two" in said, "no job had failed"


def test_between_two_jobs_with_a_shuffle_that_one_stage_reads(sqlite_url: str, tmp_path: Path) -> None:
    orders, gates = write_orders(tmp_path / "orders", 1), Gates(tmp_path / "gates")
    with shaken(sqlite_url, tmp_path, reused=False) as run:
        gates.open(f"{RESULT}-0")
        lost_between(run, gates, 0, 1)
        said = text_of(run)
        run.finish(timeout=LONG)
        assert run.status(GROUP).incarnation == 1
    assert_exact(orders, tmp_path / "lake")
    assert "had made: records of two" in said

"""Chains of DataFrames on a standalone cluster that loses workers, runs tasks twice, and has executors of a zombie."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from airflow_logio.cli.app import main
from airflow_logio.launch import bundle
from airflow_logio.protocol.liveness import Lease
from airflow_logio.systems.payloads import Payloads
from tests.support import lake
from tests.support.bundle.cluster_orders import PARTITIONS
from tests.support.running import ArmedSparkLauncher, Running, has_ended, running
from tests.support.spark_cluster import Cluster, spark_cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(600)]

ORDERS = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'cluster_orders.py'}:cluster")
FILES, ROWS = 3, 28_000
TWICE, LOST, ZOMBIE = range(FILES)
"""The files whose events have a task that runs twice, lose a worker, and are evaluated by two drivers at once."""
GROUP = "all"


@dataclass(frozen=True)
class Standing:
    """A task that stands still in the middle of its records."""

    incarnation: int
    partition: int
    attempt: int


@dataclass(frozen=True)
class Gates:
    """Where tasks stand still (`tests/support/bundle/cluster_orders.py`)."""

    folder: Path

    def open(self, *names: object) -> None:
        for name in names:
            (self.folder / str(name)).touch()

    def who_drew(self, file: int) -> int:
        """A process that has drawn values for the event of a file."""
        return int(next(self.folder.glob(f"drew-{file}-*")).name.rpartition("-")[2])

    def standing(self, file: int, incarnation: int | None = None) -> list[Standing]:
        """All that have stood still in the event of a file."""
        found = []
        for name in self.folder.glob("stands-*"):
            number, of, partition, attempt, _ = map(int, name.name.split("-")[1:])
            if of == file and incarnation in (None, number):
                found.append(Standing(number, partition, attempt))
        return found


def expected(orders: Path) -> list[tuple[Any, ...]]:
    """(file, store, cents, orders)."""
    return _rows(
        f"SELECT file, store, sum(cents)::BIGINT, count(*) FROM '{orders}/*.parquet' GROUP BY ALL ORDER BY ALL"
    )


def _rows(query: str) -> list[Any]:
    with duckdb.connect() as database:
        return database.execute(query).fetchall()


def write_orders(folder: Path) -> Path:
    folder.mkdir()
    with duckdb.connect() as database:
        for file in range(FILES):
            ids = f"range({file * ROWS}, {(file + 1) * ROWS})"
            columns = "id, id // {} AS file, (hash(id) % 7)::INT AS store, (hash(id + 1) % 9999)::BIGINT AS cents"
            query = f"SELECT {columns.format(ROWS)} FROM {ids} AS one(id)"
            database.execute(f"COPY ({query}) TO '{folder}/orders-{file}.parquet' (ROW_GROUP_SIZE 6000)")
    return folder


def assert_exact(orders: Path, published: Path) -> None:
    """What DuckDB makes of the input; and both folders tell of one and the same draw."""
    by_store = "file, store, sum(cents)::BIGINT, count(*)"
    found = f"'{published}/orders/*.parquet'"
    assert _rows(f"SELECT {by_store} FROM {found} GROUP BY ALL ORDER BY ALL") == expected(orders)
    counted = _rows(f"SELECT count(*), count(DISTINCT id), count(DISTINCT token) FROM {found}")
    assert counted == [(FILES * ROWS,) * 3], "each order is there once, with a token of its own"
    sums = (
        f"SELECT file, store, sum(cents)::BIGINT, sum(chance)::BIGINT, count(*) FROM {found} GROUP BY ALL ORDER BY ALL"
    )
    stores = f"SELECT file, store, cents, chance, orders FROM '{published}/stores/*.parquet' ORDER BY ALL"
    assert _rows(stores) == _rows(sums), "two borders behind one draw"
    for folder in ("orders", "stores"):
        receipts = lake.receipts(published / folder)
        named = Counter(file["path"] for receipt in receipts for file in receipt["files"])
        there = Counter(str(path.relative_to(published / folder)) for path in (published / folder).rglob("*.parquet"))
        assert len(receipts) == FILES
        assert named == there, "receipts name all that is there, once"
        assert not list((published / folder).rglob(".*")), "nothing half-written"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with spark_cluster(tmp_path, cores=3, memory="1600m") as found:
        found.wait_for_workers()  # or both executors of a driver would be on the first host
        yield found


@pytest.fixture
def stopped() -> Iterator[list[psutil.Process]]:
    """Processes that a test stops: a test that fails leaves none of them."""
    processes: list[psutil.Process] = []
    yield processes
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_task_runs_twice_a_worker_is_killed_and_a_zombie_writes_on(
    postgres_url: str,
    cluster: Cluster,
    stopped: list[psutil.Process],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each in an event of its own, behind a draw that decides in which task a record is."""
    orders, payloads, published = write_orders(tmp_path / "orders"), tmp_path / "payloads", tmp_path / "lake"
    gates = Gates(tmp_path / "gates")
    for folder in (gates.folder, published):
        folder.mkdir()
    gates.open(*(f"{TWICE}-{number}" for number in range(1, PARTITIONS)), f"{LOST}-0")
    arguments: dict[str, Any] = {
        "ref": ORDERS,
        "params": {"orders": str(orders), "gates": str(gates.folder)},
        "connections": {"lake": str(published)},
        "payloads": str(payloads),
        "end_old_drivers": False,
        "lease": Lease(6, 90),
    }
    with running(postgres_url, "", orders, ArmedSparkLauncher(tmp_path / "drivers"), **arguments) as run:
        use(run, cluster, executors=2)
        written = payloads / run.run.uid / GROUP
        one_is_a_loser(run, gates, written)
        a_worker_is_lost(run, cluster, gates)
        use(run, cluster, executors=1)
        zombie = a_zombie_writes_on(run, gates, stopped)
        run.finish(timeout=240)
        gates.open(ZOMBIE)  # the successor has swept for the last time
        eventually(lambda: files_of(written / "1"), what="executors of the zombie write on", timeout=120)
        assert_exact(orders, published)
        wake(zombie)
        eventually(lambda: not cluster.executors(), what="its executors end", timeout=60, every=0.1)
        assert run.status(GROUP).incarnation == 2
        assert run.store.finish_run(run.run.run_id)
        collected(postgres_url, payloads, tmp_path, monkeypatch)
        assert_nothing_left(run, payloads)
        assert_exact(orders, published)


def use(run: Running, cluster: Cluster, executors: int) -> None:
    """Drivers that are launched from now on get so many."""
    run.context = replace(run.context, settings=cluster.settings({}, total_executor_cores=executors))


def one_is_a_loser(run: Running, gates: Gates, written: Path) -> None:
    """Of two that do the same, both with a file, the first one is killed when the second one has ended."""
    both = {(0, 0), (0, 1)}
    has_copy = lambda: both <= {(one.partition, one.attempt) for one in gates.standing(TWICE)}  # noqa: E731
    run.until(has_copy, "Spark runs a task a second time", timeout=240)
    run.until(lambda: len(files_of(written)) == PARTITIONS + 1, "each of the two has begun a file", timeout=60)
    gates.open(f"{TWICE}-0-1")
    run.until(lambda: run.count("orders.in", "in") == TWICE + 1, "the event is done", timeout=60)


def a_worker_is_lost(run: Running, cluster: Cluster, gates: Gates) -> None:
    """With what tasks have shuffled: it is drawn again, and those that have delivered had another draw."""
    two = lambda: len({one.partition for one in gates.standing(LOST)} - {0}) == 2  # noqa: E731
    run.until(two, "a result task has delivered, two stand still, one waits", timeout=60)
    cluster.kill_worker(cluster.host_of(gates.who_drew(LOST)))
    gates.open(LOST)
    run.until(lambda: run.count("orders.in", "in") == LOST + 1, "the event is done", timeout=120)
    status = run.status(GROUP)
    assert status.log_path is not None
    assert "executors while it evaluated raw" in Path(status.log_path).read_text(), (
        "Spark could not continue with the job"
    )
    assert status.incarnation == 1, "the driver has tried again by itself, and no operator is to blame"


def a_zombie_writes_on(run: Running, gates: Gates, stopped: list[psutil.Process]) -> psutil.Process:
    """Its Python stands still until the end; Spark's part wakes up when the successor is in the middle of the same event."""
    run.until(lambda: len(gates.standing(ZOMBIE)) > 1, "executors write", timeout=60)
    zombie = run.process(GROUP)
    jvm = zombie.parent()
    assert jvm is not None
    for process in (zombie, jvm):
        stopped.append(process)
        process.send_signal(signal.SIGSTOP)
    run.until(lambda: gates.standing(ZOMBIE, incarnation=2), "executors of the successor write", timeout=240)
    # Both of its cores are taken then, so that the last task begins its file when the successor has swept for the last time:
    # what a task has begun before is swept, and Spark's writer does not even notice.
    gates.open(f"by-2-{ZOMBIE}", f"{ZOMBIE}-0")
    jvm.send_signal(signal.SIGCONT)
    return zombie


def wake(zombie: psutil.Process) -> None:
    jvm = zombie.parent()
    assert jvm is not None
    zombie.send_signal(signal.SIGCONT)
    eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=60)


def collected(log_url: str, payloads: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`logio gc`."""
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGIO_URL", log_url)
    monkeypatch.setenv("LOGIO_PAYLOADS", str(payloads))
    monkeypatch.setattr(sys, "argv", ["logio", "gc"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def files_of(folder: Path) -> list[Path]:
    return list(folder.rglob("*.parquet"))


def assert_nothing_left(run: Running, payloads: Path) -> None:
    """Of no task that lost, no attempt that failed, and no zombie."""
    store = Payloads(str(payloads))
    refs = run.store.references(run.run.run_id, f"{run.run.uid}/")
    named = {path for ref in refs for path in store.dataset("a row", ref).paths()}
    manifests = {str(payloads / ref.partition("#")[0]) for ref in refs}
    assert {str(path) for path in payloads.rglob("*") if path.is_file()} == named | manifests
    assert not files_of(payloads / run.run.uid / GROUP / "1")

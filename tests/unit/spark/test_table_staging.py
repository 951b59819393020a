"""Tables behind chains, in a real Spark session: executors stage, the driver moves, and the password is nowhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airflow_logio import TableWriter, stateless
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, WriteRefused
from airflow_logio.spark import dataset_jobs, table_staging
from airflow_logio.spark.table_staging import StagingTarget
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.warehouse import TableTarget, Warehouse
from tests.support.postgres import PostgresServer
from tests.support.warehouse import change, rows_of
from tests.unit.spark.test_chains import Work

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(240)]

PASSWORD = "open-sesame-7181"
STAGING = "SELECT count(*) FROM pg_class WHERE relname LIKE 'logio_staging_%' AND relkind = 'r'"


@pytest.fixture
def warehouse_url(postgres_server: PostgresServer, postgres_url: str) -> str:
    """With a password, for which the server does not ask."""
    return postgres_server.url(postgres_url.rpartition("/")[2], password=PASSWORD)


@pytest.fixture(params=["staged", "through the driver"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "staged":
        monkeypatch.setattr(table_staging, "STAGED_BYTES", 0)
    return str(request.param)


@stateless(mode="dataframe")
def doubled(orders: Any) -> Any:
    return orders.selectExpr("id", "id * 2 AS twice", "uuid() AS drawn")


@stateless
def read_back(orders: pa.Table) -> pa.Table:
    """Behind the table: how many of these orders are in it by now."""
    ids = ",".join(map(str, orders.column("id").to_pylist()))
    [(found,)] = rows_of(os.environ["READ_BACK_URL"], f"SELECT count(*) FROM orders WHERE id IN ({ids})")
    return pa.table({"records": [found]})


def test_a_table_behind_a_chain_is_exact_and_the_password_is_nowhere(
    tmp_path: Path,
    sessions: SparkSessions,
    event_log: Path,
    warehouse_url: str,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two tables get the same records; behind one of them an operator is sent each event when its records are there."""
    monkeypatch.setenv("READ_BACK_URL", warehouse_url)
    before = len(_loading_jobs(event_log))
    work = Work(tmp_path, sessions)
    work.warehouse = warehouse_url
    made = work.pipeline
    columns = {"id": "bigint", "twice": "bigint", "drawn": "uuid"}
    ids = made.operator("doubled", doubled, work.raw)
    save = TableWriter(
        "warehouse", "orders", columns, primary_key=("id",), sends_after_writes=True, lineage_column="came_with"
    )
    saved = made.writer("save", save, ids)
    made.writer("copy", TableWriter("warehouse", "copied", columns), ids)
    counts = made.operator("read_back", read_back, saved)
    made.writer("count", TableWriter("warehouse", "counts", {"records": "bigint"}), counts)
    assert work.run("doubled", "save", "copy", "read_back", "count")

    with duckdb.connect() as database:
        number = "CAST(regexp_extract(filename, '([0-9])[.]parquet', 1) AS int)"
        files = f"read_parquet('{work.orders}/*.parquet', filename = true)"
        expected = database.execute(f"SELECT id, id * 2, {number} + 1 FROM {files} ORDER BY id").fetchall()
    assert rows_of(warehouse_url, "SELECT id, twice, came_with FROM orders ORDER BY id") == expected
    both = "SELECT count(*) FROM orders JOIN copied USING (id, twice, drawn)"
    assert rows_of(warehouse_url, both) == [(300,)], "what is drawn is drawn once for both"
    assert rows_of(warehouse_url, "SELECT records FROM counts") == [(100,)] * 3, "sent when they are there"

    loaded = len(_loading_jobs(event_log)) - before
    assert loaded == (6 if way == "staged" else 0)
    session = sessions.get()
    settings = str(session.sparkContext.getConf().getAll()) + str(session.conf.getAll)
    assert PASSWORD not in settings + _events(event_log)
    assert rows_of(warehouse_url, STAGING) == [(0,)]
    left = [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert not left
    assert not list((tmp_path / "payloads").rglob("staging"))


def _events(event_log: Path) -> str:
    """What Spark has written of its jobs: plans, settings and descriptions among it."""
    return "".join(path.read_text() for path in event_log.rglob("events*") if path.is_file())


def _loading_jobs(event_log: Path) -> set[str]:
    """The staging tables that jobs have loaded."""
    return set(re.findall(r"write action [0-9]+ of '[a-z]+': loading (logio_staging_[0-9a-f_]+)", _events(event_log)))


# --- what a job finds -------------------------------------------------------------------------------------------------


class Staging:
    """A writer's target, with what a test does before and after each job."""

    def __init__(self, url: str, epoch: EpochPayloads, payloads: Payloads, spark: Any) -> None:
        self.warehouse = Warehouse("wh", url)
        self.epoch, self.spark = epoch, spark
        self.before: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []
        self.writer = TableWriter("wh", "t", {"id": "bigint", "note": "text"})
        self.target = StagingTarget(TableTarget(self.writer, self.warehouse), url, payloads.dataset, epoch, self.job)
        self.marker = Marker("run", "save", "wh", 0, 1, 1.0)

    def job(self, _: str, start: Callable[[Any], pa.Table]) -> pa.Table:
        for do in self.before:
            do()
        lines = start(self.spark)
        for do in self.after:
            do()
        return lines

    def apply(self, made: Dataset) -> None:
        opening = WriteAction("run", "save", "wh", 1, 1, pa.table({}), {"action": "begin"})
        insert = WriteAction("run", "save", "wh", 2, 1, pa.table({}), {"action": "insert"}, dataset=str(made.reference))
        with self.target.connect("") as client:
            self.target.apply(client, self.marker, [opening, insert])


@pytest.fixture
def staging(tmp_path: Path, spark: Any, warehouse_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Staging]:
    monkeypatch.setattr(table_staging, "STAGED_BYTES", 0)
    payloads = Payloads(str(tmp_path / "payloads"))
    made = Staging(warehouse_url, payloads.epoch("run", "g", 1, 0), payloads, spark)
    yield made
    made.warehouse.close()


def test_a_job_that_finds_the_server_gone_or_its_rows_lost_is_done_again(
    staging: Staging, postgres_server: PostgresServer, warehouse_url: str
) -> None:
    """The URL is in a file that no other user may read, while the job runs; 20 files are loaded by 16 tasks."""
    frame = staging.spark.range(0, 10_000, 1, 20).selectExpr("id", "concat('note ', id) AS note")
    made = dataset_jobs.materialized(staging.epoch, "event 1", "d/1", frame)
    modes: list[int] = []

    def look() -> None:
        [path] = (path for path in Path(staging.epoch.root).rglob("wh.*") if path.is_file())
        modes.append(path.stat().st_mode & 0o777)
        assert PASSWORD in path.read_text()

    def crash() -> None:
        postgres_server.stop(mode="immediate")

    staging.before, staging.after = [look, crash], [postgres_server.start]
    with pytest.raises(ExternalUnavailable, match=r"connection 'wh': .*(refused|closed|terminat)"):
        staging.apply(made)
    staging.before, staging.after = [look], [crash, postgres_server.start]
    with pytest.raises(ExternalUnavailable, match="has 0 records of file 0"):
        staging.apply(made)
    assert rows_of(warehouse_url, "SELECT count(*) FROM t") == [(0,)]
    staging.before, staging.after = [look], []
    staging.apply(made)
    staging.apply(made)
    assert rows_of(warehouse_url, "SELECT count(*), sum(id), count(DISTINCT note) FROM t") == [
        (10_000, sum(range(10_000)), 10_000)
    ]
    assert rows_of(warehouse_url, STAGING) == [(0,)]
    assert set(modes) == {0o600}
    assert len(modes) == 3, "what is applied is not staged again"
    assert not list(Path(staging.epoch.root).rglob("wh.*"))


def test_what_a_task_finds_wrong_is_told_once_with_the_row(staging: Staging, warehouse_url: str) -> None:
    frame = staging.spark.range(0, 1000, 1, 4).selectExpr("id", "concat('note ', id) AS note")
    made = dataset_jobs.materialized(staging.epoch, "event 1", "d/1", frame)
    change(warehouse_url, "CREATE TABLE t (id bigint, note varchar(7))")
    row = next(row for row, note in enumerate(made.table.column("note").to_pylist()) if len(note) > 7)
    said = rf"table 't', column 'note' \(text\), write action 2, row {row} \(counted from 0\): a text of more than 7"
    with pytest.raises(WriteRefused, match=said):
        staging.apply(made)
    assert rows_of(warehouse_url, STAGING) == [(0,)]

    def hidden() -> None:
        for path in Path(staging.epoch.root).rglob("wh.*"):
            path.rename(path.with_name("elsewhere"))

    staging.before = [hidden]
    change(warehouse_url, "ALTER TABLE t ALTER COLUMN note TYPE text")
    with pytest.raises(ConfigurationError, match="an executor does not see what the driver has written"):
        staging.apply(made)

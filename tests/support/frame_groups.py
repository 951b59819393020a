"""A pipeline of mode ``dataframe`` in one group of this process, and what DuckDB makes of the same files."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio import DatasetWriter, Days, FolderSource, Pipeline
from airflow_logio.driver.epoch import GroupEpoch, operators_of
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.protocol.effects import LATE
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import SOMEBODY, Driver, spec, start_driver

PATIENCE_SECONDS = 90
HOUR = 3600 * 10**6


def orders_at(*hours: float | None, first: int = 0) -> pa.Table:
    """An order per hour since 2024-03-09 UTC."""
    start = 1_709_942_400 * 10**6
    at = [None if hour is None else start + round(hour * HOUR) for hour in hours]
    ids = range(first, first + len(at))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "ts": pa.array(at, pa.timestamp("us", "UTC")),
            "store": pa.array([number % 3 for number in ids], pa.int32()),
            "cents": pa.array([number * 7 % 101 for number in ids], pa.int64()),
        }
    )


class Group:
    """A pipeline in one group, with a log that outlives its drivers."""

    def __init__(
        self, root: Path, sessions: SparkSessions, day: tuple[Days, str] | None = None, **folders: Sequence[pa.Table]
    ) -> None:
        self.root, self.sessions, self.payloads = root, sessions, root / "payloads"
        self.lake, self.warehouse = root / "lake", f"sqlite:///{root}/wh.db"
        self.lake.mkdir()
        for name, tables in folders.items():
            (root / name).mkdir()
            for number, table in enumerate(tables):
                pq.write_table(table, root / name / f"{number}.parquet")
        partition = None if day is None else day[0]
        typed = dict.fromkeys(folders, str)
        self.made = Pipeline("work", params=typed, partition=partition, connections=["lake", "warehouse"])
        self.names = [f"from_{name}" for name in folders]
        for name in folders:
            self.made.source(f"from_{name}", FolderSource(f"{{{name}}}"))
        key = None if day is None else day[0].key_of(day[1])
        self.params = self.made.check_params({name: str(root / name) for name in folders}, key)
        self.store = MemoryLogStore()
        self.driver: Driver | None = None
        self.stop = threading.Event()
        self.dag_run = "run-1"
        self.recorded: dict[str, Any] = {}
        """The graph of the run, as the log has it."""

    def operator(self, name: str, function: Any, *upstream: Any, **settings: Any) -> Any:
        self.names.append(name)
        return self.made.operator(name, function, *upstream, **settings)

    def save(self, port: Any, folder: str = "out") -> None:
        self.names.append(f"save_{folder}")
        self.made.writer(f"save_{folder}", DatasetWriter("lake", folder), port)

    def run(self) -> bool:
        """Whether the group has finished; raises what ends it. Another call is another incarnation."""
        if self.driver is None:
            self.made.group("all", *self.names)
            self.made.freeze()
            actions = {
                name: operator.action(self.params)
                for name, operator in self.made.operators.items()
                if isinstance(operator, FolderSource)
            }
            shapes = operator_shapes(self.made)
            run = self.store.start_run(
                replace(
                    spec("all", dag_run=self.dag_run),
                    params=self.params,
                    operators=shapes,
                    actions=actions,
                    graph=self.recorded,
                )
            )
            self.driver = start_driver(self.store, group="all", run=run)
        else:
            self.store.declare_dead(self.driver.ref, "test")  # unless it has finished
            run, expected = self.driver.run, self.driver.ref.incarnation
            claim = self.store.claim(run.run_id, "all", expected=expected, reason="test", by_user=True)
            ref = self.store.register(claim, SOMEBODY)
            session = self.store.session(ref)
            session.open()
            self.driver = Driver(self.store, run, claim, ref, session)
        driver = self.driver
        urls = {"lake": str(self.lake), "warehouse": self.warehouse}
        line = ("work", self.store.log_uid(), driver.run.ordinal)
        identity = WriterIdentity(driver.run.uid, driver.ref.incarnation, driver.run.created_at, (), *line)
        connections = Connections("work", urls, identity, 1.0, params=self.params)
        payloads = Payloads(str(self.payloads))
        made = self.made.for_run(self.params)
        settings = EpochSettings(
            made, driver.run, "all", connections, self.sessions, lambda _: None, self.stop, payloads=payloads
        )
        return driven(settings, driver, self.stop)

    def late(self, operator: str = "own") -> dict[str, int]:
        """Day → how many records of it the log has counted on port `other` of an `OwnPartition`."""
        counters = self.store.tables.counters.items()
        return {port.name: row.records for (_, port, way), row in counters if way == LATE and port.operator == operator}

    def published(self, columns: str, folder: str = "out") -> list[tuple[Any, ...]]:
        return query(f"SELECT {columns} FROM read_parquet('{self.lake}/{folder}/*.parquet') ORDER BY ALL")

    def expected(self, columns: str, rest: str) -> list[tuple[Any, ...]]:
        return query(f"SELECT {columns} FROM read_parquet('{self.root}/orders/*.parquet') {rest} ORDER BY ALL")


def driven(settings: EpochSettings, driver: Driver, stop: threading.Event, patience: float = PATIENCE_SECONDS) -> bool:
    """Whether a group has finished, which `stop` makes halt when patience ends; raises what ends it."""
    recovered = driver.session.recover(operators_of(settings, None))
    timer = threading.Timer(patience, stop.set)
    timer.start()
    try:
        return GroupEpoch(settings, driver.session, 0, recovered).run()
    finally:
        timer.cancel()
        settings.connections.close()


def query(text: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        database.execute("SET timezone = 'UTC'")
        return database.execute(text).fetchall()

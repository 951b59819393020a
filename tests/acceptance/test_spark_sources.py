"""Sources that Spark reads, on real spark-submit processes: a DataFrame that differs at every look, a queue that forgets, a
table that grows."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.supervision.tidying import tidy
from airflow_logio.systems.payloads import Payloads, clear_away
from tests.support import lake
from tests.support.crash_sites import IN_FORGETS
from tests.support.running import ArmedSparkLauncher, running
from tests.support.warehouse import change, rows_of, warehouse_engine

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

PIPELINE = Path(__file__).parents[1] / "support" / "bundle" / "spark_orders.py"
SPARK_ORDERS = bundle.parse_ref(f"{PIPELINE}:spark_orders")
FILES, ROWS = 4, 1_000

DEATHS = {
    "read": (f"{CrashPoint.AFTER_STORE}:1", f"{CrashPoint.AFTER_COMMIT}:2"),
    "listen": tuple(f"{point}:{nth}" for nth, point in enumerate(IN_FORGETS, start=1)),
    "follow": (f"{CrashPoint.AFTER_DATASET_JOB}:2",),
}
"""Where the drivers of a group die, one incarnation after the other: when the job is done, and when the log knows it;
and when the second range of the table has been read."""


def rows(query: str) -> list[Any]:
    with duckdb.connect() as database:
        return database.execute(query).fetchall()


def test_dying_around_stored_dataframes_and_what_is_forgotten(log_url: str, tmp_path: Path) -> None:
    """Compared with what DuckDB makes of the files; the queue's are gone then."""
    orders = lake.write_orders(tmp_path / "orders", FILES, ROWS)
    queue, journal = lake.write_orders(tmp_path / "queue", FILES, ROWS), tmp_path / "journal"
    published, payloads = tmp_path / "lake", str(tmp_path / "payloads")
    published.mkdir()
    armed = {(group, n): point for group, points in DEATHS.items() for n, point in enumerate(points, start=1)}
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    params = {"orders": str(orders), "queue": str(queue), "journal": str(journal)}
    shop = f"sqlite:///{tmp_path}/shop.db" if log_url.startswith("sqlite") else log_url
    open_shop(shop)
    connections = {"lake": str(published), "shop": shop}
    settings = {"ref": SPARK_ORDERS, "params": params, "connections": connections, "payloads": payloads}
    with selling(shop), running(log_url, "", Path(), launcher, **settings) as run:
        run.finish(timeout=500)
        died = {group: run.status(group).incarnation - 1 for group in DEATHS}
        assert died == {group: len(points) for group, points in DEATHS.items()}, "every one of them was passed"
        assert len(journal.read_text().splitlines()) == 2, "the first effect was not in the log, the second one was"
        found = rows(f"SELECT id, cents FROM '{published}/orders/*.parquet' ORDER BY id")
        assert found == rows(f"SELECT id, quantity * price FROM '{orders}/*.parquet' ORDER BY id")
        assert rows(f"SELECT count(DISTINCT drawn) FROM '{published}/orders/*.parquet'") == [(len(found),)]
        changes = rows(f"SELECT id, store FROM '{published}/changes/*.parquet' ORDER BY id")
        assert changes == rows(f"SELECT id, store FROM '{orders}/*.parquet' ORDER BY id"), "the same seed"
        assert not list(queue.glob("*.parquet"))
        sold = rows(f"SELECT id, cents FROM '{published}/sold/*.parquet' ORDER BY id")
        assert len(sold) >= 1_000
        assert sold == rows_of(shop, f"SELECT id, cents FROM sales WHERE id <= {sold[-1][0]} ORDER BY id")
        bounds = [between(published / "orders", receipt) for receipt in receipts(published / "orders")]
        assert len(bounds) > 2
        assert all(last <= first for (_, last), (first, _) in itertools.pairwise(bounds)), bounds
        tidy(run.store, run.run.run_id, Payloads(payloads).remove)
        clear_away(payloads, run.store, run.run)
        assert Payloads(payloads).find(run.run.uid) == []


def open_shop(url: str) -> None:
    numbered = "INTEGER PRIMARY KEY" if url.startswith("sqlite") else "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    change(url, f"CREATE TABLE sales (id {numbered}, cents INT)")
    change(url, f"INSERT INTO sales (cents) VALUES {', '.join(f'({n})' for n in range(1_000))}")


@contextmanager
def selling(url: str) -> Iterator[None]:
    """Sales come, in transactions that overlap where the database lets them."""
    closed = threading.Event()

    def sell(pause: float) -> None:
        with closing(warehouse_engine(url).connect()) as connection:
            if connection.dialect.name == "sqlite":
                # Its turn to write comes late on a busy machine: three sellers and a reader share one lock.
                connection.exec_driver_sql("PRAGMA busy_timeout = 300000")
                connection.commit()
            while not closed.wait(pause):
                with connection.begin():
                    connection.execute(sa.text("INSERT INTO sales (cents) VALUES (1)"))
                    closed.wait(pause)
                    connection.execute(sa.text("INSERT INTO sales (cents) VALUES (2)"))

    threads = [threading.Thread(target=sell, args=(pause,)) for pause in (0.03, 0.2, 0.7)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        closed.set()
        for thread in threads:
            thread.join()


def receipts(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in (folder / "_logio").glob("*.json")]
    return sorted(found, key=lambda receipt: receipt["number"])


def between(folder: Path, receipt: dict[str, Any]) -> tuple[int, int]:
    """The least and the largest price of an event."""
    files = [str(folder / file["path"]) for file in receipt["files"]]
    ((least, largest),) = rows(f"SELECT min(price), max(price) FROM read_parquet({files})")
    return least, largest

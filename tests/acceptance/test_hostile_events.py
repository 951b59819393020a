"""Events that nobody wishes for, through real drivers: one whose body changes while it waits in the log, and a huge one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.sql import schema
from tests.support.bundle.huge import RECORDS, numbers
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, running
from tests.support.warehouse import warehouse_engine

pytestmark = pytest.mark.acceptance

HUGE = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'huge.py'}:huge")
RECEIVERS = ("totals", "hourly")


def test_a_byte_of_a_waiting_event_that_is_flipped(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Its receivers are parked before anything is made of it; when the byte is restored, a retry goes on exactly."""
    launcher, bound = PlainLauncher(tmp_path / "drivers"), BacklogBound(events=8)
    with running(log_url, warehouse_url, small_transactions, launcher, backlog=bound) as run:
        run.until(lambda: run.count("ingest.out", "out") >= 5, "events wait", "ingest")
        flip_a_byte(run, event_id=1)
        run.until(lambda: all(run.status(group).state is GroupState.PARKED for group in RECEIVERS), "both are parked")
        for group in RECEIVERS:
            assert "the body of event 1 of ingest.out is damaged" in (run.status(group).error or "")
            assert run.status(group).incarnation == 1, "nobody runs into it again and again"
            assert run.count(f"{group}.in", "in") == 0
        assert rows_written(warehouse_url) == 0
        flip_a_byte(run, event_id=1)
        for group in RECEIVERS:
            run.relaunch(group)
        run.finish()
        assert [run.status(group).incarnation for group in RECEIVERS] == [2, 2]
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def flip_a_byte(run: Running, *, event_id: int) -> None:
    """One bit in the middle of the body of an event of `ingest`."""
    data = schema.event_data
    event = (
        data.c.run_id == run.run.run_id,
        data.c.send_op == "ingest",
        data.c.channel == "out",
        data.c.event_id == event_id,
    )
    with run.store.engine.begin() as connection:
        body = bytearray(connection.execute(sa.select(data.c.body).where(*event)).scalar_one())
        body[len(body) // 2] ^= 1
        assert connection.execute(sa.update(data).where(*event).values(body=bytes(body))).rowcount == 1


def rows_written(url: str) -> int:
    """Rows in the tables of the two writers, as far as they have been made."""
    engine = warehouse_engine(url)
    with engine.connect() as connection:
        made = {"item_totals", "hourly_sales"}.intersection(sa.inspect(connection).get_table_names())
        rows = [
            connection.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one() for name in made
        ]
    engine.dispose()
    return sum(rows)


def test_an_event_of_a_hundred_megabytes(sqlite_url: str, tmp_path: Path) -> None:
    """It passes two groups through the payload store; the driver in the middle dies with its result stored there."""
    lake = tmp_path / "lake"
    lake.mkdir()
    launcher = PlainLauncher(tmp_path / "drivers", {("invert", 1): f"{CrashPoint.AFTER_BODY}:1"})
    settings = {"ref": HUGE, "connections": {"lake": str(lake)}, "params": {}, "payloads": str(tmp_path / "payloads")}
    with running(sqlite_url, "", Path(), launcher, **settings) as run:
        run.finish()
        assert run.status("invert").incarnation == 2, "no body was too large for the log"
    files = sorted(lake.rglob("*.parquet"), key=lambda path: int(path.stem))
    assert [int(path.stem) for path in files] == list(range(1, len(RECORDS) + 1))
    for event, path in enumerate(files):
        found = pq.read_table(path)["number"].to_numpy()
        assert np.array_equal(found, ~numbers(event)), f"event {event + 1} is another one"

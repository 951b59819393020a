"""Unwelcome events, through real drivers: one whose body changes while it waits in the log, and a huge one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.rules.row_forms import decode_header, encode_header
from airflow_logio.store.sql import schema
from airflow_logio.systems.arrow import decode, encode
from tests.support.bundle.huge import RECORDS, numbers
from tests.support.commands import Terminal
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, running
from tests.support.warehouse import warehouse_engine

pytestmark = pytest.mark.acceptance

HUGE = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'huge.py'}:huge")
RECEIVERS = ("totals", "hourly")


def test_a_byte_of_a_waiting_event_that_is_flipped(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Its receivers are parked before anything is made of it; when the byte is restored, a retry continues exactly."""
    launcher, bound = PlainLauncher(tmp_path / "drivers"), BacklogBound(events=8)
    with running(log_url, warehouse_url, small_transactions, launcher, backlog=bound) as run:
        run.until(lambda: run.count("ingest.out", "out") >= 5, "events wait", "ingest")
        flip_a_byte(run, event_id=1)
        run.until(lambda: all(run.status(group).state is GroupState.PARKED for group in RECEIVERS), "both are parked")
        for group in RECEIVERS:
            assert "the body of event 1 of ingest.out is damaged" in (run.status(group).error or "")
            assert run.status(group).incarnation == 1, "no driver runs into it again and again"
            assert run.count(f"{group}.in", "in") == 0
        assert rows_written(warehouse_url) == 0
        flip_a_byte(run, event_id=1)
        for group in RECEIVERS:
            run.relaunch(group)
        run.finish()
        assert [run.status(group).incarnation for group in RECEIVERS] == [2, 2]
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_an_event_with_values_that_are_none_is_mended(
    log_url: str,
    warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As an earlier version would have logged it. Its receivers are parked, name the way out, and the run ends exact."""
    launcher, bound = PlainLauncher(tmp_path / "drivers"), BacklogBound(events=8)
    with running(log_url, warehouse_url, small_transactions, launcher, backlog=bound) as run:
        run.until(lambda: run.count("ingest.out", "out") >= 5, "events wait", "ingest")
        add_latin(run, event_id=1)
        run.until(lambda: all(run.status(group).state is GroupState.PARKED for group in RECEIVERS), "both are parked")
        for group in RECEIVERS:
            error = run.status(group).error or ""
            assert "the body of event 1 of ingest.out has values that their type cannot have" in error
            assert "`logio mend`" in error
        terminal = Terminal(run, monkeypatch, capsys)
        code, told, _ = terminal.logio("mend", run.run.uid[:8], "ingest.out", "1")
        assert code == 0 and "column 'note', row 1. Nothing was changed" in " ".join(told.split())
        code, told, _ = terminal.logio("mend", run.run.uid[:8], "ingest.out", "1", "--values", "null")
        assert code == 0 and f"`logio retry {run.run.uid[:8]}` resumes the run" in " ".join(told.split())
        for group in RECEIVERS:
            run.relaunch(group)
        run.finish()
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def add_latin(run: Running, *, event_id: int) -> None:
    """A column of text, in which one row is a byte of Latin-1, to an event of `ingest`."""
    port = Port("ingest", "out")
    with run.store.lineage(run.run) as log:
        stored = dict(log.bodies(*port, [event_id]))[event_id]
    header = decode_header("it", *stored)
    table = decode("it", stored.body)
    buffers = [None, pa.py_buffer(np.array([0, 1, 2], np.int32).tobytes()), pa.py_buffer(b"a\xe9")]
    notes = pa.concat_arrays(
        [pa.Array.from_buffers(pa.string(), 2, buffers), pa.nulls(table.num_rows - 2, pa.string())]
    )
    body = encode(table.append_column("note", notes))
    data = schema.event_data
    event = (data.c.run_id == run.run.run_id, data.c.send_op == "ingest", data.c.channel == "out")
    with run.store.engine.begin() as connection:
        change = sa.update(data).where(*event, data.c.event_id == event_id)
        values = {
            "header": encode_header(Kind.DATA, table.num_rows, body, header.about, code=header.code),
            "body": body,
        }
        assert connection.execute(change.values(values)).rowcount == 1


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

"""A DAG run begins anew: its run is given up by a person, and the next generation is exact over what the first has left."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.cli.app import main
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.bundle import faulty_sales
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, has_ended, running
from tests.support.waiting import eventually
from tests.support.warehouse import change, warehouse_engine

pytestmark = pytest.mark.acceptance

Logio = Callable[..., str]


@pytest.fixture
def logio(log_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Logio:
    """What a command prints, which has to succeed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOGIO_URL", log_url)

    def command(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["logio", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert not ended.value.code, printed.err
        return printed.out

    return command


def written(warehouse_url: str, table: str) -> int:
    engine = warehouse_engine(warehouse_url)
    with engine.connect() as connection:
        rows = connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one()
    engine.dispose()
    return int(rows)


def origin_of_first_hour(run: Running) -> list[int]:
    """The events of the source that the first event of `hourly` was made from."""
    answer = backward(run.store, run.run.uid, "hourly.out", 1, to="ingest.out")
    return sorted(event.event_id for event in answer.events("ingest.out"))


def test_run_halted_given_up_and_run_again(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path, logio: Logio
) -> None:
    arguments: Any = (log_url, warehouse_url, small_transactions)
    with running(*arguments, PlainLauncher(tmp_path / "first"), name="nightly") as first:
        first.until(lambda: first.count("publish.warehouse", "write") >= 3, "some hours are written")
        first.until(lambda: first.count("save_totals.warehouse", "write") >= 2, "some totals are written")
        drivers = [first.process(group) for group in first.groups if first.is_running(group)]
        said = logio("fresh", first.run.uid[:8])
        assert "is given up" in said and "`logio run ... --run-id nightly` begins the fresh one" in said
        eventually(lambda: all(map(has_ended, drivers)), what="no driver of it is left", timeout=60)
        assert written(warehouse_url, "hourly_sales") > 0, "it has left rows"
        origin = origin_of_first_hour(first)
        first.tend()
        assert not any(first.is_running(group) for group in first.groups), "its supervisor leaves it as it is"

        with running(*arguments, PlainLauncher(tmp_path / "second"), name="nightly") as second:
            assert second.run.spec.key.generation == 2
            assert "was given up before" in logio("fresh", first.run.uid), "asked again, it spares the fresh run"
            second.finish()
            assert second.store.finish_run(second.run.run_id)
            assert origin_of_first_hour(second) == origin == origin_of_first_hour(first), "the old lineage answers"

        listed = {(run["uid"], run["generation"]): run["state"] for run in json.loads(logio("status", "--json"))}
        assert listed == {(second.run.uid, 2): "finished", (first.run.uid, 1): "superseded"}
        text = logio("status")
        assert "nightly (generation 1)" in text and "nightly (generation 2)" in text
        assert logio("lineage", first.run.uid[:8], "hourly.out", "1")
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


@pytest.mark.postgres
def test_a_driver_that_comes_back_after_the_fresh_run_writes_nothing(
    postgres_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """It stands still before a write, on a machine where no process can end it.

    On PostgreSQL: a driver that is stopped while it commits keeps SQLite's only lock, and here no process ends it.
    """
    arguments: Any = (postgres_url, warehouse_url, small_transactions)
    stopping = PlainLauncher(tmp_path / "first", {("publish", 1): "before_write:2:stop"})
    with running(*arguments, stopping, name="nightly") as first:
        first.until(lambda: first.is_running("publish"), "publish runs")
        process = first.process("publish")
        first.until(lambda: process.status() == psutil.STATUS_STOPPED, "publish is about to write")
        others = [group for group in first.groups if group != "publish"]
        first.until(
            lambda: all(first.status(group).state is GroupState.FINISHED for group in others), "the others end", *others
        )
        assert first.store.declare_dead(GroupRef(first.run.run_id, "publish", 1), "test")
        assert first.store.supersede(first.run.run_id)
        with running(*arguments, PlainLauncher(tmp_path / "second"), name="nightly") as second:
            second.finish()
        process.send_signal(signal.SIGCONT)
        eventually(lambda: has_ended(process), what="the old driver gives up", timeout=90)
        assert first.store.find_run(first.run.uid).state is RunState.SUPERSEDED
        assert first.status("publish").state is GroupState.HALTED
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


@pytest.mark.postgres
def test_a_driver_that_comes_back_appends_nothing_either(
    postgres_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Runs that append share their table. A person who gives one up may remove its rows, and more must not come."""
    change(warehouse_url, "CREATE TABLE mended (who TEXT)")
    change(warehouse_url, "INSERT INTO mended VALUES ('before all this')")
    arguments: Any = (postgres_url, warehouse_url, small_transactions)
    ref = parse_ref(f"{Path(faulty_sales.__file__)}:appending")
    stopping = PlainLauncher(tmp_path / "first", {("save", 1): "before_write:2:stop"})
    with running(*arguments, stopping, ref=ref, name="nightly", backlog=BacklogBound(events=8)) as first:
        first.until(lambda: first.is_running("save"), "save runs")
        process = first.process("save")
        first.until(lambda: process.status() == psutil.STATUS_STOPPED, "save is about to write")
        assert first.store.declare_dead(GroupRef(first.run.run_id, "save", 1), "test")
        for group in ("ingest", "checked"):
            assert first.store.declare_dead(GroupRef(first.run.run_id, group, 1), "test")
        assert first.store.supersede(first.run.run_id)
        change(warehouse_url, "DELETE FROM sales")
        with running(*arguments, PlainLauncher(tmp_path / "second"), ref=ref, name="nightly") as second:
            second.finish()
        process.send_signal(signal.SIGCONT)
        eventually(lambda: has_ended(process), what="the old driver gives up", timeout=90)
    assert written(warehouse_url, "sales") == pq.read_metadata(small_transactions).num_rows

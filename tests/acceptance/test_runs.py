"""Whole runs: back-pressure, new runs over old tables, budgets, bad input, halting."""

from __future__ import annotations

import datetime as dt
import re
import signal
from pathlib import Path

import duckdb
import psutil
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.errors import ConfigurationError, IncompatibleRun
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.lineage.lineage_records import effect, records
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.lineage.queries import backward, forward
from airflow_logio.store.lineage.result import EventNode, InputSetNode, ReadNode
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.sql.engines import log_engine
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, running
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

RECORDS_PER_EVENT = 250
"""Of the plain pipeline."""


def test_a_sender_waits_for_its_slowest_receiver(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    bound = 20
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, warehouse_url, small_transactions, launcher, backlog=BacklogBound(events=bound)) as run:
        run.until(lambda: run.count("ingest.out", "out") >= bound, "ingest has filled the bound", "ingest", "totals")
        run.until(lambda: run.count("totals.in", "in") >= bound, "totals has taken everything", "ingest", "totals")
        beat = run.status("ingest").beat
        run.until(lambda: run.status("ingest").beat > beat + 4, "ingest beats on", "ingest", "totals")
        sent = run.count("ingest.out", "out")
        assert bound <= sent < 2 * bound, "hourly has acknowledged nothing, so its sender must have stopped"
        run.finish()
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_a_window_larger_than_the_backlog_does_not_deadlock(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Ten events make an Output Set of totals; the bound is four: what is acknowledged does not count."""
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(sqlite_url, warehouse_url, small_transactions, launcher, backlog=BacklogBound(events=4)) as run:
        run.finish()
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


@pytest.mark.postgres
def test_a_new_run_replaces_the_tables_and_an_older_one_may_not_write_any_more(
    postgres_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """On PostgreSQL: a driver that is stopped while it commits keeps SQLite's only lock, and here no process ends it."""
    arguments = (postgres_url, warehouse_url, small_transactions)
    stopping = PlainLauncher(tmp_path / "first", {("publish", 1): "before_write:2:stop"})
    with running(*arguments, stopping, name="first") as first:
        first.until(lambda: first.is_running("publish"), "publish runs")
        process = first.process("publish")
        first.until(lambda: process.status() == psutil.STATUS_STOPPED, "publish is about to write")
        others = [group for group in first.groups if group != "publish"]
        first.until(
            lambda: all(first.status(group).state is GroupState.FINISHED for group in others), "the others end", *others
        )
        with running(*arguments, PlainLauncher(tmp_path / "second"), name="second") as second:
            second.finish()
        process.send_signal(signal.SIGCONT)
        eventually(lambda: first.status("publish").state is GroupState.PARKED, what="the old run parks", timeout=90)
        error = first.status("publish").error or ""
    assert "belongs to run" in error and "must not write to it any more" in error
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_the_budget_is_spent_and_the_causes_are_told(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    armed = {("totals", incarnation): "after_commit:1" for incarnation in range(1, 10)}
    launcher = PlainLauncher(tmp_path / "drivers", armed)
    with running(log_url, warehouse_url, small_transactions, launcher, recoveries=2) as run:
        run.until(lambda: run.status("totals").state is GroupState.PARKED, "totals is parked")
        status = run.status("totals")
    assert status.incarnation == 3
    assert "was recovered 2 times within 600 s" in (status.error or "")
    assert len(re.findall(r"incarnation \d: the driver's process \d+", status.error or "")) == 2


def test_a_source_out_of_order_parks_the_group_and_says_where(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    table = pq.read_table(small_transactions).slice(0, 2_000)
    backwards = tmp_path / "backwards.parquet"
    pq.write_table(table.take(list(range(1_999, -1, -1))), backwards)
    with running(sqlite_url, warehouse_url, backwards, PlainLauncher(tmp_path / "drivers")) as run:
        run.until(lambda: run.status("ingest").state is GroupState.PARKED, "ingest is parked", "ingest")
        error = run.status("ingest").error or ""
    assert error.startswith("SourceNotOrdered: ") and "transaction_timestamp" in error


def test_a_file_that_changed_between_two_incarnations_parks_the_group(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    file = tmp_path / "changing.parquet"
    file.write_bytes(small_transactions.read_bytes())
    launcher = PlainLauncher(tmp_path / "drivers", {("ingest", 1): "after_commit:2"})
    # No group receives, so ingest cannot have read the whole file when it dies.
    with running(sqlite_url, warehouse_url, file, launcher, backlog=BacklogBound(events=8)) as run:
        run.until(lambda: ("ingest", 1) in launcher.drivers, "ingest is launched", "ingest")
        # No supervisor looks at it until it is dead: the next would be launched at once.
        eventually(lambda: launcher.drivers["ingest", 1].poll() is not None, what="ingest dies", timeout=60)
        pq.write_table(pq.read_table(small_transactions).slice(0, 10_000), file)
        run.until(lambda: run.status("ingest").state is GroupState.PARKED, "ingest is parked", "ingest")
        error = run.status("ingest").error or ""
    assert error.startswith("SourceChanged: ") and str(file) in error


def test_what_is_wrong_is_said_before_anything_is_started(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers")
    with (
        pytest.raises(ConfigurationError, match=r"nowhere\.parquet"),
        running(sqlite_url, warehouse_url, tmp_path / "nowhere.parquet", launcher),
    ):
        pass
    assert launcher.children == []
    assert rows_of(sqlite_url, "SELECT count(*) FROM logio_run") == [(0,)]


def test_another_pipeline_under_the_same_run_is_refused(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    changed = tmp_path / "changed_sales.py"
    source = (Path(__file__).parents[1] / "support" / "bundle" / "plain_sales.py").read_text()
    changed.write_text(source.replace("EVENTS_PER_BATCH = 10", "EVENTS_PER_BATCH = 20"))
    arguments = (sqlite_url, warehouse_url, small_transactions, PlainLauncher(tmp_path / "drivers"))
    with (
        running(*arguments),
        pytest.raises(IncompatibleRun, match=r"was 10, is now 20\. Restore that version and `logio retry"),
        running(*arguments, ref=parse_ref(f"{changed}:sales")),
    ):
        pass


def test_a_group_that_is_asked_to_halt_does_so_and_goes_on_later(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(sqlite_url, warehouse_url, small_transactions, launcher, backlog=BacklogBound(events=8)) as run:
        run.until(lambda: run.is_running("ingest"), "ingest runs", "ingest")
        run.store.request(run.run.run_id, "ingest", GroupState.HALTED)
        run.until(lambda: run.status("ingest").state is GroupState.HALTED, "ingest halts", "ingest")
        run.relaunch("ingest")
        run.finish()
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_lineage_is_what_brute_force_says(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Every hourly.out event, with the events of ingest that hold a record of its hour, and with its read action."""
    launcher = PlainLauncher(tmp_path / "drivers", {("hourly", 1): "after_commit:2"})
    with running(log_url, warehouse_url, small_transactions, launcher) as run:
        run.finish()
        _queries_say_the_same(run, small_transactions, warehouse_url)
    engine = log_engine(log_url)
    with engine.connect() as connection:
        recorded = connection.execute(
            sa.text(
                "SELECT l.event_id, e.inset_id, e.send_op, e.event_id FROM logio_event_lineage l "
                "JOIN logio_event_log e ON e.run_id = l.run_id AND e.rec_op = l.send_op AND e.inset_id = l.inset_id "
                "WHERE l.send_op = 'hourly' AND l.send_port = 'out'"
            )
        ).all()
        others = connection.execute(
            sa.text("SELECT count(*) FROM logio_event_lineage WHERE send_op <> 'hourly'")
        ).scalar_one()
    engine.dispose()
    query = (
        "SELECT DISTINCT strftime(date_trunc('hour', transaction_timestamp), '%Y-%m-%dT%H:%M'), "
        f"file_row_number // {RECORDS_PER_EVENT} + 1 FROM read_parquet('{small_transactions}', file_row_number = true)"
    )
    with duckdb.connect() as files:
        wanted = set(files.execute(query).fetchall())
    assert {(inset, event) for _, inset, sender, event in recorded if sender == "ingest"} == wanted
    hours = {inset for inset, _ in wanted}
    assert {inset for _, inset, sender, _ in recorded if sender == "hourly"} == hours, "one read action per hour"
    assert len({event for event, _, _, _ in recorded}) == len(hours), "one output event per hour"
    assert others == 0, "nothing is recorded outside the scope"


def _queries_say_the_same(run: Running, transactions: Path, warehouse_url: str) -> None:
    """Backward from every hour, forward from every event of ingest; the products that were read for some hours."""
    hours = range(1, run.count("hourly.out", "out") + 1)
    back = backward(run.store, run.run, "hourly.out", hours, to="ingest.out")
    inset_of = {root: inset for root in back.roots for inset in back.after(root) if isinstance(inset, InputSetNode)}
    assert len(inset_of) == len(set(inset_of.values())) == len(hours), "one Input Set per hour"
    forth = forward(run.store, run.run, "ingest.out", range(1, run.count("ingest.out", "out") + 1), to="hourly.out")
    assert forth.relationships() == {(a, b) for a, b in back.relationships() if isinstance(a, EventNode)}
    with duckdb.connect() as files:
        files.execute(
            "CREATE TABLE sold AS SELECT date_trunc('hour', transaction_timestamp) AS hour, product_id, "
            f"file_row_number AS n FROM read_parquet('{transactions}', file_row_number = true)"
        )
        wanted = set(
            files.execute(
                f"SELECT DISTINCT strftime(hour, '%Y-%m-%dT%H:%M'), n // {RECORDS_PER_EVENT} + 1 FROM sold"
            ).fetchall()
        )
        assert {
            (inset.inset_id, event.event_id)
            for inset in inset_of.values()
            for event in back.after(inset)
            if isinstance(event, EventNode)
        } == wanted
        for event in back.events("ingest.out"):
            first = (event.event_id - 1) * RECORDS_PER_EVENT
            assert (event.about["first"], event.about["last"]) == (first, first + (event.records or 0) - 1)
        (source,) = (read for read in back.reads() if read.is_source)
        assert source.description["path"] == str(transactions)
        known = _products(warehouse_url)
        for root in back.roots[::40]:
            (read,) = (node for node in back.after(inset_of[root]) if isinstance(node, ReadNode))
            sold = "SELECT DISTINCT product_id FROM sold WHERE strftime(hour, '%Y-%m-%dT%H:%M') = ?"
            asked = {row[0] for row in files.execute(sold, [inset_of[root].inset_id]).fetchall()}
            used = effect(run.store, run.run, read, inset_of[root])
            assert set(used.column("product_id").to_pylist()) == asked & known
            made = records(run.store, run.run, root)
            assert set(made.column("hour").to_pylist()) == {dt.datetime.fromisoformat(inset_of[root].inset_id)}


def _products(warehouse_url: str) -> set[int]:
    return {product for (product,) in rows_of(warehouse_url, "SELECT product_id FROM products")}


@pytest.mark.postgres
def test_a_run_stopped_before_its_first_write_cannot_take_a_newer_runs_table(
    postgres_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Its first write action would delete what the newer run has written. On PostgreSQL, as above."""
    arguments = (postgres_url, warehouse_url, small_transactions)
    stopping = PlainLauncher(tmp_path / "first", {("publish", 1): "before_write:1:stop"})
    with running(*arguments, stopping, name="first") as first:
        first.until(lambda: first.is_running("publish"), "publish runs", "publish")
        process = first.process("publish")
        first.until(lambda: process.status() == psutil.STATUS_STOPPED, "publish is about to begin", "publish")
        with running(*arguments, PlainLauncher(tmp_path / "second"), name="second") as second:
            second.finish()
        process.send_signal(signal.SIGCONT)
        eventually(lambda: first.status("publish").state is GroupState.PARKED, what="the old run parks", timeout=90)
        assert "a newer run has taken it over" in (first.status("publish").error or "")
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_a_pipeline_that_changes_under_a_run_parks_the_group(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    file = tmp_path / "bundle" / "changing_sales.py"
    file.parent.mkdir()
    source = (Path(__file__).parents[1] / "support" / "bundle" / "plain_sales.py").read_text()
    file.write_text(source)
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", 1): "after_commit:2"})
    with running(sqlite_url, warehouse_url, small_transactions, launcher, ref=parse_ref(f"{file}:sales")) as run:
        run.until(lambda: run.is_running("totals"), "totals runs")
        file.write_text(source.replace("EVENTS_PER_BATCH = 10", "EVENTS_PER_BATCH = 7"))
        run.until(lambda: run.status("totals").state is GroupState.PARKED, "totals is parked")
        error = run.status("totals").error or ""
        assert error.startswith("IncompatibleRun: ") and "operator 'totals', window, count was 10, is now 7" in error

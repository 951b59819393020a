"""Replicas that come and go while a run continues, on real processes: the results are those of one that was left alone."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa

from airflow_logio.launch import bundle
from airflow_logio.launch.launcher import launch_group
from airflow_logio.lineage.lineage_records import records
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.lineage.queries import backward
from airflow_logio.supervision.controller import observe, read_counters
from airflow_logio.supervision.policies import DS2
from airflow_logio.supervision.scaling import Stage
from tests.support.grocery import assert_exact, write_slice
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, running
from tests.support.warehouse import warehouse_engine

pytestmark = pytest.mark.acceptance

REPLICATED = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'replicated_sales.py'}:replicated")
PUBLISHED = "merge(hourly).out"


def owners(run: Running, group: str = "hourly") -> Counter[str | None]:
    """Replica → how many slots it owns that are not done."""
    return Counter(slot.owner for slot in run.store.slots(run.run.run_id, group) if not slot.done)


def retired(run: Running, group: str = "hourly") -> list[str]:
    names = run.run.spec.replicated[group].replicas
    return [name for name in names if run.status(name).state is GroupState.RETIRED]


def assert_copied(url: str, transactions: Path) -> None:
    """Table `copies` holds every sale of the file, once."""
    query = f"""SELECT store_id, product_id, quantity::bigint, round(sales_value * 100)::bigint FROM '{transactions}'"""
    with duckdb.connect() as connection:
        wanted = Counter(connection.execute(query).fetchall())
    engine = warehouse_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT store_id, product_id, quantity, sales_cents FROM copies"))
        found = Counter(tuple(row) for row in rows)
    engine.dispose()
    assert found == wanted, f"{(wanted - found).total()} rows are missing, {(found - wanted).total()} are too many"


def test_a_group_is_scaled_up_and_down_while_it_runs(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """From one replica to three, one of which is killed, and back to one; the writers' slots move with their writes."""
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, warehouse_url, small_transactions, launcher, ref=REPLICATED) as run:
        run.until(lambda: run.count(PUBLISHED, "out") >= 3, "the first replica has published")
        assert owners(run) == {"hourly.1": 6}
        assert owners(run, "copies") == {"copies.1": 2, "copies.2": 2}
        step = run.scale("hourly", 3)
        assert (step.stage, step.moved) == (Stage.DONE, 4)
        assert owners(run) == {"hourly.1": 2, "hourly.2": 2, "hourly.3": 2}
        published, earlier = run.count(PUBLISHED, "out"), read_counters(run.store, run.run, "hourly")
        run.until(lambda: run.count(PUBLISHED, "out") > published + 3, "they work")
        seen = observe(run.store, run.run, "hourly", earlier)
        assert (seen.replicas, set(seen.loads)) == (3, {"hourly.1", "hourly.2", "hourly.3"})
        assert DS2().true_rates(seen), f"replicas that were at work have true rates: {seen}"
        assert run.scale("copies", 1).moved == 2
        run.signal("hourly.2", signal.SIGKILL)
        run.until(lambda: run.is_running("hourly.2", incarnation=2), "the killed replica is recovered")
        run.scale("hourly", 1)
        assert len(owners(run)) == 1
        run.until(lambda: len(retired(run)) == 2, "the others are retired")
        run.finish()
        assert run.store.finish_run(run.run.run_id)
        origin = backward(run.store, run.run, "hourly.out", 1)
        assert {str(event.port) for event in origin.events()} >= {"hourly.out", "ingest.out"}
        assert {event.port.operator for event in origin.events()} == {"hourly", "slow", "ingest"}
        slow = records(run.store, run.run, origin.events("slow.out")[0])
        assert slow.num_rows == origin.events("slow.out")[0].records, "events inside of a slot have records, too"
        assert sum(event.records or 0 for event in origin.events("ingest.out")) > 0
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)
    assert_copied(warehouse_url, small_transactions)


def test_a_replica_that_nobody_needs_holds_nothing_up(log_url: str, warehouse_url: str, tmp_path: Path) -> None:
    """Its launcher died before it got a slot: when all slots are done, it retires."""
    few = write_slice(tmp_path / "transactions.parquet", 2_000)
    with running(log_url, warehouse_url, few, PlainLauncher(tmp_path / "drivers"), ref=REPLICATED) as run:
        run.until(lambda: run.count("ingest.out", "out") > 0, "the run has begun")
        launch_group(run.context, "hourly.3", expected=0, reason="to be given slots", by_user=True)
        run.until(lambda: run.status("hourly.1").state is GroupState.FINISHED, "the others finish")
        run.finish()
        assert run.status("hourly.3").state is GroupState.RETIRED
        assert run.store.finish_run(run.run.run_id)
    assert_exact(warehouse_url, few, PLAIN_RECORDS_PER_BATCH)

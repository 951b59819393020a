"""Real drivers that die while they collect, and the process that ends the run collects the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_logio.store.sql import schema
from airflow_logio.supervision import tidying
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, running

pytestmark = pytest.mark.acceptance


def counted(run: Running, table: sa.Table, *where: sa.ColumnElement[bool]) -> int:
    query = sa.select(sa.func.count()).select_from(table).where(table.c.run_id == run.run.run_id, *where)
    with run.store.engine.connect().execution_options(logio_writes=False) as connection:
        return int(connection.execute(query).scalar_one())


def test_a_run_leaves_what_lineage_keeps(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Also where a driver dies behind a commit that has collected something, and its successor continues."""
    rows, bodies = schema.event_log, schema.event_data
    launcher = PlainLauncher(
        tmp_path / "drivers", {("hourly", 1): "after_commit:3", ("totals", 1): "in_log_transaction:2"}
    )
    with running(log_url, warehouse_url, small_transactions, launcher) as run:
        run.finish()
        tidying.tidy(run.store, run.run.run_id)
        assert counted(run, rows, rows.c.status == "done", ~rows.c.kept) == 0
        assert counted(run, rows, rows.c.status != "done") == 0
        assert counted(run, bodies, ~bodies.c.kept) == 0, "neither write actions nor batches of totals"
        sent = run.count("ingest.out", "out")
        assert counted(run, bodies, bodies.c.send_op == "ingest", bodies.c.kept) == sent, (
            "the scope is from ingest.out to hourly.out"
        )
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)

"""Errors in an operator's code, on real driver processes: parked at the same event, or set aside and put back."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.runtime.bundle import parse_ref
from tests.support.bundle.faulty_sales import COLUMNS, RECORDS_PER_EVENT, is_unlucky
from tests.support.running import PlainLauncher, Running, running

pytestmark = pytest.mark.acceptance

BUNDLE = Path(__file__).parents[1] / "support" / "bundle" / "faulty_sales.py"
Rows = Counter[tuple[int, ...]]


@pytest.fixture
def faulty_warehouse(warehouse_url: str) -> str:
    with sa.create_engine(warehouse_url).begin() as connection:
        connection.execute(sa.text("CREATE TABLE mended (who TEXT)"))
    return warehouse_url


def mend(url: str) -> None:
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("INSERT INTO mended VALUES ('a data engineer')"))


def written(url: str) -> Rows:
    with sa.create_engine(url).connect() as connection:
        return Counter(tuple(row) for row in connection.execute(sa.text(f"SELECT {', '.join(COLUMNS)} FROM sales")))


def expected(transactions: Path, *, with_unlucky: bool) -> Rows:
    """From the file alone: event n holds rows (n - 1) * 250 to n * 250."""
    columns = pq.read_table(transactions, columns=list(COLUMNS)).to_pydict()
    rows = list(zip(*(map(int, columns[name]) for name in COLUMNS), strict=True))
    return Counter(
        row for index, row in enumerate(rows) if with_unlucky or not is_unlucky(index // RECORDS_PER_EVENT + 1)
    )


def unlucky_events(transactions: Path) -> list[str]:
    events = -(-pq.read_metadata(transactions).num_rows // RECORDS_PER_EVENT)
    return [str(event) for event in range(1, events + 1) if is_unlucky(event)]


def finish(run: Running, *groups: str) -> None:
    run.until(lambda: all(run.status(group).state is GroupState.FINISHED for group in groups), "groups finish", *groups)


def test_an_error_that_comes_back_at_the_same_event_parks_the_group(
    log_url: str, faulty_warehouse: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(log_url, faulty_warehouse, small_transactions, launcher, ref=parse_ref(f"{BUNDLE}:failing")) as run:
        run.until(lambda: run.status("checked").state is GroupState.PARKED, "the group is parked")
        status = run.status("checked")
        assert status.incarnation == 3, "two recoveries at the same event, then no more"
        assert status.error is not None
        assert re.search(
            r"failed at event 5 on port checked\.in, Input Set '5' of operator 'checked' again", status.error
        )
        assert re.search(
            r"pipeline 'faulty', operator 'checked', port 'in', event 5 of ingest\.out, Input Set '5': "
            r"ValueError: cannot use basket \d+",
            status.error,
        )
        mend(faulty_warehouse)
        run.relaunch("checked")
        run.finish()
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)


def test_set_aside_and_put_back_after_the_end(
    log_url: str, faulty_warehouse: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Drivers die on the way, too: what is aside stays aside, and comes back once."""
    armed = {("checked", 1): "before_commit:3", ("checked", 2): "after_commit:4", ("save", 1): "after_write:3"}
    launcher = PlainLauncher(tmp_path / "drivers", armed)
    with running(
        log_url, faulty_warehouse, small_transactions, launcher, ref=parse_ref(f"{BUNDLE}:quarantining")
    ) as run:
        run.finish()
        assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=False)
        aside = run.store.quarantined(run.run.run_id)
        assert sorted((one.inset_id for one in aside), key=int) == unlucky_events(small_transactions)
        assert run.store.finish_run(run.run.run_id)
        assert run.store.find_run(run.run.uid).state is RunState.QUARANTINED

        mend(faulty_warehouse)
        retried = run.store.retry_quarantined(run.run.run_id)
        assert retried.to_launch == ("checked", "save")
        for group in retried.to_launch:
            run.relaunch(group)
        finish(run, *retried.to_launch)
        assert run.store.finish_run(run.run.run_id)
        assert run.store.find_run(run.run.uid).state is RunState.FINISHED
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)


def test_put_back_while_the_run_goes_on(
    log_url: str, faulty_warehouse: str, small_transactions: Path, tmp_path: Path
) -> None:
    """The driver has nothing to commit: it learns by itself that its epoch is void."""
    launcher = PlainLauncher(tmp_path / "drivers", {("ingest", 1): "before_commit:9:stop"})
    with running(
        log_url, faulty_warehouse, small_transactions, launcher, ref=parse_ref(f"{BUNDLE}:quarantining")
    ) as run:
        run.until(lambda: run.store.quarantined(run.run.run_id), "an event is set aside")
        mend(faulty_warehouse)
        retried = run.store.retry_quarantined(run.run.run_id)
        assert retried.to_launch == ()
        run.finish()
        assert run.status("checked").incarnation == 1, "its driver rebuilt itself"
    assert written(faulty_warehouse) == expected(small_transactions, with_unlucky=True)

"""Drivers that are slow rather than stopped: replaced, they keep their sessions and locks, and finish what they began.

Their tables have no key here: a row that is written twice stands there twice. Nothing but fencing is to hold, so no observer
ends the old processes. On PostgreSQL, where two writers can be inside a transaction at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.launch.driver_config import REPLACED
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, running
from tests.support.slow_driver import Slowness, sessions_wait_for_a_lock
from tests.support.waiting import eventually
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres]

LEASE = Lease(seconds=120, launch_seconds=120)
"""No driver is found dead by it: the test says who is taken for dead, and when."""


@pytest.fixture
def without_keys(postgres_warehouse_url: str) -> str:
    """A warehouse whose tables are there before the pipeline could make them, with its keys."""
    change(
        postgres_warehouse_url,
        "CREATE TABLE hourly_sales (hour timestamp, store_id bigint, department text, quantity bigint, sales_cents bigint)",
    )
    change(
        postgres_warehouse_url,
        "CREATE TABLE item_totals (batch bigint, product_id bigint, quantity bigint, sales_cents bigint)",
    )
    return postgres_warehouse_url


def tokens(url: str, operator: str) -> list[int]:
    """Of the writers of an operator: the fencing token each of them has written with."""
    return [token for (token,) in rows_of(url, f"SELECT token FROM logio_marker WHERE operator = '{operator}'")]


@pytest.mark.parametrize(
    ("statement", "count"),
    [("FROM logio_marker", 6), ('INSERT INTO "public"."hourly_sales"', 2), ("UPDATE logio_marker", 2)],
    ids=["behind its marker", "behind its rows", "before its commit"],
)
def test_a_slow_zombie_and_its_successor_write_each_row_once(
    statement: str, count: int, postgres_url: str, without_keys: str, small_transactions: Path, tmp_path: Path
) -> None:
    """Its successor is given the same write actions by the log, while it is inside its transaction."""
    slow = Slowness(tmp_path / "slow", statement, count)
    launcher = PlainLauncher(tmp_path / "drivers", variables={("publish", 1): slow.variables})
    with running(postgres_url, without_keys, small_transactions, launcher, end_old_drivers=False, lease=LEASE) as run:
        run.until(slow.is_reached, "publish is slow inside its transaction")
        assert run.store.declare_dead(GroupRef(run.run.run_id, "publish", 1), "it is slow")

        def met() -> bool:
            """Or, where nothing holds its successor up, it has written."""
            return sessions_wait_for_a_lock(without_keys) or max(tokens(without_keys, "publish"), default=0) > 1

        run.until(met, "its successor is at the same write action")
        assert run.status("publish").incarnation == 2
        slow.end()
        run.finish()
        assert launcher.drivers["publish", 1].wait(timeout=60) == REPLACED, run.last_words()
    assert_exact(without_keys, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_a_slow_driver_of_an_older_run_leaves_nothing_in_a_newer_runs_table(
    postgres_url: str, without_keys: str, small_transactions: Path, tmp_path: Path
) -> None:
    """It has seen that the table is its own; a newer run begins before it writes."""
    slow = Slowness(tmp_path / "slow", 'FROM "public".logio_owner', 3)
    arguments = (postgres_url, without_keys, small_transactions)
    plodding = PlainLauncher(tmp_path / "first", variables={("publish", 1): slow.variables})
    with running(*arguments, plodding, name="first", lease=LEASE) as first:
        first.until(slow.is_reached, "publish has read the owner")
        with running(*arguments, PlainLauncher(tmp_path / "second"), name="second", lease=LEASE) as second:
            newer = second.run.uid

            def met() -> bool:
                owners = rows_of(without_keys, "SELECT run_uid FROM logio_owner WHERE table_name = 'hourly_sales'")
                return sessions_wait_for_a_lock(without_keys) or owners == [(newer,)]

            second.until(met, "the newer run begins")
            slow.end()
            second.finish()
        eventually(lambda: first.status("publish").state is GroupState.PARKED, what="the old run parks", timeout=90)
        assert "belongs to run" in (first.status("publish").error or "")
    assert_exact(without_keys, small_transactions, PLAIN_RECORDS_PER_BATCH)

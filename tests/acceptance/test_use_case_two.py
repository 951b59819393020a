"""The paper's second use case on real driver processes that die at random commits; compared with plain Python sums."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.bundle.use_case_two import COLUMNS, RECORDS_PER_EVENT
from tests.support.running import PlainLauncher, running
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

MODULE = Path(__file__).parents[1] / "support" / "bundle" / "use_case_two.py"
EVENTS = 1_000
COMMIT_POINTS = (CrashPoint.BEFORE_COMMIT, CrashPoint.IN_LOG_TRANSACTION, CrashPoint.AFTER_COMMIT)
DEATHS = 3
"""How often each group dies; a group makes more commits than this in every life."""

Row = tuple[int, ...]


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A thousand events, as in the paper."""
    path = tmp_path_factory.mktemp("use-case-two") / "sales.parquet"
    rows = range(EVENTS * RECORDS_PER_EVENT)
    pq.write_table(pa.table({"row": list(rows), "amount": [row * row % 1009 for row in rows]}), path)
    return path


def expected(path: Path) -> list[Row]:
    """By the words of the use case: 50 events of one path meet 100 of the other; at the end, what is there."""
    amounts = pq.read_table(path)["amount"].to_pylist()
    events = [
        [(row, amounts[row]) for row in range(start, start + RECORDS_PER_EVENT)]
        for start in range(0, len(amounts), RECORDS_PER_EVENT)
    ]
    pairs = [events[first] + events[first + 1] for first in range(0, EVENTS, 2)]
    meetings: list[Row] = []
    for batch in range(1, EVENTS // 50 + 1):
        quick = [record for event in events[50 * (batch - 1) : 50 * batch] for record in event]
        slow = pairs[100 * (batch - 1) : 100 * batch]
        meetings.append(
            (
                batch,
                len(quick),
                sum(row for row, _ in quick),
                sum(2 * amount for _, amount in quick),
                len(slow),
                sum(pair[0][0] for pair in slow),
                sum(amount for pair in slow for _, amount in pair),
            )
        )
    return meetings


def written(url: str) -> list[Row]:
    return rows_of(url, f"SELECT {', '.join(COLUMNS)} FROM meetings ORDER BY batch")


@pytest.mark.parametrize("pipeline", ["as_they_come", "in_order", "in_one_group"])
def test_dying_at_random_commits_changes_nothing(
    pipeline: str, log_url: str, warehouse_url: str, sales: Path, tmp_path: Path
) -> None:
    ref = bundle.parse_ref(f"{MODULE}:{pipeline}")
    dice = random.Random(f"{pipeline} on {sa.make_url(log_url).get_backend_name()}")
    groups = tuple(bundle.load(ref).groups)
    armed = {
        (group, incarnation): f"{dice.choice(COMMIT_POINTS)}:{dice.randint(1, 4)}"
        for group in groups
        for incarnation in range(1, DEATHS + 1)
    }
    with running(log_url, warehouse_url, sales, PlainLauncher(tmp_path / "drivers", armed), ref=ref) as run:
        run.finish()
        died = {group: run.status(group).incarnation - 1 for group in groups}
        assert run.count("op5.in", "in") == EVENTS // 50
    assert written(warehouse_url) == expected(sales)
    assert sum(died.values()) >= len(groups), f"hardly anybody died: {died}"


def test_a_warehouse_on_postgresql(postgres_url: str, postgres_warehouse_url: str, sales: Path, tmp_path: Path) -> None:
    ref = bundle.parse_ref(f"{MODULE}:in_order")
    armed = {("op4", 1): "after_write:1", ("op4", 2): "in_warehouse_transaction:1", ("op2", 1): "after_commit:3"}
    with running(postgres_url, postgres_warehouse_url, sales, PlainLauncher(tmp_path / "d", armed), ref=ref) as run:
        run.finish()
        assert run.status("op4").incarnation == 3
    assert written(postgres_warehouse_url) == expected(sales)


@pytest.mark.parametrize("pipeline", ["as_they_come", "in_order", "in_one_group"])
def test_back_pressure_does_not_keep_back_what_an_operator_waits_for(
    pipeline: str, sqlite_url: str, warehouse_url: str, sales: Path, tmp_path: Path
) -> None:
    """Without declared exceptions OP2 would be held with 40 events that OP4 does not want yet, then OP1, and so OP3."""
    ref = bundle.parse_ref(f"{MODULE}:{pipeline}")
    bound = BacklogBound(events=40)
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(sqlite_url, warehouse_url, sales, launcher, ref=ref, backlog=bound) as run:
        run.finish()
    assert written(warehouse_url) == expected(sales)

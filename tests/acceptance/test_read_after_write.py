"""`sends_after_writes` on real driver processes: a reader behind the writer always finds what was written for its event."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from tests.support.bundle.read_after_write import RECORDS_PER_EVENT
from tests.support.running import PlainLauncher, running
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

MODULE = Path(__file__).parents[1] / "support" / "bundle" / "read_after_write.py"
EVENTS = 40

READER = {"two_groups": "look", "with_an_operator_between": "with_look"}
"""Pipeline → the group of the reader."""


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read-after-write") / "sales.parquet"
    rows = range(EVENTS * RECORDS_PER_EVENT)
    pq.write_table(pa.table({"row_no": list(rows), "amount": [row * row % 97 for row in rows]}), path)
    return path


def assert_exact(url: str, sales: Path) -> None:
    """Every event found all of its rows, and only those, when it was used; everything was written once."""
    rows = [tuple(row.values()) for row in pq.read_table(sales).to_pylist()]
    events = [rows[start : start + RECORDS_PER_EVENT] for start in range(0, len(rows), RECORDS_PER_EVENT)]
    assert rows_of(url, "SELECT row_no, amount FROM ledger ORDER BY row_no") == rows
    assert rows_of(url, "SELECT event, expected, found, amount FROM seen ORDER BY event") == [
        (number, RECORDS_PER_EVENT, RECORDS_PER_EVENT, sum(amount for _, amount in event))
        for number, event in enumerate(events, start=1)
    ]


def run_with(
    pipeline: str, armed: Mapping[tuple[str, int], str], log_url: str, warehouse: str, sales: Path, folder: Path
) -> dict[str, int]:
    """Run it to its end; group → incarnation of its last driver."""
    ref = bundle.parse_ref(f"{MODULE}:{pipeline}")
    with running(log_url, warehouse, sales, PlainLauncher(folder, armed), ref=ref) as run:
        run.finish()
        last = {group: run.status(group).incarnation for group in run.groups}
    assert_exact(warehouse, sales)
    return last


IN_BETWEEN = (
    CrashPoint.BEFORE_COMMIT,
    CrashPoint.IN_LOG_TRANSACTION,
    CrashPoint.AFTER_COMMIT,
    CrashPoint.BEFORE_WRITE,
    CrashPoint.IN_WAREHOUSE_TRANSACTION,
    CrashPoint.AFTER_WRITE,
)
"""From the commit that logs a write action, over its execution, to the commit that releases its events."""


@pytest.mark.parametrize("point", IN_BETWEEN)
def test_the_writer_dies_between_logging_and_sending(
    point: CrashPoint, log_url: str, warehouse_url: str, sales: Path, tmp_path: Path
) -> None:
    armed = {("with_look", incarnation): f"{point}:{incarnation + 1}" for incarnation in (1, 2)}
    last = run_with("one_group", armed, log_url, warehouse_url, sales, tmp_path)
    assert last["with_look"] >= 2, f"{point} was not passed"


@pytest.mark.parametrize("point", IN_BETWEEN)
def test_the_writer_dies_and_the_reader_of_another_group_lives(
    point: CrashPoint, sqlite_url: str, warehouse_url: str, sales: Path, tmp_path: Path
) -> None:
    armed = {("with_save", incarnation): f"{point}:{incarnation + 1}" for incarnation in (1, 2)}
    last = run_with("two_groups", armed, sqlite_url, warehouse_url, sales, tmp_path)
    assert last["with_save"] >= 2, f"{point} was not passed"
    assert last["look"] == 1


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_READ, CrashPoint.AFTER_READ, CrashPoint.BEFORE_COMMIT])
@pytest.mark.parametrize("pipeline", ["two_groups", "with_an_operator_between"])
def test_the_reader_dies_around_its_read(
    pipeline: str, point: CrashPoint, sqlite_url: str, warehouse_url: str, sales: Path, tmp_path: Path
) -> None:
    armed = {(READER[pipeline], incarnation): f"{point}:2" for incarnation in (1, 2)}
    last = run_with(pipeline, armed, sqlite_url, warehouse_url, sales, tmp_path)
    assert last[READER[pipeline]] >= 2, f"{point} was not passed"


def test_a_warehouse_on_postgresql(postgres_url: str, postgres_warehouse_url: str, sales: Path, tmp_path: Path) -> None:
    armed = {("with_look", 1): "before_write:3", ("with_look", 2): "after_write:1", ("end", 1): "after_commit:2"}
    last = run_with("one_group", armed, postgres_url, postgres_warehouse_url, sales, tmp_path)
    assert last["with_look"] == 3

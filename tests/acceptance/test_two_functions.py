"""Example OP2 on real driver processes: several functions over the same events, killed at commits; against plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from tests.support.bundle.two_functions import COLUMNS, EVENTS, EVENTS_OF_THE_THIRD, RECORDS_PER_EVENT
from tests.support.running import PlainLauncher, running
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

MODULE = Path(__file__).parents[1] / "support" / "bundle" / "two_functions.py"
ROWS = 2_000
ITEMS = 5

Record = tuple[int, int]


@pytest.fixture(scope="module")
def sales(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("two-functions") / "sales.parquet"
    rows = range(ROWS)
    pq.write_table(
        pa.table({"item": [row % ITEMS for row in rows], "amount": [row * row % 1013 for row in rows]}), path
    )
    return path


def batches(records: list[Record], events: int) -> Iterator[tuple[int, list[Record]]]:
    """Input Sets of so many events, by number."""
    size = events * RECORDS_PER_EVENT
    return ((start // size + 1, records[start : start + size]) for start in range(0, len(records), size))


def expected(path: Path) -> dict[str, list[tuple[int, ...]]]:
    table = pq.read_table(path)
    records = list(zip(table["item"].to_pylist(), table["amount"].to_pylist(), strict=True))
    found: dict[str, list[tuple[int, ...]]] = {"totals": [], "extremes": []}
    for batch, some in batches(records, EVENTS):
        amounts: defaultdict[int, list[int]] = defaultdict(list)
        for item, amount in some:
            amounts[item].append(amount)
        found["totals"] += [(batch, item, sum(values)) for item, values in sorted(amounts.items())]
        found["extremes"] += [(batch, item, min(values), max(values)) for item, values in sorted(amounts.items())]
    return found | {"counts": [(batch, len(some)) for batch, some in batches(records, EVENTS_OF_THE_THIRD)]}


@pytest.mark.parametrize("point", [CrashPoint.BEFORE_COMMIT, CrashPoint.IN_LOG_TRANSACTION, CrashPoint.AFTER_COMMIT])
def test_dying_at_commits_changes_nothing(
    point: CrashPoint, log_url: str, warehouse_url: str, sales: Path, tmp_path: Path
) -> None:
    armed = {("op2", incarnation): f"{point}:{incarnation + 1}" for incarnation in (1, 2, 3)}
    ref = bundle.parse_ref(f"{MODULE}:pipeline")
    with running(log_url, warehouse_url, sales, PlainLauncher(tmp_path / "drivers", armed), ref=ref) as run:
        run.finish()
        assert run.status("op2").incarnation >= 3, f"{point} was not passed"
        batches_of_seven = -(-ROWS // (EVENTS * RECORDS_PER_EVENT))
        assert run.count("op2.extremes", "out") == batches_of_seven * ITEMS, "an event per item"
    written = {
        table: rows_of(warehouse_url, f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1, 2")
        for table, columns in COLUMNS.items()
    }
    assert written == expected(sales)

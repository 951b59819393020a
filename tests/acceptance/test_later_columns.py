"""A column that comes on day 40, on real drivers that die in the transaction that adds it. Compared with DuckDB's answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from tests.support.owned_day import DAY, OTHER, OwnedDay
from tests.support.warehouse import change, rows_of

pytestmark = pytest.mark.acceptance

LATER = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'owned_day.py'}:later")
DEATHS = (
    f"{CrashPoint.BEFORE_WRITE}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:2",
    f"{CrashPoint.IN_DAY_SWITCH}:1",
)
"""Before the openings of both tables, and in each; then in the closing."""


def test_a_day_with_a_new_column_is_exact_whatever_dies(day: OwnedDay) -> None:
    wanted = day.reads(0)
    change(day.warehouse_url, "ALTER TABLE clicks DROP COLUMN page")
    armed = {("replacing", number): point for number, point in enumerate(DEATHS, 1)}
    with day.run("later", armed, ref=LATER) as run:
        run.finish()
        assert run.status("replacing").incarnation > len(DEATHS), "they have died"
    assert day.there() == wanted
    assert rows_of(day.warehouse_url, f"SELECT id, page FROM clicks WHERE day = '{OTHER}'") == [(-1, None)]
    names = "SELECT count(*) FROM clicks WHERE page IS NULL"
    assert rows_of(day.warehouse_url, f"{names} AND day = '{DAY}'") == [(0,)]

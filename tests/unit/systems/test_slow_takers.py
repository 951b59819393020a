"""Reads whose rows are stored while they come: a store that is busy for longer than an idle session may be silent."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_logio import TableRead, databases
from airflow_logio.systems.warehouse import Warehouse
from tests.support.postgres import idle_for_long
from tests.support.warehouse import change, rows_of

pytestmark = pytest.mark.postgres


def test_a_session_whose_rows_are_being_stored_is_not_ended(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is of the same snapshot."""
    monkeypatch.setattr(databases, "IDLE_IN_TRANSACTION_SECONDS", 0.2)
    change(postgres_url, "CREATE TABLE sales AS SELECT i AS id FROM generate_series(1, 30000) AS i")

    def taken(tables: Iterator[pa.Table]) -> int:
        found = [next(tables), next(tables)]
        assert found[1].num_rows
        change(postgres_url, "DELETE FROM sales")
        idle_for_long(postgres_url)
        return sum(table.num_rows for table in (*found, *tables))

    warehouse = Warehouse("wh", postgres_url)
    try:
        assert warehouse.pieces(TableRead("wh", "sales"), None, taken) == 30_000
    finally:
        warehouse.close()
    assert rows_of(postgres_url, "SELECT count(*) FROM sales") == [(0,)]

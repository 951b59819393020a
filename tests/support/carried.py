"""Columns in which records carry the rows that they were made of: the brute force that lineage is compared with."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.lineage.lineage_records import columns_of


def hide(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Lineage does not see these columns, whatever it compares."""

    def hidden(*arguments: Any) -> pa.Table:
        table = columns_of(*arguments)
        return table.drop_columns([name for name in names if name in table.column_names])

    monkeypatch.setattr("airflow_logio.lineage.event_columns.columns_of", hidden)

"""Runs that append a row to a table, with markers that say where the run stands among those of its pipeline."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.systems.warehouse import Warehouse

LOG = "10ca1" + 27 * "0"
WRITER = TableWriter("wh", "t", {"a": "bigint"}, on_new_run="append")


def marker(ordinal: int, *, token: int = 1, pipeline: str = "clicks", log: str = LOG) -> Marker:
    return Marker(f"{pipeline}{ordinal}", "save", "wh", 0, token, float(ordinal), line=(log, pipeline, ordinal))


def append(warehouse: Warehouse, by: Marker) -> None:
    """All that a run writes: it opens, and appends its number."""
    where = (by.run_uid, "save", "wh")
    opening = WriteAction(*where, 1, by.token, pa.table({}), {"action": "begin"})
    rows = pa.table({"a": [by.line[2] if by.line else 0]})
    warehouse.apply(by, WRITER, [opening, WriteAction(*where, 2, by.token, rows, {"action": "insert"})])


def rows(warehouse: Warehouse, query: str = "SELECT a FROM t ORDER BY a") -> list[Any]:
    with warehouse.engine.connect() as connection:
        return list(connection.execute(sa.text(query)).scalars())


MARKERS = "SELECT run_uid FROM logio_marker WHERE connection = 'wh' ORDER BY run_uid"

"""Runs that update rows of a table by their keys, and what is to be there, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.systems.warehouse import Warehouse

COLUMNS = {"id": "bigint", "at": "bigint", "who": "text"}
SCHEMA = pa.schema({"id": pa.int64(), "at": pa.int64(), "who": pa.string()})
BY_VERSION = TableWriter("wh", "t", COLUMNS, ("id",), mode="upsert", version="at")
LAST_WINS = TableWriter("wh", "t", COLUMNS, ("id",), mode="upsert")
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Run:
    """A run, and what its driver does at the warehouse."""

    uid: str = "new"
    started_at: float = 2.0
    writer: TableWriter = BY_VERSION
    token: int = 1
    slot: int = 0
    schema: pa.Schema = SCHEMA

    @property
    def marker(self) -> Marker:
        return Marker(self.uid, "save", "wh", self.slot, self.token, self.started_at)

    def action(self, number: int, rows: pa.Table | Sequence[Row]) -> WriteAction:
        """The first one begins the run."""
        table = rows if isinstance(rows, pa.Table) else records(rows, self.schema)
        kind = "begin" if number == 1 else "insert"
        return WriteAction(self.uid, "save", "wh", number, self.token, table, {"action": kind}, self.slot)

    def begin(self, warehouse: Warehouse, **more: Any) -> None:
        warehouse.apply(self.marker, self.writer, [self.action(1, pa.table({}))], **more)

    def apply(self, warehouse: Warehouse, actions: Mapping[int, pa.Table | Sequence[Row]], **more: Any) -> None:
        """Number → rows, as one group."""
        made = [self.action(number, rows) for number, rows in actions.items()]
        warehouse.apply(self.marker, self.writer, made, **more)

    def write(self, warehouse: Warehouse, *rows: Row) -> None:
        """All of it: the run begins, and writes one event."""
        self.apply(warehouse, {1: pa.table({}), 2: rows})


def records(rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def contents(warehouse: Warehouse, table: str = "t") -> list[Row]:
    with warehouse.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY 1, 2"))]


def execute(warehouse: Warehouse, *statements: str) -> None:
    with warehouse.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def greatest(*rows: Row) -> list[Row]:
    """The row of the greatest version of each key: key first, version second."""
    found: dict[Any, Row] = {}
    for row in rows:
        if row[0] not in found or found[row[0]][1] < row[1]:
            found[row[0]] = row
    return sorted(found.values())

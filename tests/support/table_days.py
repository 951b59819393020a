"""Runs that own a day of a table, and what their drivers do at the warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.protocol.scope_rules import DayRun
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems.warehouse import TableTarget, Warehouse

D1, D2 = "2026-03-01", "2026-03-02"
COLUMNS = {"day": "date", "a": "bigint", "who": "text"}
Row = tuple[str, int, str]


def params_of(key: str) -> dict[str, Any]:
    start = datetime.fromisoformat(f"{key[:13].replace('Z', '')}:00+00:00" if "T" in key else f"{key}T00:00:00+00:00")
    name = "hour" if "T" in key else "day"
    length = timedelta(days=1) if name == "day" else timedelta(hours=1)
    return {name: key, f"{name}_start": start.isoformat(), f"{name}_end": (start + length).isoformat()}


@dataclass(frozen=True)
class Run:
    """A run of a day, and what its driver does at the warehouse."""

    ordinal: int
    day: str = D1
    uid: str = ""
    token: int = 1
    pipeline: str = "clicks"
    log_uid: str = "log"
    takes_over: bool = False
    may_be_empty: bool = False
    given_up: tuple[str, ...] = ()
    started_at: float = 0.0
    columns: Any = None
    by: str = "day"
    table: str = "t"
    options: tuple[tuple[str, Any], ...] = ()
    slot: int = 0

    @property
    def name(self) -> str:
        return self.uid or f"{self.pipeline}{self.ordinal}"

    @property
    def writer(self) -> TableWriter:
        columns = COLUMNS if self.columns is None else self.columns or None
        made = TableWriter("wh", self.table, columns, on_new_run="overwrite", by=(self.by,), **dict(self.options))
        return made.for_run(params_of(self.day))

    def target(self, warehouse: Warehouse) -> TableTarget:
        run = DayRun(self.pipeline, self.log_uid, self.ordinal, self.name)
        return TableTarget(self.writer, warehouse, self.given_up, run, self.takes_over, self.may_be_empty)

    @property
    def marker(self) -> Marker:
        return Marker(self.name, "save", "wh", self.slot, self.token, self.started_at or float(self.ordinal))

    def action(self, number: int, records: pa.Table, kind: str = "insert") -> WriteAction:
        return WriteAction(self.name, "save", "wh", number, self.token, records, {"action": kind})

    def open(self, warehouse: Warehouse) -> None:
        self.target(warehouse).apply(warehouse, self.marker, [self.action(1, pa.table({}), "begin")])

    def fill(self, warehouse: Warehouse, *numbers: int, first: int = 2) -> None:
        """Each number is a row, and a write action; for a run that fills its day at once."""
        actions = [self.action(at, records(self.day, number, self.name)) for at, number in enumerate(numbers, first)]
        self.target(warehouse).apply(warehouse, self.marker, actions)

    def close(self, warehouse: Warehouse, *numbers: int, pages: Sequence[pa.Table] | None = None) -> None:
        """Each number is a row, and a page of its own."""
        tables = [records(self.day, number, self.name) for number in numbers] if pages is None else pages
        actions = [[self.action(number, table)] for number, table in enumerate(tables, 2)]
        last = len(actions) + 2
        group = HeldGroup(2, last, sum(table.num_rows for table in tables))
        closing = self.action(last, pa.table({}), "close")
        self.target(warehouse).apply_held(warehouse, self.marker, group, closing, actions)

    def all(self, warehouse: Warehouse, *numbers: int) -> None:
        self.open(warehouse)
        self.close(warehouse, *numbers)


def records(day: str, a: int, who: str) -> pa.Table:
    return pa.table({"day": pa.array([date.fromisoformat(day)]), "a": pa.array([a], pa.int64()), "who": [who]})


def rows(warehouse: Warehouse, table: str = "t") -> list[Row]:
    with warehouse.engine.connect() as connection:
        found = connection.execute(sa.text(f"SELECT day, a, who FROM {table} ORDER BY 1, 2, 3"))
        return [(str(row.day), row.a, row.who) for row in found]


def execute(warehouse: Warehouse, *statements: str) -> None:
    with warehouse.engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def scope_of(warehouse: Warehouse, scope: str = f"day={D1}") -> dict[str, Any]:
    with warehouse.engine.connect() as connection:
        query = sa.text("SELECT * FROM logio_scope WHERE scope = :scope")
        return dict(connection.execute(query, {"scope": scope}).mappings().one())

"""Runs that own what runs of their partition have written, and what their drivers do at the warehouse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import COLUMNS, Run, params_of


@dataclass(frozen=True)
class Superseding(Run):
    """A run of a partition; its rows may have any values. `by` names the partition."""

    run_column: str | None = None

    @property
    def writer(self) -> TableWriter:
        columns = COLUMNS if self.columns is None else self.columns or None
        options: dict[str, Any] = dict(self.options)
        made = TableWriter(
            "wh", self.table, columns, on_new_run="supersede", run_column=self.run_column, **options
        ).in_pipeline_by(self.by)
        return made.for_run(params_of(self.day))


def numbered(warehouse: Warehouse, table: str = "t") -> list[tuple[str, int, str, int | None]]:
    """The rows, with the number of the scope that owns each."""
    with warehouse.engine.connect() as connection:
        found = connection.execute(sa.text(f"SELECT day, a, who, logio_run FROM {table} ORDER BY 1, 2, 3, 4"))
        return [(str(row.day), row.a, row.who, row.logio_run) for row in found]

"""Declared side-effect reads (Section 2: a Middle operator that is a Reader)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_logio.dataflow.names import check_column, check_columns, check_name, check_table
from airflow_logio.errors import PipelineDefinitionError


@dataclass(frozen=True, slots=True)
class TableRead:
    """Rows of one external table, as additional input of a generation (Algorithm 4).

    `columns` are the columns to fetch, all of them if empty. `key` is the column by which the rows are restricted to
    the keys present in a batch, and by which the rows that one Input Set used can be listed later; the input records
    must have a column of the same name. Without a key the whole table is read.
    Raises PipelineDefinitionError for a name that is not allowed and for a key outside `columns`.
    """

    connection: str
    table: str
    columns: tuple[str, ...] = ()
    key: str | None = None

    def __post_init__(self) -> None:
        check_name("connection", self.connection)
        check_table(self.table)
        object.__setattr__(self, "columns", check_columns(self.columns))
        if self.key is not None and self.columns and check_column(self.key) not in self.columns:
            raise PipelineDefinitionError(
                f"the read of table {self.table!r} has key {self.key!r}, which is not among its columns {self.columns}"
            )

    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""
        return {"connection": self.connection, "table": self.table, "columns": list(self.columns), "key": self.key}

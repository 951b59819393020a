"""The rows of a table that a run owns: looked for, counted and deleted in the transaction that replaces them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.databases import kept_rows
from airflow_logio.systems.databases.table_names import TableName, always_quoted
from airflow_logio.systems.stored_records import NO_CONSTANTS, StagedFiles


class OwnedRows(ABC):
    """The rows whose `column` says that they are the run's. The table is there.

    Raises `WriteRefused` if parts of it cannot be owned.
    """

    constants: Mapping[str, int] = NO_CONSTANTS
    """Column → value that each row of the run has, and that its records do not have."""

    def __init__(self, connection: Connection, writer: TableWriter, name: TableName, column: str) -> None:
        self._connection = connection
        self._where = f"table {writer.table!r}"
        kept_rows.check_owned_by_value(connection, writer, name)
        self._scope = writer.scope
        self._column: sa.ColumnClause[Any] = sa.column(always_quoted(column))
        schema = None if name.schema is None else always_quoted(name.schema)
        self._table = sa.table(always_quoted(name.table), self._column, schema=schema)

    @property
    @abstractmethod
    def _is_mine(self) -> sa.ColumnElement[bool]: ...

    def is_filled(self) -> bool:
        """Whether there is one."""
        query = sa.select(sa.literal(1)).select_from(self._table).where(self._is_mine).limit(1)
        return self._connection.execute(query).first() is not None

    def count(self) -> int:
        query = sa.select(sa.func.count()).select_from(self._table).where(self._is_mine)
        return int(self._connection.execute(query).scalar_one())

    def delete(self) -> None:
        """Delete all. Again, if some are left: others may have committed some since. Raises `WriteRefused`."""
        kept_rows.delete_all(self._connection, sa.delete(self._table).where(self._is_mine), self.is_filled)
        if left := self.count():
            raise WriteRefused(
                f"{self._where} still has {left:,} rows of {self._scope} after all of them were deleted; nothing is "
                "changed. A trigger or a rule of the table keeps them: change it, then retry"
            )

    @abstractmethod
    def check_staged(self, staged: StagedFiles, counts: Sequence[int]) -> None:
        """Raises `WriteRefused` if executors have loaded records that cannot be the run's.

        `counts` are the records of each file.
        """

    @abstractmethod
    def check_part(self, part: WriteAction) -> None:
        """The same for records that pass through the driver."""

    def labelled(self, actions: Sequence[WriteAction]) -> Sequence[WriteAction]:
        """The actions with records as the table has them."""
        return actions

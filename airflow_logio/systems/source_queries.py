"""Queries of sources: rows of a SQL connection in pieces, in one snapshot, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import ColumnType, column_type
from airflow_logio.dataflow.operators import SparkFrame
from airflow_logio.dataflow.sources.query import without_colons
from airflow_logio.errors import ConfigurationError, OperatorFailed
from airflow_logio.postgres_sessions import idle_for
from airflow_logio.systems.rising_columns import FollowedColumn, rising_column
from airflow_logio.systems.sql_types import read_type
from airflow_logio.systems.table_reads import column_kind, described_table, pieces
from airflow_logio.systems.warehouse import Warehouse

_REFUSED_BY_SQLITE = ("no such ", 'near "', "incomplete input", "ambiguous column", "unrecognized token")


PAUSE_SECONDS = 3600.0
"""How long a query waits in its snapshot while its group is held up, or while what it has read is being stored. After that
the rest is read in another snapshot."""


@dataclass(frozen=True, slots=True)
class DeclaredConnection:
    """A connection of the pipeline, as a source sees it (`SourceConnection`, `RangeConnection`)."""

    url: str
    warehouse: Callable[[], Warehouse]

    def query(
        self,
        statement: str,
        values: Mapping[str, Any],
        columns: Mapping[str, str | None],
        table: str | None = None,
    ) -> Iterator[pa.Table]:
        """Rows of a SELECT, a server-side cursor behind them. Types that `columns` leaves open are those of `table`.

        Raises ExternalUnavailable, and ConfigurationError for a statement that the database refuses.
        """
        with self.warehouse().snapshot(**idle_for(PAUSE_SECONDS)) as connection:
            types = {name: column_type(name, kind) if kind else None for name, kind in columns.items()}
            if table is not None and not (types and all(types.values())):
                types = _described(connection, table, types)
            where = "a source" if table is None else f"a source of table {table!r}"
            known = {name: kind for name, kind in types.items() if kind}
            yield from _pieces(connection, where, statement, values, known)

    def rising(self, table: str, by: str, *, append_only: bool) -> FollowedColumn:
        """A column by which a table is read, as a driver follows it."""
        return rising_column(self.warehouse(), table, by, append_only=append_only)

    def rows(self, *_: Any, **__: Any) -> SparkFrame:
        """Raises `OperatorFailed`: nothing is read while a source is asked how far it goes."""
        raise OperatorFailed("rows() of a connection is for frame(), whose jobs it lasts for")


def _pieces(
    connection: Connection, where: str, statement: str, values: Mapping[str, Any], types: dict[str, ColumnType]
) -> Iterator[pa.Table]:
    is_sqlite = connection.dialect.name == "sqlite"
    selected = sa.text(without_colons(statement)).columns(
        **{name: sa.types.NullType() if is_sqlite else read_type(kind) for name, kind in types.items()}
    )
    try:
        yield from pieces(connection, f"the query of {where}", selected, types, values)
    except sa.exc.DBAPIError as error:
        cause = str(error.orig).strip()
        if isinstance(error, sa.exc.ProgrammingError | sa.exc.DataError) or cause.startswith(_REFUSED_BY_SQLITE):
            raise ConfigurationError(
                f"the database refused the query of a source: {cause}. It was: {statement}"
            ) from error
        raise


def _described(
    connection: Connection, table: str, types: Mapping[str, ColumnType | None]
) -> dict[str, ColumnType | None]:
    """The columns of a table with their types, those that are given as they are given."""
    found = described_table(connection, table, "that a source reads does not exist")
    missing = [column for column in types if column not in found.columns]
    if missing:
        raise ConfigurationError(f"the table {table!r} that a source reads has no column {missing[0]!r}")
    wanted = types or dict.fromkeys(column.name for column in found.columns)
    return {column: kind or column_kind(found.columns[column]) for column, kind in wanted.items()}

"""Whether the rows of a value are found in a table without a look at all of them: an index that begins with a column."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.systems.databases.table_names import TableName, folded, in_double_quotes

_INDEXABLE = ("r", "p", "table")
_INDEXED = sa.text("""
    SELECT CAST(c.relkind AS text) AS relkind, EXISTS (
        SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
        WHERE i.indrelid = c.oid AND a.attname = :column AND i.indisvalid AND i.indpred IS NULL
    ) OR EXISTS (
        SELECT FROM pg_partitioned_table AS p JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
        WHERE p.partrelid = c.oid AND a.attname = :column
    ) AS is_indexed
    FROM pg_class AS c WHERE c.oid = to_regclass(:name)
""")
"""A table that is partitioned by the column needs no index: its rows of a day are in one partition."""
_KIND_IN_SQLITE = sa.text("SELECT type FROM sqlite_master WHERE lower(name) = :name")
_INDEXES_IN_SQLITE = sa.text("SELECT name FROM pragma_index_list(:name) WHERE NOT partial")
_FIRST_IN_SQLITE = sa.text("SELECT name FROM pragma_index_info(:index) WHERE seqno = 0")


def missing_index(connection: Connection, name: TableName, column: str) -> str | None:
    """What makes replacing a day slow, in words: no index of the table begins with the column. None if one does, or if there
    is no table that could have one."""
    statement = index_to_make(connection, name, column)
    if statement is None:
        return None
    return f"no index of it begins with {column!r}, so each run looks at all rows for those of its day: {statement}"


def index_to_make(connection: Connection, name: TableName, column: str) -> str | None:
    """The statement that makes an index which begins with the column. None as `missing_index`."""
    if connection.dialect.name == "sqlite":
        kind, has_index = _indexed_in_sqlite(connection, name, column)
    else:
        found = connection.execute(_INDEXED, {"name": name.as_value(), "column": column}).one_or_none()
        kind, has_index = (None, False) if found is None else (found.relkind, found.is_indexed)
    return None if kind not in _INDEXABLE or has_index else index_of(connection, name, column)


def index_of(connection: Connection, name: TableName, column: str) -> str:
    """The statement that makes an index of a column."""
    named = f"{in_double_quotes(f'{name.table}_{column}')} " if connection.dialect.name == "sqlite" else ""
    return f"CREATE INDEX {named}ON {name.as_value()} ({in_double_quotes(column)})"


def _indexed_in_sqlite(connection: Connection, name: TableName, column: str) -> tuple[str | None, bool]:
    kind = connection.execute(_KIND_IN_SQLITE, {"name": name.key}).scalar()
    indexes = connection.execute(_INDEXES_IN_SQLITE, {"name": name.table}).scalars().all()
    firsts = (connection.execute(_FIRST_IN_SQLITE, {"index": index}).scalar() for index in indexes)
    return kind, any(folded(first) == folded(column) for first in firsts if first is not None)

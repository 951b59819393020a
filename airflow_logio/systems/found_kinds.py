"""Which types the columns of records have in a table that is there, for a writer that declares no columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.errors import WriteRefused
from airflow_logio.systems import postgres_columns, sql_types
from airflow_logio.systems.lossy_columns import check_columns

_SORTS = {
    **dict.fromkeys(("bigint", "int", "double", DECIMAL, "boolean"), "number"),
    **dict.fromkeys(("timestamp", "timestamptz", "date"), "time"),
    **dict.fromkeys(("text", "json", "uuid"), "text"),
    "binary": "bytes",
}
_CONVERTED = {("text", "number"), ("text", "time"), ("text", "bytes"), ("bytes", "text")}
"""Which sort of records is converted to which sort of column, and refused by value if it is none."""


def found_kinds(
    table: str, described: sa.Table, found: Mapping[str, str], actions: Sequence[WriteAction], dialect: str
) -> dict[str, ColumnType | None]:
    """Column → its type in the database; None for one that only the database's driver knows.

    Raises `WriteRefused` for a column that is not there, and for records of another sort: nobody has declared that a number
    is to be a text, or a time a number.
    """
    names = actions[0].records.column_names
    check_columns(table, dict.fromkeys(names), found, dialect)
    if dialect == "sqlite":
        types = {column.name.lower(): column.type for column in described.columns}
        kinds = {name: sql_types.described(types[name.lower()]) for name in names}
    else:
        kinds = {name: _kind_in_postgres(found[name], name, actions) for name in names}
    for name, kind in kinds.items():
        for action in actions:
            if kind is not None and name in action.records.schema.names:
                _check_sort(table, name, kind, action)
    return kinds


def _kind_in_postgres(found: str, column: str, actions: Sequence[WriteAction]) -> ColumnType | None:
    """A NUMERIC without a precision holds every decimal and every double: it is taken for what the records have."""
    if found == "numeric":
        schemas = [action.records.schema for action in actions]
        kinds = {sql_types.kind_of_records(one.field(column).type) for one in schemas if column in one.names}
        kind = kinds.pop() if len(kinds) == 1 else None
        if kind is not None and kind.name == DECIMAL:
            return kind
    return postgres_columns.kind_of(found)


def _check_sort(table: str, name: str, kind: ColumnType, action: WriteAction) -> None:
    records = action.records.schema.field(name).type
    given = sql_types.kind_of_records(records)
    if given is None:
        return
    sorts = _SORTS[given.name], _SORTS[kind.name]
    if sorts[0] != sorts[1] and sorts not in _CONVERTED:
        raise WriteRefused(
            f"records for table {table!r}, column {name!r} ({kind}), write action {action.number}: they have {records} "
            "there; cast it before the writer, or declare the columns"
        )

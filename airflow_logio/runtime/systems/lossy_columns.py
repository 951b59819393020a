"""Columns that are there and would change what is written into them, without a word: rounded, cut, turned into a number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.errors import WriteRefused
from airflow_logio.runtime.systems.sql_types import ExactDecimal

DIGITS_OF_A_DOUBLE = 15
MICROSECONDS = 6


def check_columns(table: str, kinds: Mapping[str, ColumnType], found: sa.Table, dialect: str) -> None:
    """Raises `WriteRefused` for a column that is missing, or that does not hold every value of its type in `kinds`."""
    loses = _loses_in_sqlite if dialect == "sqlite" else _loses_in_postgres
    columns = {_compared(column.name, dialect): column for column in found.columns}
    for name, kind in kinds.items():
        column = columns.get(_compared(name, dialect))
        if column is None:
            raise WriteRefused(f"table {table!r} has no column {name!r}; it has {[one.name for one in found.columns]}")
        if loses(kind, column.type):
            raise WriteRefused(
                f"table {table!r}, column {name!r} is declared {kind}, and the database has it as {column.type}, which "
                "does not hold every such value; change one of them"
            )


def _compared(name: str, dialect: str) -> str:
    return name.lower() if dialect == "sqlite" else name


def _is_numeric(found: TypeEngine[Any]) -> bool:
    return isinstance(found, sa.Numeric) and not isinstance(found, sa.Float)


def _loses_in_postgres(kind: ColumnType, found: Any) -> bool:
    precision = getattr(found, "precision", None)
    match kind.name:
        case "decimal":
            rounds = _is_numeric(found) and precision is not None and (found.scale or 0) < kind.scale
            return rounds or isinstance(found, sa.Float) or (kind.scale > 0 and isinstance(found, sa.Integer))
        case "bigint":
            return isinstance(found, sa.Float)
        case "int":
            return isinstance(found, sa.REAL)
        case "double":
            return isinstance(found, sa.Integer | sa.REAL) or (_is_numeric(found) and precision is not None)
        case "timestamp" | "timestamptz":
            rounds = isinstance(found, sa.DateTime) and precision is not None and precision < MICROSECONDS
            return rounds or isinstance(found, sa.Date | sa.Time)
    return False


def _loses_in_sqlite(kind: ColumnType, found: Any) -> bool:
    """A column with the affinity of a number turns text that looks like one into a number, and decimals into doubles."""
    is_number = isinstance(found, sa.Integer | sa.Float) or _is_numeric(found)
    match kind.name:
        case "decimal":
            return not isinstance(found, ExactDecimal) and is_number and kind.precision > DIGITS_OF_A_DOUBLE
        case "bigint":
            return isinstance(found, sa.Float)
        case "text" | "json":
            return is_number
    return False

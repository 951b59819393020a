"""Columns that are there and would change what is written into them, without a word: rounded, cut, turned into a number."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.errors import WriteRefused
from airflow_logio.systems import postgres_columns, sqlite_columns
from airflow_logio.systems.conversions import Target


def check_columns(table: str, kinds: Mapping[str, ColumnType | None], found: Mapping[str, str], dialect: str) -> None:
    """Raises `WriteRefused` for a column that is missing, or that does not hold every value of its type in `kinds`.

    `found` are the types in the database. A column whose type in `kinds` is None is not judged here.
    """
    loses = sqlite_columns.loses if dialect == "sqlite" else postgres_columns.loses
    for name, kind in kinds.items():
        has = found.get(_compared(name, dialect))
        if has is None:
            raise WriteRefused(f"table {table!r} has no column {name!r}; it has {list(found)}")
        if kind is not None and loses(kind, has):
            raise WriteRefused(
                f"table {table!r}, column {name!r} is declared {kind}, and the database has it as {has}, which "
                "does not hold every such value; change one of them"
            )


def targets(kinds: Mapping[str, ColumnType | None], found: Mapping[str, str], dialect: str) -> dict[str, Target]:
    """The columns with what is asked of each value: a column may hold some values of a type, and change others."""
    check_of = sqlite_columns.check_of if dialect == "sqlite" else postgres_columns.check_of
    return {name: Target(kind, check_of(kind, found.get(_compared(name, dialect)))) for name, kind in kinds.items()}


def _compared(name: str, dialect: str) -> str:
    return name.lower() if dialect == "sqlite" else name

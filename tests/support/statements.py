"""Counts the statements that a process sends to databases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa


@contextmanager
def counted_statements(engine: Any = sa.Engine) -> Iterator[list[str]]:
    """The statements of an engine, or of all of them; without those that begin and end transactions."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


@contextmanager
def explained(engine: Any, *tables: str) -> Iterator[list[tuple[str, str]]]:
    """Collects each statement about one of the tables, with the plan that the database has for it, as it is sent."""
    found: list[tuple[str, str]] = []
    prefix = "EXPLAIN QUERY PLAN " if engine.dialect.name == "sqlite" else "EXPLAIN "

    def explain(_connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT set_config("):  # the settings of a transaction, in front of its first statement
            statement = statement.partition("; ")[2]
        if re.match(r"(DELETE|SELECT|UPDATE)", statement) and any(f"{table} " in f"{statement} " for table in tables):
            other = cursor.connection.cursor()
            other.execute(prefix + statement, parameters)
            found.append((statement, "\n".join(str(row[-1]) for row in other.fetchall())))
            other.close()

    sa.event.listen(engine, "before_cursor_execute", explain)
    try:
        yield found
    finally:
        sa.event.remove(engine, "before_cursor_execute", explain)

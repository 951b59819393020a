"""Counts the statements that a process sends to databases."""

from __future__ import annotations

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

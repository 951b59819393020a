"""Cells, rows and tables of `logio status`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from airflow_logio.cli.common import written

MAX_CAUSE = 100


def table(*columns: str) -> Table:
    """A table with these headings and without rules."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column)
    return made


def row(into: Table, *texts: str | Text) -> None:
    """Add a row. Cells are text, not markup, because names and errors may contain brackets."""
    into.add_row(*(Text(text) if isinstance(text, str) else text for text in texts))


def spaced(parts: Iterable[RenderableType]) -> Group:
    """Parts with an empty line between them."""
    lines: list[RenderableType] = []
    for part in parts:
        lines += [Text(), part] if lines else [part]
    return Group(*lines)


def first_line(text: str) -> str:
    """The first line of what the log says, cut if it is long."""
    line = written(text).partition("\n")[0]
    return line if len(line) <= MAX_CAUSE else line[: MAX_CAUSE - 3] + "..."


def utc(at: float) -> str:
    """A time of the log, in seconds since the epoch."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")

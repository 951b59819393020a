"""Cells of SQLite as the values of a column's type. Any cell may hold anything there: what is no such value is refused.

Nothing is rounded or cut: Arrow takes 1.5 for 1 in a column of integers, and SQLAlchemy any number but 0 for true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from airflow_logio.dataflow.column_types import ColumnType

_CUT = re.compile(r"[.,][0-9]{7}")
"""Python reads six digits of a second, and drops others."""


def value_of(kind: ColumnType, cell: Any) -> Any:
    """Raises ValueError for a cell that is no value of the column's type."""
    read: Callable[[Any], Any] = _READERS.get(kind.name, _text)
    return None if cell is None else read(cell)


def _integer(cell: Any) -> int:
    if isinstance(cell, int) or (isinstance(cell, float) and cell.is_integer()):
        return int(cell)
    raise _is_no("whole number", cell)


def _double(cell: Any) -> float:
    if isinstance(cell, int | float) and float(cell) == cell:
        return float(cell)
    raise _is_no("double", cell)


def _decimal(cell: Any) -> Decimal:
    """Numbers that others have stored as doubles are read as they are written."""
    if isinstance(cell, int | float | str):
        try:
            return Decimal(str(cell))
        except InvalidOperation:
            pass
    raise _is_no("decimal", cell)


def _boolean(cell: Any) -> bool:
    if isinstance(cell, int | float) and cell in (0, 1):
        return bool(cell)
    raise _is_no("boolean (0 or 1)", cell)


def _time(cell: Any) -> datetime:
    if isinstance(cell, str) and not _CUT.search(cell):
        try:
            read = datetime.fromisoformat(cell)
        except ValueError:
            pass
        else:
            return read if read.tzinfo is None else read.astimezone(UTC)
    raise _is_no("time, such as 2024-02-29 12:00:00", cell)


def _date(cell: Any) -> date:
    if isinstance(cell, str):
        try:
            return date.fromisoformat(cell)
        except ValueError:
            pass
    raise _is_no("date, such as 2024-02-29", cell)


def _text(cell: Any) -> str:
    if isinstance(cell, str):
        return cell
    raise _is_no("text", cell)


def _bytes(cell: Any) -> bytes:
    if isinstance(cell, bytes):
        return cell
    raise _is_no("bytes", cell)


def _is_no(what: str, cell: Any) -> ValueError:
    return ValueError(f"a cell of type {type(cell).__name__} that is no {what}")


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "bigint": _integer,
    "int": _integer,
    "double": _double,
    "decimal": _decimal,
    "boolean": _boolean,
    "timestamp": _time,
    "timestamptz": _time,
    "date": _date,
    "binary": _bytes,
}

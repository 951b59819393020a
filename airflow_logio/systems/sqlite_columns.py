"""What a column of SQLite keeps: SQLite converts by the affinity of a column, which it derives from letters of its type.

Affinities that keep every value of a declared type (https://sqlite.org/datatype3.html, section 3.1):

=========================================  =====================================================================
bigint                                     INTEGER, NUMERIC, BLOB
int                                        INTEGER, NUMERIC, REAL, BLOB
double                                     REAL, INTEGER, NUMERIC, BLOB (a negative zero loses its sign)
boolean                                    INTEGER, NUMERIC, REAL, BLOB
text, json                                 TEXT, BLOB; NUMERIC all but texts that look like a number
timestamp, timestamptz, date, uuid         all: they are texts that look like no number
binary                                     all: bytes are never converted
decimal                                    TEXT, BLOB; up to 15 digits NUMERIC, REAL, and without a fraction INTEGER
=========================================  =====================================================================
"""

from __future__ import annotations

import re

import pyarrow as pa

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.systems.sql_types import kind_of_records
from airflow_logio.systems.value_checks import Check, no_nan, no_number, nothing

DIGITS_OF_A_DOUBLE = 15

_TEXTS_BY_VALUE = re.compile(r"(DATE|DATETIME|TIMESTAMP|TIME|BOOL|BOOLEAN|JSON|JSONB)\b", re.IGNORECASE)
"""Types of affinity NUMERIC that authors use for texts: these are refused one by one. (For NUMERIC itself: all of them.)"""
_LOSING = {
    "bigint": ("REAL", "TEXT"),
    "int": ("TEXT",),
    "double": ("TEXT",),
    "boolean": ("TEXT",),
    "text": ("INTEGER", "REAL", "NUMERIC"),
    "json": ("INTEGER", "REAL", "NUMERIC"),
}


def affinity(found: str) -> str:
    """Of a column of type `found`, by the rules of SQLite, in their order."""
    name = found.upper()
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not name or "BLOB" in name:
        return "BLOB"
    return "REAL" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def loses(kind: ColumnType, found: str) -> bool:
    """Whether the type of the column tells that it does not hold every value of `kind`."""
    has = affinity(found)
    if kind.name == DECIMAL:
        is_number = has not in ("TEXT", "BLOB")
        return is_number and (kind.precision > DIGITS_OF_A_DOUBLE or (has == "INTEGER" and kind.scale > 0))
    by_value = kind.name in ("text", "json") and has == "NUMERIC" and _TEXTS_BY_VALUE.match(found)
    return has in _LOSING.get(kind.name, ()) and not by_value


def check_of(kind: ColumnType | None, found: str | None) -> Check:
    """What else is asked of each value; `kind` is None in a column of a type that this package does not know."""
    if kind is None:
        return _check_unknown(found or "")
    if kind.name == "double":
        return no_nan
    if found is not None and kind.name in ("text", "json") and affinity(found) == "NUMERIC":
        return no_number(found)
    return nothing


def _check_unknown(found: str) -> Check:
    def check(values: pa.ChunkedArray) -> None:
        kind = kind_of_records(values.type)
        if kind is None:
            return
        if kind.name == DECIMAL or loses(kind, found):
            raise ValueError(f"a column of type {found or 'no type'} does not hold every {kind}")
        check_of(kind, found)(values)

    return check

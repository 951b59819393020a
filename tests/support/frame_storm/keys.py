"""Keys that a database finds by rules of its own: how a table has them, how records ask for them, what its join says."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from typing import Any

import pyarrow as pa

ANY_CASE = """
    CREATE TYPE anycase;
    CREATE FUNCTION anycase_in(cstring) RETURNS anycase AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
    CREATE FUNCTION anycase_out(anycase) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
    CREATE TYPE anycase (INPUT = anycase_in, OUTPUT = anycase_out, LIKE = text, CATEGORY = 'S');
    CREATE CAST (anycase AS text) WITHOUT FUNCTION AS IMPLICIT;
    CREATE CAST (text AS anycase) WITHOUT FUNCTION AS ASSIGNMENT;
    CREATE FUNCTION anycase_eq(anycase, anycase) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT
        AS 'SELECT lower($1::text) = lower($2::text)';
    CREATE OPERATOR = (LEFTARG = anycase, RIGHTARG = anycase, FUNCTION = anycase_eq, COMMUTATOR = =);
"""
"""Text without case, as the extension citext makes it, which the server of the tests does not have."""
ID, OTHER_ID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00000000-0000-0000-0000-000000000000"


def _noon(zone: dt.tzinfo = dt.UTC) -> dt.datetime:
    return dt.datetime(2024, 2, 29, 12, tzinfo=zone)


@dataclass(frozen=True, slots=True)
class Keys:
    """`stored` are the cells of a `column`, `asked` the keys of records. `found` is how the database itself joins the two:
    ``found.k`` is the first, ``asked.k`` the second, in a column of type `asked_type`."""

    name: str
    on_server: bool
    column: str
    stored: Sequence[Any]
    arrow: pa.DataType
    asked: Sequence[Any]
    asked_type: str
    found: str
    before: str = ""

    @property
    def has_nan(self) -> bool:
        """SQLite would make null of it, so it is refused there."""
        return any(isinstance(key, float) and isnan(key) for key in self.asked)


KEYS = (
    Keys(
        "char",
        True,
        "char(5)",
        ["a", "ab", "é", "😀"],
        pa.string(),
        ["a", "a  ", "é", "x", "😀 ", "A"],
        "text",
        "found.k = asked.k::bpchar",
    ),
    Keys(
        "nocase",
        False,
        "TEXT COLLATE NOCASE",
        ["Tea", "tea", "x", "É"],
        pa.string(),
        ["TEA", "tea", "X", "é", "y"],
        "TEXT",
        "found.k = asked.k",
    ),
    Keys(
        "uuid",
        True,
        "uuid",
        [ID, OTHER_ID],
        pa.string(),
        [ID, ID.upper(), ID.replace("-", ""), f"{{{ID}}}", "no uuid", OTHER_ID],
        "text",
        "found.k = CASE WHEN asked.k LIKE 'no%' THEN NULL ELSE asked.k::uuid END",
    ),
    Keys(
        "times as text",
        False,
        "TIMESTAMP",
        [
            "2024-02-29 12:00:00",
            "2024-02-29T12:00:00",
            "2024-02-29T14:00:00+02:00",
            "2024-02-29 12:00Z",
            "2024-02-29",
            "noon",
        ],
        pa.timestamp("us", "UTC"),
        [_noon(), _noon() - dt.timedelta(hours=12), _noon() + dt.timedelta(hours=1)],
        "TEXT",
        "strftime('%s', found.k) = strftime('%s', asked.k)",
    ),
    Keys(
        "decimals",
        True,
        "numeric(9,2)",
        ["1", "1.5", "2"],
        pa.decimal128(12, 3),
        [Decimal("1.000"), Decimal("1.500"), Decimal("2.001")],
        "numeric",
        "found.k = asked.k",
    ),
    Keys(
        "decimals of SQLite",
        False,
        "DECIMAL(9,2)",
        [1.1, "1.10", 2],
        pa.decimal128(12, 3),
        [Decimal("1.100"), Decimal("2.000"), Decimal("2.001")],
        "REAL",
        "found.k = asked.k",
    ),
    Keys(
        "text without case",
        True,
        "anycase",
        ["Tea", "tea", "x"],
        pa.string(),
        ["TEA", "tea", "X", "y"],
        "text",
        "found.k = asked.k::anycase",
        ANY_CASE,
    ),
    Keys(
        "blanks at the end",
        False,
        "TEXT COLLATE RTRIM",
        ["a", "a ", "b"],
        pa.string(),
        ["a", "a  ", " a", "b"],
        "TEXT",
        "found.k = asked.k",
    ),
    Keys(
        "instants",
        True,
        "timestamptz",
        ["2024-02-29 12:00+00", "2024-02-29 14:00+02", "2024-02-29 12:00-05"],
        pa.timestamp("us", "UTC"),
        [_noon(), _noon() + dt.timedelta(hours=5), _noon() + dt.timedelta(hours=1)],
        "timestamptz",
        "found.k = asked.k",
    ),
    Keys(
        "large numbers",
        False,
        "INTEGER",
        [1, 2**53 + 1, 2**53],
        pa.decimal128(20, 1),
        [Decimal("1.0"), Decimal("1.5"), Decimal(2**53 + 1)],
        "NUMERIC",
        "found.k = asked.k",
    ),
    Keys(
        "doubles",
        True,
        "double precision",
        ["0", "-0", "NaN", "0.1"],
        pa.float64(),
        [0.0, -0.0, float("nan"), 0.1, 0.2],
        "double precision",
        "found.k = asked.k",
    ),
)

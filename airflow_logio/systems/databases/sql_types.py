"""What a declared column type is in SQL and in Arrow, and which type a column of a database has.

SQLite has no decimals: a number with a point becomes a double. A decimal is stored there as text, in a column of type
``DECIMAL_TEXT(p,s)``, so that it comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.types import TypeEngine, UserDefinedType

from airflow_logio.dataflow.column_types import DECIMAL, MOST_DIGITS, ColumnType

_TIMESTAMP = pa.timestamp("us")
_ARROW: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": _TIMESTAMP,
    "timestamptz": _TIMESTAMP,
    "date": pa.date32(),
    "json": pa.string(),
    "uuid": pa.string(),
    "binary": pa.binary(),
}
_SQL: dict[str, TypeEngine[Any]] = {
    "bigint": sa.BigInteger(),
    "int": sa.Integer(),
    "double": sa.Double(),
    "text": sa.Text(),
    "boolean": sa.Boolean(),
    "timestamp": sa.DateTime(),
    "timestamptz": sa.DateTime(timezone=True),
    "date": sa.Date(),
    "json": sa.JSON().with_variant(sa.Text(), "sqlite"),
    "uuid": sa.Uuid(as_uuid=False).with_variant(sa.Text(), "sqlite"),
    "binary": sa.LargeBinary(),
}


class ExactDecimal(UserDefinedType[Decimal]):
    """A decimal as text, in SQLite."""

    cache_ok = True

    def __init__(self, precision: int | None = None, scale: int | None = None) -> None:
        self.precision = precision
        self.scale = scale or 0

    def get_col_spec(self, **_: Any) -> str:
        return f"DECIMAL_TEXT({self.precision}, {self.scale})"


def know_exact_decimals(engine: Engine) -> None:
    """Make an engine of SQLite describe columns of decimals as such."""
    dialect: Any = engine.dialect
    dialect.ischema_names = {**dialect.ischema_names, "DECIMAL_TEXT": ExactDecimal}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Times are UTC, without a zone (design D14). A uuid and JSON are text."""
    if kind.name == DECIMAL:
        make = pa.decimal128 if kind.precision <= MOST_DIGITS else pa.decimal256
        return make(kind.precision, kind.scale)
    return _ARROW[kind.name]


def sql_type(kind: ColumnType) -> TypeEngine[Any]:
    """The type of a new column."""
    if kind.name == DECIMAL:
        exact = ExactDecimal(kind.precision, kind.scale)
        return sa.Numeric(kind.precision, kind.scale).with_variant(exact, "sqlite")
    return _SQL[kind.name]


def read_type(kind: ColumnType) -> TypeEngine[Any]:
    """The type in which values are taken from the database: JSON as the text that it is."""
    return sa.Text() if kind.name == "json" else sql_type(kind)


def decimal_kind(precision: int, scale: int) -> ColumnType:
    """For a NUMERIC of PostgreSQL, which may end before the point, or begin behind it."""
    return ColumnType(DECIMAL, max(precision, scale, precision - scale), max(scale, 0))


def kind_of_records(found: pa.DataType) -> ColumnType | None:
    """The column type that holds every value of an Arrow type; None if there is none."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_decimal(found):
        return ColumnType(DECIMAL, found.precision, found.scale)
    return next((ColumnType(name) for is_one, name in _RECORDS if is_one(found)), None)


_RECORDS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_integer, "bigint"),
    (pa.types.is_floating, "double"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_date, "date"),
    (pa.types.is_binary, "binary"),
    (pa.types.is_large_binary, "binary"),
)


def described(found: TypeEngine[Any]) -> ColumnType | None:
    """The column type that holds every value of a column of a database; None for a type that this package does not know."""
    if isinstance(found, ExactDecimal):
        return ColumnType(DECIMAL, found.precision or MOST_DIGITS, found.scale)
    if isinstance(found, sa.Numeric) and not isinstance(
        found, sa.Float
    ):  # a Float is no Numeric from SQLAlchemy 2.1 on
        return ColumnType("double") if found.precision is None else decimal_kind(found.precision, found.scale or 0)
    if isinstance(found, sa.DateTime):
        return ColumnType("timestamptz" if found.timezone else "timestamp")
    return next((ColumnType(name) for known, name in _KNOWN if isinstance(found, known)), None)


_KNOWN: tuple[tuple[Any, str], ...] = (
    (sa.Boolean, "boolean"),
    (sa.Integer, "bigint"),  # an INTEGER of SQLite has 64 bits
    (sa.Float, "double"),
    (sa.Date, "date"),
    (sa.JSON, "json"),
    (sa.Uuid, "uuid"),
    (sa.LargeBinary, "binary"),
    (sa.String, "text"),
)

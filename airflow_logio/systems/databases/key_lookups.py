"""Rows by keys: for each key what a join of the database finds, with the key as it was asked for.

A database takes more for equal than a join of records does: CHAR(3) without its blanks, text without case, a uuid in any
form, -0.0 for 0.0, an instant for its other forms. So the database joins, in the type and the collation of its column, and
the column of the key has what the records have. Two keys that are equal there get their rows each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.types import NullType, UserDefinedType

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.databases import sqlite
from airflow_logio.systems.databases.postgres_reads import ToldType
from airflow_logio.systems.databases.read_values import Place

_PLACES, _KEYS = "logio_places", "logio_keys"
KEYS_PER_UNION = 200
"""In a database that is neither PostgreSQL nor SQLite, which has each key in a query of its own, in one statement."""
_EXACT_IN_DOUBLES = 2**53
_UUID = re.compile(r"\{?[0-9a-f]{4}(-?[0-9a-f]{4}){7}\}?", re.IGNORECASE)
"""The forms that PostgreSQL reads: hyphens behind any four digits, perhaps in braces."""


class _NoRow(Exception):
    """No row has such a key."""


@dataclass(frozen=True)
class KeyColumn:
    """The column by which rows are looked up."""

    column: sa.Column[Any]
    told: ToldType
    """Its type, as the database tells it; in other databases than PostgreSQL by our kind of column."""


class _Named(UserDefinedType[Any]):
    """A type of PostgreSQL by its name; values go to the driver as they are."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


def told_of_kind(kind: ColumnType) -> ToldType:
    """A column of a database that tells less than PostgreSQL."""
    return ToldType(str(kind), _SORTS[kind.name])


_SORTS: Mapping[str, str] = {
    "bigint": "whole",
    "int": "whole",
    "double": "double",
    DECIMAL: "numeric",
    "boolean": "boolean",
    "timestamp": "timestamp",
    "timestamptz": "timestamp",
    "date": "date",
    "text": "text",
    "json": "json",
    "uuid": "text",
    "binary": "bytes",
}


@dataclass(frozen=True)
class Lookup:
    """How rows are looked up by keys of an Arrow type. Goes to tasks of Spark."""

    place: Place
    statement: sa.Select[Any]
    """All rows that can be found."""
    key: KeyColumn
    dialect: str
    keys: pa.DataType

    @property
    def place_name(self) -> str:
        """The column of a result that has the place of a key among those asked for, from 0. No column that is read has that
        name."""
        name, taken = "logio_place", set(self.statement.selected_columns.keys())
        while name in taken:
            name += "_"
        return name

    def check(self) -> None:
        """Raises `ConfigurationError` if the database would have to cast the keys, or lose something, to compare them."""
        if self._conversion() is None:
            raise ConfigurationError(
                f"{self.place.where} is read by {self.key.column.name!r}, which is {self.keys} in the records and "
                f"{self.key.told.name} in the database: they cannot be compared exactly; give both the same type, in an "
                "operator before this one or in a view"
            )

    def statements(self, keys: pa.Array, most: int) -> Iterator[tuple[pa.Array, sa.Executable, dict[str, Any]]]:
        """Portions of at most `most` distinct keys, each with a statement and its values."""
        most = most if self.dialect in ("postgresql", "sqlite") else min(most, KEYS_PER_UNION)
        for start in range(0, len(keys), most):
            portion = keys.slice(start, most)
            places, values = self.sent(portion)
            if places:
                yield portion, *_STATEMENTS.get(self.dialect, _of_any)(self, places, values)

    def sent(self, keys: pa.Array) -> tuple[list[int], list[Any]]:
        """Places and values of the keys that a row could have. Raises `ConfigurationError` for one that is not exact."""
        conversion, places, values = self._conversion(), [], []
        if conversion is None:
            return [], []
        for place, key in enumerate(_python_values(keys)):
            if key is None:
                continue
            try:
                value = conversion(key)
            except _NoRow:
                continue
            except ValueError as error:
                raise ConfigurationError(
                    f"{self.place.where}: key {key!r} of column {self.key.column.name!r} ({self.key.told.name}): {error}"
                ) from None
            if self.dialect != "postgresql" or _has_postgres(value, self.key.told):
                places.append(place)
                values.append(value)
        return places, values

    def answered(self, found: pa.Table, keys: pa.Array) -> pa.Table:
        """What a statement has found for these keys, with each key as it was asked for."""
        name = self.key.column.name
        places, found = found.column(self.place_name), found.drop_columns([self.place_name])
        has, asked = found.schema.field(name).type, keys.take(places)
        if asked.type != has and _sort_of(asked.type) == _sort_of(has) == "text":
            asked = asked.cast(has)
        return found.set_column(found.schema.get_field_index(name), name, asked) if asked.type == has else found

    def _conversion(self) -> Callable[[Any], Any] | None:
        sort, told = _sort_of(self.keys), self.key.told
        if sort is None or told.name in _NOT_COMPARED:
            return None
        if self.dialect == "sqlite" and sort in ("double", "numeric") and told.sort == "whole":
            return _number_of_any_cell
        return _CONVERSIONS.get((sort, told.sort))


_NOT_COMPARED = ("xml", "cidr", "inet", "macaddr", "macaddr8", "bit", "bit varying")
"""Types that are read as text, and compared as something else."""
_KEY_SORTS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_integer, "whole"),
    (pa.types.is_floating, "double"),
    (pa.types.is_decimal, "numeric"),
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_date, "date"),
    (pa.types.is_string, "text"),
    (pa.types.is_large_string, "text"),
    (pa.types.is_string_view, "text"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
)


def _sort_of(kind: pa.DataType) -> str | None:
    return next((sort for is_one, sort in _KEY_SORTS if is_one(kind)), None)


# --- keys as values that the column can have --------------------------------------------------------------------------


def _python_values(keys: pa.Array) -> list[Any]:
    """None for a time between two microseconds, which no row has."""
    if not pa.types.is_timestamp(keys.type) or keys.type.unit != "ns":
        return list(keys.to_pylist())
    micros = keys.cast(pa.timestamp("us", keys.type.tz), safe=False)
    return list(pc.if_else(pc.equal(micros.cast(keys.type), keys), micros, None).to_pylist())


def _has_postgres(value: Any, told: ToldType) -> bool:
    """Whether PostgreSQL has such a value at all: it refuses others, also where they are only compared."""
    if isinstance(value, str):
        return "\0" not in value
    return told.name != "oid" or 0 <= value < 2**32


def _same(key: Any) -> Any:
    return key


def _number(key: int) -> int:
    if not -(2**63) <= key < 2**63:
        raise _NoRow
    return key


def _whole_part(key: Decimal | float) -> int:
    """A number with a fraction is no whole number's equal."""
    if not isfinite(key) or key != int(key):
        raise _NoRow
    if isinstance(key, float) and abs(key) > _EXACT_IN_DOUBLES:
        raise ValueError(f"doubles beyond {_EXACT_IN_DOUBLES:,} stand for several whole numbers; cast it before")
    return _number(int(key))


def _number_of_any_cell(key: Decimal | float) -> Any:
    """A column of integers of SQLite may have 1.5, which is found, and refused by name."""
    if not isfinite(key) or key != int(key):
        return key
    return _whole_part(key)


def _as_double(key: int) -> float:
    if float(key) != key:
        raise ValueError("no double is this number; cast it before")
    return float(key)


def _midnight(key: date) -> datetime:
    return datetime.combine(key, time())


def _midnight_in_utc(key: date) -> datetime:
    """As a day is written into such a column."""
    return datetime.combine(key, time(), UTC)


def _day(key: datetime) -> date:
    if key.time() != time():
        raise _NoRow
    return key.date()


def _instant(key: datetime) -> datetime:
    return key.replace(tzinfo=UTC) if key.tzinfo is None else key.astimezone(UTC)


def _without_zone(key: datetime) -> datetime:
    return _instant(key).replace(tzinfo=None)


def _uuid(key: str) -> str:
    if not _UUID.fullmatch(key):
        raise _NoRow
    return key


_CONVERSIONS: Mapping[tuple[str, str], Callable[[Any], Any]] = {
    ("whole", "whole"): _number,
    ("whole", "numeric"): Decimal,
    ("whole", "double"): _as_double,
    ("whole", "single"): _as_double,
    ("numeric", "numeric"): _same,
    ("numeric", "whole"): _whole_part,
    ("double", "double"): _same,
    ("double", "single"): _same,
    ("double", "whole"): _whole_part,
    ("boolean", "boolean"): _same,
    ("timestamp", "timestamp"): _without_zone,
    ("timestamp", "timestamptz"): _instant,
    ("timestamp", "date"): _day,
    ("date", "date"): _same,
    ("date", "timestamp"): _midnight,
    ("date", "timestamptz"): _midnight_in_utc,
    ("text", "text"): _same,
    ("text", "uuid"): _uuid,
    ("bytes", "bytes"): _same,
}
"""Sort of keys, sort of the column → a key as the column has it; times of records are in UTC. Not here: a decimal beside a
double, where rounding would decide what is equal."""


# --- statements -------------------------------------------------------------------------------------------------------

_ARRAYS: Mapping[str, str] = {
    "whole": "bigint[]",
    "numeric": "numeric[]",
    "double": "double precision[]",
    "single": "double precision[]",
    "boolean": "boolean[]",
    "timestamp": "timestamp without time zone[]",
    "timestamptz": "timestamp with time zone[]",
    "date": "date[]",
    "text": "text[]",
    "uuid": "uuid[]",
    "bytes": "bytea[]",
}


def _of_postgres(lookup: Lookup, places: Sequence[int], values: Sequence[Any]) -> tuple[sa.Executable, dict[str, Any]]:
    """A join with arrays, which reads the column's index."""
    told, own = lookup.key.told, lookup.key.column
    asked = (
        sa.func.unnest(
            sa.cast(sa.bindparam(_PLACES), _Named("integer[]")),
            sa.cast(sa.bindparam(_KEYS), _Named(_ARRAYS[told.sort])),
        )
        .table_valued("place", "value", name="logio_asked")
        .render_derived()
    )
    left: Any = sa.type_coerce(own, NullType())
    right: Any = asked.c.value
    if (told.sort == "text" and told.name in ("name", '"char"')) or told.is_enum:
        left = sa.cast(own, sa.Text())
    elif told.sort == "text" and told.name not in ("text", "character varying"):
        right = sa.cast(right, _Named("bpchar" if told.name == "character" else told.name))
    joined = own.table.join(asked, left == right)
    statement = lookup.statement.add_columns(asked.c.place.label(lookup.place_name)).select_from(joined)
    return statement, {_PLACES: list(places), _KEYS: list(values)}


def _of_sqlite(lookup: Lookup, places: Sequence[int], values: Sequence[Any]) -> tuple[sa.Executable, dict[str, Any]]:
    """A join with a list of values: its column of the table stands left, so that its collation counts."""
    own: Any = sa.type_coerce(lookup.key.column, NullType())
    sort, bounds = lookup.key.told.sort, []
    cells = [sqlite.cell_of_key(value) for value in values]
    if sort == "timestamp":
        bounds = _days_around(own, values)
        left: Any = sa.func.logio_time(own)
    else:
        left = sa.func.logio_decimal(own) if sort == "numeric" else own
    listed = ", ".join(f"({place}, :k{number})" for number, place in enumerate(places))
    asked = (
        sa.text(f"SELECT column1 AS place, column2 AS value FROM (VALUES {listed})")
        .columns(sa.column("place", sa.Integer()), sa.column("value", NullType()))
        .cte("logio_asked")
    )
    value = asked.c.value
    # Some versions of SQLite lose rows in a join by such a column, unless they find no equality to be clever about.
    is_equal = left.between(value, value) if sort == "text" and lookup.key.told.may_trim else left == value
    joined = lookup.key.column.table.join(asked, is_equal)
    statement = lookup.statement.add_columns(asked.c.place.label(lookup.place_name)).select_from(joined).where(*bounds)
    return statement, {f"k{number}": cell for number, cell in enumerate(cells)}


def _days_around(own: Any, values: Sequence[datetime]) -> list[Any]:
    """What an index of texts can tell: with any offset a time is written with a day beside its own in UTC."""
    first, last = min(values).date(), max(values).date()
    bounds = []
    if first > date.min + timedelta(days=1):
        bounds.append(own >= sa.literal(str(first - timedelta(days=1)), NullType()))
    if last < date.max - timedelta(days=2):
        bounds.append(own < sa.literal(str(last + timedelta(days=2)), NullType()))
    return bounds


def _of_any(lookup: Lookup, places: Sequence[int], values: Sequence[Any]) -> tuple[sa.Executable, dict[str, Any]]:
    """One query for each key, which any database can answer."""
    own: Any = sa.type_coerce(lookup.key.column, NullType())
    parts = [
        lookup.statement.add_columns(sa.literal_column(str(place)).label(lookup.place_name)).where(
            own == sa.literal(value, NullType())
        )
        for place, value in zip(places, values, strict=True)
    ]
    return sa.union_all(*parts), {}


_STATEMENTS: Mapping[str, Callable[[Lookup, Sequence[int], Sequence[Any]], tuple[sa.Executable, dict[str, Any]]]] = {
    "postgresql": _of_postgres,
    "sqlite": _of_sqlite,
}

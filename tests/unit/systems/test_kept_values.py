"""Hostile values into columns of every type that a table may have already: read with the plain driver, each one is there as
it was, or its write was refused (ADR-53)."""

from __future__ import annotations

import itertools
import json
import math
import sqlite3
import struct
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import psycopg2
import psycopg2.extensions
import psycopg2.extras
import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.warehouse import Warehouse
from tests.support.postgres import PostgresServer

NOON = datetime(2024, 2, 29, 12)  # noqa: DTZ001
FRACTION = datetime(1999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
UUID = "7f3c1a50-0d5e-4b0a-9c57-1f2d3e4b5a6c"
NUMBERS = [
    "5",
    "-0",
    "1.10",
    "007",
    "1e5",
    " 7 ",
    "+.5",
    "5.",
    "9007199254740993",
    "12345678901234567890",
    "5\n",
    "\v5\f",
]
TEXTS = [*NUMBERS, "", "abc", "abc  ", "a b ", "ab", "    ", "x" * 64, "é日本", "0x10", "Infinity", "nan", "1_000",
         "2024-02-29", "12:00:00", "\u00a05", "1e", "."]  # fmt: skip
DOUBLES = [0.5, 1.5, 0.1, 0.1 + 0.2, 1e-7, 5.0, 2.0**53, 1e22, 1.7976931348623157e308, 5e-324, math.inf, -math.inf, 19.99,
           123456789.125, 1 / 3]  # fmt: skip
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bigint": (pa.int64(), [0, -1, 100, 12345, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "int": (pa.int32(), [0, 7, 2**24 + 1, 2**31 - 1, -(2**31)]),
    "double": (pa.float64(), DOUBLES),
    "text": (pa.string(), TEXTS),
    "boolean": (pa.bool_(), [True, False]),
    "timestamp": (pa.timestamp("us"), [NOON, FRACTION, datetime(2024, 2, 29), datetime(1, 1, 1)]),  # noqa: DTZ001
    "timestamptz": (pa.timestamp("us"), [NOON, FRACTION, datetime(2024, 2, 29)]),  # noqa: DTZ001
    "date": (pa.date32(), [date(2024, 2, 29), date(9999, 12, 31)]),
    "json": (pa.string(), ["1", "1.10", "1e400", '"5"', '{"b": 1.10, "a": 1}', "[1, 2]", "null", "12345678901234567890"]),
    "uuid": (pa.string(), [UUID, "12345678-1234-1234-1234-123456789012"]),
    "binary": (pa.binary(), [b"", b"5", b"\0\xff", b"abc"]),
    "decimal(10,4)": (pa.decimal128(10, 4), [Decimal("1.5000"), Decimal("0.0001"), Decimal("-999999.9999"), Decimal(100)]),
    "decimal(15,15)": (pa.decimal128(15, 15), [Decimal("0.123456789012345"), Decimal("-0.999999999999999")]),
    "decimal(12,0)": (pa.decimal128(12, 0), [Decimal(5), Decimal("999999999999"), Decimal(12345)]),
    "decimal(38,20)": (pa.decimal128(38, 20), [Decimal("0.10000000000000000001"), Decimal(123456789012345678)]),
}  # fmt: skip
OF_THE_TYPE = "does not hold every such value"
"""A refusal before any value was looked at."""
_tables = (f"t{number}" for number in itertools.count(1))
_started = (float(number) for number in itertools.count(1))


def is_written(warehouse: Warehouse, table: str, kind: str | None, values: pa.Array) -> bool:
    """Whether a run of its own has written them, numbered, in place of all rows; False if that was refused."""
    return not refusal(warehouse, table, kind, values)


def refusal(warehouse: Warehouse, table: str, kind: str | None, values: pa.Array) -> str:
    """Why a run of its own has not written them, numbered, in place of all rows; empty if it has."""
    writer = TableWriter("wh", table, {"v": kind, "i": "bigint"} if kind else None, on_new_run="replace")
    begun = next(_started)
    run, records = f"run {begun}", pa.table({"v": values, "i": pa.array(range(len(values)), pa.int64())})
    actions = [
        WriteAction(run, "op", "wh", 1, 1, pa.table({}), {"action": "begin"}),
        WriteAction(run, "op", "wh", 2, 1, records, {"action": "insert"}),
    ]
    try:
        warehouse.apply(Marker(run, "op", "wh", 0, 1, begun), writer, actions)
    except WriteRefused as error:
        return str(error)
    return ""


def changed(
    warehouse: Warehouse,
    kind: str | None,
    table: str,
    values: pa.Array,
    read: Callable[[str], list[Any]],
    same: Callable[[str | None, Any, Any], bool],
) -> list[str]:
    """What was written, and is not there as it was. Values are written one by one if one of them is refused for itself."""
    refused = refusal(warehouse, table, kind, values)
    if not refused:
        found = zip(values.to_pylist(), read(table), strict=True)
        return [f"{kind}: {value!r} is there as {there!r}" for value, there in found if not same(kind, value, there)]
    if len(values) == 1 or OF_THE_TYPE in refused:
        return []
    singly = (changed(warehouse, kind, table, values.slice(place, 1), read, same) for place in range(len(values)))
    return list(itertools.chain.from_iterable(singly))


# --- SQLite -----------------------------------------------------------------------------------------------------------

SQLITE_TYPES = ["BIGINT", "INTEGER", "FLOATING POINT", "DOUBLE", "REAL", "NUMERIC", "NUMERIC(9,2)", "DECIMAL(10,2)", "TEXT",
                "VARCHAR(3)", "DATE_CHAR", "BLOB", "", "BOOLEAN", "DATE", "DATETIME", "TIMESTAMP", "TIME", "JSON", "UUID",
                "STRING", "DECIMAL_TEXT(12, 4)"]  # fmt: skip


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Warehouse, sqlite3.Connection]]:
    path = tmp_path_factory.mktemp("kept") / "wh.db"
    warehouse, plain = Warehouse("wh", f"sqlite:///{path}"), sqlite3.connect(path, isolation_level=None)
    yield warehouse, plain
    plain.close()
    warehouse.close()


def values_in_sqlite(plain: sqlite3.Connection, table: str) -> list[Any]:
    return [value for (value,) in plain.execute(f"SELECT v FROM {table} ORDER BY i")]


def same_in_sqlite(kind: str | None, value: Any, there: Any) -> bool:
    """Times, dates and decimals may be text; a decimal of 15 digits may be the nearest double; 5.0 is 5."""
    if isinstance(value, Decimal):
        return (not isinstance(there, str) or kind is not None) and Decimal(str(there)) == value
    if isinstance(value, date):
        return type(there) is str and type(value).fromisoformat(there) == value
    if isinstance(value, int | float):
        return isinstance(there, int | float) and there == value
    return type(there) is type(value) and there == value


@pytest.mark.parametrize("found", SQLITE_TYPES)
@pytest.mark.parametrize("kind", VALUES)
def test_sqlite_keeps_a_value_of_a_declared_type_or_refuses_it(sqlite: Any, kind: str, found: str) -> None:
    warehouse, plain = sqlite
    table, (arrow, values) = next(_tables), VALUES[kind]
    plain.execute(f"CREATE TABLE {table} (v {found}, i BIGINT)")
    read = partial(values_in_sqlite, plain)
    assert changed(warehouse, kind, table, pa.array(values, arrow), read, same_in_sqlite) == []


def test_sqlite_refuses_no_value_that_it_keeps(sqlite: Any) -> None:
    """Types with which pipelines work: texts that are no numbers in a DATE, JSON objects in a JSON column."""
    warehouse, plain = sqlite
    fine: list[tuple[str, str, Any]] = [
        ("text", "DATE", "2024-02-29"),
        ("json", "JSON", '{"a": 1}'),
        ("boolean", "INTEGER", True),
        ("timestamp", "TEXT", FRACTION),
        ("uuid", "UUID", UUID),
        ("decimal(10,4)", "DOUBLE", Decimal("0.0001")),
        ("bigint", "NUMERIC", 2**53 + 1),
        ("double", "NUMERIC", 0.1 + 0.2),
    ]
    for kind, found, value in fine:
        table = next(_tables)
        plain.execute(f"CREATE TABLE {table} (v {found}, i BIGINT)")
        assert is_written(warehouse, table, kind, pa.array([value], VALUES[kind][0])), f"{kind} into {found}"
        assert same_in_sqlite(kind, value, values_in_sqlite(plain, table)[0])


def test_sqlite_keeps_a_record_as_it_is_where_nothing_is_declared(sqlite: Any) -> None:
    """What an author hands over is converted to the column's own type, as Arrow does it without loss."""
    warehouse, plain = sqlite
    for found in ["", "TIME", "BLOB", "JSON", "NUMERIC(9,2)", "INTEGER", "DATE"]:
        for kind in ("bigint", "double", "decimal(10,4)", "text"):
            table, (arrow, values) = next(_tables), VALUES[kind]
            plain.execute(f"CREATE TABLE {table} (v {found}, i BIGINT, other)")
            read = partial(values_in_sqlite, plain)
            for line in changed(warehouse, None, table, pa.array(values, arrow), read, _same_or_converted):
                pytest.fail(f"{found}: {line}")


def _same_or_converted(_: str | None, value: Any, there: Any) -> bool:
    """A text for a number, bytes or a date is that number (Arrow reads hexadecimal ones, too), these bytes, that date."""
    if isinstance(value, str) and isinstance(there, int | float):
        return (Decimal(int(value, 16)) if value.startswith("0x") else Decimal(value)) == Decimal(repr(there))
    if isinstance(value, str) and isinstance(there, bytes):
        return value.encode() == there
    return bool(there == value) or (isinstance(value, Decimal) and Decimal(str(there)) == value)


# --- PostgreSQL -------------------------------------------------------------------------------------------------------

POSTGRES_TYPES = [
    "bigint", "integer", "smallint", "numeric", "numeric(9,2)", "numeric(12,4)", "numeric(8,-2)", "numeric(2,5)", "money",
    "real", "double precision", "text", "varchar", "varchar(3)", "char(3)", "char(36)", "bpchar", "name", '"char"', "boolean",
    "timestamp", "timestamp(0)", "timestamptz", "timestamptz(3)", "date", "json", "jsonb", "uuid", "bytea", "cents",
    "half_cents", "stamp", "oid", "interval",
]  # fmt: skip
BESIDE_AN_UNKNOWN_TYPE = [
    (found, ", other inet")
    for found in ("integer", "numeric(9,2)", "real", "varchar(3)", "timestamp(0)", "half_cents", "jsonb")
]
"""Then SQLAlchemy, not this package, converts what it can."""
OF_DOMAINS = [
    "CREATE DOMAIN cents AS numeric(9,2)",
    "CREATE DOMAIN half_cents AS cents",
    "CREATE DOMAIN stamp AS timestamp(0)",
]


class Real(float):
    """psycopg2 reads a real by its shortest text, which is another double."""


Postgres = tuple[Warehouse, "psycopg2.extensions.connection"]


@pytest.fixture(scope="module")
def postgres(postgres_server: PostgresServer) -> Iterator[Postgres]:
    url = postgres_server.new_database(migrated=False)
    warehouse, plain = Warehouse("wh", url), psycopg2.connect(url)
    plain.autocommit = True
    of_reals = psycopg2.extensions.new_type((700,), "REAL", lambda text, _: None if text is None else Real(text))
    psycopg2.extensions.register_type(of_reals, plain)
    psycopg2.extras.register_default_json(plain, loads=str)
    psycopg2.extras.register_default_jsonb(plain, loads=str)
    for statement in OF_DOMAINS:
        execute(plain, statement)
    yield warehouse, plain
    plain.close()
    warehouse.close()
    postgres_server.drop_database(url)


def execute(plain: Any, statement: str) -> list[Any]:
    with plain.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def same_in_postgres(kind: str | None, value: Any, there: Any) -> bool:
    """Of the same type and value. Numbers may be of another type; a date may be its midnight, and midnight its date."""
    there = _unwrapped(there)
    if kind == "json":  # jsonb, which an author makes, keeps the value, not the text
        exact = partial(json.loads, parse_float=Decimal, parse_int=Decimal)
        return bool(exact(value) == exact(there))
    if isinstance(there, Real):
        return bool(_nearest_real(float(value)) == value)
    if isinstance(value, float) and isinstance(there, Decimal):
        return float(there) == value
    if isinstance(value, date):
        return isinstance(there, date) and _midnight(value) == _midnight(there)
    if isinstance(value, bytes) and isinstance(there, str):
        return kind is None and value == there.encode()
    is_comparable = isinstance(there, type(value)) or isinstance(value, int | float | Decimal)
    return is_comparable and bool(there == value)


def _unwrapped(there: Any) -> Any:
    if isinstance(there, memoryview):
        return bytes(there)
    is_money = isinstance(there, str) and there.startswith(("$", "-$"))
    return Decimal(there.replace("$", "").replace(",", "")) if is_money else there


def _nearest_real(value: float) -> float:
    return value if math.isinf(value) else float(struct.unpack("f", struct.pack("f", value))[0])


def _midnight(value: date) -> datetime:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return datetime(value.year, value.month, value.day)  # noqa: DTZ001


def values_in_postgres(plain: Any, table: str) -> list[Any]:
    return [value for (value,) in execute(plain, f"SELECT v FROM {table} ORDER BY i")]


@pytest.mark.postgres
@pytest.mark.parametrize("found", POSTGRES_TYPES)
def test_postgresql_keeps_a_value_of_a_declared_type_or_refuses_it(postgres: Postgres, found: str) -> None:
    warehouse, plain = postgres
    table, lines = next(_tables), []
    execute(plain, f"CREATE TABLE {table} (v {found}, i BIGINT)")
    for kind, (arrow, values) in VALUES.items():
        lines += changed(
            warehouse, kind, table, pa.array(values, arrow), partial(values_in_postgres, plain), same_in_postgres
        )
    assert lines == []


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize(("found", "other"), [*((found, "") for found in POSTGRES_TYPES), *BESIDE_AN_UNKNOWN_TYPE])
def test_postgresql_keeps_a_value_or_refuses_it_where_nothing_is_declared(
    postgres: Postgres, found: str, other: str
) -> None:
    warehouse, plain = postgres
    table, lines = next(_tables), []
    execute(plain, f"CREATE TABLE {table} (v {found}, i bigint{other})")
    read = partial(values_in_postgres, plain)
    for kind in ("bigint", "double", "timestamp", "decimal(10,4)", "decimal(12,0)", "decimal(38,20)", "binary"):
        arrow, values = VALUES[kind]
        lines += changed(warehouse, None, table, pa.array(values, arrow), read, same_in_postgres)
    assert lines == []


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize(
    ("found", "value", "is_kept"),
    [
        ("varchar(3)", "ab ", True),
        ("varchar(3)", "abc ", False),
        ("char(3)", "EUR", True),
        ("char(3)", "EU", False),
        ("bpchar", "EU ", True),
        ("name", "x" * 63, True),
        ("name", "é" * 32, False),
        ("real", 0.5, True),
        ("real", 0.1, False),
        ("numeric", 0.1 + 0.2, True),
        ("numeric", Decimal("0.10000000000000000001"), True),
        ("numeric(8,-2)", 12300, True),
        ("numeric(8,-2)", 12345, False),
        ("numeric(2,5)", Decimal("0.00012"), True),
        ("timestamp(0)", NOON, True),
        ("timestamp(0)", FRACTION, False),
        ("timestamptz(3)", NOON, True),
        ("stamp", NOON, True),
        ("stamp", FRACTION, False),
        ("time(0)", time(12), True),
        ("time(0)", time(12, 0, 0, 1), False),
        ("interval", timedelta(microseconds=1), True),
        ("interval(0)", timedelta(seconds=1), True),
        ("interval(0)", timedelta(microseconds=1), False),
        ("interval year to month", timedelta(days=1), False),
        ("money", 5, True),
        ("money", Decimal("1.23"), True),
        ("money", Decimal("1.234"), False),
        ("money", 1.5, False),
        ("half_cents", Decimal("1.23"), True),
        ("half_cents", Decimal("1.234"), False),
        ("integer[]", [1, 2], True),
        ("integer[]", [1.5], False),
        ("cents[]", [Decimal("1.234")], False),
        ("cents[]", [Decimal("1.23")], True),
        ("varchar(3)[]", ["abc "], False),
        ("numeric[]", [0.1 + 0.2], True),
        ("numeric(9,2)[]", "{1.239}", False),
        ("inet", "10.0.0.1", True),
    ],
)  # fmt: skip
def test_which_values_a_column_of_postgresql_refuses(postgres: Postgres, found: str, value: Any, is_kept: bool) -> None:
    """Those that it would change, and no other one."""
    warehouse, plain = postgres
    table = next(_tables)
    execute(plain, f"CREATE TABLE {table} (v {found}, i BIGINT)")
    assert is_written(warehouse, table, None, pa.array([value])) == is_kept


@pytest.mark.postgres
def test_json_stays_json_beside_a_column_that_only_the_driver_knows(postgres: Postgres) -> None:
    warehouse, plain = postgres
    table, (arrow, values) = next(_tables), VALUES["json"]
    execute(plain, f"CREATE TABLE {table} (v json, host inet)")
    writer = TableWriter("wh", table, on_new_run="replace")
    records = pa.table({"v": pa.array(values, arrow), "host": ["10.0.0.1"] * len(values)})
    actions = [
        WriteAction(table, "op", "wh", 1, 1, pa.table({}), {"action": "begin"}),
        WriteAction(table, "op", "wh", 2, 1, records, {"action": "insert"}),
    ]
    warehouse.apply(Marker(table, "op", "wh", 0, 1, next(_started)), writer, actions)
    assert [text for (text,) in execute(plain, f"SELECT v::text FROM {table}")] == values

"""SQLite lets any cell hold anything: what is read is what is there, or is named by table, column and row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.dataflow.reads import TableRead
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.connections import DeclaredConnection
from airflow_logio.systems.warehouse import Warehouse

NOON = datetime(2024, 2, 29, 12)  # noqa: DTZ001


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Warehouse, sqlite3.Connection]]:
    path = tmp_path / "wh.db"
    warehouse, plain = Warehouse("wh", f"sqlite:///{path}"), sqlite3.connect(path, isolation_level=None)
    yield warehouse, plain
    plain.close()
    warehouse.close()


def filled(plain: sqlite3.Connection, found: str, *cells: Any) -> None:
    plain.execute(f"CREATE TABLE t (v {found})")
    plain.executemany("INSERT INTO t VALUES (?)", [(cell,) for cell in cells])


def queried(warehouse: Warehouse, *columns: str) -> list[Any]:
    source = DeclaredConnection("", lambda: warehouse)
    return [
        value
        for piece in source.query("SELECT v FROM t ORDER BY rowid", {}, dict.fromkeys(columns), "t")
        for value in piece.column("v").to_pylist()
    ]


@pytest.mark.parametrize(
    ("found", "cell"),
    [
        ("INTEGER", 1.5),
        ("BIGINT", "five"),
        ("INTEGER", b"5"),
        ("INT", 1e30),
        ("DOUBLE", "much"),
        ("NUMERIC", 2**53 + 1),
        ("UUID", "7f3c1a50-0d5e-4b0a-9c57-1f2d3e4b5a6c"),
        ("DECIMAL(10,2)", 1.234),
        ("DECIMAL(10,2)", 1e-7),
        ("DECIMAL(10,2)", "cheap"),
        ("DECIMAL(10,2)", 10**9),
        ("DECIMAL_TEXT(10, 2)", "0.001"),
        ("DECIMAL_TEXT(10, 2)", b"1"),
        ("BOOLEAN", 2),
        ("BOOLEAN", "yes"),
        ("DATE", "yesterday"),
        ("DATE", "2024-02-29 12:00:00"),
        ("DATE", 20240229),
        ("DATETIME", "noon"),
        ("DATETIME", 1709208000),
        ("TIMESTAMP", "2024-02-29 12:00:00.1234567"),
        ("TEXT", b"abc"),
        ("BLOB", "abc"),
        ("", 5),
    ],
)
def test_a_cell_that_is_no_value_of_its_column_is_named(shop: Any, found: str, cell: Any) -> None:
    warehouse, plain = shop
    filled(plain, found, None, cell)
    with pytest.raises(ConfigurationError, match=r"table 't' of connection 'wh', column 'v', row 1 of those read"):
        warehouse.read(TableRead("wh", "t"))
    with pytest.raises(
        ConfigurationError, match=r"the query of a source of table 't', column 'v', row 1 of those read"
    ):
        queried(warehouse, "v")


@pytest.mark.parametrize(
    ("found", "cell", "value"),
    [
        ("INTEGER", 2**63 - 1, 2**63 - 1),
        ("INTEGER", 1e15, 10**15),
        ("DOUBLE", 5, 5.0),
        ("NUMERIC", "0.1", 0.1),
        ("DECIMAL(10,7)", 1e-7, Decimal("1e-7")),
        ("DECIMAL(10,2)", 1.1, Decimal("1.10")),
        ("DECIMAL(10,2)", 5, Decimal(5)),
        ("DECIMAL_TEXT(38, 20)", "0.10000000000000000001", Decimal("0.10000000000000000001")),
        ("BOOLEAN", 1, True),
        ("DATE", "2024-02-29", date(2024, 2, 29)),
        ("DATETIME", "2024-02-29 12:00:00", NOON),
        ("DATETIME", "2024-02-29T12:00:00.000000", NOON),
        ("DATETIME", "2024-02-29 14:00:00+02:00", NOON),
        ("TEXT", "5", "5"),
        ("BLOB", b"5", b"5"),
        ("", "5", "5"),
    ],
)
def test_a_cell_is_read_as_it_is(shop: Any, found: str, cell: Any, value: Any) -> None:
    warehouse, plain = shop
    filled(plain, found, cell, None)
    assert warehouse.read(TableRead("wh", "t")).column("v").to_pylist() == [value, None]
    assert queried(warehouse, "v") == [value, None]


@pytest.mark.parametrize(
    ("value", "declared", "expected"),
    [
        ("avg(v)", "bigint", None),
        ("sum(v)", "bigint", 3),
        ("avg(v)", "double", 1.5),
        ("9007199254740993", "double", None),
        ("'2024-02-29 12:00:00'", "date", None),
        ("datetime('2024-02-29T12:00:00')", "timestamp", NOON),
        ("'2024-W09-4'", "date", None),
        ("20240229", "timestamp", None),
        ("'{\"a\": 1}'", "json", '{"a": 1}'),
        ("'{'", "json", None),
        ("'7F3C1A50-0d5e-4b0a-9c57-1f2d3e4b5a6c'", "uuid", "7F3C1A50-0d5e-4b0a-9c57-1f2d3e4b5a6c"),
        ("'no uuid'", "uuid", None),
        ("1", "text", None),
    ],
)
def test_a_query_gives_each_value_as_it_is_declared_or_names_it(
    shop: Any, value: str, declared: str, expected: Any
) -> None:
    warehouse, plain = shop
    filled(plain, "INTEGER", 1, 2)
    source = DeclaredConnection("", lambda: warehouse, "source 'raw'")
    query = source.query(f"SELECT 7 AS id, {value} AS v FROM t", {}, {"id": "bigint", "v": declared}, key=("id",))
    if expected is None:
        says = rf"source 'raw', column 'v', row 0 of those read \(counted from 0\), where id = 7: .* is no {declared}"
        with pytest.raises(ConfigurationError, match=says):
            list(query)
    else:
        assert next(query).column("v").to_pylist()[0] == expected

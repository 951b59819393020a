"""A read by keys returns for each key what the database's own join returns, or is refused: PostgreSQL, SQLite, MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime, time
from decimal import Context, Decimal
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow import joined
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.errors import ConfigurationError, OperatorFailed
from airflow_logio.systems.databases.table_reads import selection
from airflow_logio.systems.warehouse import Warehouse
from tests.support.mariadb import mariadb
from tests.support.postgres import PostgresServer
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore:Did not recognize type")]

at = datetime.fromisoformat
READ = TableRead("wh", "t", ("k", "v"), key="k")
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
    CREATE TYPE mood AS ENUM ('ok', 'sad');
    CREATE DOMAIN code AS char(4)
"""
"""Text without case, as the extension citext makes it, which the server of the tests does not have."""
ID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
IN_POSTGRES: list[tuple[str, list[str], pa.Array]] = [
    ("char(3)", ["a", "ab", "abc", " a"], pa.array(["a", "a  ", "abc", "abcd", "AB", " a", "a\0"])),
    ("code", ["a", "ab"], pa.array(["a", "a ", "ab", "x"])),
    ("anycase", ["Tea", "tea", "x"], pa.array(["TEA", "tea", "X", "y"])),
    ("mood", ["ok", "sad"], pa.array(["ok", "bad"])),
    ("varchar(9)", ["a", "a ", "A"], pa.array(["a", "a ", "A", "a  "])),
    ("text", ["é", "e\u0301", ""], pa.array(["é", "e\u0301", "", " "])),
    ("name", ["x" * 63, "y"], pa.array(["x" * 63, "x" * 64, "y"])),
    ("uuid", [ID], pa.array([ID, ID.upper(), ID.replace("-", ""), f"{{{ID}}}", "no uuid", f"{ID} "])),
    ("numeric(9,2)", ["1", "1.5", "2"], pa.array([Decimal("1.000"), Decimal("1.500"), Decimal("2.001")])),
    ("numeric", ["1.0", "1.00", "NaN", "9007199254740993"], pa.array([1, 9007199254740993, 2], pa.int64())),
    ("bigint", ["1", "2", "9007199254740993"], pa.array([Decimal("1.0"), Decimal("1.5"), Decimal(9007199254740993)])),
    ("integer", ["1", "2"], pa.array([1.0, 1.5, float("nan"), float("inf")])),
    ("smallint", ["1", "-1"], pa.array([1, 70000, -1], pa.int64())),
    ("bigint", ["1"], pa.array([1, 2**64 - 1], pa.uint64())),
    ("double precision", ["0", "-0", "NaN", "0.1"], pa.array([0.0, -0.0, float("nan"), 0.1])),
    ("real", ["0.1", "0.5"], pa.array([0.1, 0.10000000149011612, 0.5])),
    ("double precision", ["1", "2"], pa.array([1, 3], pa.int32())),
    ("timestamp", ["2024-03-31 02:30", "2024-03-31 00:00"], pa.array([at("2024-03-31 02:30"), at("2024-03-31")])),
    ("timestamptz", ["2024-03-31 02:30+00", "2024-03-31 02:30+02"], pa.array([at("2024-03-31 02:30")])),
    ("timestamptz", ["2024-03-31 00:00+00", "2024-03-31 00:00+05:30"], pa.array([date(2024, 3, 31)])),
    ("timestamp", ["2024-03-31 00:00", "2024-03-31 12:00"], pa.array([date(2024, 3, 31)])),
    ("date", ["2024-03-31", "infinity"], pa.array([at("2024-03-31 12:00"), at("2024-03-31 00:00")])),
    ("date", ["2024-03-31", "0044-03-15 BC"], pa.array([date(2024, 3, 31), date(2024, 4, 1)])),
    ("boolean", ["true", "false"], pa.array([True])),
    ("bytea", ["\\x00ff", "\\x"], pa.array([b"\0\xff", b"", b"x"])),
    ("text", ["a"], pa.array(["a", "b"], pa.string_view())),
    ("text", ["a"], pa.array(["a", "b"], pa.large_string())),
]  # fmt: skip


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> Iterator[str]:
    made = postgres_server.new_database(migrated=False)
    change(made, ANY_CASE)
    change(made, f"ALTER DATABASE {made.rpartition('/')[2]} SET TimeZone = 'Asia/Kolkata'")
    yield made
    postgres_server.drop_database(made)


def in_sql(key: Any) -> str:
    """A key as PostgreSQL writes one of its own type."""
    match key:
        case bool():
            return str(key).lower()
        case bytes():
            return f"'\\x{key.hex()}'::bytea"
        case float():
            return f"'{key!r}'::double precision"
        case int() | Decimal():
            return f"({key})::numeric"
        case _:
            return f"'{key}'"


def of_its_own_join(url: str, kind: str, keys: pa.Array) -> list[tuple[Any, Any]]:
    """Place of a key, number of a row, one query for each key: as the database compares."""
    found = []
    for place, key in enumerate(keys.to_pylist()):
        value = in_sql(key)
        if kind == "uuid" and (len(str(key).replace("-", "").strip("{}")) != 32):
            continue  # which is no uuid
        if kind in ("mood", "name"):
            value = f"{value}::text"
        if kind == "timestamptz":
            value = f"'{key}{'' if isinstance(key, datetime) else ' 00:00'}+00'::timestamptz"
        elif isinstance(key, datetime):
            value = f"('{key}'::timestamp)"
        if "\0" in value:
            continue  # which PostgreSQL cannot have
        column = "k::text" if kind in ("mood", "name") else "k"
        found += [(place, v) for (v,) in rows_of(url, f"SELECT v FROM t WHERE {column} = {value}".replace(":", r"\:"))]
    return sorted(found)


def places_of(keys: pa.Array, table: pa.Table) -> list[tuple[int, int]]:
    """The same of what was read: a row has its key as it was asked for or, in another type, a value that is equal."""
    asked = {repr(key): place for place, key in enumerate(keys.to_pylist())}
    if keys.type != table.column("k").type:
        asked = {repr(equal): asked[repr(key)] for key in keys.to_pylist() for equal in _in_other_types(key)}
    return sorted((asked[repr(row["k"])], row["v"]) for row in table.to_pylist())


def _in_other_types(key: Any) -> list[Any]:
    """A key as it may come back in the type of the column."""
    match key:
        case datetime():
            return [key.date()]
        case date():
            return [datetime.combine(key, time())]
        case str():
            return [key]
        case _ if not isfinite(key):
            return []
        case _:
            scales = [
                Decimal(key).quantize(Decimal(1).scaleb(-scale), context=Context(prec=60)) for scale in (0, 2, 18)
            ]
            return [one for one in (*scales, int(key), float(key)) if one == key]


@pytest.mark.parametrize(
    ("kind", "stored", "keys"), IN_POSTGRES, ids=[f"{one[0]} {one[2].type}" for one in IN_POSTGRES]
)
def test_in_postgresql_each_key_has_the_rows_of_its_own_join(
    url: str, kind: str, stored: list[str], keys: pa.Array
) -> None:
    rows = ", ".join(f"('{value}'::{kind}, {number})" for number, value in enumerate(stored))
    change(url, f"DROP TABLE IF EXISTS t; CREATE TABLE t (k {kind}, v bigint)")
    change(url, f"INSERT INTO t VALUES {rows}, (NULL, 99)".replace(":", r"\:"))
    expected = of_its_own_join(url, kind, keys)
    with closing(Warehouse("wh", url)) as warehouse:
        if pa.types.is_string(keys.type):
            assert places_of(keys, warehouse.read(READ, keys.dictionary_encode())) == expected
        found = warehouse.read(READ, pa.chunked_array([keys, keys.slice(0, 1), pa.nulls(1, keys.type)]))
        in_pieces = warehouse.pieces(READ, keys, lambda tables: pa.concat_tables(list(tables)))
    assert expected, "an example finds something"
    assert places_of(keys, found) == expected
    assert places_of(keys, in_pieces) == expected
    assert found.schema == warehouse_schema(url)
    records = pa.table({"k": keys, "place": range(len(keys))})
    try:
        rows = joined("dimension", READ).fn(records, dimension=found)
    except OperatorFailed as refused:
        assert "several rows with k" in str(refused) or "not comparable" in str(refused)
    else:
        assert sorted(zip(rows["place"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected


def warehouse_schema(url: str) -> pa.Schema:
    """The same columns and types as without a key."""
    with closing(Warehouse("wh", url)) as warehouse:
        return warehouse.pieces(TableRead("wh", "t", ("k", "v")), None, lambda tables: next(tables).schema)


TIMES = [
    "2024-02-29 12:00:00",
    "2024-02-29T12:00:00",
    "2024-02-29 12:00:00.000000",
    "2024-02-29T14:00:00+02:00",
    "2024-02-29 12:00Z",
    "2024-03-01 00:30:00+12:30",
    "2024-02-29",
    "2024-02-29 12:00:01",
    "noon",
]
NOON = [0, 1, 2, 3, 4, 5]
ALIKE = [(0, 0), (0, 1), (0, 2), (1, 3)]
IN_SQLITE: list[tuple[str, list[Any], pa.Array, list[tuple[int, int]]]] = [
    ("TEXT COLLATE NOCASE", ["Tea", "tea", "x"], pa.array(["TEA", "tea", "y"]), [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ("TEXT COLLATE RTRIM", ["a", "a ", "b"], pa.array(["a", "a  ", " a"]), [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ("VARCHAR(3)", ["a", "a ", "A"], pa.array(["a", "A", "x\0"]), [(0, 0), (1, 2)]),
    ("TIMESTAMP", TIMES, pa.array([at("2024-02-29 12:00"), at("2024-02-29")]), [*((0, n) for n in NOON), (1, 6)]),
    ("DATETIME", TIMES, pa.array([date(2024, 2, 29)]), [(0, 6)]),
    ("DATE", ["2024-02-29", "2024-03-01"], pa.array([at("2024-02-29"), at("2024-03-01 12:00")]), [(0, 0)]),
    ("DATE", ["2024-02-29"], pa.array([date(2024, 2, 29)]), [(0, 0)]),
    ("DECIMAL_TEXT(9, 2)", ["1", "1.0", "1.00", "-0", "2"], pa.array([Decimal("1.0"), Decimal(0)]), ALIKE),
    ("DECIMAL(9,2)", [1.1, "1.10", 2], pa.array([Decimal("1.100"), Decimal("2.000")]), [(0, 0), (0, 1), (1, 2)]),
    ("DECIMAL(9,2)", [1.0, 2], pa.array([1, 2, 3]), [(0, 0), (1, 1)]),
    ("INTEGER", [1, 2**53 + 1], pa.array([Decimal("1.0"), Decimal("1.5"), Decimal(2**53 + 1)]), [(0, 0), (2, 1)]),
    ("BIGINT", [1, 2], pa.array([1.0, 1.5, float("nan")]), [(0, 0)]),
    ("DOUBLE", [0.0, -0.0, 0.1], pa.array([0.0, -0.0, 0.1, float("nan")]), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]),
    ("BOOLEAN", [0, 1], pa.array([True]), [(0, 1)]),
    ("BLOB", [b"a", b""], pa.array([b"a", b"b"]), [(0, 0)]),
    ("TEXT", ["a", b"b"], pa.array(["a", "b"], pa.string_view()), [(0, 0)]),
    ("DECIMAL_TEXT(9, 2)", ["10", "1_0", "\u0661\u0660"], pa.array([Decimal(10)]), [(0, 0)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "stored", "keys", "expected"), IN_SQLITE, ids=[f"{one[0]} {one[2].type}" for one in IN_SQLITE]
)
def test_in_sqlite_each_key_has_the_rows_that_are_equal_in_whichever_form_a_cell_has_them(
    tmp_path: Path, kind: str, stored: list[Any], keys: pa.Array, expected: list[tuple[int, int]]
) -> None:
    with closing(Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")) as warehouse:
        with warehouse.engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE t (k {kind}, v INTEGER)")
            cells = [(value, number) for number, value in enumerate(stored)]
            connection.exec_driver_sql("INSERT INTO t VALUES (?, ?)", [*cells, (None, 99)])
        assert places_of(keys, warehouse.read(READ, keys)) == expected
        if kind.startswith("TEXT"):
            asked = ", ".join(f"({place}, '{key}')" for place, key in enumerate(keys.to_pylist()))
            query = f"WITH asked(n, k) AS (VALUES {asked}) SELECT n, v FROM t JOIN asked ON t.k = asked.k ORDER BY n, v"
            assert rows_of(f"sqlite:///{tmp_path}/wh.db", query) == expected


@pytest.mark.parametrize("key", [1.5, Decimal("1.5"), float("inf")])
def test_in_sqlite_a_key_with_a_fraction_finds_what_a_column_of_integers_cannot_have_and_that_is_refused(
    tmp_path: Path, key: Any
) -> None:
    """It keeps any number in such a column, and its own join finds that."""
    with closing(Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")) as warehouse:
        with warehouse.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (k INTEGER, v INTEGER)")
            connection.exec_driver_sql("INSERT INTO t VALUES (?, 0), (2, 1)", (float(key),))
        with pytest.raises(ConfigurationError, match=r"'t' of connection 'wh', column 'k', row 0 .* is no bigint"):
            warehouse.read(READ, pa.array([key]))
        assert warehouse.read(READ, pa.array([2.0, 2.5])).to_pylist() == [{"k": 2, "v": 1}]


def test_a_key_that_postgresql_has_no_such_value_of_is_that_of_no_row(url: str) -> None:
    """It refuses a statement that compares an oid with such a number."""
    change(
        url, "DROP TABLE IF EXISTS t; CREATE TABLE t (k oid, v bigint); INSERT INTO t VALUES (5, 0), (4294967295, 1)"
    )
    with closing(Warehouse("wh", url)) as warehouse:
        found = warehouse.read(READ, pa.array([5, -1, 2**32 - 1, 2**32, 2**63 - 1]))
    assert found.to_pylist() == [{"k": 5, "v": 0}, {"k": 2**32 - 1, "v": 1}]


def test_a_key_between_two_microseconds_is_that_of_no_row(url: str, tmp_path: Path) -> None:
    """PostgreSQL rounds a text of nanoseconds."""
    keys = pa.array([1_500, 2_000, 2_001], pa.timestamp("ns"))
    for where, kind in ((url, "timestamp"), (url, "timestamptz"), (f"sqlite:///{tmp_path}/wh.db", "timestamp")):
        zone = "+00" if kind == "timestamptz" else ""
        change(where, "DROP TABLE IF EXISTS t")
        change(where, f"CREATE TABLE t (k {kind}, v bigint)")
        change(where, rf"INSERT INTO t VALUES ('1970-01-01 00\:00\:00.000002{zone}', 0)")
        with closing(Warehouse("wh", where)) as warehouse:
            assert warehouse.read(READ, keys).to_pylist() == [{"k": at("1970-01-01 00:00:00.000002"), "v": 0}]


def test_many_keys_of_a_small_table_without_an_index_lose_no_row_for_their_blanks(tmp_path: Path) -> None:
    """SQLite makes an index for such a join itself, and some versions look in a filter before that tells texts by length."""
    change(f"sqlite:///{tmp_path}/wh.db", "CREATE TABLE t (k TEXT COLLATE RTRIM, v INTEGER)")
    change(f"sqlite:///{tmp_path}/wh.db", "INSERT INTO t VALUES ('a', 1), ('a ', 2), ('b', 3)")
    keys = pa.array(["a  ", *(f"y{number}" for number in range(500))])
    with closing(Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")) as warehouse:
        assert places_of(keys, warehouse.read(READ, keys)) == [(0, 1), (0, 2)]


def test_in_any_other_database_each_key_has_the_rows_that_the_database_finds() -> None:
    """MariaDB compares without case, and without blanks at the end."""
    noon = at("2024-02-29 12:00")
    examples: list[tuple[str, list[Any], pa.Array, list[tuple[int, int]]]] = [
        (
            "VARCHAR(9) COLLATE utf8mb4_general_ci",
            ["Tea", "tea ", "x"],
            pa.array(["TEA", "tea", "X", "y"]),
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)],
        ),
        ("DECIMAL(9,2)", [Decimal("1.5"), 2], pa.array([Decimal("1.500"), Decimal("2.001")]), [(0, 0)]),
        ("DATETIME(6)", [noon, at("2024-02-29")], pa.array([noon, at("2024-03-01")]), [(0, 0)]),
        ("DATE", [date(2024, 2, 29)], pa.array([at("2024-02-29 12:00"), at("2024-02-29")]), [(1, 0)]),
        ("BIGINT", [1, 2**53 + 1], pa.array([1.0, 1.5]), [(0, 0)]),
    ]
    with mariadb() as url, closing(Warehouse("wh", url)) as warehouse:
        for kind, stored, keys, expected in examples:
            with warehouse.engine.begin() as connection:
                connection.exec_driver_sql(f"CREATE OR REPLACE TABLE t (k {kind}, v BIGINT)")
                rows = [(value, number) for number, value in enumerate(stored)]
                connection.exec_driver_sql("INSERT INTO t VALUES (%s, %s)", [*rows, (None, 99)])
            assert places_of(keys, warehouse.read(READ, keys)) == expected, kind


@pytest.mark.parametrize(
    ("kind", "keys", "says"),
    [
        ("text", pa.array([1]), "is int64 in the records and text in the database"),
        ("integer", pa.array(["1"]), "is string in the records and integer in"),
        ("numeric(9,2)", pa.array([1.5]), r"is double in the records and numeric\(9,2\) in"),
        ("double precision", pa.array([Decimal("1.5")]), r"decimal128\(2, 1\) in the records and double precision"),
        ("timestamp", pa.array(["2024-02-29"]), "string in the records and timestamp"),
        ("jsonb", pa.array(["{}"]), "string in the records and jsonb"),
        ("inet", pa.array(["10.0.0.1"]), "string in the records and inet"),
        ("bigint", pa.array([2.0**60]), "key 1.15.* of column 'k' .bigint.: doubles beyond"),
        (
            "double precision",
            pa.array([2**53 + 1]),
            "key 9007199254740993 of column 'k' .double precision.: no double is",
        ),
    ],
)
def test_keys_that_only_a_cast_makes_equal_are_refused_by_read_column_and_types(
    url: str, kind: str, keys: pa.Array, says: str
) -> None:
    change(url, f"DROP TABLE IF EXISTS t; CREATE TABLE t (k {kind}, v bigint)")
    refused = pytest.raises(ConfigurationError, match=f"the read of table 't' of connection 'wh'.*{says}")
    with closing(Warehouse("wh", url)) as warehouse, refused:
        warehouse.read(READ, keys)


def test_a_join_by_keys_loses_no_row_that_the_database_finds(url: str) -> None:
    """The ready-made one compares as Arrow does."""
    change(
        url, "DROP TABLE IF EXISTS t; CREATE TABLE t (k char(3), v bigint); INSERT INTO t VALUES ('a', 1), ('ab', 2)"
    )
    records = pa.table({"k": ["a", "ab", "a", "b"], "n": [1, 2, 3, 4]})
    with closing(Warehouse("wh", url)) as warehouse:
        rows = warehouse.read(READ, records.column("k"))
    found = joined("dimension", READ).fn(records, dimension=rows)
    assert found.to_pylist() == [{"k": "a", "n": 1, "v": 1}, {"k": "ab", "n": 2, "v": 2}, {"k": "a", "n": 3, "v": 1}]


@pytest.mark.parametrize("kind", ["char(9)", "varchar(9)", "numeric", "bigint"])
def test_an_index_of_postgresql_finds_the_keys(url: str, kind: str) -> None:
    """The column stands alone on its side of the comparison."""
    change(url, f"DROP TABLE IF EXISTS t; CREATE TABLE t (k {kind} PRIMARY KEY, v bigint)")
    change(url, "INSERT INTO t SELECT i, i FROM generate_series(1, 20000) AS i; ANALYZE t")
    keys = pa.array(["7"]) if "char" in kind else pa.array([7])
    with closing(Warehouse("wh", url)) as warehouse, warehouse.snapshot() as connection:
        lookup = selection(connection, "wh", "t").lookup("k", keys.type, "postgresql")
        ((_, statement, values),) = lookup.statements(keys, 10)
        assert isinstance(statement, sa.Select)
        compiled = statement.compile(dialect=connection.dialect)
        plan = connection.exec_driver_sql(f"EXPLAIN {compiled}", {**compiled.params, **values}).scalars().all()
    assert any("Index" in line for line in plan), plan

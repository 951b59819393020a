"""What PostgreSQL has is read as it is, or refused by name: by table, by query, with and without a declared type."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, Pipeline, QuerySource, TableSource
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.inspection import inspect_systems
from airflow_logio.systems.warehouse import Warehouse
from tests.support.postgres import PostgresServer
from tests.support.warehouse import change

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore:Did not recognize type")]

LARGE = 2**53 + 1
"""The first whole number that no double is."""
at = datetime.fromisoformat


@pytest.fixture(scope="module")
def url(postgres_server: PostgresServer) -> Iterator[str]:
    made = postgres_server.new_database(migrated=False)
    change(
        made,
        "CREATE DOMAIN price AS numeric(9, 2); CREATE DOMAIN twice AS price; CREATE TYPE mood AS ENUM ('ok', 'sad')",
    )
    yield made
    postgres_server.drop_database(made)


@pytest.fixture(scope="module")
def connections(url: str) -> Iterator[Connections]:
    made = Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), 5)
    yield made
    made.close()


def queried(connections: Connections, value: str, declared: str) -> list[Any]:
    source = QuerySource("wh", f"SELECT 7 AS id, {value} AS v", columns={"id": "bigint", "v": declared}, order_by="id")
    read = source.read_from(connections.source("wh", "raw"), {}, source.action({}), 0)
    return [value for batch in read for value in batch.table.column("v").to_pylist()]


def in_table(connections: Connections, value: str) -> list[pa.ChunkedArray]:
    """The column of one row, by each way to read a table in the driver: all at once, by pieces, by key, as a source."""
    warehouse = connections.warehouse("wh")
    change(connections.url("wh"), f"DROP TABLE IF EXISTS t; CREATE TABLE t AS SELECT 7::bigint AS id, {value} AS v")
    whole, by_key = TableRead("wh", "t"), TableRead("wh", "t", key="id")
    source = QuerySource("wh", table="t", order_by="id")
    batches = source.read_from(connections.source("wh", "raw"), {}, source.action({}), 0)
    ways: list[Callable[[], pa.Table]] = [
        lambda: warehouse.read(whole),
        lambda: warehouse.pieces(whole, None, lambda tables: pa.concat_tables(list(tables))),
        lambda: warehouse.read(by_key, pa.array([7, 8])),
        lambda: pa.concat_tables([batch.table for batch in batches]),
    ]
    found, errors = [], []
    for way in ways:
        try:
            found.append(way().column("v"))
        except ConfigurationError as error:
            errors.append(str(error))
    if errors:
        assert not found, "every way refuses, or none"
        raise ConfigurationError("\n".join(errors))
    return found


AS_IT_IS = [
    ("1::smallint", "bigint", pa.int64(), 1),
    (f"{LARGE}::bigint", "bigint", pa.int64(), LARGE),
    ("4000000000::oid", "bigint", pa.int64(), 4_000_000_000),
    (f"{LARGE}::numeric", "decimal(38,18)", pa.decimal128(38, 18), Decimal(LARGE)),
    ("1e-18::numeric", "decimal(38,18)", pa.decimal128(38, 18), Decimal("1e-18")),
    ("1.50::numeric(9,2)", "decimal(9,2)", pa.decimal128(9, 2), Decimal("1.50")),
    ("1200::numeric(3,-2)", "decimal(5,0)", pa.decimal128(5, 0), Decimal(1200)),
    ("0.05::numeric(1,2)", "decimal(2,2)", pa.decimal128(2, 2), Decimal("0.05")),
    ("1.5::price", "decimal(9,2)", pa.decimal128(9, 2), Decimal("1.5")),
    ("1.5::twice", "decimal(9,2)", pa.decimal128(9, 2), Decimal("1.5")),
    ("0.1::real", "double", pa.float64(), 0.10000000149011612),
    ("0.1::double precision", "double", pa.float64(), 0.1),
    ("'-Infinity'::double precision", "double", pa.float64(), float("-inf")),
    ("true", "boolean", pa.bool_(), True),
    ("'a'::char(3)", "text", pa.string(), "a  "),
    ("'a'::varchar(9)", "text", pa.string(), "a"),
    ("'sad'::mood", "text", pa.string(), "sad"),
    ("'x'::\"char\"", "text", pa.string(), "x"),
    ("'x'::name", "text", pa.string(), "x"),
    ("'10.0.0.0/8'::cidr", "text", pa.string(), "10.0.0.0/8"),
    ("B'101'::bit varying", "text", pa.string(), "101"),
    ("'{\"a\":  9007199254740993.10}'::json", "json", pa.string(), '{"a":  9007199254740993.10}'),
    ("'[1.10, \"x\"]'::jsonb", "json", pa.string(), '[1.10, "x"]'),
    ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid", "uuid", pa.string(), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("'\\x00ff'::bytea", "binary", pa.binary(), b"\0\xff"),
    ("DATE '0001-01-01'", "date", pa.date32(), date(1, 1, 1)),
    ("DATE '9999-12-31'", "date", pa.date32(), date(9999, 12, 31)),
    ("TIMESTAMP '1582-10-10 00:00:00.000001'", "timestamp", pa.timestamp("us"), at("1582-10-10 00:00:00.000001")),
    ("TIMESTAMPTZ '2024-03-31 02:30:00.5+02'", "timestamptz", pa.timestamp("us"), at("2024-03-31 00:30:00.500000")),
    ("TIMESTAMPTZ '1800-01-01 00:00:00+00:19:32'", "timestamptz", pa.timestamp("us"), at("1799-12-31 23:40:28")),
]  # fmt: skip


@pytest.mark.parametrize(("value", "declared", "kind", "expected"), AS_IT_IS, ids=[one[0] for one in AS_IT_IS])
def test_a_value_of_postgresql_is_read_as_it_is(
    connections: Connections, value: str, declared: str, kind: pa.DataType, expected: Any
) -> None:
    for column in in_table(connections, value):
        assert column.type == kind
        assert column.to_pylist() == [expected]
    assert queried(connections, value, declared) == [expected]
    assert queried(connections, f"CASE WHEN false THEN {value} END", declared) == [None]


DECLARED_OTHERWISE = [
    ("avg(x) FROM (VALUES (2), (4)) AS s(x)", "bigint", 3),
    ("1e3::double precision", "int", 1000),
    (f"{2**53}::bigint", "double", float(2**53)),
    ("7::numeric(9,0)", "double", 7.0),
    ("7::bigint", "decimal(9,2)", Decimal(7)),
    ("TIMESTAMP '2024-02-29'", "date", date(2024, 2, 29)),
    ("DATE '2024-02-29'", "timestamp", at("2024-02-29")),
    ("TIMESTAMPTZ '2024-02-29 01:00+01'", "timestamp", at("2024-02-29")),
    ("'{}'::text", "json", "{}"),
    ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::text", "uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("'null'::jsonb", "text", "null"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "declared", "expected"), DECLARED_OTHERWISE)
def test_a_value_that_another_type_holds_is_read_as_that(
    connections: Connections, value: str, declared: str, expected: Any
) -> None:
    value, _, rest = value.partition(" FROM ")
    query = f"SELECT {value} AS v{' FROM ' + rest if rest else ''}"
    source = QuerySource("wh", query, columns={"v": declared})
    (batch,) = source.read_from(connections.source("wh", "raw"), {}, source.action({}), 0)
    assert batch.table.column("v").to_pylist() == [expected]


REFUSED_VALUES = [
    ("1.5::numeric", "bigint", "1.5 is no bigint: it is no whole number"),
    ("1.5::double precision", "bigint", "1.5 is no bigint: it is no whole number"),
    ("'NaN'::double precision", "int", "nan is no int"),
    ("'Infinity'::double precision", "bigint", "inf is no bigint"),
    ("2147483648::bigint", "int", "2147483648 is no int"),
    (f"{LARGE}::bigint", "double", f"{LARGE} is no double: it is no double without loss"),
    ("1.005::numeric", "decimal(9,2)", r"1.005 is no decimal\(9,2\): .* data loss"),
    ("'NaN'::numeric", "decimal(9,2)", "NaN is no decimal"),
    ("'Infinity'::numeric", "decimal(9,2)", "Infinity is no decimal"),
    ("12345678.9::numeric", "decimal(9,2)", r"12345678.9 is no decimal\(9,2\)"),
    ("TIMESTAMP '2024-02-29 12:00'", "date", "without a time"),
    ("DATE 'infinity'", "date", "'infinity' is no date: it is no time of the years 1 to 9999"),
    ("DATE '10000-01-01'", "date", "'10000-01-01' is no date: it is no time of"),
    ("DATE '0044-03-15 BC'", "date", "'0044-03-15 BC' is no date: it is no time of"),
    ("TIMESTAMP '-infinity'", "timestamp", "'-infinity' is no timestamp: it is no time of"),
    ("TIMESTAMP '294276-12-31'", "timestamp", "is no timestamp: .*"),
    ("TIMESTAMPTZ 'infinity'", "timestamptz", "'infinity' is no timestamptz: it is no time of"),
    ("TIMESTAMPTZ '9999-12-31 23:00-02'", "timestamp", "is no timestamp: .*"),
    ("TIMESTAMPTZ '0001-01-01 00:00+02'", "timestamp", "is no timestamp: .*"),
    ("'{'::text", "json", "'{' is no json: "),
    ("'a0eebc999c0b4ef8bb6d6bb9bd380a11'::text", "uuid", "is no uuid: "),
]  # fmt: skip


@pytest.mark.parametrize(("value", "declared", "says"), REFUSED_VALUES)
def test_a_value_that_is_none_is_refused_by_source_column_row_and_key(
    connections: Connections, value: str, declared: str, says: str
) -> None:
    where = r"the query of source 'raw', column 'v', row 0 of those read \(counted from 0\), where id = 7: "
    with pytest.raises(ConfigurationError, match=f"{where}.*{says}"):
        queried(connections, value, declared)


@pytest.mark.parametrize(
    "value", ["'NaN'::numeric(9,2)", "1e-19::numeric", "1e20::numeric", "DATE 'infinity'", "TIMESTAMPTZ '12024-01-01Z'"]
)
def test_a_value_of_a_table_that_is_none_is_refused_by_read_table_column_and_key(
    connections: Connections, value: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        in_table(connections, value)
    place = "column 'v', row 0 of those read (counted from 0), where id = 7: "
    said = str(refused.value).splitlines()
    assert [place in one for one in said] == [True] * 4
    assert all("the read of table 't' of connection 'wh'" in one for one in said[:3])
    assert "the query of source 'raw' of table 't'" in said[3]


REFUSED_TYPES = [
    ("TIME '12:00'", "text", "time without time zone"),
    ("TIMETZ '12:00+01'", "text", "time with time zone"),
    ("INTERVAL '1 month'", "text", "interval"),
    ("'{1,2}'::int[]", "text", r"integer\[\]"),
    ("'[1,2)'::int4range", "text", "int4range"),
    ("1::money", "text", "money"),
    ("'(1,2)'::point", "text", "point"),
    ("ROW(1, 2)", "text", "record"),
    ("array[1.5]::price[]", "text", r"price\[\]"),
    ("1.5::numeric", "double", "numeric.*declare decimal"),
    ("1.5::numeric(9,2)", "double", r"numeric\(9,2\)"),
    ("1.5::double precision", "decimal(9,2)", "double precision"),
    ("'1'::text", "bigint", "text"),
    ("1", "text", "integer"),
    ("1", "boolean", "integer"),
    ("true", "bigint", "boolean"),
    ("now()", "date", "timestamp with time zone"),
    ("now()", "text", "timestamp with time zone"),
    ("'x'::text", "timestamp", "text"),
    ("'x'::bytea", "text", "bytea"),
    ("'x'::text", "binary", "text"),
    ("'{}'::jsonb", "bigint", "jsonb"),
    ("1::oid", "text", "oid"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "declared", "name"), REFUSED_TYPES)
def test_a_type_that_does_not_hold_what_is_declared_is_refused_by_its_name_before_there_is_a_row(
    connections: Connections, value: str, declared: str, name: str
) -> None:
    """By the check before a run, too."""
    says = rf"source 'raw', column 'v': the database has it as {name}.*cast it"
    for rows in ("", " WHERE false"):
        source = QuerySource("wh", f"SELECT {value} AS v{rows}", columns={"v": declared})
        with pytest.raises(ConfigurationError, match=says):
            list(source.read_from(connections.source("wh", "raw"), {}, source.action({}), 0))
    (_, finding) = inspect_systems(_saved(source), {}, connections)
    assert finding.problem is not None
    assert "the database has it as" in finding.problem


def _saved(source: Any) -> Pipeline:
    pipeline = Pipeline("p", connections=["wh"])
    pipeline.sink("done", Count(), pipeline.source("raw", source))
    return pipeline


@pytest.mark.parametrize(("value", "name"), [(one[0], one[2]) for one in REFUSED_TYPES[:9] if "ROW" not in one[0]])
def test_a_table_with_a_type_that_nothing_holds_is_read_by_its_other_columns(
    connections: Connections, value: str, name: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        in_table(connections, value)
    assert str(refused.value).count("column 'v': the database has it as") == 4
    change(connections.url("wh"), "ALTER TABLE t ADD PRIMARY KEY (id)")
    assert connections.warehouse("wh").read(TableRead("wh", "t", ("id",))).to_pylist() == [{"id": 7}]
    for source in (QuerySource("wh", table="t"), TableSource("wh", "t", append_only=True)):
        *_, finding = inspect_systems(_saved(source), {}, connections)
        assert finding.problem is not None


def test_a_row_without_a_key_is_told_by_the_primary_key_of_its_table_or_by_its_first_column(
    connections: Connections, url: str
) -> None:
    change(url, "CREATE TABLE k (note text, v numeric, a int, b text, PRIMARY KEY (a, b))")
    change(
        url,
        "INSERT INTO k SELECT 'n' || i, CASE i WHEN 3 THEN 'NaN'::numeric ELSE 1 END, i, 'x' "
        "FROM generate_series(1, 9) AS i",
    )
    with closing(Warehouse("wh", url)) as warehouse:
        with pytest.raises(
            ConfigurationError, match=r"the read of table 'k' .* row 2 of .*, where a = 3 and b = 'x': "
        ):
            warehouse.read(TableRead("wh", "k"))
        with pytest.raises(ConfigurationError, match=r"row 2 of .*\(counted from 0\), where note = 'n3': "):
            warehouse.read(TableRead("wh", "k", ("v", "note")))


def test_whatever_the_session_shows_the_values_are_the_same(postgres_server: PostgresServer) -> None:
    """Settings of the database: its zone, and how it writes dates and bytes."""
    url = postgres_server.new_database(migrated=False)
    name = url.rpartition("/")[2]
    for setting in (
        "TimeZone = 'Asia/Kolkata'",
        "DateStyle = 'SQL, DMY'",
        "bytea_output = 'escape'",
        "extra_float_digits = 0",
    ):
        change(url, f"ALTER DATABASE {name} SET {setting}")
    change(
        url,
        "CREATE TABLE t AS SELECT TIMESTAMPTZ '2024-03-31 02:30:00.5+02' AS at, DATE '2024-02-01' AS day, "
        "'\\x00ff'::bytea AS raw, 0.1::double precision + 0.2 AS sum, 0.1::real AS single",
    )
    for asked in ("", "?options=-cdatestyle%3DGerman -cextra_float_digits%3D-5 -ctimezone%3DAmerica/New_York"):
        with closing(Warehouse("wh", url + asked)) as warehouse:
            (row,) = warehouse.read(TableRead("wh", "t")).to_pylist()
        assert row == {
            "at": at("2024-03-31 00:30:00.500000"),
            "day": date(2024, 2, 1),
            "raw": b"\0\xff",
            "sum": 0.1 + 0.2,
            "single": 0.10000000149011612,
        }
    postgres_server.drop_database(url)

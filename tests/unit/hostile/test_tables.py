"""Records into tables of a warehouse and back, on SQLite and PostgreSQL: the same values, or refused by name."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_logio.databases import sqlite_url, with_absolute_path
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    LogioError,
    PipelineDefinitionError,
    WriteRefused,
)
from airflow_logio.systems.warehouse import Warehouse
from tests.conftest import SQL
from tests.support.postgres import PostgresServer

_names = (f"t{number}" for number in itertools.count(1))
BEGIN, INSERT = {"action": "begin"}, {"action": "insert"}


@pytest.fixture(scope="module", params=SQL)
def warehouse(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('hostile')}/wh.db"
    else:
        url = request.getfixturevalue("postgres_server").new_database(migrated=False)
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def write(warehouse: Warehouse, kind: str, values: pa.Array) -> str:
    """A run of its own writes them into a table of its own, numbered; returns the name of the table."""
    name = next(_names)
    writer = TableWriter("wh", name, {"v": kind, "i": "bigint"}, on_new_run="error")
    records = pa.table({"v": values, "i": pa.array(range(len(values)), pa.int64())})
    marker = Marker(name, "op", "wh", 0, 1, 1.0)
    begin = WriteAction(name, "op", "wh", 1, 1, pa.table({}), BEGIN)
    warehouse.apply(marker, writer, [begin])
    warehouse.apply(marker, writer, [WriteAction(name, "op", "wh", 2, 1, records, INSERT)])
    return name


def written_and_read(warehouse: Warehouse, kind: str, values: pa.Array) -> list[Any]:
    name = write(warehouse, kind, values)
    found: list[Any] = warehouse.read(TableRead("wh", name, ("v", "i"))).sort_by("i").column("v").to_pylist()
    return found


FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
UUID = uuid.UUID("7f3c1a50-0d5e-4b0a-9c57-1f2d3e4b5a6c")
EXACT = Context(prec=60)
DIGITS = st.integers(-(10**38) + 1, 10**38 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner),
)
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "timestamp": (pa.timestamp("us"), st.datetimes() | st.sampled_from([FIRST, LAST])),
    "date": (pa.date32(), st.dates() | st.sampled_from([date(1, 1, 1), date(9999, 12, 31)])),
    "text": (
        pa.string(),
        TEXT | st.sampled_from(["NULL", "{a,b}", "it's", '"', "\\", "%s", ":x", "'); DROP TABLE t; --"]),
    ),
    "bigint": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "boolean": (pa.bool_(), st.booleans()),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "decimal(10,2)": (pa.decimal128(10, 2), st.decimals(-99_999_999, 99_999_999, places=2)),
    "decimal(38,20)": (pa.decimal128(38, 20), DIGITS.map(lambda number: Decimal(number).scaleb(-20, EXACT))),
    "timestamptz": (pa.timestamp("us"), st.datetimes() | st.sampled_from([FIRST, LAST])),
    "json": (
        pa.string(),
        JSON.map(json.dumps) | st.sampled_from(['{"b": 1.10, "a": 1e400}', " [ ] ", '"\\u00e9"', "1"]),
    ),
    "uuid": (pa.string(), st.uuids().map(str)),
    "binary": (pa.binary(), st.binary(max_size=20) | st.sampled_from([b"", b"\\x41", b"NULL", b"\0\xff"])),
}


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_come_back_as_they_were(warehouse: Warehouse, kind: str, data: st.DataObject) -> None:
    arrow, values = VALUES[kind]
    given_values = data.draw(st.lists(st.none() | values, max_size=20))
    assert written_and_read(warehouse, kind, pa.array(given_values, arrow)) == given_values


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp", pa.array([0, 1_711_846_800], pa.timestamp("s", "Europe/Berlin"))),
        ("timestamp", pa.array([1000, -1000], pa.timestamp("ns"))),
        ("date", pa.array([date(2024, 2, 29)], pa.date64())),
        ("text", pa.array(["a", "b", "a"]).dictionary_encode()),
        ("text", pa.array(["a"], pa.large_string())),
        ("text", pa.nulls(3)),
        ("bigint", pa.array([1, 2], pa.uint8())),
        ("double", pa.array([1, 2], pa.int32())),
        ("text", pa.array([], pa.string())),
        ("timestamptz", pa.array([0, 1_711_846_800], pa.timestamp("s", "Europe/Berlin"))),
        ("decimal(10,2)", pa.array([Decimal("1.2300"), None], pa.decimal128(30, 4))),
        ("decimal(10,2)", pa.array([7, None], pa.int64())),
        ("decimal(10,2)", pa.array(["7.5", "-0.01"])),
        ("binary", pa.array([b"ab"], pa.binary(2))),
        ("int", pa.array([1], pa.int64())),
        ("json", pa.nulls(2)),
    ],
    ids=[
        "zone",
        "nanoseconds",
        "date64",
        "dictionary",
        "large",
        "nulls",
        "unsigned",
        "integers",
        "none",
        "zone of a timestamptz",
        "longer decimals",
        "integers for decimals",
        "texts for decimals",
        "bytes of one length",
        "long integers",
        "nulls for json",
    ],
)
def test_other_types_come_back_as_the_declared_one(warehouse: Warehouse, kind: str, values: pa.Array) -> None:
    arrow = VALUES[kind][0]
    utc = values.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(values.type) and values.type.tz else values
    if pa.types.is_integer(values.type) and pa.types.is_decimal(arrow):
        utc = values.cast(pa.decimal128(19, 0))
    assert written_and_read(warehouse, kind, values) == utc.cast(arrow).to_pylist()


@pytest.mark.parametrize("values", [pa.array([UUID.bytes, None], pa.binary(16)), pa.array([UUID.bytes, None], pa.uuid()),
                                    pa.array([str(UUID).upper(), None])], ids=["bytes", "uuids", "upper case"])  # fmt: skip
def test_uuids_come_back_in_one_form(warehouse: Warehouse, values: pa.Array) -> None:
    assert written_and_read(warehouse, "uuid", values) == [str(UUID), None]


AFTER_9999 = 253_402_300_800


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("timestamp", pa.array([0, AFTER_9999 * 10**6], pa.timestamp("us"))),
        ("timestamp", pa.array([-62_135_596_800 * 10**6 - 1, 0], pa.timestamp("us"))),
        ("timestamp", pa.array([2**63 - 1, -(2**63)], pa.timestamp("us"))),
        ("timestamp", pa.array([AFTER_9999], pa.timestamp("s"))),
        ("timestamp", pa.array([1], pa.timestamp("ns"))),
        ("timestamp", pa.array(["2020-01-01 10 o'clock"])),
        ("date", pa.array([2_932_897], pa.int32()).cast(pa.date32())),
        ("date", pa.array([-719_163], pa.int32()).cast(pa.date32())),
        ("bigint", pa.array([2**64 - 1], pa.uint64())),
        ("bigint", pa.array([1.5])),
        ("text", pa.array([[1], [2]])),
        ("text", pa.array([b"\xff"])),
        ("boolean", pa.array(["perhaps"])),
        ("boolean", pa.array([0, 2])),
        ("boolean", pa.array([0.0, 0.5])),
        ("boolean", pa.array([Decimal("0.5")])),
        ("date", pa.array([datetime(2020, 1, 1), datetime(2020, 1, 1, 10)])),  # noqa: DTZ001
        ("double", pa.array([Decimal("0.5")], pa.decimal128(10, 2))),
        ("decimal(10,2)", pa.array([0.5])),
        ("decimal(10,2)", pa.array([Decimal("0.005")], pa.decimal128(10, 3))),
        ("decimal(10,2)", pa.array([10**8])),
        ("decimal(10,2)", pa.array(["0.005"])),
        ("decimal(10,2)", pa.array(["NaN"])),
        ("int", pa.array([2**31])),
        ("json", pa.array(["{}", "{"])),
        ("json", pa.array(["NaN"])),
        ("json", pa.array([1])),
        ("uuid", pa.array(["7f3c1a50"])),
        ("uuid", pa.array([b"short"])),
        ("binary", pa.array([1])),
    ],
)
def test_values_that_would_not_come_back_are_refused_and_not_half_written(
    warehouse: Warehouse, kind: str, values: pa.Array
) -> None:
    with pytest.raises(WriteRefused, match=r"records for table 't\d+'"):
        write(warehouse, kind, values)
    _nothing_was_written(warehouse)


def _nothing_was_written(warehouse: Warehouse) -> None:
    with warehouse.engine.begin() as connection:
        (name, last) = connection.execute(
            sa.text("SELECT run_uid, last_write FROM logio_marker ORDER BY length(run_uid) DESC, run_uid DESC")
        ).first() or ("", 0)
        assert last == 1, "the table was begun, its insert was not applied"
        assert connection.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one() == 0


def test_what_one_database_cannot_hold_is_refused_there(warehouse: Warehouse) -> None:
    """SQLite has no NaN (it would be NULL), PostgreSQL no NUL in a text."""
    is_sqlite = warehouse.engine.dialect.name == "sqlite"
    nan, nul = pa.array([float("nan"), 1.0]), pa.array(["a\0b"])
    with pytest.raises(WriteRefused, match="NaN" if is_sqlite else "NUL"):
        write(warehouse, *(("double", nan) if is_sqlite else ("text", nul)))
    _nothing_was_written(warehouse)
    found = written_and_read(warehouse, *(("text", nul) if is_sqlite else ("double", nan)))
    assert repr(found) == ("['a\\x00b']" if is_sqlite else "[nan, 1.0]")


# --- reads ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dimension(warehouse: Warehouse) -> str:
    with warehouse.engine.begin() as connection:
        connection.execute(
            sa.text("CREATE TABLE dimension (id BIGINT, name TEXT, price DOUBLE PRECISION, cost NUMERIC(9,2))")
        )
        connection.execute(
            sa.text("INSERT INTO dimension VALUES (1, 'it''s', 1.5, 2.25), (2, '%s', NULL, NULL), (NULL, 'none', 0, 0)")
        )
    return "dimension"


@pytest.mark.parametrize(
    ("key", "keys", "found"),
    [
        ("id", pa.array([None, 1, 1, None], pa.int64()), [1]),
        ("id", pa.nulls(3), []),
        ("id", pa.nulls(3, pa.int64()), []),
        ("id", pa.array([], pa.int64()), []),
        ("id", pa.array(range(12_000), pa.int64()), [1, 2]),
        ("id", pa.array([2], pa.uint8()), [2]),
        ("id", pa.chunked_array([[1], [2, None]]), [1, 2]),
        ("name", pa.array(["it's", "%s", '"', "'); DROP TABLE dimension; --", None, ":x"]), [1, 2]),
    ],
)
def test_a_read_by_any_keys(warehouse: Warehouse, dimension: str, key: str, keys: Any, found: list[int]) -> None:
    """A null key has no row: not even one whose own key is null."""
    rows = warehouse.read(TableRead("wh", dimension, ("id", "name", "price", "cost"), key=key), keys)
    assert sorted(rows.column("id").to_pylist()) == found
    assert rows.schema.types == [pa.int64(), pa.string(), pa.float64(), pa.decimal128(9, 2)]


@pytest.mark.parametrize(
    "keys", [pa.array([{"a": 1}]), pa.array(["x\0"]), pa.array([2**64 - 1], pa.uint64()), pa.array([b"\xff"])]
)
def test_a_read_by_keys_that_cannot_be_asked_for(warehouse: Warehouse, dimension: str, keys: pa.Array) -> None:
    """No rows, or refused in words; never an error of the driver as it is."""
    try:
        assert warehouse.read(TableRead("wh", dimension, ("id", "name"), key="name"), keys).num_rows == 0
    except LogioError as error:
        assert "'wh'" in str(error)


@pytest.mark.postgres
def test_values_of_others_that_no_calendar_has(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database(migrated=False)
    warehouse = Warehouse("wh", url)
    with warehouse.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE far AS SELECT TIMESTAMP 'infinity' AS t UNION SELECT '294276-12-31'"))
    with pytest.raises(LogioError, match="'wh'"):
        warehouse.read(TableRead("wh", "far"))
    warehouse.close()
    postgres_server.drop_database(url)


# --- names and URLs ---------------------------------------------------------------------------------------------------

ODD = ["a b", "a-b", " a", "a ", "-a", "a;b", 'a"b', "a'b", "a.b.c", "a%s", "a%(b)s", ":a", "é", "1a"]
NONE = ["", "a\0b", "a\nb", "a\tb", "x" * 64, "é" * 32, None, 5]


@pytest.mark.parametrize("name", [*NONE, "a.b.c", 'a"b'])
def test_what_is_no_name_of_a_table_is_refused_when_the_pipeline_is_defined(name: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match="not allowed"):
        TableWriter("wh", name, {"a": "bigint"})
    with pytest.raises(PipelineDefinitionError, match="not allowed"):
        TableRead("wh", name)


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_name_of_a_column_is_refused_when_the_pipeline_is_defined(name: Any) -> None:
    with pytest.raises(PipelineDefinitionError, match="not allowed"):
        TableWriter("wh", "t", {name: "bigint"})


@pytest.mark.parametrize("name", ODD)
def test_odd_names_of_columns_are_names(warehouse: Warehouse, name: str) -> None:
    table = next(_names)
    writer = TableWriter("wh", table, {name: "bigint", "b": "text"}, primary_key=[name], on_new_run="error")
    marker, records = Marker(table, "op", "wh", 0, 1, 1.0), pa.table({"b": ["x", "y"], name: [1, 2]})
    actions = [
        WriteAction(table, "op", "wh", 1, 1, pa.table({}), BEGIN),
        WriteAction(table, "op", "wh", 2, 1, records, INSERT),
    ]
    warehouse.apply(marker, writer, actions)
    found = warehouse.read(TableRead("wh", table, (name, "b"), key=name), pa.array([2]))
    assert found.to_pydict() == {name: [2], "b": ["y"]}


@pytest.mark.parametrize("word", ["select", "order", "user", "Group", "FROM"])
def test_words_of_sql_are_names_like_others(warehouse: Warehouse, word: str) -> None:
    name = f"{word}_of_{next(_names)}"
    writer = TableWriter("wh", name, {word: "bigint"}, on_new_run="error")
    marker, records = Marker(name, "op", "wh", 0, 1, 1.0), pa.table({word: [1, 2]})
    actions = [
        WriteAction(name, "op", "wh", 1, 1, pa.table({}), BEGIN),
        WriteAction(name, "op", "wh", 2, 1, records, INSERT),
    ]
    warehouse.apply(marker, writer, actions)
    assert warehouse.read(TableRead("wh", name)).sort_by(word).to_pydict() == {word: [1, 2]}


PASSWORDS = ["p@ss:w/or%d?#[]&= +'\"\\", "日本 😀 é", "%", " ", "a\nb"]


@pytest.mark.postgres
@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_of_any_characters_is_no_obstacle(postgres_server: PostgresServer, password: str) -> None:
    warehouse = Warehouse("wh", postgres_server.url("postgres", password=quote(password, safe="")))
    assert warehouse.engine.url.password == password
    with warehouse.engine.begin() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
    warehouse.close()


@pytest.mark.parametrize("password", PASSWORDS)
def test_no_error_shows_a_password(password: str) -> None:
    url = f"postgresql://user:{quote(password, safe='')}hunter2@127.0.0.1:1/db"
    warehouse = Warehouse("wh", url)
    with pytest.raises((ConfigurationError, ExternalUnavailable), match="'wh'") as refused:
        warehouse.read(TableRead("wh", "t"))
    assert "hunter2" not in str(refused.value)
    warehouse.close()


@pytest.mark.parametrize("folder", ["it's", 'a "b"', "é 日本", "a%20b", "a#b", "a&b=c", "a;b", "a?b=c", "100%"])
def test_an_sqlite_file_in_any_folder(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    place = tmp_path_factory.mktemp("odd") / folder
    place.mkdir()
    url = sqlite_url(place / "wh.db")
    monkeypatch.chdir(place)
    assert with_absolute_path("sqlite:///wh.db") == with_absolute_path(url) == url
    warehouse = Warehouse("wh", url)
    assert written_and_read(warehouse, "bigint", pa.array([1])) == [1]
    assert (place / "wh.db").is_file()
    warehouse.close()

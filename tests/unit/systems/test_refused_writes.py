"""What a person reads when a table refuses a write: operator, connection, table, column, write action and row."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio import databases
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, WriteRefused
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.systems import table_transaction
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.databases import table_inserts
from airflow_logio.systems.execution import executor_of
from tests.conftest import SQL
from tests.support.warehouse import change, rows_of

PLACE = "pipeline 'sales', operator 'save', connection 'wh', write actions 1 to 4: "


class Writer:
    """A writer of table ``t`` of a database, as a driver executes it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connections = Connections("sales", {"wh": url}, WriterIdentity("run", 1, 1.0), 5.0)

    def refusal(self, columns: dict[str, str] | None, *tables: pa.Table) -> str:
        """What it is told when it executes a group of write actions: the opening, then one per table."""
        writer = TableWriter("wh", "t", columns, on_new_run="append")
        pending = [PendingWrite("save", "wh", 1, {"action": "begin"}, 0, b"")]
        for number, table in enumerate(tables, 2):
            pending.append(PendingWrite("save", "wh", number, {"action": "insert"}, table.num_rows, encode(table)))
        with pytest.raises(WriteRefused) as refused:
            executor_of("save", writer, self.connections).execute(pending, 0, threading.Event())
        return str(refused.value)

    def rows(self) -> list[tuple[object, ...]]:
        return rows_of(self.url, "SELECT * FROM t") + rows_of(self.url, "SELECT * FROM logio_marker")


@pytest.fixture(params=SQL)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Writer]:
    sqlite = request.param == "sqlite"
    made = Writer(f"sqlite:///{tmp_path}/wh.db" if sqlite else request.getfixturevalue("postgres_url"))
    yield made
    made.connections.close()


def numbers(*values: int | None) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


@pytest.mark.parametrize(
    ("tables", "row"),
    [
        ((numbers(1, 2), numbers(3, 4, 5, 7, 8), numbers(9)), "write action 3, row 3"),
        ((numbers(1, 2), numbers(), numbers(3, 1)), "write action 4, row 1"),
        ((numbers(7), numbers(1, 2), numbers(3)), "write action 2, row 0"),
        ((numbers(1), numbers(2), numbers(3, 4, None)), "write action 4, row 2"),
    ],
    ids=["one that is there", "one of the same group", "the first one", "null"],
)
def test_the_row_that_the_database_refuses_is_named(writer: Writer, tables: tuple[pa.Table, ...], row: str) -> None:
    change(writer.url, "CREATE TABLE t (a BIGINT PRIMARY KEY NOT NULL, b TEXT)")
    change(writer.url, "INSERT INTO t VALUES (7, 'there before')")
    said = writer.refusal(None, *tables)
    assert said.startswith(f"{PLACE}connection 'wh' refused a statement: table 't', {row} (counted from 0): "), said
    assert ("`logio retry`. If the pipeline makes the key twice" in said) == ("row 2" not in row), said
    assert writer.rows() == [(7, "there before")], "neither rows nor marker"


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        ("bigint", pa.array(["1", "x"]), "row 1 (counted from 0): Failed to parse string: 'x'"),
        ("decimal(4,2)", pa.array([Decimal("1.234")]), "row 0 (counted from 0): Rescaling Decimal"),
        ("double", pa.array([Decimal("1.5")]), "a decimal128(2, 1) does not fit into a double without loss"),
        ("json", pa.array(["{}", "{", "["]), "row 1 (counted from 0): Expecting property name"),
        ("timestamp", pa.array([0, 2**63 - 1], pa.timestamp("us")), "row 1 (counted from 0): a time outside the years"),
    ],
)  # fmt: skip
def test_the_value_that_does_not_fit_is_named(writer: Writer, kind: str, values: pa.Array, says: str) -> None:
    """The table is begun by itself: a group that is refused leaves nothing behind."""
    change(writer.url, "CREATE TABLE other (a BIGINT)")
    fine = pa.table({"v": values.slice(0, 0)})
    said = writer.refusal({"v": kind}, fine, pa.table({"v": values}), fine)
    assert said.startswith(f"{PLACE}records for table 't', column 'v' ({kind}), write action 3, "), said
    assert says in said


@pytest.mark.postgres
def test_a_row_that_no_index_holds_is_named(postgres_url: str) -> None:
    """psycopg2 calls that an operational error, as it does an outage."""
    writer = Writer(postgres_url)
    change(postgres_url, "CREATE TABLE t (a TEXT PRIMARY KEY)")
    noise = "".join(hashlib.sha512(str(number).encode()).hexdigest() for number in range(100))
    texts = pa.table({"a": ["short", noise]})
    said = writer.refusal(None, texts, texts.slice(0, 0), texts.slice(0, 0))
    assert "refused a statement: table 't', write action 2, row 1 (counted from 0): " in said
    assert "index row" in said
    writer.connections.close()


@pytest.mark.postgres
@pytest.mark.parametrize("rows", [table_transaction.MANY_RECORDS, 1])
def test_records_that_take_long_to_convert_are_written(
    rows: int, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends a session that stands still with the marker locked. One that converts many records says that it lives;
    few never take so long."""
    monkeypatch.setattr(databases, "IDLE_IN_TRANSACTION_SECONDS", 3)
    monkeypatch.setattr(table_transaction, "ALIVE_SECONDS", 0.2)
    converted = table_inserts.Insertion.converted

    def slowly(self: table_inserts.Insertion, actions: Sequence[WriteAction]) -> pa.Table:
        time.sleep(4)
        return converted(self, actions)

    monkeypatch.setattr(table_inserts.Insertion, "converted", slowly)
    writer = Writer(postgres_url)
    table = TableWriter("wh", "t", {"a": "bigint"}, on_new_run="append")
    actions = [WriteAction("run", "save", "wh", 1, 1, pa.table({}), {"action": "begin"})]
    actions.append(WriteAction("run", "save", "wh", 2, 1, numbers(*range(rows)), {"action": "insert"}))
    marker = Marker("run", "save", "wh", 0, 1, 1.0)
    warehouse = writer.connections.warehouse("wh")
    if rows == 1:
        with pytest.raises(ExternalUnavailable):
            warehouse.apply(marker, table, actions)
    else:
        warehouse.apply(marker, table, actions)
        assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(rows,)]
    writer.connections.close()


@pytest.mark.parametrize("error", [sa.exc.PendingRollbackError, sa.exc.ResourceClosedError, sa.exc.TimeoutError])
def test_a_session_that_was_lost_between_two_statements_is_an_outage(error: type[Exception], tmp_path: Path) -> None:
    """The ping of another thread has met it first."""
    writer = Writer(f"sqlite:///{tmp_path}/wh.db")
    with pytest.raises(ExternalUnavailable), writer.connections.warehouse("wh").translated():
        raise error("Can't reconnect until invalid transaction is rolled back")
    writer.connections.close()


@pytest.mark.postgres
def test_a_view_that_takes_no_rows_is_a_refusal(postgres_url: str) -> None:
    writer = Writer(postgres_url)
    change(postgres_url, "CREATE VIEW t AS SELECT 1::bigint AS a UNION SELECT 2")
    said = writer.refusal(None, numbers(3), numbers(), numbers())
    assert "view" in said
    writer.connections.close()


def test_records_with_other_columns_are_named(writer: Writer) -> None:
    said = writer.refusal({"a": "bigint", "b": "text"}, numbers(), numbers(1), numbers())
    assert (
        "records for table 't', write action 3, have no column 'b': they have ['a'], and the table ['a', 'b']" in said
    )


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("decimal(20,2)", "DOUBLE PRECISION"),
        ("text", "NUMERIC(9,2)"),
        ("bigint", "DOUBLE PRECISION"),
        ("decimal(10,4)", "NUMERIC(9,2)"),
        ("decimal(10,1)", "INTEGER"),
        ("double", "REAL"),
        ("double", "INTEGER"),
        ("double", "NUMERIC(9,2)"),
        ("timestamp", "DATE"),
        ("timestamptz", "TIMESTAMP(0)"),
        ("int", "REAL"),
    ],
)
def test_a_column_that_would_change_what_is_written_is_named(writer: Writer, kind: str, found: str) -> None:
    """PostgreSQL rounds and cuts without a word, SQLite makes doubles of what looks like a number."""
    change(writer.url, f"CREATE TABLE t (v {found})")
    fine = pa.table({"v": pa.nulls(0)})
    sqlite = writer.url.startswith("sqlite")
    harmless = {"text": not sqlite, "bigint": False, "decimal(20,2)": False, "decimal(10,1)": False}.get(kind, sqlite)
    if harmless:
        said = writer.refusal({"v": kind}, fine, pa.table({"w": [1]}), fine)
        assert "have no column 'v'" in said, "only what the test itself does wrong"
        return
    said = writer.refusal({"v": kind}, fine, fine, fine)
    assert said.startswith(f"{PLACE}table 't', column 'v' is declared {kind}, and the database has it as "), said


def test_each_writer_of_a_table_has_its_declaration_checked(writer: Writer) -> None:
    """Two of one table, with other declared columns: what the first one found says nothing of the second one."""
    change(writer.url, "CREATE TABLE t (a BIGINT, v DOUBLE PRECISION)")
    warehouse = writer.connections.warehouse("wh")
    opening = WriteAction("run", "first", "wh", 1, 1, pa.table({}), {"action": "begin"})
    first = TableWriter("wh", "t", {"a": "bigint"}, on_new_run="append")
    warehouse.apply(Marker("run", "first", "wh", 0, 1, 1.0), first, [opening])
    second = TableWriter("wh", "t", {"a": "bigint", "v": "decimal(20,2)"}, on_new_run="append")
    with pytest.raises(WriteRefused, match=r"column 'v' is declared decimal\(20,2\)"):
        warehouse.apply(Marker("run", "second", "wh", 0, 1, 1.0), second, [replace(opening, operator="second")])


def test_a_declared_column_that_is_not_there_is_named(writer: Writer) -> None:
    change(writer.url, "CREATE TABLE t (a BIGINT)")
    said = writer.refusal({"a": "bigint", "b": "text"}, numbers(), numbers(), numbers())
    assert said.startswith(
        f"{PLACE}table 't' has no column 'b'; it has ['a']. If it is new, declare it 'text null': the next run adds it"
    )


def test_a_decimal_into_a_double_that_the_database_has_is_refused(writer: Writer) -> None:
    change(writer.url, "CREATE TABLE t (v DOUBLE PRECISION)")
    rows = pa.table({"v": [Decimal("0.1")]})
    said = writer.refusal(None, rows.slice(0, 0), rows, rows)
    assert "column 'v' (double), write action 3, row 0" in said


def test_a_value_that_cannot_be_read_is_named(writer: Writer) -> None:
    sqlite = writer.url.startswith("sqlite")
    change(writer.url, "CREATE TABLE t (id BIGINT, v NUMERIC(9,2))")
    change(writer.url, f"INSERT INTO t VALUES (1, 1.25), (2, {'1.125' if sqlite else chr(39) + 'NaN' + chr(39)})")
    warehouse = writer.connections.warehouse("wh")
    with pytest.raises(ConfigurationError, match=r"table 't' of connection 'wh', column 'v', row 1 of those read"):
        warehouse.read(TableRead("wh", "t"))

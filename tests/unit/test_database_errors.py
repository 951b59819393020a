"""What an error of a database means is decided by its code: what lasts parks at once, what passes is waited for.

Each error is one that the real database has raised.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.database_errors import Fault, fault_of
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    LogInconsistent,
    LogUnavailable,
    NotPermitted,
    WriteRefused,
)
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.sql import migrate
from airflow_logio.store.sql.engines import translated
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import executor_of
from airflow_logio.systems.warehouse import Warehouse
from tests.support.warehouse import change, rows_of, warehouse_engine

ROWS = pa.table({"a": pa.array([1, 2], pa.int64())})
STATES = {
    Fault.UNAVAILABLE: "08000 08006 25006 25P03 40001 40P01 53000 53100 53200 53300 55006 55P03 57000 57P01 57P02 57P03 "
    "57P05 58000 58030 72000 HV00N",
    Fault.CUT_OFF: "57014 25P04",
    Fault.LASTING: "0A000 22003 22P02 23505 25P02 40002 42501 42601 42703 42P01 44000 53400 54000 54001 54011 55000 57P04 "
    "58P01 58P02 HV000 P0001 XX000 XX001 XX002",
}


@pytest.mark.postgres
@pytest.mark.parametrize("fault", STATES)
def test_postgres_says_by_its_sqlstate_what_is_to_be_done(fault: Fault, postgres_url: str) -> None:
    with warehouse_engine(postgres_url).connect() as connection:
        for state in STATES[fault].split():
            with pytest.raises(sa.exc.DBAPIError) as raised:
                connection.execute(sa.text(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$"))
            connection.rollback()
            assert fault_of(raised.value) is fault, state


@pytest.mark.postgres
def test_a_code_counts_for_more_than_words(postgres_url: str) -> None:
    """These are words of libpq for a URL that is wrong."""
    with warehouse_engine(postgres_url).connect() as connection:
        for statement in ("SELECT CAST('x' AS integer)", "DO $$ BEGIN RAISE 'missing connection to server'; END $$"):
            with pytest.raises(sa.exc.DBAPIError) as raised:
                connection.execute(sa.text(statement))
            connection.rollback()
            assert fault_of(raised.value) is Fault.LASTING
    for wrong in ("postgresql://nobody@127.0.0.1:1/none?sslmode=ja", "postgresql://127.0.0.1:1/none"):
        with pytest.raises(sa.exc.DBAPIError) as raised:
            warehouse_engine(wrong).connect()
        assert fault_of(raised.value) is (Fault.MISCONFIGURED if "sslmode" in wrong else Fault.UNAVAILABLE)


def codes(fault: Fault) -> list[int]:
    """Those that the installed SQLite knows, by the names that Python has."""
    waited = "ABORT BUSY LOCKED NOMEM IOERR FULL CANTOPEN PROTOCOL SCHEMA"
    lasting = "ERROR INTERNAL PERM READONLY CORRUPT NOTFOUND TOOBIG CONSTRAINT MISMATCH MISUSE AUTH RANGE"
    extended = {
        Fault.UNAVAILABLE: (sqlite3.SQLITE_BUSY | 2 << 8, sqlite3.SQLITE_IOERR | 3 << 8, 513, 769),
        Fault.LASTING: (sqlite3.SQLITE_CONSTRAINT | 8 << 8, sqlite3.SQLITE_READONLY | 4 << 8, 526, 8458),
    }
    names = {Fault.UNAVAILABLE: waited, Fault.LASTING: lasting, Fault.CUT_OFF: "INTERRUPT"}[fault]
    return [*(getattr(sqlite3, f"SQLITE_{name}") for name in names.split()), *extended.get(fault, ())]


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LASTING, Fault.CUT_OFF])
def test_sqlite_says_by_its_code_what_is_to_be_done(fault: Fault) -> None:
    for code in codes(fault):
        error = sqlite3.OperationalError("in any words, such as: database is locked")
        error.sqlite_errorcode = code
        assert fault_of(sa.exc.OperationalError("SELECT 1", None, error)) is fault, code


# --- errors that last, as a writer meets them -------------------------------------------------------------------------

_TABLE = "CREATE TABLE t (a BIGINT)"
LASTING = {
    "a view": ("CREATE TABLE kept (a BIGINT)", "CREATE VIEW t AS SELECT a FROM kept"),
    "a generated column": ("CREATE TABLE t (b BIGINT, a BIGINT GENERATED ALWAYS AS (b + 1))",),
    "a missing table behind a trigger": (
        _TABLE,
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO missing VALUES (NEW.a); END",
    ),
    "a trigger that raises": (
        _TABLE,
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT RAISE(ABORT, 'database is locked'); END",
    ),
    "a constraint": ("CREATE TABLE t (a BIGINT CHECK (a < 1))",),
    "a column that a trigger does not find": (
        _TABLE,
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN UPDATE t SET b = 1; END",
    ),
}


def write(url: str, columns: dict[str, str] | None = None, rows: pa.Table = ROWS, seconds: float = 60.0) -> None:
    connections = Connections("sales", {"wh": url}, WriterIdentity("run", 1, 1.0), seconds)
    pending = [
        PendingWrite("save", "wh", 1, {"action": "begin"}, 0, b""),
        PendingWrite("save", "wh", 2, {"action": "insert"}, rows.num_rows, encode(rows)),
    ]
    try:
        writer = TableWriter("wh", "t", columns, on_new_run="append")
        executor_of("save", writer, connections).execute(pending, 0, threading.Event())
    finally:
        connections.close()


@pytest.mark.parametrize("statements", LASTING.values(), ids=LASTING)
def test_what_sqlite_refuses_for_good_is_a_refusal_at_once(statements: tuple[str, ...], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wh.db"
    for statement in statements:
        change(url, statement)
    with pytest.raises(WriteRefused, match="connection 'wh' refused a statement: table 't', write action 2, row 0"):
        write(url)


def test_a_table_that_sqlite_cannot_make_is_a_refusal_at_once(tmp_path: Path) -> None:
    many = {f"c{number}": "int" for number in range(2001)}
    with pytest.raises(WriteRefused, match="too many columns"):
        write(f"sqlite:///{tmp_path}/wh.db", many, pa.table({name: pa.array([1], pa.int32()) for name in many}))
    with pytest.raises(WriteRefused, match="duplicate column name"):
        write(f"sqlite:///{tmp_path}/wh.db", {"a": "bigint", "A": "bigint"}, ROWS.append_column("A", ROWS["a"]))


def test_a_file_that_is_no_database_or_damaged_or_not_to_be_written_is_a_refusal_at_once(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"no database at all " * 500)
    with pytest.raises(
        ConfigurationError, match=r"connection 'wh': file is not a database: .*text.db; name an SQLite file"
    ):
        write(f"sqlite:///{tmp_path}/text.db")
    path = tmp_path / "wh.db"
    url = f"sqlite:///{path}"
    change(url, _TABLE)
    change(url, "PRAGMA writable_schema = ON")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET rootpage = 77 WHERE name = 't'")
        connection.commit()
    with pytest.raises(WriteRefused, match="malformed"):
        write(url)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "wh.db"
    change(f"sqlite:///{path}", _TABLE)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.5, lambda: holder.execute("COMMIT"))
        timer.start()
        yield path
        timer.join()


def test_a_lock_of_sqlite_is_waited_for(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_logio.databases.BUSY_TIMEOUT_SECONDS", 0.1)
    write(f"sqlite:///{locked}")
    assert rows_of(f"sqlite:///{locked}", "SELECT a FROM t") == [(1,), (2,)]


def test_a_read_that_sqlite_refuses_for_good_is_a_matter_of_the_pipeline(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wh.db"
    change(url, "CREATE TABLE kept (a BIGINT)")
    change(url, "CREATE VIEW t AS SELECT a, no_function(a) FROM kept")
    connections = Connections("sales", {"wh": url}, WriterIdentity("run", 1, 1.0), 60.0)
    with pytest.raises(ConfigurationError, match="no such function: no_function"):
        connections.read(TableRead("wh", "t"), None)
    with pytest.raises(ConfigurationError, match="misuse of aggregate"):
        list(connections.source("wh").query("SELECT a FROM kept WHERE sum(a) > 1", {}, {"a": "bigint"}))
    connections.close()


def test_a_file_that_cannot_be_opened_is_named_with_the_cause(tmp_path: Path) -> None:
    with pytest.raises(WriteRefused, match=f"unable to open database file: {tmp_path} is a folder; name a file in it"):
        write(f"sqlite:///{tmp_path}")
    with pytest.raises(ConfigurationError, match=r"connection 'wh': the folder .* does not exist; create it first"):
        write(f"sqlite:///{tmp_path}/none/wh.db")


def test_a_file_whose_folder_has_gone_is_waited_for(tmp_path: Path) -> None:
    """Its disk may be away for a while."""
    (folder := tmp_path / "mounted").mkdir()
    with closing(Warehouse("wh", f"sqlite:///{folder}/wh.db")) as warehouse:
        folder.rmdir()
        with pytest.raises(ExternalUnavailable, match=f"the folder {folder} is not there"), warehouse.snapshot():
            pass


# --- statements that the database ends --------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_statement_that_times_out_is_tried_a_few_times_then_a_person_is_told(postgres_url: str) -> None:
    change(postgres_url, _TABLE)
    slow = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(30); RETURN NEW; END $$"
    change(postgres_url, slow)
    change(postgres_url, "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()")
    url = f"{postgres_url}?options=-cstatement_timeout%3D300"
    with pytest.raises(
        ConfigurationError, match=r"ended its statement 3 times in a row: (.|\n)*statement timeout(.|\n)*ALTER ROLE"
    ):
        write(url)
    change(postgres_url, "DROP TRIGGER g ON t")
    write(url)
    assert rows_of(postgres_url, "SELECT a FROM t ORDER BY a") == [(1,), (2,)]


@pytest.mark.postgres
def test_a_statement_that_times_out_once_is_tried_again(postgres_url: str) -> None:
    """Another one held the lock."""
    change(postgres_url, _TABLE)
    url = f"{postgres_url}?options=-cstatement_timeout%3D200"
    with warehouse_engine(postgres_url).connect() as holder:
        holder.execute(sa.text("LOCK TABLE t"))
        timer = threading.Timer(0.3, holder.rollback)
        timer.start()
        write(url)
        timer.join()
    assert rows_of(postgres_url, "SELECT a FROM t ORDER BY a") == [(1,), (2,)]


# --- the log ----------------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_a_log_whose_statements_time_out_says_how_to_give_them_more_time(postgres_url: str) -> None:
    engine = warehouse_engine(f"{postgres_url}?options=-cstatement_timeout%3D100")
    with (
        pytest.raises(LogUnavailable, match=r"statement timeout.*ALTER ROLE"),
        translated(engine),
        engine.connect() as on,
    ):
        on.execute(sa.text("SELECT pg_sleep(30)"))


def test_a_log_that_is_no_database_or_damaged_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_bytes(b"no database at all " * 500)
    with pytest.raises(ConfigurationError, match=r"log database .*text.db; name an SQLite file, or move this one away"):
        migrate.upgrade(f"sqlite:///{tmp_path}/text.db")
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    with (
        pytest.raises(LogInconsistent, match=r"malformed; restore it from a backup"),
        translated(warehouse_engine("sqlite://")),
    ):
        raise sa.exc.DatabaseError("SELECT 1", None, error)


def test_a_log_of_sqlite_that_may_not_be_written_is_no_outage(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    change(f"sqlite:///{path}", _TABLE)
    engine = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    with pytest.raises(NotPermitted, match="readonly"), translated(engine), engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO t VALUES (1)"))

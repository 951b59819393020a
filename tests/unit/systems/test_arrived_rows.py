"""As many rows are in a table as were sent to it, or the write is refused with both counts and leaves nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.execution import executor_of
from tests.support.warehouse import change, rows_of

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
ADDRESSES = pa.table({"a": pa.array(range(2500), pa.int64()), "ip": ["10.0.0.1"] * 2500})
"""A column of a type that only the driver knows, in more rows than one message has."""

_FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {0} END $$"
_DROPS = "IF NEW.a = 2 THEN RETURN NULL; END IF; RETURN NEW;"
_ROUTES = "IF NEW.a <> {0} THEN INSERT INTO low VALUES (NEW.*); END IF; RETURN NULL;"
_UPSERT = "INSERT INTO kept VALUES (NEW.a) ON CONFLICT (a) DO NOTHING; RETURN NEW;"
_BEFORE = "CREATE TRIGGER g BEFORE INSERT ON {0} FOR EACH ROW EXECUTE FUNCTION f()"
_INSTEAD = "CREATE TRIGGER g INSTEAD OF INSERT ON t FOR EACH ROW EXECUTE FUNCTION f()"
_TABLE = "CREATE TABLE t (a BIGINT)"
_VIEW = ("CREATE TABLE kept (a BIGINT PRIMARY KEY)", "CREATE VIEW t AS SELECT a FROM kept")
_PARTS = (
    "CREATE TABLE t (a BIGINT) PARTITION BY RANGE (a)",
    "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100)",
)
_HEIR = (_TABLE, "CREATE TABLE low () INHERITS (t)")

POSTGRES_DROPS = {
    "a trigger": (_TABLE, _FUNCTION.format(_DROPS), _BEFORE.format("t")),
    "a trigger of a partition": (*_PARTS, _FUNCTION.format(_DROPS), _BEFORE.format("low")),
    "a rule with a condition": (
        _TABLE,
        "CREATE RULE g AS ON INSERT TO t WHERE NEW.a = 2 DO INSTEAD NOTHING",
    ),
    "a trigger that passes rows on, and not all": (*_HEIR, _FUNCTION.format(_ROUTES.format(2)), _BEFORE.format("t")),
    "the trigger of a view": (*_VIEW, _FUNCTION.format(_DROPS), _INSTEAD),
    "a trigger behind a view": (
        *_VIEW,
        _FUNCTION.format(_DROPS),
        _BEFORE.format("kept"),
    ),
}
POSTGRES_KEEPS = {
    "partitions": _PARTS,
    "a trigger that passes rows on": (*_HEIR, _FUNCTION.format(_ROUTES.format(0)), _BEFORE.format("t")),
    "a view": _VIEW,
    "a view whose trigger changes nothing for what is there": (
        *_VIEW,
        "INSERT INTO kept VALUES (2)",
        _FUNCTION.format(_UPSERT),
        _INSTEAD,
    ),
    "a trigger that writes elsewhere": (
        _TABLE,
        "CREATE TABLE audit (a BIGINT)",
        _FUNCTION.format("INSERT INTO audit VALUES (NEW.a), (-NEW.a); RETURN NEW;"),
        _BEFORE.format("t"),
    ),
    "rules that pass rows on": (
        *_HEIR,
        "CREATE RULE g AS ON INSERT TO t WHERE NEW.a <> 2 DO INSTEAD INSERT INTO low VALUES (NEW.*)",
    ),
    "the rule of a view": (
        "CREATE TABLE kept (a BIGINT)",
        "CREATE VIEW t AS SELECT a FROM kept WHERE a > 0",
        "CREATE RULE g AS ON INSERT TO t DO INSTEAD INSERT INTO kept VALUES (NEW.a)",
    ),
    "partitions of partitions": (
        "CREATE TABLE t (a BIGINT) PARTITION BY RANGE (a)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100) PARTITION BY LIST (a)",
        "CREATE TABLE one PARTITION OF low FOR VALUES IN (1)",
        "CREATE TABLE others PARTITION OF low DEFAULT",
    ),
    "a rule beside": (
        _TABLE,
        "CREATE TABLE audit (a BIGINT)",
        "CREATE RULE g AS ON INSERT TO t DO ALSO INSERT INTO audit VALUES (0), (NEW.a)",
    ),
}
_IGNORES = "BEGIN SELECT RAISE(IGNORE) WHERE NEW.a = 2; {0} END"
SQLITE_DROPS = {
    "a trigger": (_TABLE, "CREATE TRIGGER g BEFORE INSERT ON t " + _IGNORES.format("")),
    "a conflict clause": ("CREATE TABLE t (a BIGINT UNIQUE ON CONFLICT IGNORE)", "INSERT INTO t VALUES (2)"),
    "the trigger of a view": (
        *_VIEW,
        "CREATE TRIGGER g INSTEAD OF INSERT ON t " + _IGNORES.format("INSERT INTO kept VALUES (NEW.a);"),
    ),
    "the condition of a view's trigger": (
        *_VIEW,
        "CREATE TRIGGER g INSTEAD OF INSERT ON t WHEN NEW.a <> 2 BEGIN INSERT INTO kept VALUES (NEW.a); END",
    ),
}
SQLITE_KEEPS = {
    "a clause that replaces": (
        "CREATE TABLE t (a BIGINT UNIQUE ON CONFLICT REPLACE)",
        "INSERT INTO t VALUES (2)",
    ),
    "a view": (*_VIEW, "CREATE TRIGGER g INSTEAD OF INSERT ON t BEGIN INSERT INTO kept VALUES (NEW.a); END"),
    "a view whose trigger changes nothing for what is there": (
        *_VIEW,
        "INSERT INTO kept VALUES (2)",
        "CREATE TRIGGER g INSTEAD OF INSERT ON t BEGIN INSERT INTO kept VALUES (NEW.a) "
        "ON CONFLICT DO UPDATE SET a = a WHERE CASE WHEN 1 THEN 0 END; END",
    ),
    "a trigger that writes elsewhere": (
        _TABLE,
        "CREATE TABLE audit (a BIGINT)",
        "CREATE TRIGGER g AFTER INSERT ON t BEGIN INSERT INTO audit VALUES (NEW.a), (-NEW.a); END",
    ),
}


def write(url: str, *tables: pa.Table, mode: str = "append", started_at: float = 1.0) -> None:
    """The write actions of one run, in a group, as a driver executes them."""
    connections = Connections("sales", {"wh": url}, WriterIdentity(f"run{started_at}", 1, started_at), 5.0)
    pending = [PendingWrite("save", "wh", 1, {"action": "begin"}, 0, b"")]
    for number, table in enumerate(tables, 2):
        pending.append(PendingWrite("save", "wh", number, {"action": "insert"}, table.num_rows, encode(table)))
    try:
        writer = TableWriter("wh", "t", on_new_run=mode)
        executor_of("save", writer, connections).execute(pending, 0, threading.Event())
    finally:
        connections.close()


def set_up(url: str, statements: tuple[str, ...]) -> list[tuple[object, ...]]:
    for statement in statements:
        change(url, statement)
    return sorted(rows_of(url, "SELECT a FROM t"))


def check_dropped(url: str, statements: tuple[str, ...]) -> None:
    before = set_up(url, statements)
    with pytest.raises(WriteRefused) as refused:
        write(url, ROWS.slice(0, 1), ROWS.slice(1))
    assert (
        "connection 'wh': table 't', write action 3, row 0 (counted from 0): 3 rows were sent to table 't', and 2 have "
        in (str(refused.value))
    )
    assert sorted(rows_of(url, "SELECT a FROM t")) == before, "nothing is written"
    assert rows_of(url, "SELECT * FROM logio_marker") == []


def check_kept(url: str, statements: tuple[str, ...]) -> None:
    set_up(url, statements)
    write(url, ROWS.slice(0, 1), ROWS.slice(1))
    assert sorted(rows_of(url, "SELECT a FROM t")) == [(1,), (2,), (3,)]


@pytest.mark.postgres
def test_rows_that_a_trigger_adds_below_the_table_are_refused_too(postgres_url: str) -> None:
    """A query of the table shows each of them twice."""
    copies = _FUNCTION.format("INSERT INTO low VALUES (NEW.*); RETURN NEW;")
    before = set_up(postgres_url, (*_HEIR, copies, _BEFORE.format("t")))
    with pytest.raises(
        WriteRefused, match=r"3 rows were sent to table 't', and 6 have arrived; .* puts rows of its own"
    ):
        write(postgres_url, ROWS)
    assert sorted(rows_of(postgres_url, "SELECT a FROM t")) == before


@pytest.mark.postgres
@pytest.mark.parametrize("statements", POSTGRES_DROPS.values(), ids=POSTGRES_DROPS)
def test_rows_that_postgres_drops_are_a_refusal_with_both_counts(
    statements: tuple[str, ...], postgres_url: str
) -> None:
    check_dropped(postgres_url, statements)


@pytest.mark.postgres
@pytest.mark.parametrize("statements", POSTGRES_KEEPS.values(), ids=POSTGRES_KEEPS)
def test_rows_that_postgres_keeps_elsewhere_or_has_already_are_written(
    statements: tuple[str, ...], postgres_url: str
) -> None:
    check_kept(postgres_url, statements)


@pytest.mark.parametrize("statements", SQLITE_DROPS.values(), ids=SQLITE_DROPS)
def test_rows_that_sqlite_drops_are_a_refusal_with_both_counts(statements: tuple[str, ...], tmp_path: Path) -> None:
    check_dropped(f"sqlite:///{tmp_path}/wh.db", statements)


@pytest.mark.parametrize("statements", SQLITE_KEEPS.values(), ids=SQLITE_KEEPS)
def test_rows_that_sqlite_keeps_elsewhere_or_has_already_are_written(
    statements: tuple[str, ...], tmp_path: Path
) -> None:
    check_kept(f"sqlite:///{tmp_path}/wh.db", statements)


def test_a_view_of_sqlite_that_takes_no_rows_is_a_refusal(tmp_path: Path) -> None:
    """With RETURNING, SQLite would take them, and drop them."""
    url = f"sqlite:///{tmp_path}/wh.db"
    set_up(url, (*_VIEW, "CREATE TRIGGER g INSTEAD OF DELETE ON t BEGIN DELETE FROM kept WHERE a = OLD.a; END"))
    with pytest.raises(WriteRefused, match="cannot modify t because it is a view"):
        write(url, ROWS)
    assert rows_of(url, "SELECT a FROM kept") == []


@pytest.mark.postgres
def test_a_rule_that_drops_all_rows_is_a_refusal(postgres_url: str) -> None:
    set_up(postgres_url, (_TABLE, "CREATE RULE g AS ON INSERT TO t DO INSTEAD NOTHING"))
    with pytest.raises(
        WriteRefused, match=r"write action 2, row 0 .*3 rows were sent to table 't', and 0 have arrived"
    ):
        write(postgres_url, ROWS)


@pytest.mark.postgres
@pytest.mark.parametrize("is_dropped", [False, True])
def test_rows_with_a_type_that_only_the_driver_knows_are_counted_too(*, is_dropped: bool, postgres_url: str) -> None:
    trigger = (_FUNCTION.format("IF NEW.a = 2100 THEN RETURN NULL; END IF; RETURN NEW;"), _BEFORE.format("t"))
    set_up(postgres_url, ("CREATE TABLE t (a BIGINT, ip INET)", *(trigger if is_dropped else ())))
    if is_dropped:
        with pytest.raises(WriteRefused, match=r"row 2100 .*2,500 rows were sent to table 't', and 2,499 have arrived"):
            write(postgres_url, ADDRESSES)
    else:
        write(postgres_url, ADDRESSES)
    assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(0 if is_dropped else 2500,)]


@pytest.mark.postgres
def test_a_row_that_row_level_security_forbids_is_a_refusal(postgres_url: str) -> None:
    """The owner of a table is exempt, unless it says otherwise; a superuser always is."""
    import sqlalchemy as sa

    set_up(
        postgres_url,
        (
            _TABLE,
            "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY p ON t USING (a <> 2)",
            "DROP ROLE IF EXISTS sender",
            "CREATE ROLE sender LOGIN",
            "GRANT ALL ON t TO sender",
            "GRANT ALL ON SCHEMA public TO sender",
        ),
    )
    url = sa.make_url(postgres_url).set(username="sender").render_as_string(hide_password=False)
    with pytest.raises(WriteRefused, match=r"table 't', write action 2, row 1 .*row-level security"):
        write(url, ROWS)
    change(postgres_url, "DROP OWNED BY sender")
    change(postgres_url, "DROP ROLE sender")


def test_a_table_that_keeps_rows_is_not_replaced(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/wh.db"
    keeps = "CREATE TRIGGER g BEFORE DELETE ON t WHEN OLD.a = 2 BEGIN SELECT RAISE(IGNORE); END"
    set_up(url, (_TABLE, "INSERT INTO t VALUES (1), (2)", keeps))
    with pytest.raises(WriteRefused, match="still has 1 rows after all were deleted"):
        write(url, ROWS, mode="replace")
    assert rows_of(url, "SELECT a FROM t ORDER BY a") == [(1,), (2,)]
    change(url, "DROP TRIGGER g")
    write(url, ROWS, mode="replace")
    write(url, ROWS.slice(2), mode="replace", started_at=2.0)
    assert rows_of(url, "SELECT a FROM t") == [(3,)]


@pytest.mark.postgres
@pytest.mark.parametrize("keeps", ["CREATE RULE g AS ON DELETE TO t WHERE OLD.a = 2 DO INSTEAD NOTHING", "", "trigger"])
def test_a_table_of_postgres_that_keeps_rows_is_not_replaced(keeps: str, postgres_url: str) -> None:
    set_up(postgres_url, (_TABLE, "INSERT INTO t VALUES (1), (2)"))
    if keeps == "trigger":
        change(postgres_url, _FUNCTION.format("IF OLD.a = 2 THEN RETURN NULL; END IF; RETURN OLD;"))
        keeps = _BEFORE.format("t").replace("INSERT", "DELETE")
    if not keeps:
        write(postgres_url, ROWS, mode="replace")
        assert rows_of(postgres_url, "SELECT count(*) FROM t") == [(3,)]
        return
    change(postgres_url, keeps)
    with pytest.raises(WriteRefused, match="still has 1 rows after all were deleted"):
        write(postgres_url, ROWS, mode="replace")
    assert rows_of(postgres_url, "SELECT a FROM t ORDER BY a") == [(1,), (2,)]

"""A day of a table that a run owns by value: the transactions of its opening and of its closing write action."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, Fenced, LogInconsistent, LogUnavailable, WriteRefused
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import COLUMNS, D1, D2, Run, execute, records, rows, scope_of
from tests.support.table_runs import Superseding


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


EXISTING = (
    "CREATE TABLE t (day DATE, a BIGINT, who TEXT)",
    f"INSERT INTO t VALUES ('{D1}', 1, 'script'), ('{D2}', 2, 'script'), (NULL, 3, 'script')",
)


# --- one run ----------------------------------------------------------------------------------------------------------


def test_an_existing_table_has_its_day_replaced_and_no_other(warehouse: Warehouse) -> None:
    """It works on the first day: rows of a script are owned by their value; those without one belong to no day."""
    execute(warehouse, *EXISTING)
    run = Run(1)
    run.open(warehouse)
    assert (D1, 1, "script") in rows(warehouse), "the old day stays until all rows of the new one are there"
    run.close(warehouse, 10, 11)
    left = [("None", 3, "script"), (D1, 10, "clicks1"), (D1, 11, "clicks1"), (D2, 2, "script")]
    assert sorted(rows(warehouse)) == sorted(left)
    found = scope_of(warehouse)
    assert (found["live_run"], found["live_ordinal"], found["live_write"]) == ("clicks1", 1, 4)


def test_a_table_is_made_and_days_fill_it_side_by_side(warehouse: Warehouse) -> None:
    first, second = Run(1), Run(2, D2)
    first.open(warehouse)
    second.open(warehouse)
    second.close(warehouse, 20)
    first.close(warehouse, 10)
    assert rows(warehouse) == [(D1, 10, "clicks1"), (D2, 20, "clicks2")]


def test_the_closing_is_executed_once(warehouse: Warehouse) -> None:
    run = Run(1)
    run.all(warehouse, 10, 11)
    run.close(warehouse, 10, 11)
    replace(run, token=2).close(warehouse, 10, 11)
    replace(run, token=2).open(warehouse)
    assert rows(warehouse) == [(D1, 10, "clicks1"), (D1, 11, "clicks1")]


def test_a_zombie_of_the_run_is_fenced(warehouse: Warehouse) -> None:
    run = Run(1)
    run.open(warehouse)
    replace(run, token=2).close(warehouse, 11)
    with pytest.raises(Fenced):
        run.close(warehouse, 10)
    assert rows(warehouse) == [(D1, 11, "clicks1")]


def test_again_replaces_what_the_run_before_has_written(warehouse: Warehouse) -> None:
    Run(1).all(warehouse, 10, 11)
    Run(2, D2).all(warehouse, 20)
    Run(3).all(warehouse, 12)
    assert rows(warehouse) == [(D1, 12, "clicks3"), (D2, 20, "clicks2")]


def test_a_day_without_records_stays_unless_that_is_said(warehouse: Warehouse) -> None:
    Run(1).all(warehouse)  # no rows, none there
    Run(2).all(warehouse, 10)
    with pytest.raises(WriteRefused, match=r"has rows, and run clicks3 has none.*empty=.replace."):
        Run(3).all(warehouse)
    assert rows(warehouse) == [(D1, 10, "clicks2")]
    Run(4, options=(("empty", "replace"),)).all(warehouse)
    assert rows(warehouse) == []


def test_a_refusal_of_the_database_leaves_the_old_day(warehouse: Warehouse) -> None:
    """A duplicate key, in a later page."""
    keyed = Run(1, options=(("primary_key", ("day", "a")),))
    keyed.all(warehouse, 10)
    again = replace(keyed, ordinal=2)
    again.open(warehouse)
    with pytest.raises(WriteRefused, match=r"UNIQUE|duplicate key"):
        again.close(warehouse, 11, 12, 11)
    assert rows(warehouse) == [(D1, 10, "clicks1")]
    again.close(warehouse, 11, 12)
    assert rows(warehouse) == [(D1, 11, "clicks2"), (D1, 12, "clicks2")]


def test_a_log_that_goes_away_leaves_the_old_day(warehouse: Warehouse) -> None:
    Run(1).all(warehouse, 10)
    run = Run(2)
    run.open(warehouse)

    def pages() -> Iterator[Sequence[WriteAction]]:
        yield [run.action(2, records(D1, 11, "clicks2"))]
        raise LogUnavailable("the log is away")

    with pytest.raises(LogUnavailable):
        run.target(warehouse).apply_held(
            warehouse, run.marker, HeldGroup(2, 4, 2), run.action(4, pa.table({}), "close"), pages()
        )
    assert rows(warehouse) == [(D1, 10, "clicks1")]
    run.close(warehouse, 11)
    assert rows(warehouse) == [(D1, 11, "clicks2")]


def test_records_that_the_log_does_not_give_are_missed(warehouse: Warehouse) -> None:
    Run(1).all(warehouse, 10)
    run = Run(2)
    run.open(warehouse)
    with pytest.raises(LogInconsistent, match="have 2 records, and the log has given 1"):
        run.target(warehouse).apply_held(
            warehouse,
            run.marker,
            HeldGroup(2, 4, 2),
            run.action(4, pa.table({}), "close"),
            iter([[run.action(2, records(D1, 11, "clicks2"))]]),
        )
    assert rows(warehouse) == [(D1, 10, "clicks1")]


def test_a_row_of_another_day_does_not_get_in(warehouse: Warehouse) -> None:
    """It is refused before the log has it; this is the second net, under all ways in."""
    Run(1, D2).all(warehouse, 20)
    run = Run(2)
    run.open(warehouse)
    nothing = pa.table({"day": pa.array([None], pa.date32()), "a": pa.array([1], pa.int64()), "who": ["x"]})
    for wrong in (records(D2, 9, "x"), nothing):
        with pytest.raises(WriteRefused, match=r"2 rows of day=2026-03-01 .* it has 1 of them"):
            run.close(warehouse, pages=[records(D1, 10, "x"), wrong])
    assert rows(warehouse) == [(D2, 20, "clicks1")]


def test_a_trigger_that_keeps_the_old_rows_is_found(warehouse: Warehouse) -> None:
    execute(warehouse, *EXISTING)
    if warehouse.engine.dialect.name == "sqlite":
        execute(warehouse, "CREATE TRIGGER keep BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END")
    else:
        execute(
            warehouse,
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
            "CREATE TRIGGER keep BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION keep()",
        )
    before = rows(warehouse)
    with pytest.raises(WriteRefused, match=r"still has 1 rows of day=2026-03-01"):
        Run(1).all(warehouse, 10)
    assert rows(warehouse) == before


@pytest.mark.parametrize("kind", ["overwrite", "replace"])
def test_a_trigger_that_puts_rows_back_is_found(warehouse: Warehouse, kind: str) -> None:
    """They are not deleted for ever."""
    execute(warehouse, *EXISTING)
    again = "INSERT INTO t VALUES (OLD.day, OLD.a, OLD.who)"
    if warehouse.engine.dialect.name == "sqlite":
        execute(warehouse, f"CREATE TRIGGER back AFTER DELETE ON t BEGIN {again}; END")
    else:
        execute(
            warehouse,
            f"CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {again}; RETURN OLD; END $$",
            "CREATE TRIGGER back AFTER DELETE ON t FOR EACH ROW EXECUTE FUNCTION back()",
        )
    before = rows(warehouse)
    with pytest.raises(WriteRefused, match=r"still has \d rows"):
        Run(1).all(warehouse, 10) if kind == "overwrite" else Other(kind, 1.0).apply(warehouse, 1, 2)
    assert rows(warehouse) == before


def test_a_trigger_that_changes_the_day_is_found(warehouse: Warehouse) -> None:
    execute(warehouse, *EXISTING)
    if warehouse.engine.dialect.name == "sqlite":
        execute(warehouse, f"CREATE TRIGGER m AFTER INSERT ON t BEGIN UPDATE t SET day = '{D2}' WHERE a = 10; END")
    else:
        execute(
            warehouse,
            f"CREATE FUNCTION m() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.day = '{D2}'; RETURN NEW; END $$",
            "CREATE TRIGGER m BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION m()",
        )
    before = rows(warehouse)
    with pytest.raises(WriteRefused, match="changes the rows"):
        Run(1).all(warehouse, 10)
    assert rows(warehouse) == before


@pytest.mark.parametrize("switch", [(), (("switch", "at once"),)], ids=["closing", "at once"])
def test_a_table_that_is_renamed_under_a_run_is_named_and_put_back(warehouse: Warehouse, switch: Any) -> None:
    Run(1).all(warehouse, 1)
    run = Run(2, options=switch)
    run.open(warehouse)
    write = run.fill if switch else run.close
    execute(warehouse, "ALTER TABLE t RENAME TO u")
    with pytest.raises(WriteRefused, match=r"table 't' is not there any more: .* renamed.*`logio retry`"):
        write(warehouse, 10)
    execute(warehouse, "ALTER TABLE u RENAME TO t")
    write(warehouse, 10)
    assert rows(warehouse) == [(D1, 10, "clicks2")]
    execute(warehouse, "DROP TABLE t")
    Run(3).all(warehouse, 30)
    assert rows(warehouse) == [(D1, 30, "clicks3")], "a new run makes it anew"


@pytest.mark.parametrize("kind", ["append", "replace"])
def test_a_table_that_is_dropped_under_a_run_that_owns_all_of_it_is_named(warehouse: Warehouse, kind: str) -> None:
    run = Other(kind, 1.0)
    run.apply(warehouse, 1, 2)
    execute(warehouse, "DROP TABLE t")
    with pytest.raises(WriteRefused, match=r"table 't' is not there any more: dropped.*`logio fresh`"):
        run.apply(warehouse, 3)


def test_a_data_action_is_never_applied_alone(warehouse: Warehouse) -> None:
    run = Run(1)
    run.open(warehouse)
    with pytest.raises(Exception, match="before its closing one"):
        run.target(warehouse).apply(warehouse, run.marker, [run.action(2, records(D1, 1, "x"))])


@pytest.mark.parametrize("switch", [(), (("switch", "at once"),)], ids=["closing", "at once"])
def test_a_full_disk_of_a_file_is_an_outage(tmp_path: Any, switch: Any) -> None:
    """SQLite ends the transaction then, and knows none of its savepoints any more."""
    opened = Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")
    room = ["PRAGMA max_page_count = 40"]
    sa.event.listen(opened.engine, "connect", lambda raw, _: [raw.execute(pragma) for pragma in room])
    opened.engine.dispose()
    Run(1).all(opened, 1)
    run = Run(2, options=switch)
    run.open(opened)
    long = pa.concat_tables([records(D1, number, "x" * 10_000) for number in range(50)])

    def write() -> None:
        if switch:
            run.target(opened).apply(opened, run.marker, [run.action(2, long)])
        else:
            run.close(opened, pages=[long])

    before = rows(opened)
    for _ in range(2):
        with pytest.raises(ExternalUnavailable, match="database or disk is full"):
            write()
        assert rows(opened) == before
    room.clear()
    opened.engine.dispose()
    write()
    assert [row[:2] for row in rows(opened)] == [(D1, number) for number in range(50)]
    opened.close()


# --- tables whose rows are more, or less, than those of their name -------------------------------------------------------


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Warehouse]:
    opened = Warehouse("wh", postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def restricted(postgres: Warehouse) -> Iterator[Warehouse]:
    """As a role that owns no table."""
    role = f"etl_{uuid4().hex}"
    execute(postgres, *EXISTING, f"CREATE ROLE {role} LOGIN PASSWORD 'x'", f"GRANT ALL ON SCHEMA public TO {role}")
    execute(postgres, f"GRANT ALL ON t TO {role}")
    opened = Warehouse("wh", postgres.engine.url.set(username=role, password="x").render_as_string(hide_password=False))
    yield opened
    opened.close()
    execute(postgres, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.postgres
def test_rows_that_a_policy_hides_are_not_kept_beside_the_new_ones(postgres: Warehouse, restricted: Warehouse) -> None:
    """Nor where a run replaces all. Policies that show all hide none."""
    execute(postgres, "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY mine ON t USING (who <> 'script')")
    before = rows(postgres)
    run, other = Run(1), Other("replace", 0.5)
    attempts: list[Callable[[], None]] = [
        lambda: run.open(restricted),
        lambda: other.apply(restricted, 1, 2),
        lambda: restricted.rehearse(run.writer),
        lambda: restricted.rehearse(TableWriter("wh", "t", COLUMNS, on_new_run="replace")),
    ]
    for attempt in attempts:
        with pytest.raises(WriteRefused, match=r"row-level security.*ALTER ROLE etl_\w+ BYPASSRLS"):
            attempt()
    execute(postgres, "CREATE POLICY reads ON t FOR SELECT USING (true)")
    with pytest.raises(WriteRefused, match="row-level security"):
        run.open(restricted)
    execute(postgres, "CREATE POLICY deletes ON t FOR DELETE USING (true)")
    run.open(restricted)
    execute(postgres, "CREATE POLICY never ON t AS RESTRICTIVE FOR DELETE USING (who <> 'script')")
    with pytest.raises(WriteRefused, match="row-level security"):
        run.close(restricted, 10)
    assert rows(postgres) == before
    execute(postgres, "DROP POLICY never ON t")
    run.close(restricted, 10)
    assert (D1, 1, "script") not in rows(postgres)
    Other("replace", 9.0).apply(restricted, 1, 2)
    assert rows(postgres) == [(D2, 2, "replace")]


@pytest.mark.postgres
@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_rows_that_refer_to_a_day_are_not_deleted_with_it(postgres: Warehouse, action: str) -> None:
    execute(postgres, *EXISTING, "ALTER TABLE t ADD PRIMARY KEY (a)")
    execute(postgres, f"CREATE TABLE child (a BIGINT REFERENCES t ON DELETE {action})", "INSERT INTO child VALUES (1)")
    with pytest.raises(WriteRefused, match=r"foreign key child_a_fkey of table child.*DEFERRABLE"):
        Run(1, columns={}).open(postgres)
    deferred = "ADD FOREIGN KEY (a) REFERENCES t DEFERRABLE INITIALLY DEFERRED"
    execute(postgres, f"ALTER TABLE child DROP CONSTRAINT child_a_fkey, {deferred}")
    Run(1, columns={}).all(postgres, 1, 10)
    with pytest.raises(WriteRefused, match="still referenced"):
        Run(2, columns={}).all(postgres, 11)
    assert [row for row in rows(postgres) if row[0] == D1] == [(D1, 1, "clicks1"), (D1, 10, "clicks1")]


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_rows_that_refer_to_a_table_are_not_deleted_with_all_of_it(warehouse: Warehouse, action: str) -> None:
    """By a run that replaces all, or fills its day at once. Within the table it does not matter where all goes."""
    if warehouse.engine.dialect.name == "sqlite":  # as where it was built so: our connections do not ask for it
        sa.event.listen(warehouse.engine, "connect", lambda raw, _: raw.execute("PRAGMA foreign_keys = ON"))
        warehouse.engine.dispose()
    fresh = "CREATE TABLE t (day DATE, a BIGINT PRIMARY KEY, who TEXT, up BIGINT REFERENCES t ON DELETE {})"
    execute(warehouse, fresh.format(action), EXISTING[1].replace("t VALUES", "t (day, a, who) VALUES"))
    execute(warehouse, f"CREATE TABLE child (a BIGINT REFERENCES t ON DELETE {action})", "INSERT INTO child VALUES (1)")
    before = rows(warehouse)
    attempts: list[Callable[[], None]] = [
        lambda: Other("replace", 0.5).apply(warehouse, 1, 2),
        lambda: warehouse.rehearse(TableWriter("wh", "t", COLUMNS, on_new_run="replace")),
        lambda: Run(1, columns={}, options=(("switch", "at once"),)).open(warehouse),
        lambda: Run(2, columns={}).open(warehouse),
    ]
    for attempt in attempts:
        with pytest.raises(WriteRefused, match=r"foreign key .* of table (child|t) deletes or changes .* NO ACTION"):
            attempt()
        assert rows(warehouse) == before
    with warehouse.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT a FROM child").scalars().all() == [1]
    execute(warehouse, "DROP TABLE child")
    with pytest.raises(WriteRefused, match=r"foreign key .* of table t deletes or changes"):
        Run(2, columns={}).open(warehouse)  # rows of other days are others
    Other("replace", 0.5).apply(warehouse, 1, 2)
    assert rows(warehouse) == [(D2, 2, "replace")]
    execute(warehouse, "CREATE TABLE child (a BIGINT REFERENCES t)", "INSERT INTO child VALUES (2)")
    with pytest.raises(WriteRefused, match=r"still referenced|FOREIGN KEY constraint failed"):
        Other("replace", 1.5).apply(warehouse, 1, 2)
    assert rows(warehouse) == [(D2, 2, "replace")]


@pytest.mark.postgres
def test_parts_of_a_table_are_owned_as_the_whole(postgres: Warehouse) -> None:
    """Also where they inherit. Under a part's own name another run could own the day as well."""
    execute(
        postgres,
        "CREATE TABLE t (id BIGINT GENERATED ALWAYS AS IDENTITY, day DATE, a BIGINT, who TEXT) PARTITION BY RANGE (day)",
        f"CREATE TABLE part PARTITION OF t FOR VALUES FROM ('{D1}') TO ('{D2}')",
        f"INSERT INTO t (day, a, who) VALUES ('{D1}', 1, 'script')",
        "CREATE TABLE parent (day DATE, a BIGINT, who TEXT)",
        "CREATE TABLE child () INHERITS (parent)",
        f"INSERT INTO child VALUES ('{D1}', 1, 'script')",
    )
    for ordinal, (whole, part) in enumerate((("t", "part"), ("parent", "child")), 1):
        run = Run(ordinal, table=whole)
        run.all(postgres, 10)
        with pytest.raises(WriteRefused, match=f"is a part of table {whole}"):
            Run(3, table=part).open(postgres)
        assert rows(postgres, whole) == [(D1, 10, run.name)]


def test_a_key_of_sqlite_that_puts_rows_away_is_refused(tmp_path: Any) -> None:
    """A row of another day would go with no word, as it has the same value there."""
    warehouse = Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")
    execute(warehouse, "CREATE TABLE t (day DATE, a INTEGER UNIQUE ON CONFLICT REPLACE, who TEXT)")
    execute(warehouse, f"INSERT INTO t VALUES ('{D2}', 10, 'other day')")
    for run in (Run(1), Run(2, options=(("switch", "at once"),))):
        with pytest.raises(WriteRefused, match="ON CONFLICT REPLACE: a row that another run has written"):
            run.open(warehouse)
    assert rows(warehouse) == [(D2, 10, "other day")]
    warehouse.close()


def test_a_view_has_no_days_of_its_own(warehouse: Warehouse) -> None:
    """Under its name another run could own the day as well."""
    execute(warehouse, *EXISTING, "CREATE VIEW v AS SELECT * FROM t")
    run, refused = Run(1, table="v"), "table 'v' is a view, and runs own days of tables"
    with pytest.raises(WriteRefused, match=refused):
        run.open(warehouse)
    with pytest.raises(WriteRefused, match=refused):
        warehouse.rehearse(run.writer)


# --- columns of all types ---------------------------------------------------------------------------------------------

HOUR = "2026-10-25T00Z"


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("by", "key", "kind", "mine", "others"),
    [
        ("day", D1, "date", date(2026, 3, 1), [date(2026, 2, 28), date(2026, 3, 2)]),
        ("day", D1, "text", D1, ["2026-02-28", D2]),
        ("hour", HOUR, "text", HOUR, ["2026-10-24T23Z", "2026-10-25T01Z", "2026-10-25T0030Z"]),
        (
            "hour",
            HOUR,
            "timestamptz",
            datetime(2026, 10, 25, tzinfo=UTC),
            [datetime(2026, 10, 25, tzinfo=UTC) + timedelta(minutes=one) for one in (-60, 30, 60)],
        ),
    ],
)
def test_days_and_hours_of_every_type(
    warehouse: Warehouse, by: str, key: str, kind: str, mine: Any, others: list[Any], declared: bool
) -> None:
    """Others are put there by runs of their own, by ordinary writers, and stay."""

    def table(values: list[Any], a: int) -> pa.Table:
        return pa.table({by: pa.array(values), "a": pa.array([a] * len(values), pa.int64())})

    columns = {by: kind, "a": "bigint"}
    appended = TableWriter("wh", "t", columns, on_new_run="append")
    begin = WriteAction("old", "w", "wh", 1, 1, pa.table({}), {"action": "begin"})
    insert = WriteAction("old", "w", "wh", 2, 1, table([mine, *others], 1), {"action": "insert"})
    warehouse.apply(Marker("old", "w", "wh", 0, 1, 1.0), appended, [begin, insert])
    run = Run(1, key, by=by, columns=columns if declared else {})
    run.open(warehouse)
    run.close(warehouse, pages=[table([mine, mine], 2), table([mine], 3)])
    with warehouse.engine.connect() as connection:
        counted = {row.a: row.n for row in connection.execute(sa.text("SELECT a, count(*) AS n FROM t GROUP BY a"))}
    assert counted == {1: len(others), 2: 2, 3: 1}


@pytest.mark.parametrize(
    ("kind", "value"), [("TEXT", "2026-3-1"), ("TEXT", "2026-03-01 00:00:00"), ("DATE", "2026-03-01T00:00:00")]
)
def test_a_day_that_is_stored_in_another_form_is_refused_at_first(warehouse: Warehouse, kind: str, value: str) -> None:
    if kind == "DATE" and warehouse.engine.dialect.name != "sqlite":
        kind = "VARCHAR(30)"  # a date of PostgreSQL has one form
    execute(warehouse, f"CREATE TABLE t (day {kind}, a BIGINT, who TEXT)", f"INSERT INTO t VALUES ('{value}', 1, 'x')")
    with pytest.raises(WriteRefused, match=r"such as '2026-03-01', so no run would replace that row"):
        Run(1, columns={}).open(warehouse)
    execute(warehouse, "DELETE FROM t")
    Run(1, columns={}).open(warehouse)


@pytest.mark.parametrize(
    ("value", "is_stored"),
    [("2026-10-25T00Z", True), ("2026-10-25T0030Z", True), ("2026-10-25T0003Z", True), ("2026-10-25T0000Z", False)],
)
def test_an_hour_has_one_spelling(warehouse: Warehouse, value: str, is_stored: bool) -> None:
    execute(warehouse, "CREATE TABLE t (hour TEXT, a BIGINT)", f"INSERT INTO t VALUES ('{value}', 1)")
    run = Run(1, HOUR, by="hour", columns={})
    if is_stored:
        run.open(warehouse)
        return
    with pytest.raises(WriteRefused, match=r"such as '2026-10-25T00Z', so no run would replace that row"):
        run.open(warehouse)


@pytest.mark.parametrize("time", ["00:10:00.000000", "00:30:00.000001", "01:00:15.000000"])
def test_an_instant_at_which_no_hour_starts_is_refused_at_first(warehouse: Warehouse, time: str) -> None:
    """As in a column of the times of events: only the rows of the full hour would be replaced."""
    kind = "TIMESTAMP" if warehouse.engine.dialect.name == "sqlite" else "TIMESTAMPTZ"
    execute(warehouse, f"CREATE TABLE t (hour {kind}, a BIGINT)")
    put = "INSERT INTO t VALUES ('2026-10-25 {}', 1)"
    execute(warehouse, *(put.format(f"{at}:00.000000") for at in ("00:00", "05:15", "23:30", "23:45")))
    execute(warehouse, put.format(time))
    run = Run(1, HOUR, by="hour", columns={})
    with pytest.raises(WriteRefused, match=rf"{time.rstrip('0').rstrip(':.')}.* No hour starts there"):
        run.open(warehouse)
    execute(warehouse, f"DELETE FROM t WHERE hour = '2026-10-25 {time}'", "INSERT INTO t VALUES (NULL, 1)")
    run.open(warehouse)


@pytest.mark.parametrize("kind", ["TIMESTAMP", "BIGINT"])
def test_a_column_that_holds_no_days_is_refused(warehouse: Warehouse, kind: str) -> None:
    execute(warehouse, f"CREATE TABLE t (day {kind}, a BIGINT, who TEXT)")
    with pytest.raises(WriteRefused, match="day"):
        Run(1, columns={}).open(warehouse)


# --- two runs of one day ----------------------------------------------------------------------------------------------


def test_the_younger_run_shuts_out_the_older_one(warehouse: Warehouse) -> None:
    older, younger = Run(1, started_at=9.0), Run(2, started_at=1.0)  # clocks play no part
    older.open(warehouse)
    younger.open(warehouse)
    with pytest.raises(WriteRefused, match="claimed by run clicks2"):
        older.close(warehouse, 10)
    younger.close(warehouse, 20)
    with pytest.raises(WriteRefused):
        older.close(warehouse, 10)
    assert rows(warehouse) == [(D1, 20, "clicks2")]


def test_an_older_run_does_not_begin_behind_a_younger_one(warehouse: Warehouse) -> None:
    Run(2).all(warehouse, 20)
    with pytest.raises(WriteRefused, match=r"run clicks2, number 2 of its pipeline, has claimed it"):
        Run(1).open(warehouse)
    Run(1, D2).all(warehouse, 10)
    assert rows(warehouse) == [(D1, 20, "clicks2"), (D2, 10, "clicks1")]


def test_a_restored_log_gives_a_greater_number(warehouse: Warehouse) -> None:
    Run(45).all(warehouse, 20)
    with pytest.raises(WriteRefused, match=r"logio again --pipeline clicks --partition 2026-03-01 --above 45`"):
        Run(45, uid="other").open(warehouse)
    Run(46).all(warehouse, 30)
    assert rows(warehouse) == [(D1, 30, "clicks46")]


def test_another_line_is_replaced_only_by_take_over(warehouse: Warehouse) -> None:
    Run(7).all(warehouse, 10)
    laptop = Run(1, uid="laptop", log_uid="other")
    with pytest.raises(
        WriteRefused, match=r"of another log.*logio again --pipeline clicks --partition 2026-03-01 --take-over`"
    ):
        laptop.open(warehouse)
    replace(laptop, takes_over=True).all(warehouse, 20)
    with pytest.raises(WriteRefused, match="another log"):
        Run(8).open(warehouse)
    assert rows(warehouse) == [(D1, 20, "laptop")]


def test_a_day_becomes_empty_by_the_word_of_one_run(warehouse: Warehouse) -> None:
    Run(1).all(warehouse, 10)
    with pytest.raises(
        WriteRefused, match=r"become empty: `logio again --pipeline clicks --partition 2026-03-01 --empty`"
    ):
        Run(2).all(warehouse)
    assert rows(warehouse) == [(D1, 10, "clicks1")]
    Run(3, may_be_empty=True).all(warehouse)
    assert rows(warehouse) == []
    Run(4).all(warehouse)


def test_a_run_that_was_given_up_is_fenced(warehouse: Warehouse) -> None:
    older, younger = Run(1), Run(2, given_up=("clicks1",))
    older.open(warehouse)
    younger.open(warehouse)
    with pytest.raises((Fenced, WriteRefused)):
        older.close(warehouse, 10)
    with pytest.raises((Fenced, WriteRefused)):
        Run(1, D2).open(warehouse)
    younger.close(warehouse, 20)
    assert rows(warehouse) == [(D1, 20, "clicks2")]


@pytest.mark.parametrize(
    ("kind", "switch"),
    [(Run, ()), (Run, (("switch", "at once"),)), (Superseding, ())],
    ids=["closing", "at once", "supersede"],
)
def test_a_word_of_a_run_that_was_given_up_is_void_when_the_next_has_begun(
    warehouse: Warehouse, kind: type[Run], switch: Any
) -> None:
    """Its driver opens late, and another line has taken the day back meanwhile: the scope does not tell that it is old."""
    laptop = kind(7, log_uid="laptop", uid="laptop7", takes_over=True)
    kind(6, log_uid="laptop", uid="laptop6").all(warehouse, 1)
    mine = kind(2, takes_over=True, given_up=("clicks1",))
    mine.open(warehouse)
    mine.close(warehouse, 20)
    laptop.all(warehouse, 30)
    late = kind(1, takes_over=True, options=switch, started_at=99.0)
    for _ in range(2):
        with pytest.raises(WriteRefused, match="run clicks1 was given up, and run clicks2 has begun in its place"):
            late.open(warehouse)
    assert [row[1] for row in rows(warehouse)] == [30]
    kind(8, log_uid="laptop", uid="laptop8").all(warehouse, 40)
    assert [row[1] for row in rows(warehouse)] == [40], "it has claimed nothing"


# --- other writers of the table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Other:
    """A run of another kind of writer."""

    kind: str
    started_at: float

    def apply(self, warehouse: Warehouse, *numbers: int) -> None:
        writer = TableWriter("wh", "t", COLUMNS, on_new_run=self.kind)
        uid = f"{self.kind}{self.started_at}"
        actions = [
            WriteAction(uid, "w", "wh", n, 1, records(D2, n, self.kind), {"action": "begin" if n == 1 else "insert"})
            for n in numbers
        ]
        actions = [replace(one, records=pa.table({})) if one.number == 1 else one for one in actions]
        warehouse.apply(Marker(uid, "w", "wh", 0, 1, self.started_at), writer, actions)


@pytest.mark.parametrize("kind", ["append", "error"])
@pytest.mark.parametrize("started_at", [0.5, 9.0])
def test_append_and_error_are_refused_beside_days(warehouse: Warehouse, kind: str, started_at: float) -> None:
    Run(1).all(warehouse, 10)
    with pytest.raises(WriteRefused, match=r"pipelines \(clicks\) own it by 'day'"):
        Other(kind, started_at).apply(warehouse, 1, 2)
    assert rows(warehouse) == [(D1, 10, "clicks1")]


@pytest.mark.parametrize("kind", ["append", "error", "replace"])
def test_what_began_before_days_were_owned_writes_no_more(warehouse: Warehouse, kind: str) -> None:
    other = Other(kind, 0.5)
    other.apply(warehouse, 1, 2)
    Run(1).all(warehouse, 10)
    with pytest.raises(WriteRefused, match="own it by 'day'"):
        other.apply(warehouse, 3)
    assert rows(warehouse) == [(D1, 10, "clicks1"), (D2, 2, kind)]


def test_replace_takes_the_table_over_and_days_take_it_back(warehouse: Warehouse) -> None:
    run = Run(1)
    run.open(warehouse)
    other = Other("replace", 5.0)
    other.apply(warehouse, 1, 2)
    with pytest.raises(WriteRefused):
        run.close(warehouse, 10)
    assert rows(warehouse) == [(D2, 2, "replace")]
    with pytest.raises(WriteRefused, match="a newer run has taken it over"):
        Run(2, started_at=4.0).open(warehouse)
    Run(3, started_at=6.0).all(warehouse, 30)
    with pytest.raises(WriteRefused):
        other.apply(warehouse, 3)
    assert rows(warehouse) == [(D1, 30, "clicks3"), (D2, 2, "replace")]


def test_the_way_out_of_a_refusal_works(warehouse: Warehouse) -> None:
    Run(1).all(warehouse, 10)
    with pytest.raises(WriteRefused) as refused:
        Other("append", 9.0).apply(warehouse, 1, 2)
    statement = str(refused.value).partition("UPDATE ")[2]
    execute(warehouse, f"UPDATE {statement}")
    Other("append", 9.0).apply(warehouse, 1, 2)
    assert rows(warehouse) == [(D1, 10, "clicks1"), (D2, 2, "append")]


def test_an_hour_is_not_owned_where_days_are(warehouse: Warehouse) -> None:
    execute(warehouse, "CREATE TABLE t (day DATE, hour TEXT, a BIGINT, who TEXT)")
    Run(1, columns={}).open(warehouse)
    with pytest.raises(WriteRefused, match=r"own it by 'day'.*by=\('hour',\)"):
        Run(2, HOUR, by="hour", columns={}).open(warehouse)


def test_a_check_before_the_run_finds_what_is_missing(warehouse: Warehouse) -> None:
    """And leaves nothing: no owner, no scope."""
    warehouse.rehearse(Run(1).writer)
    execute(warehouse, "CREATE TABLE t (other BIGINT)")
    with pytest.raises(WriteRefused, match="has no column 'day'"):
        warehouse.rehearse(Run(1).writer)


@pytest.mark.parametrize(
    ("made", "is_missing"),
    [
        ("", True),
        ("CREATE INDEX other ON t (a, day)", True),
        ("CREATE INDEX part ON t (day) WHERE a > 1", True),
        ("CREATE INDEX right_one ON t (day, a)", False),
        ("CREATE UNIQUE INDEX keyed ON t (day, a, who)", False),
    ],
)
def test_an_index_that_is_missing_is_named(warehouse: Warehouse, made: str, is_missing: bool) -> None:
    """With the statement that makes it; that works."""
    writer = Run(1).writer
    assert warehouse.missing_index(writer) is None, "there is no table yet"
    execute(warehouse, EXISTING[0], *filter(None, [made]))
    said = warehouse.missing_index(writer)
    assert (said is not None) == is_missing
    if said is not None:
        execute(warehouse, said[said.index("CREATE INDEX") :])
        assert warehouse.missing_index(writer) is None


def test_other_tables_that_find_a_day_miss_no_index(warehouse: Warehouse) -> None:
    execute(warehouse, "CREATE TABLE keyed (day DATE, a BIGINT, who TEXT, PRIMARY KEY (day, a))")
    execute(warehouse, EXISTING[0], "CREATE VIEW seen AS SELECT * FROM t")
    assert warehouse.missing_index(Run(1, table="keyed").writer) is None
    assert warehouse.missing_index(Run(1, table="seen").writer) is None
    if warehouse.engine.dialect.name == "postgresql":
        execute(warehouse, "CREATE TABLE parted (day DATE, a BIGINT, who TEXT) PARTITION BY RANGE (day)")
        assert warehouse.missing_index(Run(1, table="parted").writer) is None
    else:
        execute(
            warehouse, 'CREATE TABLE "Odd ""t" ("DAY" DATE, a BIGINT, who TEXT)', 'CREATE INDEX o ON "Odd ""t" (day)'
        )
        assert warehouse.missing_index(Run(1, table='"odd ""t"').writer) is None


# --- at the same time -------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_many_runs_of_all_kinds_end_without_a_deadlock(postgres_url: str) -> None:
    """Eight threads, kinds at random. Each day has the rows of one run, whole, or those of a run that replaced all."""
    one = Warehouse("wh", postgres_url)
    Run(1).all(one, 1)
    draw = random.Random(7)
    plans = [
        Run(n, draw.choice((D1, D2)), given_up=(f"clicks{n - 1}",) if draw.random() < 0.3 else ())
        if draw.random() < 0.85
        else Other("replace", float(n))
        for n in range(2, 50)
    ]

    def carry_out(plan: Run | Other) -> str:
        own = Warehouse("wh", postgres_url)
        try:
            plan.all(own, 1, 2, 3) if isinstance(plan, Run) else plan.apply(own, 1, 2, 3)
        except (WriteRefused, Fenced):
            return "refused"
        except ExternalUnavailable as error:
            return str(error)
        finally:
            own.close()
        return ""

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(carry_out, plans))
    assert not [text for text in told if text not in ("", "refused")], "a deadlock, or a wait that did not end"
    found = rows(one)
    for day in (D1, D2):
        names = {who for at, _, who in found if at == day}
        assert len(names) <= 1, found
        assert sorted(a for at, a, _ in found if at == day) in ([], [1], [2, 3], [1, 2, 3])
    one.close()

"""Audits of a day in a table: what they see, what a refusal leaves, and which errors of theirs are waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.errors import (
    ExternalUnavailable,
    Fenced,
    LogUnavailable,
    OperatorFailed,
    StatementCutOff,
    WriteRefused,
)
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import D1, D2, Run, execute, records, rows

NEGATIVE = "SELECT day, a FROM t WHERE day = :day AND a < 0 ORDER BY a"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def audited(ordinal: int, audit: Any, day: str = D1) -> Run:
    return Run(ordinal, day, options=(("audit", audit),))


# --- SQL --------------------------------------------------------------------------------------------------------------


def test_rows_that_a_query_returns_keep_the_old_day(warehouse: Warehouse) -> None:
    """It sees the rows of the run in place of the old ones, and those of other days; nothing of it is visible."""
    Run(1).all(warehouse, 10, -1)
    Run(2, D2).all(warehouse, -20)
    before = rows(warehouse)
    run = audited(3, {"not negative": NEGATIVE})
    run.open(warehouse)
    with pytest.raises(WriteRefused) as refused:
        run.close(warehouse, 11, -5, -6)
    said = str(refused.value)
    assert f"audit 'not negative' refuses the rows of run clicks3: 2 rows: (day={D1}, a=-6), (day={D1}, a=-5)" in said
    assert "What is in the table stays as it is" in said and "`logio retry`" in said
    assert f"`logio again --pipeline clicks --partition {D1}`" in said
    assert rows(warehouse) == before
    run.close(warehouse, 11, 5)
    assert rows(warehouse) == [(D1, 5, "clicks3"), (D1, 11, "clicks3"), (D2, -20, "clicks2")]


def test_what_it_compares_with_may_be_mended(warehouse: Warehouse) -> None:
    execute(warehouse, "CREATE TABLE known (who TEXT)")
    run = audited(1, "SELECT who FROM t WHERE NOT EXISTS (SELECT 1 FROM known WHERE known.who = t.who)")
    run.open(warehouse)
    with pytest.raises(WriteRefused, match=r"audit 'audit' refuses .*: 1 row: \(who=clicks1\)"):
        run.close(warehouse, 11)
    assert rows(warehouse) == []
    execute(warehouse, "INSERT INTO known VALUES ('clicks1')")
    run.close(warehouse, 11)
    assert rows(warehouse) == [(D1, 11, "clicks1")]


def test_many_faults_are_not_shown(warehouse: Warehouse) -> None:
    run = audited(1, "SELECT a FROM t ORDER BY a;  -- all are wrong")
    run.open(warehouse)
    with pytest.raises(WriteRefused, match=r"more than 5 rows; the first are \(a=0\), .*\(a=4\)\. What"):
        run.close(warehouse, *range(100))
    assert rows(warehouse) == []


def test_an_instant_is_compared_as_one(warehouse: Warehouse) -> None:
    is_wrong = "SELECT :day_start AS wrong WHERE NOT :day_start < :day_end"
    audited(1, is_wrong).all(warehouse, 11)
    if warehouse.engine.dialect.name == "postgresql":
        with pytest.raises(WriteRefused, match=r"wrong=2026-03-01 00:00:00\+00\)"):
            audited(2, "SELECT :day_start AS wrong WHERE pg_typeof(:day_start) = 'timestamptz'::regtype").all(
                warehouse, 12
            )


@pytest.mark.parametrize("held", [(), (11,)])
def test_a_day_that_becomes_empty_is_asked_about(warehouse: Warehouse, held: tuple[int, ...]) -> None:
    Run(1).all(warehouse, 10)
    query = "SELECT 'nothing is left' AS why WHERE NOT EXISTS (SELECT 1 FROM t WHERE day = :day)"
    run = Run(2, options=(("empty", "replace"), ("audit", query)))
    run.open(warehouse)
    if held:
        run.close(warehouse, *held)
        return
    with pytest.raises(WriteRefused, match="nothing is left"):
        run.close(warehouse)
    assert rows(warehouse) == [(D1, 10, "clicks1")]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT missing FROM t", "missing"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT day FROM t WHERE", "syntax"),
        ("SELECT abs(-9223372036854775807 - 1 - a * 0) FROM t WHERE a > 0", "overflow|out of range"),
    ],
)
def test_a_query_that_the_database_refuses_is_the_audits_own_fault(warehouse: Warehouse, query: str, says: str) -> None:
    """It is not waited for, and the old day stays; with another one the same rows pass."""
    Run(1).all(warehouse, 10)
    run = audited(2, {"odd": query})
    run.open(warehouse)
    with pytest.raises(WriteRefused, match=rf"(?s)the database refused audit 'odd': .*({says}).* It was: SELECT"):
        run.close(warehouse, 11)
    assert rows(warehouse) == [(D1, 10, "clicks1")]
    audited(2, NEGATIVE).close(warehouse, 11)
    assert rows(warehouse) == [(D1, 11, "clicks2")]


@pytest.mark.postgres
def test_a_query_that_writes_is_refused_and_not_waited_for(postgres_url: str) -> None:
    """A function of the database may hide it from us. The code of the error says that the database is read-only for now."""
    one = Warehouse("wh", postgres_url)
    execute(
        one,
        "CREATE TABLE noted (a BIGINT)",
        "CREATE FUNCTION note() RETURNS bigint LANGUAGE sql VOLATILE AS 'INSERT INTO noted VALUES (1) RETURNING a'",
    )
    run = audited(1, {"notes": "SELECT note() WHERE false OR note() > 1"})
    run.open(one)
    with pytest.raises(WriteRefused, match=r"refused audit 'notes': it is to read only: "):
        run.close(one, 11)
    audited(1, NEGATIVE).close(one, 11)
    assert rows(one) == [(D1, 11, "clicks1")]
    one.close()


@pytest.mark.postgres
def test_a_query_that_is_ended_is_tried_again_and_so_is_a_lost_connection(postgres_url: str) -> None:
    one = Warehouse("wh", postgres_url)
    run = audited(1, {"slow": "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(10)"})
    run.open(one)
    with pytest.raises(StatementCutOff, match="audit 'slow'"):
        run.close(one, 11)
    with pytest.raises(ExternalUnavailable):
        audited(1, "SELECT pg_terminate_backend(pg_backend_pid()), pg_sleep(10)").close(one, 11)
    audited(1, NEGATIVE).close(one, 11)
    assert rows(one) == [(D1, 11, "clicks1")]
    one.close()


def test_a_check_before_the_run_asks_the_database_to_take_it(warehouse: Warehouse) -> None:
    """The table need not be there yet, and nothing is executed."""
    warehouse.rehearse(audited(1, "SELECT day FROM t WHERE day = :day AND :day_start < :day_end").writer)
    with pytest.raises(WriteRefused, match=r"refused audit 'odd'.*missing"):
        warehouse.rehearse(audited(1, {"odd": "SELECT missing FROM t"}).writer)
    with warehouse.engine.connect() as connection:
        assert not sa.inspect(connection).has_table("t")


# --- functions --------------------------------------------------------------------------------------------------------


def test_a_function_gets_the_records_before_the_transaction(warehouse: Warehouse) -> None:
    """The old rows are there, no lock is held, and it gets the parameters of the run."""
    Run(1).all(warehouse, 10)
    seen: list[Any] = []

    def few(records: Iterator[pa.Table], params: Mapping[str, Any]) -> str | None:
        seen.append((params["day"], [row["a"] for table in records for row in table.to_pylist()], rows(warehouse)))
        execute(warehouse, "UPDATE t SET who = 'script'")  # it would wait for the transaction
        return "fewer than 3 rows" if len(seen[-1][1]) < 3 else None

    run = audited(2, few)
    run.open(warehouse)
    with pytest.raises(WriteRefused, match=r"audit 'few' refuses the rows of run clicks2: fewer than 3 rows\. What"):
        run.close(warehouse, 11, 12)
    assert rows(warehouse) == [(D1, 10, "script")]
    run.close(warehouse, 11, 12, 13)
    assert seen[1] == (D1, [11, 12, 13], [(D1, 10, "script")])
    assert rows(warehouse) == [(D1, a, "clicks2") for a in (11, 12, 13)]


def test_rows_that_a_function_returns_are_shown(warehouse: Warehouse) -> None:
    def odd(records: Iterator[pa.Table]) -> pa.Table:
        return pa.concat_tables(records).slice(1)

    run = audited(1, odd)
    run.open(warehouse)
    with pytest.raises(WriteRefused, match=r"2 rows: \(day=2026-03-01, a=12, who=clicks1\), \(day=.* a=13"):
        run.close(warehouse, 11, 12, 13)
    with pytest.raises(WriteRefused, match=r"8 rows; the first are \(day=2026-03-01, a=12"):
        run.close(warehouse, *range(11, 20))
    run.close(warehouse, 11)
    assert rows(warehouse) == [(D1, 11, "clicks1")]


@pytest.mark.parametrize(
    "error", [ConnectionError("no route"), TimeoutError("late"), ValueError("odd"), OSError(5, "io")]
)
def test_an_error_of_a_function_is_no_unavailable_database(warehouse: Warehouse, error: Exception) -> None:
    def broken(records: Iterator[pa.Table]) -> None:
        raise error

    run = audited(1, broken)
    run.open(warehouse)
    with pytest.raises(OperatorFailed, match=rf"(?s)audit 'broken': {type(error).__name__}: .*in broken") as failed:
        run.close(warehouse, 11)
    assert failed.value.__cause__ is error
    assert rows(warehouse) == []


def test_a_function_that_hides_what_reading_raises_has_no_say(warehouse: Warehouse) -> None:
    """It has not seen all of the records."""

    def careless(records: Iterator[pa.Table]) -> str | None:
        try:
            list(records)
        except Exception:
            return None
        return None

    run = audited(1, careless)
    run.open(warehouse)

    def pages() -> Iterator[Any]:
        yield [run.action(2, records(D1, 11, "x"))]
        raise LogUnavailable("the log is unavailable")

    with pytest.raises(LogUnavailable):
        closing = run.action(4, pa.table({}), "close")
        run.target(warehouse).apply_held(warehouse, run.marker, HeldGroup(2, 4, 2), closing, pages())
    assert rows(warehouse) == []


def test_what_is_done_already_is_not_asked_about(warehouse: Warehouse) -> None:
    """A driver that died behind the transaction: the day is the new one, so nothing may say that the old one stays."""
    audited(1, NEGATIVE).all(warehouse, 11)

    def never(records: Iterator[pa.Table]) -> str:
        raise AssertionError("it is asked")

    replace(audited(1, never), token=2).close(warehouse, 11)
    assert rows(warehouse) == [(D1, 11, "clicks1")]


def test_a_zombie_replaces_nothing_while_a_function_refuses(warehouse: Warehouse) -> None:
    """It had passed its own question, and continues while the next driver's function works."""
    Run(1).all(warehouse, 10)
    zombie = audited(2, lambda records: None)
    zombie.open(warehouse)
    fenced: list[BaseException] = []

    def wakes_it(records: Iterator[pa.Table]) -> str:
        def go_on() -> None:
            try:
                replace(zombie, options=()).close(warehouse, 11)
            except Fenced as error:
                fenced.append(error)

        thread = threading.Thread(target=go_on)
        thread.start()
        thread.join()
        return "refused"

    with pytest.raises(WriteRefused, match="audit 'wakes_it' refuses"):
        replace(audited(2, wakes_it), token=2).close(warehouse, 11)
    assert fenced and rows(warehouse) == [(D1, 10, "clicks1")]


def test_all_of_several_audits_are_asked(warehouse: Warehouse) -> None:
    asked: list[str] = []

    def first(records: Iterator[pa.Table]) -> None:
        asked.append("first")

    audits = {"one": NEGATIVE, "two": first, "three": "SELECT a FROM t WHERE a > 100"}
    run = audited(1, audits)
    run.open(warehouse)
    for wrong, name in ((-1, "one"), (101, "three")):
        with pytest.raises(WriteRefused, match=f"audit '{name}'"):
            run.close(warehouse, wrong)
    run.close(warehouse, 1)
    assert asked == ["first"] * 3 and rows(warehouse) == [(D1, 1, "clicks1")]

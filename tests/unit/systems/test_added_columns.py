"""A column that comes later: a run adds it to a table that is there, once, and rows from before have null in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import Fenced, LogioError, PipelineDefinitionError, WriteRefused
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import COLUMNS, D1, D2, Run, execute, records

LATER = {**COLUMNS, "device": "text null", "price": "decimal(9,2) null"}
OLD = (
    "CREATE TABLE t (day DATE, a BIGINT, who TEXT)",
    f"INSERT INTO t VALUES ('{D1}', 1, 'old'), ('{D2}', 2, 'old')",
)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def later(a: int, who: str, day: str = D1) -> pa.Table:
    made = records(day, a, who).append_column("device", pa.array([f"d{a}"]))
    return made.append_column("price", pa.array([None], pa.decimal128(9, 2)))


def found(warehouse: Warehouse) -> list[tuple[Any, ...]]:
    with warehouse.engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT day, a, who, device FROM t ORDER BY a")).all()
        return [(str(row[0]), *row[1:]) for row in rows]


def columns_of(warehouse: Warehouse) -> list[str]:
    return [one["name"] for one in sa.inspect(warehouse.engine).get_columns("t")]


def apply(warehouse: Warehouse, kind: str, uid: str, started_at: float, rows: pa.Table) -> None:
    """A run of a writer that owns no days."""
    how: dict[str, Any] = {"on_new_run": kind}
    if kind == "upsert":
        how = {"mode": "upsert", "primary_key": ("day", "a")}
    writer = TableWriter("wh", "t", LATER, **how)
    actions = [
        WriteAction(uid, "w", "wh", 1, 1, pa.table({}), {"action": "begin"}),
        WriteAction(uid, "w", "wh", 2, 1, rows, {"action": "insert"}),
    ]
    warehouse.apply(Marker(uid, "w", "wh", 0, 1, started_at), writer, actions)


def own(ordinal: int, day: str = D1, **more: Any) -> Run:
    return Run(ordinal, day, **{"columns": LATER, **more})


# --- once, by each kind of writer -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["append", "replace", "upsert", "at the end", "at once"])
def test_a_run_adds_it_and_old_rows_have_null(warehouse: Warehouse, kind: str) -> None:
    execute(warehouse, *OLD, "CREATE UNIQUE INDEX by_key ON t (day, a)")
    if kind in ("append", "replace", "upsert"):
        apply(warehouse, kind, "new", 1.0, later(10, "new"))
        kept = [] if kind == "replace" else [(D1, 1, "old", None), (D2, 2, "old", None)]
    else:
        run, kept = own(1, options=(("switch", kind),)), [(D2, 2, "old", None)]
        run.open(warehouse)
        assert columns_of(warehouse) == ["day", "a", "who", "device", "price"], "with the first write action"
        if kind == "at once":
            run.target(warehouse).apply(warehouse, run.marker, [run.action(2, later(10, "new"))])
        else:
            run.close(warehouse, pages=[later(10, "new")])
    assert found(warehouse) == [*kept, (D1, 10, "new", "d10")]


def test_a_table_that_is_made_has_it(warehouse: Warehouse) -> None:
    run = own(1)
    run.open(warehouse)
    run.close(warehouse, pages=[later(10, "new")])
    assert found(warehouse) == [(D1, 10, "new", "d10")]


def test_old_code_writes_beside_it(warehouse: Warehouse) -> None:
    """A run that was begun before has no such column: its rows have null there."""
    execute(warehouse, *OLD)
    old, new = Run(1, D2), own(2)
    old.open(warehouse)
    new.open(warehouse)
    old.close(warehouse, 20)
    new.close(warehouse, pages=[later(10, "new")])
    Run(3, "2026-03-03").all(warehouse, 30)
    assert found(warehouse) == [(D1, 10, "new", "d10"), (D2, 20, "clicks1", None), ("2026-03-03", 30, "clicks3", None)]


def test_a_column_that_a_person_has_added_is_taken_as_it_is(warehouse: Warehouse) -> None:
    is_postgres = warehouse.engine.dialect.name == "postgresql"
    other = "SMALLINT" if is_postgres else "NUMERIC(9,2)"
    execute(warehouse, *OLD, "ALTER TABLE t ADD COLUMN device VARCHAR(9)", f"ALTER TABLE t ADD COLUMN price {other}")
    if is_postgres:
        says = r"'price' is declared decimal\(9,2\).*: (ALTER TABLE t ALTER COLUMN \"price\" TYPE NUMERIC\(9, 2\))"
        with pytest.raises(WriteRefused, match=says):
            own(1).open(warehouse)
        execute(warehouse, 'ALTER TABLE t ALTER COLUMN "price" TYPE NUMERIC(9, 2)')
    run = own(1)
    run.open(warehouse)
    run.close(warehouse, pages=[later(10, "new")])
    assert found(warehouse)[-1] == (D1, 10, "new", "d10")


def test_an_opening_that_is_rolled_back_has_added_nothing(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here as where its process dies behind the statement: both databases alter tables within the transaction."""
    execute(warehouse, *OLD)

    def dies(point: CrashPoint) -> None:
        raise KeyboardInterrupt(point)

    run = own(1, options=(("switch", "at once"),))
    monkeypatch.setattr("airflow_logio.systems.table_days.crash_here", dies)
    with pytest.raises(KeyboardInterrupt):
        run.open(warehouse)
    assert columns_of(warehouse) == ["day", "a", "who"]
    monkeypatch.undo()
    replace(run, token=2).open(warehouse)
    assert columns_of(warehouse) == ["day", "a", "who", "device", "price"]


def test_a_zombie_adds_nothing(warehouse: Warehouse) -> None:
    execute(warehouse, *OLD)
    Run(2).open(warehouse)
    with pytest.raises(WriteRefused, match="is younger"):
        own(1).open(warehouse)
    run = Run(3)
    replace(run, token=2).open(warehouse)
    with pytest.raises(Fenced):
        own(3).open(warehouse)
    assert columns_of(warehouse) == ["day", "a", "who"]


@pytest.mark.postgres
def test_fifty_days_at_once_add_it_once(postgres_url: str) -> None:
    """Each day is exact, also those of old code; none waits for another in a circle."""
    one = Warehouse("wh", postgres_url)
    execute(one, *OLD)
    Run(1, "2026-02-01").all(one, 1)
    days = [f"2026-{month:02}-{day:02}" for month in (4, 5) for day in range(1, 26)]

    def carry_out(place: int) -> None:
        own_pool = Warehouse("wh", postgres_url)
        try:
            if place % 5 == 0:
                Run(100 + place, days[place]).all(own_pool, 1_000 + place)
                return
            run = own(100 + place, days[place])
            run.open(own_pool)
            run.close(own_pool, pages=[later(1_000 + place, "new", days[place])])
        finally:
            own_pool.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(carry_out, range(50)))
    wanted = [
        (day, 1_000 + at, *(("clicks" + str(100 + at), None) if at % 5 == 0 else ("new", f"d{1_000 + at}")))
        for at, day in enumerate(days)
    ]
    assert [row for row in found(one) if row[1] >= 1_000] == wanted
    assert columns_of(one) == ["day", "a", "who", "device", "price"]
    one.close()


# --- what is refused before a run -------------------------------------------------------------------------------------


def test_what_is_not_to_be_null_is_refused_with_both_ways_on(warehouse: Warehouse) -> None:
    execute(warehouse, *OLD)
    run = own(1, columns={**COLUMNS, "device": "text"})
    attempts: list[Callable[[], None]] = [lambda: run.open(warehouse), lambda: warehouse.rehearse(run.writer)]
    for attempt in attempts:
        with pytest.raises(
            WriteRefused, match=r"no column 'device'.*declare it 'text null'.*ALTER TABLE t ADD"
        ) as told:
            attempt()
    execute(warehouse, str(told.value)[str(told.value).index("ALTER TABLE") :])
    run.open(warehouse)


def test_a_check_before_the_run_adds_nothing(warehouse: Warehouse) -> None:
    execute(warehouse, *OLD, "CREATE UNIQUE INDEX by_key ON t (day, a)")
    upserts = TableWriter("wh", "t", LATER, ("day", "a"), mode="upsert")
    for writer in (own(1).writer, TableWriter("wh", "t", LATER, on_new_run="replace"), upserts):
        warehouse.rehearse(writer)
        warehouse.rehearse(writer, [WriteAction("r", "w", "wh", 2, 1, later(10, "new"), {"action": "insert"})])
    assert columns_of(warehouse) == ["day", "a", "who"]


def test_a_column_that_was_removed_stays_and_one_that_needs_a_value_is_named(warehouse: Warehouse) -> None:
    """Nothing tells a column that the author has left out from one that is another program's."""
    execute(warehouse, *OLD)
    fewer = {"day": "date", "a": "bigint"}
    run = Run(1, columns=fewer)
    run.open(warehouse)
    run.close(warehouse, pages=[records(D1, 10, "x").drop_columns("who")])
    with warehouse.engine.connect() as connection:
        assert connection.execute(sa.text("SELECT who FROM t WHERE a = 10")).scalar_one() is None
    execute(
        warehouse, "DROP TABLE t", "CREATE TABLE t (day DATE, a BIGINT, who TEXT NOT NULL, more INT NOT NULL DEFAULT 1)"
    )
    again = Run(2, columns=fewer)
    fresh = Warehouse("wh", warehouse.engine.url.render_as_string(hide_password=False))
    try:
        with pytest.raises(WriteRefused, match="'who', which is NOT NULL and has no default") as told:
            again.open(fresh)
        if warehouse.engine.dialect.name == "postgresql":
            execute(warehouse, str(told.value)[str(told.value).index("ALTER TABLE") :])
            again.open(fresh)
    finally:
        fresh.close()


def test_a_view_gets_no_column(warehouse: Warehouse) -> None:
    execute(warehouse, "CREATE TABLE base (day DATE, a BIGINT, who TEXT)", "CREATE VIEW t AS SELECT * FROM base")
    with pytest.raises(
        WriteRefused, match=r"no columns 'device', 'price', and is .*change the view, or name its table"
    ):
        apply(warehouse, "append", "new", 1.0, later(10, "new"))


@pytest.mark.postgres
def test_who_does_not_own_the_table_is_told_the_statement_for_its_owner(postgres_url: str) -> None:
    owner = Warehouse("wh", postgres_url)
    role = "etl_adds_columns"
    execute(owner, *OLD, f"CREATE ROLE {role} LOGIN PASSWORD 'x'", f"GRANT ALL ON SCHEMA public TO {role}")
    execute(owner, f"GRANT ALL ON t TO {role}")
    one = Warehouse("wh", owner.engine.url.set(username=role, password="x").render_as_string(hide_password=False))
    run = own(1)
    try:
        attempts: list[Callable[[], None]] = [lambda: one.rehearse(run.writer), lambda: run.open(one)]
        for attempt in attempts:
            with pytest.raises(
                LogioError, match=r"its owner is role .*Let that role do it, then retry: ALTER TABLE"
            ) as told:
                attempt()
        assert columns_of(owner) == ["day", "a", "who"]
        execute(owner, str(told.value)[str(told.value).index("ALTER TABLE") :])
        run.open(one)
        run.close(one, pages=[later(10, "new")])
        assert found(owner)[-1] == (D1, 10, "new", "d10")
    finally:
        one.close()
        execute(owner, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
        owner.close()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"primary_key": ("day", "device")},
            r"'device' is declared 'text null', and each row has a value there.*primary_key",
        ),
        ({"columns": {"day": "date null"}}, r"'day' of by=\('day',\) is declared date null"),
        ({"columns": {"day": "date", "x": "txt null"}}, "has type 'txt', which is not one of"),
        ({"columns": {"day": "date", "x": "text  null"}}, "has type 'text ', which is not one of"),
    ],
)
def test_what_cannot_be_null_is_not_declared_so(changed: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"columns": LATER, "on_new_run": "overwrite", "by": ("day",), **changed}
    with pytest.raises(PipelineDefinitionError, match=says):
        TableWriter("wh", "t", **given)

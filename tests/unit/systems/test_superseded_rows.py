"""Rows of a table that runs of a partition own wherever their values lie: what a new run replaces, and what stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, Fenced, WriteRefused
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import COLUMNS, D1, D2, Run, execute, records, rows, scope_of
from tests.support.table_runs import Superseding, numbered

D0 = "2026-02-28"
KEYED = (("primary_key", ("day", "a")),)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def late(*rows: tuple[str, int], who: str) -> list[pa.Table]:
    """Each row a page of its own, of any day."""
    return [records(day, a, who) for day, a in rows]


# --- what a run replaces ----------------------------------------------------------------------------------------------


def test_a_new_run_replaces_the_rows_of_its_partition_wherever_they_lie(warehouse: Warehouse) -> None:
    """And nothing else: neither rows of another partition, nor of another pipeline, that have the same values."""
    first, other_day = Superseding(1, options=KEYED), Superseding(2, D2, options=KEYED)
    elsewhere = Superseding(1, pipeline="other", options=KEYED)
    for run in (first, other_day, elsewhere):
        run.open(warehouse)
        run.close(warehouse, pages=late((D0, 1), (D1, 1), (D2, 1), who=run.name))
    again = Superseding(3, options=KEYED)
    again.open(warehouse)
    assert len([row for row in rows(warehouse) if row[2] == "clicks1"]) == 3, (
        "the old rows stay until the new are there"
    )
    again.close(warehouse, pages=late((D2, 1), ("2026-01-01", 7), who=again.name))
    assert rows(warehouse) == [
        ("2026-01-01", 7, "clicks3"),
        *((day, 1, who) for day in (D0, D1) for who in ("clicks2", "other1")),
        *((D2, 1, who) for who in ("clicks2", "clicks3", "other1")),
    ]
    numbers = {who: number for *_, who, number in numbered(warehouse)}
    assert len(set(numbers.values())) == 3 and 0 not in numbers.values()
    assert scope_of(warehouse, "day=2026-03-01@clicks")["id"] == numbers["clicks3"]


def test_the_closing_is_executed_once_and_by_the_last_driver(warehouse: Warehouse) -> None:
    run = Superseding(1)
    run.all(warehouse, 10, 11)
    run.close(warehouse, 10, 11)
    replace(run, token=2).close(warehouse, 10, 11)
    with pytest.raises(Fenced):
        again = Superseding(2)
        again.open(warehouse)
        replace(again, token=2).close(warehouse, 12)
        again.close(warehouse, 13)
    assert rows(warehouse) == [(D1, 12, "clicks2")]


def test_a_run_without_rows_replaces_none_unless_that_is_said(warehouse: Warehouse) -> None:
    Superseding(1).all(warehouse)
    Superseding(2).all(warehouse, 10)
    Superseding(3, D2).all(warehouse)
    with pytest.raises(WriteRefused, match=r"part of pipeline 'clicks' for day=2026-03-01 in table 't'.* has rows"):
        Superseding(4).all(warehouse)
    assert rows(warehouse) == [(D1, 10, "clicks2")]
    Superseding(5, may_be_empty=True).all(warehouse)
    Superseding(6).all(warehouse, 10)
    Superseding(7, options=(("empty", "replace"),)).all(warehouse)
    assert rows(warehouse) == []


def test_the_older_run_and_another_line_are_refused(warehouse: Warehouse) -> None:
    older, younger = Superseding(1, started_at=9.0), Superseding(2, started_at=1.0)
    older.open(warehouse)
    younger.open(warehouse)
    with pytest.raises(WriteRefused, match="claimed by run clicks2"):
        older.close(warehouse, 10)
    younger.close(warehouse, 20)
    with pytest.raises(
        WriteRefused, match=r"number 2 of its pipeline.*--pipeline clicks --partition 2026-03-01 --above 2"
    ):
        Superseding(1, uid="late").open(warehouse)
    laptop = Superseding(1, uid="laptop", log_uid="other")
    with pytest.raises(WriteRefused, match=r"of another log.*--partition 2026-03-01 --take-over"):
        laptop.open(warehouse)
    replace(laptop, takes_over=True).all(warehouse, 30)
    assert rows(warehouse) == [(D1, 30, "laptop")], "its rows are replaced as well"


def test_a_run_that_was_given_up_is_fenced(warehouse: Warehouse) -> None:
    older, younger = Superseding(1), Superseding(2, given_up=("clicks1",))
    older.open(warehouse)
    younger.open(warehouse)
    with pytest.raises((Fenced, WriteRefused)):
        older.close(warehouse, 10)
    younger.close(warehouse, 20)
    assert rows(warehouse) == [(D1, 20, "clicks2")]


def test_an_audit_sees_the_rows_as_they_will_be(warehouse: Warehouse) -> None:
    audited = Superseding(1, options=(("audit", "SELECT a FROM t WHERE a < 0 AND :day = '2026-03-01'"),))
    audited.all(warehouse, 10)
    again = replace(audited, ordinal=2)
    again.open(warehouse)
    with pytest.raises(WriteRefused, match=r"audit 'audit' refuses the rows of run clicks2: 1 row: \(a=-1\)"):
        again.close(warehouse, -1)
    assert rows(warehouse) == [(D1, 10, "clicks1")]


def test_numbers_are_not_given_again_while_there_are_rows_of_them(warehouse: Warehouse) -> None:
    """Rows of `logio_scope` were deleted, by a person or because another kind of run took the table over."""
    Superseding(1).all(warehouse, 10)
    Superseding(2, D2).all(warehouse, 20)
    execute(warehouse, "DELETE FROM logio_scope")
    Superseding(3, "2026-03-03").all(warehouse, 30)
    Superseding(4, "2026-03-03").all(warehouse, 31)
    assert [row[1:] for row in numbered(warehouse)] == [(10, "clicks1", 1), (20, "clicks2", 2), (31, "clicks4", 3)]


# --- tables that are there --------------------------------------------------------------------------------------------

EXISTING = (
    "CREATE TABLE t (day DATE, a BIGINT, who TEXT{})",
    f"INSERT INTO t (day, a, who) VALUES ('{D1}', 1, 'script')",
)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (a, day)"])
def test_a_table_without_the_column_is_refused_with_the_statements_that_make_it(
    warehouse: Warehouse, key: str, declared: bool
) -> None:
    """They work as they are. Rows of before belong to no run, and stay."""
    execute(warehouse, EXISTING[0].format(key), EXISTING[1])
    run = Superseding(1, columns=None if declared else {})
    attempts: list[Callable[[], None]] = [lambda: warehouse.rehearse(run.writer), lambda: run.open(warehouse)]
    for attempt in attempts:
        with pytest.raises(WriteRefused, match="has no column 'logio_run'") as refused:
            attempt()
    said = str(refused.value)
    assert "`logio adopt t --connection wh --pipeline PIPELINE --partition KEY --where CONDITION`" in said
    execute(warehouse, *said.partition("Make it: ")[2].partition(". Rows that are there")[0].split("; "))
    warehouse.rehearse(run.writer)
    run.open(warehouse)
    run.close(warehouse, pages=late((D1, 1), (D0, 2), who="clicks1"))
    assert numbered(warehouse) == [(D0, 2, "clicks1", 1), (D1, 1, "clicks1", 1), (D1, 1, "script", 0)]


@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (a, logio_run)", ", PRIMARY KEY (a, day)"])
def test_a_column_that_is_in_no_index_or_not_in_the_key_is_refused(warehouse: Warehouse, key: str) -> None:
    execute(warehouse, EXISTING[0].format(f", logio_run BIGINT NOT NULL DEFAULT 0{key}"), EXISTING[1])
    with pytest.raises(WriteRefused, match="is not in its key, or has no index") as refused:
        Superseding(1).open(warehouse)
    execute(warehouse, *str(refused.value).partition("Make it: ")[2].partition(". Rows that are there")[0].split("; "))
    Superseding(1).all(warehouse, 2)
    assert [row[1:] for row in numbered(warehouse)] == [(1, "script", 0), (2, "clicks1", 1)]


@pytest.mark.parametrize("kind", ["INTEGER", "BIGINT"])
def test_null_belongs_to_no_run(warehouse: Warehouse, kind: str) -> None:
    execute(warehouse, EXISTING[0].format(f", logio_run {kind}"), EXISTING[1], "CREATE INDEX of_runs ON t (logio_run)")
    Superseding(1).all(warehouse, 2)
    Superseding(2, columns={}).all(warehouse, 2)
    assert numbered(warehouse) == [(D1, 1, "script", None), (D1, 2, "clicks2", 1)]


@pytest.mark.parametrize("kind", ["TEXT", "DOUBLE PRECISION"])
def test_a_column_that_holds_no_numbers_is_refused(warehouse: Warehouse, kind: str) -> None:
    kind = "REAL" if kind != "TEXT" and warehouse.engine.dialect.name == "sqlite" else kind
    execute(warehouse, EXISTING[0].format(f", logio_run {kind}"))
    with pytest.raises(WriteRefused, match="must be bigint or integer; give run_column another name"):
        Superseding(1).open(warehouse)


@pytest.mark.parametrize(
    "kind", ["BIGINT DEFAULT 0", "BIGINT DEFAULT NULL", "BIGINT NOT NULL DEFAULT '0'", "INT DEFAULT (0)"]
)
def test_a_default_of_no_run_is_taken(warehouse: Warehouse, kind: str) -> None:
    execute(
        warehouse, f"CREATE TABLE t (day DATE, a BIGINT, who TEXT, logio_run {kind})", "CREATE INDEX i ON t (logio_run)"
    )
    Superseding(1).all(warehouse, 10)
    assert [number for *_, number in numbered(warehouse)] == [1]


@pytest.mark.parametrize("kind", ["BIGINT DEFAULT 1", "BIGINT NOT NULL DEFAULT (1 + 1)"])
def test_a_column_that_the_database_fills_is_refused(warehouse: Warehouse, kind: str) -> None:
    """A row that another program writes without it would belong to the first partition, and go with its rows."""
    execute(
        warehouse, f"CREATE TABLE t (day DATE, a BIGINT, who TEXT, logio_run {kind})", "CREATE INDEX i ON t (logio_run)"
    )
    with pytest.raises(WriteRefused, match=r"the database fills column 'logio_run' by itself.*Let its default be 0"):
        Superseding(1).open(warehouse)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "kind",
    [
        "BIGSERIAL",
        "BIGINT GENERATED BY DEFAULT AS IDENTITY",
        "BIGINT GENERATED ALWAYS AS IDENTITY",
        "BIGINT GENERATED ALWAYS AS (a) STORED",
    ],
)
def test_a_column_that_counts_by_itself_is_refused(postgres_url: str, kind: str) -> None:
    warehouse = Warehouse("wh", postgres_url)
    execute(
        warehouse, f"CREATE TABLE t (day DATE, a BIGINT, who TEXT, logio_run {kind})", "CREATE INDEX i ON t (logio_run)"
    )
    with pytest.raises(WriteRefused, match=r"the database fills column 'logio_run' by itself"):
        Superseding(1).open(warehouse)
    warehouse.close()


def test_a_column_of_another_name(warehouse: Warehouse) -> None:
    run = Superseding(1, run_column="Written By", options=KEYED)
    run.all(warehouse, 1)
    replace(run, ordinal=2).all(warehouse, 2)
    with warehouse.engine.connect() as connection:
        assert connection.execute(sa.text('SELECT a, "Written By" FROM t')).all() == [(2, 1)]
    with pytest.raises(WriteRefused, match=r"own rows of it by their runs .*run_column='Written By'"):
        Superseding(3).open(warehouse)


def test_a_view_has_no_rows_of_runs(warehouse: Warehouse) -> None:
    execute(warehouse, EXISTING[0].format(", logio_run BIGINT"), "CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(WriteRefused, match="table 'v' is a view"):
        Superseding(1, table="v").open(warehouse)


def test_scopes_of_a_version_without_numbers_get_the_column(warehouse: Warehouse) -> None:
    Run(1, table="days").all(warehouse, 1)
    execute(warehouse, "ALTER TABLE logio_scope DROP COLUMN id")
    Run(2, table="days").all(warehouse, 2)  # what owns by value needs none
    Superseding(3).all(warehouse, 3)
    assert rows(warehouse) == [(D1, 3, "clicks3")] and rows(warehouse, "days") == [(D1, 2, "clicks2")]


def test_a_key_that_another_run_has_written_is_named(warehouse: Warehouse) -> None:
    """A constraint beside the primary key lets rows of two runs meet. Nothing is changed."""
    Superseding(1, options=KEYED).all(warehouse, 1)
    execute(warehouse, "CREATE UNIQUE INDEX one_row_of_a ON t (a, day)")
    run = Superseding(2, D2, options=KEYED)
    run.open(warehouse)
    with pytest.raises(WriteRefused) as refused:
        run.close(warehouse, pages=late((D0, 5), (D1, 1), who="clicks2"))
    assert "2026-03-01" in str(refused.value) and "1" in str(refused.value)
    assert "logio_run" in str(refused.value)
    assert rows(warehouse) == [(D1, 1, "clicks1")]


# --- other writers of the table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Other:
    """A run of another kind of writer."""

    kind: str
    started_at: float
    columns: Any = None

    def apply(self, warehouse: Warehouse, *numbers: int, table: Any = None) -> None:
        writer = TableWriter("wh", "t", COLUMNS if self.columns is None else self.columns or None, on_new_run=self.kind)
        uid = f"{self.kind}{self.started_at}"
        actions = [
            WriteAction(
                uid, "w", "wh", n, 1, records(D2, n, self.kind) if table is None else table, {"action": "insert"}
            )
            for n in numbers
        ]
        begin = WriteAction(uid, "w", "wh", 1, 1, pa.table({}), {"action": "begin"})
        actions = [begin if one.number == 1 else one for one in actions]
        warehouse.apply(Marker(uid, "w", "wh", 0, 1, self.started_at), writer, actions)


@pytest.mark.parametrize("started_at", [0.5, 9.0])
@pytest.mark.parametrize("declared", [None, {}])
def test_what_is_appended_beside_belongs_to_no_run(warehouse: Warehouse, started_at: float, declared: Any) -> None:
    """Whichever is first, and whichever was started first; in any order of the writes of both."""
    appending, run = Other("append", started_at, declared), Superseding(1)
    run.open(warehouse)
    appending.apply(warehouse, 1, 2)
    run.close(warehouse, 10)
    appending.apply(warehouse, 3)
    Superseding(2).all(warehouse, 11)
    appending.apply(warehouse, 4)
    assert numbered(warehouse) == [(D1, 11, "clicks2", 1), *((D2, n, "append", 0) for n in (2, 3, 4))]
    writer = TableWriter("wh", "t", COLUMNS, on_new_run="append")
    warehouse.check_not_replaced(writer, Owner(f"append{started_at}", started_at))


def test_what_was_appended_before_stays_and_its_run_goes_on(warehouse: Warehouse) -> None:
    Superseding(1).open(warehouse)  # makes the table
    execute(warehouse, "DELETE FROM logio_owner", "DELETE FROM logio_scope")
    appending = Other("append", 5.0)
    appending.apply(warehouse, 1, 2)
    Superseding(2).all(warehouse, 10)
    appending.apply(warehouse, 3)
    with pytest.raises(WriteRefused, match="writes to it as well, and was started later"):
        Other("replace", 4.0).apply(warehouse, 1)
    assert numbered(warehouse) == [(D1, 10, "clicks2", 1), (D2, 2, "append", 0), (D2, 3, "append", 0)]


@pytest.mark.parametrize("columns", [COLUMNS | {"Logio_Run": "bigint"}, {}])
def test_what_appends_with_a_number_of_its_own_is_refused(warehouse: Warehouse, columns: Any) -> None:
    if columns and warehouse.engine.dialect.name == "postgresql":
        columns = COLUMNS | {"logio_run": "bigint"}
    Superseding(1).all(warehouse, 10)
    forged = records(D2, 1, "forged").append_column(list(columns or {"logio_run": 1})[-1], pa.array([1]))
    with pytest.raises(WriteRefused, match="its column 'logio_run' says which rows are those of runs"):
        Other("append", 9.0, columns).apply(warehouse, 1, 2, table=forged)
    assert rows(warehouse) == [(D1, 10, "clicks1")]


@pytest.mark.parametrize("started_at", [0.5, 9.0])
def test_error_is_refused_beside_runs_and_before_them_writes_no_more(warehouse: Warehouse, started_at: float) -> None:
    Superseding(1).open(warehouse)
    with pytest.raises(WriteRefused, match=r"pipelines \(clicks\) own rows of it by their runs"):
        Other("error", started_at).apply(warehouse, 1, 2)


@pytest.mark.parametrize("kind", ["error", "replace"])
def test_what_owned_the_table_before_writes_no_more(warehouse: Warehouse, kind: str) -> None:
    Superseding(1).open(warehouse)  # makes the table
    execute(warehouse, "DELETE FROM logio_owner", "DELETE FROM logio_scope")
    other = Other(kind, 2.0)
    other.apply(warehouse, 1, 2)
    with pytest.raises(WriteRefused, match="a newer run has taken it over"):
        Superseding(1, uid="older", started_at=1.0).open(warehouse)
    Superseding(3, started_at=3.0).all(warehouse, 10)
    with pytest.raises(WriteRefused, match="own rows of it by their runs"):
        other.apply(warehouse, 3)
    assert numbered(warehouse) == [(D1, 10, "clicks3", 1), (D2, 2, kind, 0)]


def test_replace_takes_the_table_over_and_runs_take_it_back(warehouse: Warehouse) -> None:
    old, run = Superseding(1, D2), Superseding(1, uid="open")
    old.all(warehouse, 9)
    run.open(warehouse)
    other = Other("replace", 5.0)
    other.apply(warehouse, 1, 2)
    with pytest.raises(WriteRefused):
        run.close(warehouse, 10)
    assert rows(warehouse) == [(D2, 2, "replace")]
    Superseding(3, started_at=6.0).all(warehouse, 30)
    with pytest.raises(WriteRefused, match="own rows of it by their runs"):
        other.apply(warehouse, 3)
    assert numbered(warehouse) == [(D1, 30, "clicks3", 1), (D2, 2, "replace", 0)]


def test_days_by_value_and_rows_by_run_are_not_mixed(warehouse: Warehouse) -> None:
    """In either order: a day would be emptied of rows that a run of another day owns."""
    Superseding(1).all(warehouse, 10)
    with pytest.raises(WriteRefused, match=r"own rows of it by their runs.*on_new_run='overwrite', by=\('day',\)"):
        Run(2).open(warehouse)
    Run(2, table="days").all(warehouse, 1)
    execute(warehouse, "ALTER TABLE days ADD COLUMN logio_run BIGINT", "CREATE INDEX r ON days (logio_run)")
    with pytest.raises(WriteRefused, match=r"own it by 'day'.*on_new_run='supersede', run_column='logio_run'"):
        Superseding(3, table="days").open(warehouse)


def test_the_way_out_of_a_refusal_works_and_loses_no_row(warehouse: Warehouse) -> None:
    """The table is given to another kind, and back: what the scopes have written is still theirs."""
    Superseding(1).all(warehouse, 10)
    Superseding(2, D2).all(warehouse, 20)
    for kind in ("error", "overwrite"):
        with pytest.raises(WriteRefused) as refused:
            Other("error", 9.0).apply(warehouse, 1) if kind == "error" else Run(9, "2026-03-03").open(warehouse)
        execute(warehouse, f"UPDATE {str(refused.value).partition('UPDATE ')[2]}")
        Superseding(3 if kind == "error" else 4).all(warehouse, 11)
    assert numbered(warehouse) == [(D1, 11, "clicks4", 1), (D2, 20, "clicks2", 2)]


# --- at the same time -------------------------------------------------------------------------------------------------


@pytest.mark.postgres
def test_many_runs_of_all_kinds_end_without_a_deadlock(postgres_url: str) -> None:
    """Eight threads, kinds at random. Each scope has the rows of one run, whole; no two scopes have one number."""
    one = Warehouse("wh", postgres_url)
    Superseding(1).all(one, 1)
    draw = random.Random(11)
    kinds = ["append"] * 3 + ["replace"]
    plans: list[Superseding | Other] = [
        Superseding(n, draw.choice((D1, D2)), pipeline=draw.choice(("clicks", "other")))
        if draw.random() < 0.7
        else Other(draw.choice(kinds), float(n))
        for n in range(2, 50)
    ]

    def carry_out(plan: Superseding | Other) -> str:
        own = Warehouse("wh", postgres_url)
        try:
            plan.all(own, 1, 2, 3) if isinstance(plan, Superseding) else plan.apply(own, 1, 2, 3)
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
    found = numbered(one)
    for number in {number for *_, number in found if number}:
        mine = [(a, who) for _, a, who, of in found if of == number]
        assert len({who for _, who in mine}) == 1 and sorted(a for a, _ in mine) in ([1], [1, 2, 3]), found
    one.close()

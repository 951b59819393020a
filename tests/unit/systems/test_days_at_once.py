"""A day of a table that a run fills at once: the first write action deletes what is there, the others add their rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, Fenced, LogioError, ProtocolViolation, WriteRefused
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.systems.stored_records import RecordsInFiles
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import COLUMNS, D1, D2, Run, execute, records, rows, scope_of

AT_ONCE = (("switch", "at once"),)
SCRIPT = (
    "CREATE TABLE t (day DATE, a BIGINT, who TEXT)",
    f"INSERT INTO t VALUES ('{D1}', 1, 'script'), ('{D2}', 2, 'script')",
)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def run_of(ordinal: int, day: str = D1, **more: Any) -> Run:
    return Run(ordinal, day, options=AT_ONCE, **more)


# --- one run ----------------------------------------------------------------------------------------------------------


def test_the_old_day_goes_with_the_first_action_and_rows_come_with_each(warehouse: Warehouse) -> None:
    execute(warehouse, *SCRIPT)
    run = run_of(1)
    run.open(warehouse)
    assert rows(warehouse) == [(D2, 2, "script")]
    found = scope_of(warehouse)
    assert (found["claimed_by"], found["live_run"], found["live_ordinal"], found["live_write"]) == (
        *("clicks1", "clicks1"),
        *(1, 1),
    )
    run.fill(warehouse, 10)
    assert rows(warehouse) == [(D1, 10, "clicks1"), (D2, 2, "script")]
    run.fill(warehouse, 11, 12, first=3)
    assert rows(warehouse) == [*((D1, a, "clicks1") for a in (10, 11, 12)), (D2, 2, "script")]


def test_the_first_actions_may_come_in_one_group(warehouse: Warehouse) -> None:
    execute(warehouse, *SCRIPT)
    run = run_of(1)
    actions = [run.action(1, pa.table({}), "begin"), run.action(2, records(D1, 10, "clicks1"))]
    run.target(warehouse).apply(warehouse, run.marker, actions)
    assert rows(warehouse) == [(D1, 10, "clicks1"), (D2, 2, "script")]


def test_what_is_applied_is_not_applied_again_and_a_zombie_is_fenced(warehouse: Warehouse) -> None:
    execute(warehouse, *SCRIPT)
    run, successor = run_of(1), run_of(1, token=2)
    run.open(warehouse)
    run.fill(warehouse, 10)
    successor.open(warehouse)
    successor.fill(warehouse, 10, 11)
    with pytest.raises(Fenced):
        run.fill(warehouse, 11, first=3)
    assert rows(warehouse) == [(D1, 10, "clicks1"), (D1, 11, "clicks1"), (D2, 2, "script")]


def test_a_refused_row_undoes_its_action_and_no_other(warehouse: Warehouse) -> None:
    run = Run(1, options=(*AT_ONCE, ("primary_key", ("day", "a"))))
    run.open(warehouse)
    run.fill(warehouse, 10)
    with pytest.raises(WriteRefused, match=r"UNIQUE|duplicate key"):
        run.fill(warehouse, 11, 10, first=3)
    assert rows(warehouse) == [(D1, 10, "clicks1")]


def test_a_refusal_in_the_opening_leaves_the_old_day(warehouse: Warehouse) -> None:
    execute(warehouse, *SCRIPT)
    if warehouse.engine.dialect.name == "sqlite":
        execute(warehouse, "CREATE TRIGGER keep BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END")
    else:
        execute(
            warehouse,
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
            "CREATE TRIGGER keep BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION keep()",
        )
    before = rows(warehouse)
    run = run_of(1)
    with pytest.raises(WriteRefused, match=r"still has 1 rows of day=2026-03-01"):
        run.open(warehouse)
    assert rows(warehouse) == before


def test_records_in_files_are_of_the_day_too(warehouse: Warehouse) -> None:
    class Stored:
        def counts(self) -> list[int]:
            return [1, 1]

        def empty(self) -> pa.Table:
            return records(D1, 0, "").slice(0, 0)

        def batches(self, number: int | None = None) -> Iterator[tuple[int, pa.Table]]:
            yield 0, records(D1, 10, "file")
            yield 1, records(D2, 11, "file")

    run = run_of(1)
    run.open(warehouse)
    action = replace(run.action(2, pa.table({})), dataset="somewhere")
    with pytest.raises(WriteRefused, match=r"1 of 1 records are not of day=2026-03-01.*2026-03-02 there.*logio again"):
        run.target(warehouse).apply(warehouse, run.marker, [action], {2: RecordsInFiles(Stored())})
    assert rows(warehouse) == []


# --- slots of one run -------------------------------------------------------------------------------------------------


def test_slots_of_a_run_fill_the_day_together(warehouse: Warehouse) -> None:
    """Only the first one that begins deletes what is there."""
    execute(warehouse, *SCRIPT)
    first, second = run_of(1, slot=1), run_of(1, slot=2)
    first.open(warehouse)
    first.fill(warehouse, 10)
    second.open(warehouse)
    second.fill(warehouse, 20)
    first.fill(warehouse, 11, first=3)
    assert [row for row in rows(warehouse) if row[0] == D1] == [(D1, a, "clicks1") for a in (10, 11, 20)]


def test_a_slot_that_begins_late_finds_out_that_the_others_rows_are_gone(warehouse: Warehouse) -> None:
    """An older run that replaces the whole table has come between them: the day would be there without their rows."""
    first, second = run_of(1, slot=1, started_at=5.0), run_of(1, slot=2, started_at=5.0)
    first.open(warehouse)
    first.fill(warehouse, 10)
    whole = TableWriter("wh", "t", COLUMNS, on_new_run="replace")
    other = replace(run_of(1, uid="older"), started_at=1.0)
    warehouse.apply(other.marker, whole, [other.action(1, pa.table({}), "begin")])
    for slot, attempt in ((second, second.open), (first, lambda on: first.fill(on, 11, first=3))):
        with pytest.raises(WriteRefused, match=r"no run|belongs to run older"):
            attempt(warehouse)
        assert rows(warehouse) == [], slot


def test_a_slot_that_begins_late_does_not_take_the_day_back(warehouse: Warehouse) -> None:
    """Both lines were told to take over, and the run that closes was told last."""
    first, second = run_of(1, slot=1, takes_over=True), run_of(1, slot=2, takes_over=True)
    other = Run(1, pipeline="other", takes_over=True)
    first.open(warehouse)
    other.open(warehouse)
    with pytest.raises(WriteRefused, match="was claimed by run other1 of pipeline 'other' since run clicks1 began"):
        second.open(warehouse)
    other.close(warehouse, 20)
    assert rows(warehouse) == [(D1, 20, "other1")]


def test_another_writer_of_the_run_has_its_rows_kept(warehouse: Warehouse) -> None:
    """Under another name of the connection, which the pipeline cannot see: one of the two is refused."""
    closes, fills = Run(1), run_of(1)
    closes.all(warehouse, 10)
    marker = replace(fills.marker, operator="other")
    with pytest.raises(WriteRefused, match="was filled by another writer of run clicks1"):
        fills.target(warehouse).apply(warehouse, marker, [fills.action(1, pa.table({}), "begin")])
    assert rows(warehouse) == [(D1, 10, "clicks1")]
    Run(2).open(warehouse)
    young = run_of(2)
    young.target(warehouse).apply(
        warehouse, replace(young.marker, operator="o"), [young.action(1, pa.table({}), "begin")]
    )
    with pytest.raises(WriteRefused, match="was filled by another writer of run clicks2"):
        Run(2).close(warehouse, 30)


# --- two runs of one day ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old_at_once", [True, False])
@pytest.mark.parametrize("new_at_once", [True, False])
def test_the_younger_run_has_the_day_whatever_both_are(
    warehouse: Warehouse, old_at_once: bool, new_at_once: bool
) -> None:
    execute(warehouse, *SCRIPT)
    old, new = (Run(n, options=AT_ONCE if once else ()) for n, once in ((1, old_at_once), (2, new_at_once)))

    def goes_on(run: Run, at_once: bool, *numbers: int) -> None:
        run.fill(warehouse, *numbers) if at_once else run.close(warehouse, *numbers)

    old.open(warehouse)
    if old_at_once:
        old.fill(warehouse, 10)
    new.open(warehouse)
    with pytest.raises(WriteRefused, match=r"was claimed by run clicks2 of pipeline 'clicks' since run clicks1 began"):
        goes_on(old, old_at_once, 10, 11)
    goes_on(new, new_at_once, 20)
    with pytest.raises(WriteRefused, match="was claimed by run clicks2"):
        goes_on(old, old_at_once, 10, 11)
    with pytest.raises(WriteRefused, match="number 2 of its pipeline, has claimed it"):
        replace(old, uid="late", ordinal=1).open(warehouse)
    assert rows(warehouse) == [(D1, 20, "clicks2"), (D2, 2, "script")]


def test_a_retry_of_a_run_that_filled_a_part_is_refused_beforehand(warehouse: Warehouse) -> None:
    old = run_of(1)
    old.open(warehouse)
    old.fill(warehouse, 10)
    old.target(warehouse).check_not_replaced(Owner(old.name, 1.0))
    Run(2).open(warehouse)
    with pytest.raises(WriteRefused, match="number 2 of its pipeline, has claimed it, and is younger"):
        old.target(warehouse).check_not_replaced(Owner(old.name, 1.0))


def test_a_run_that_was_given_up_fills_no_more(warehouse: Warehouse) -> None:
    old, new = run_of(1), run_of(2, given_up=("clicks1",))
    old.open(warehouse)
    new.open(warehouse)
    with pytest.raises((Fenced, WriteRefused)):
        old.fill(warehouse, 10)
    new.fill(warehouse, 20)
    assert rows(warehouse) == [(D1, 20, "clicks2")]


@pytest.mark.postgres
def test_many_runs_end_without_a_deadlock(postgres_url: str) -> None:
    """Eight threads, both kinds, two slots of some. Each day has the rows of one run."""
    one = Warehouse("wh", postgres_url)
    run_of(1).open(one)
    draw = random.Random(11)
    plans = [
        Run(
            n // 2 + 1,
            draw.choice((D1, D2)) if n % 2 else D1,
            uid=f"run{n // 2}",
            options=AT_ONCE if n // 2 % 3 else (),
            slot=n % 2,
            given_up=(f"run{n // 2 - 1}",) if draw.random() < 0.2 else (),
        )
        for n in range(2, 60)
    ]

    def carry_out(plan: Run) -> str:
        own = Warehouse("wh", postgres_url)
        try:
            plan.open(own)
            if plan.options:
                for at, number in enumerate((1, 2, 3), 2):
                    plan.fill(own, number + 10 * plan.slot, first=at)
            else:
                plan.close(own, 1, 2, 3)
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
        assert len({who for at, _, who in found if at == day}) <= 1, found
        assert len({a for at, a, _ in found if at == day}) == sum(1 for at, *_ in found if at == day), found
    one.close()


def test_a_writer_that_closes_applies_no_row_alone(warehouse: Warehouse) -> None:
    run = Run(1)
    run.open(warehouse)
    with pytest.raises(ProtocolViolation, match="before its closing one"):
        run.fill(warehouse, 10)


# --- before a run -----------------------------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.parametrize("switch", ["at once", "at the end"])
def test_a_role_that_may_not_delete_is_found_before_a_run(postgres_url: str, switch: str) -> None:
    owner = Warehouse("wh", postgres_url)
    writer = Run(1, options=(("switch", switch),)).writer
    role = "etl_days_without_delete"
    execute(owner, *SCRIPT, f"CREATE ROLE {role} LOGIN PASSWORD 'x'", f"GRANT ALL ON SCHEMA public TO {role}")
    execute(owner, f"GRANT SELECT, INSERT ON t TO {role}")
    one = Warehouse("wh", owner.engine.url.set(username=role, password="x").render_as_string(hide_password=False))
    try:
        with pytest.raises(LogioError, match="permission denied for table t"):
            one.rehearse(writer)
        execute(owner, f"GRANT DELETE ON t TO {role}")
        one.rehearse(writer)
    finally:
        one.close()
        execute(owner, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
        owner.close()

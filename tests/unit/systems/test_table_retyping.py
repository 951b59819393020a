"""A table of the run gets other types while it is empty: under its marker and its owner, and no table of anyone else."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.write_actions import Marker, WriteAction
from airflow_logio.errors import Fenced, WriteRefused
from airflow_logio.systems.warehouse import Warehouse
from tests.support.faults import Injected, after_statement, inject

RUN = ("run", 1.0)
PRICES = pa.table({"total": pa.array([Decimal("12345678901234567.89")], pa.decimal128(20, 2))})
KINDS = (
    "bigint", "int", "double", "decimal(20,2)", "text", "boolean",
    "timestamp", "timestamptz", "date", "json", "uuid", "binary",
)  # fmt: skip


def writer(kind: str, **settings: Any) -> TableWriter:
    return TableWriter("wh", "sums", {"total": kind}, **{"on_new_run": "replace", **settings})


def marker(token: int, run: tuple[str, float] = RUN) -> Marker:
    return Marker(run[0], "save", "wh", 0, token, run[1])


def apply(warehouse: Warehouse, kind: str, *numbers: int, token: int = 1, **settings: Any) -> None:
    actions = [
        WriteAction(
            RUN[0], "save", "wh", number, token, *(_opening() if number == 1 else (PRICES, {"action": "insert"}))
        )
        for number in numbers
    ]
    warehouse.apply(marker(token), writer(kind, **settings), actions)


def _opening() -> tuple[pa.Table, dict[str, str]]:
    return pa.table({}), {"action": "begin"}


def retype(warehouse: Warehouse, kind: str, *former: str, token: int = 2, **settings: Any) -> None:
    warehouse.retype(marker(token), writer(kind, **settings), {"total": former})


def ddl(warehouse: Warehouse, table: str = "sums") -> str:
    (column,) = sa.inspect(warehouse.engine).get_columns(table)
    return str(column["type"].compile(dialect=warehouse.engine.dialect))


def rows(warehouse: Warehouse) -> list[Any]:
    with warehouse.engine.connect() as connection:
        return list(connection.execute(sa.select(sa.Table("sums", sa.MetaData(), autoload_with=connection))).scalars())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/wh.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def warehouse(url: str) -> Iterator[Warehouse]:
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


@pytest.fixture
def successor(url: str) -> Iterator[Warehouse]:
    """That of the driver behind the change: it has looked at no table yet."""
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def test_records_that_a_column_refused_go_into_one_of_another_type(warehouse: Warehouse, successor: Warehouse) -> None:
    apply(warehouse, "double", 1)
    with pytest.raises(WriteRefused, match="does not fit into a double"):
        apply(warehouse, "double", 2)
    warehouse.fence_unwritten(marker(2), writer("decimal(20,2)"))
    retype(successor, "decimal(20,2)", "double")
    apply(successor, "decimal(20,2)", 2, token=2)
    retype(successor, "decimal(20,2)", "double")
    assert rows(successor) == [Decimal("12345678901234567.89")]


def test_every_type_becomes_every_other(warehouse: Warehouse, url: str) -> None:
    """What the database says of a column of each type is recognized, and the column is altered to the next one."""
    apply(warehouse, KINDS[-1], 1)
    for before, kind in zip((KINDS[-1], *KINDS), KINDS, strict=False):
        opened = Warehouse("wh", url)
        retype(opened, kind, before)
        made = Warehouse("wh", url)
        expected = TableWriter("wh", f"made_{KINDS.index(kind)}", {"total": kind}, on_new_run="replace")
        run = Marker(f"run {kind}", "save", "wh", 0, 1, 1.0)
        made.apply(run, expected, [WriteAction(run.run_uid, "save", "wh", 1, 1, *_opening())])
        assert ddl(opened) == ddl(made, expected.table), f"{before} to {kind}"
        opened.close()
        made.close()


def test_a_driver_that_was_replaced_before_the_change_writes_nothing(
    warehouse: Warehouse, successor: Warehouse
) -> None:
    apply(warehouse, "text", 1)
    successor.fence_unwritten(marker(2), writer("decimal(20,2)"))
    with pytest.raises(Fenced, match="token 2 has written, but this driver holds 1"):
        apply(warehouse, "text", 2)
    with pytest.raises(Fenced):
        retype(warehouse, "text", "double", token=1)
    successor.fence_unwritten(marker(2), writer("decimal(20,2)"))
    assert rows(successor) == []


def test_a_run_that_has_written_is_too_late_and_its_table_stays(warehouse: Warehouse, successor: Warehouse) -> None:
    apply(warehouse, "decimal(20,2)", 1, 2)
    with pytest.raises(WriteRefused, match=r"has written to table 'sums' .* already \(write actions up to 2\)"):
        successor.fence_unwritten(marker(2), writer("text"))
    before = ddl(successor)
    retype(successor, "text", "decimal(20,2)", token=2)
    assert (ddl(successor), len(rows(successor))) == (before, 1)
    apply(warehouse, "decimal(20,2)", 3)
    assert len(rows(successor)) == 2, "a question that is refused fences nobody"


def test_a_run_that_has_not_begun_is_fenced_too(warehouse: Warehouse, successor: Warehouse) -> None:
    successor.fence_unwritten(marker(2), writer("text"))
    with pytest.raises(Fenced):
        apply(warehouse, "double", 1)
    retype(successor, "text", "double")
    assert not sa.inspect(successor.engine).has_table("sums")


@pytest.mark.parametrize("whose", ["another run's", "shared", "filled", "another type"])
def test_a_table_that_is_not_the_runs_empty_one_stays_as_it_is(
    whose: str, warehouse: Warehouse, successor: Warehouse
) -> None:
    apply(warehouse, "double", 1, on_new_run="append" if whose == "shared" else "replace")
    if whose == "another run's":
        other = Marker("newer", "save", "wh", 0, 1, 2.0)
        warehouse.apply(other, writer("double"), [WriteAction("newer", "save", "wh", 1, 1, *_opening())])
    if whose == "filled":
        with warehouse.engine.begin() as connection:
            connection.execute(sa.text("INSERT INTO sums VALUES (1.5)"))
    retype(successor, "decimal(20,2)", "text" if whose == "another type" else "double")
    assert "DOUBLE" in ddl(successor)
    with pytest.raises(WriteRefused, match=r"column 'total' is declared decimal.20,2., and the database has it as"):
        apply(successor, "decimal(20,2)", 2, token=2)


def test_what_hangs_on_a_table_is_not_lost_with_it(warehouse: Warehouse, successor: Warehouse) -> None:
    """PostgreSQL alters the column below an index; SQLite can only make the table anew, and leaves it."""
    apply(warehouse, "double", 1)
    with warehouse.engine.begin() as connection:
        connection.execute(sa.text("CREATE INDEX by_total ON sums (total)"))
    retype(successor, "decimal(20,2)", "double")
    assert [index["name"] for index in sa.inspect(successor.engine).get_indexes("sums")] == ["by_total"]
    assert ddl(successor).startswith("NUMERIC" if successor.engine.dialect.name == "postgresql" else "DOUBLE")


def test_a_table_that_a_person_has_removed_is_made_again(warehouse: Warehouse, successor: Warehouse) -> None:
    apply(warehouse, "double", 1)
    with warehouse.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE sums"))
    retype(successor, "decimal(20,2)", "double")
    apply(successor, "decimal(20,2)", 2, token=2)
    assert rows(successor) == [Decimal("12345678901234567.89")]


def test_a_driver_that_dies_in_it_leaves_nothing_and_the_next_one_does_it(warehouse: Warehouse, url: str) -> None:
    apply(warehouse, "double", 1)
    number, failed = 0, True
    while failed:
        number += 1
        dying = Warehouse("wh", url)
        try:
            with after_statement(dying, number, inject):
                retype(dying, "decimal(20,2)", "double")
            failed = False
        except Injected:
            assert "DOUBLE" in ddl(warehouse), f"it died after statement {number}"
        finally:
            dying.close()
    assert number > 5
    assert "DOUBLE" not in ddl(warehouse)

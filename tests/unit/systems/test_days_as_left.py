"""Which run had left the days of a table, as its database says it to a run that is about to read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.scope_rules import DayAsRead, table_of
from airflow_logio.systems.days_as_left import days_as_left, days_not_known
from airflow_logio.systems.warehouse import Warehouse
from tests.support.table_days import D1, D2, Run, execute
from tests.support.table_runs import Superseding

BOTH = (f"day={D1}", f"day={D2}")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def warehouse(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Warehouse]:
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def left(warehouse: Warehouse, table: str = "t") -> list[tuple[str, bool]]:
    """The run of each of two days, and whether it has left it whole."""
    found = days_as_left(warehouse, table, BOTH, "warehouse_db")
    assert [one.scope for one in found] == list(BOTH)
    return [(one.live_run, one.is_whole) for one in found]


def test_the_run_that_has_closed_a_day_has_left_it(warehouse: Warehouse) -> None:
    """One that has claimed it since has not."""
    Run(1).all(warehouse, 10)
    assert left(warehouse) == [("clicks1", True), ("", False)]
    again = Run(2)
    again.open(warehouse)
    assert left(warehouse) == [("clicks1", True), ("", False)]
    again.close(warehouse, 11)
    assert left(warehouse) == [("clicks2", True), ("", False)]


def test_a_day_without_rows_was_left_by_the_run_that_emptied_it(warehouse: Warehouse) -> None:
    Run(1).all(warehouse)
    assert left(warehouse)[0] == ("clicks1", True)


def test_a_first_run_that_has_not_closed_yet_has_left_nothing(warehouse: Warehouse) -> None:
    Run(1).open(warehouse)
    assert left(warehouse)[0] == ("clicks1", False)


def test_whether_a_day_that_is_filled_at_once_is_full_its_table_does_not_say(warehouse: Warehouse) -> None:
    run = Run(1, options=(("switch", "at once"),))
    run.open(warehouse)
    assert left(warehouse)[0] == ("clicks1", False)
    run.fill(warehouse, 10)
    assert left(warehouse)[0] == ("clicks1", False)
    Run(2).all(warehouse, 11)
    assert left(warehouse)[0] == ("clicks2", True)


def test_days_of_a_table_that_no_run_owns_are_of_none(warehouse: Warehouse) -> None:
    """A script writes it; or a run that replaces all of it has taken it over."""
    execute(warehouse, "CREATE TABLE t (day DATE, a BIGINT, who TEXT)")
    assert left(warehouse) == [("", False), ("", False)]
    Run(1, table="other").all(warehouse, 10)
    assert left(warehouse) == [("", False), ("", False)]
    Run(2).all(warehouse, 10)
    execute(warehouse, "UPDATE logio_owner SET run_uid = 'replaces', started_at = 1 WHERE table_name = 't'")
    assert left(warehouse) == [("", False), ("", False)]


def test_a_table_is_named_as_its_database_has_it(warehouse: Warehouse) -> None:
    is_sqlite = warehouse.engine.dialect.name == "sqlite"
    Run(1).all(warehouse, 10)
    (found, _) = days_as_left(warehouse, "t" if is_sqlite else "public.t", BOTH, "warehouse_db")
    name = "t" if is_sqlite else "public.t"
    assert found == DayAsRead(f"table {name} of connection warehouse_db", f"day={D1}", "clicks1")
    assert table_of(found.place) == name
    assert table_of("/lake/clicks") is None
    assert left(warehouse, "T" if is_sqlite else "t")[0] == ("clicks1", True)


def test_days_that_a_table_cannot_have_are_refused(warehouse: Warehouse) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no table '.*t'"):
        left(warehouse)
    Run(1).all(warehouse, 10)
    with pytest.raises(
        ConfigurationError, match=r"'hour=2026-03-01T00Z' is none of it.*write days=\{'t': 'day=\{...\}'\}"
    ):
        days_as_left(warehouse, "t", ["hour=2026-03-01T00Z"], "w")
    execute(warehouse, "CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(ConfigurationError, match="it is a view"):
        left(warehouse, "v")
    Superseding(3, table="late").all(warehouse, 10)
    with pytest.raises(ConfigurationError, match=r"runs own rows of it.*supersede"):
        left(warehouse, "late")


def test_a_database_that_does_not_answer_has_days_of_no_run() -> None:
    assert days_not_known('"My".t', BOTH, "w")[0] == DayAsRead(
        "table My.t of connection w", BOTH[0], "", is_whole=False
    )


def test_a_run_of_another_log_is_named_as_any_other(warehouse: Warehouse) -> None:
    """That it is of another one, the log of the reading run knows."""
    replace(Run(1), log_uid="elsewhere").all(warehouse, 10)
    assert left(warehouse)[0] == ("clicks1", True)

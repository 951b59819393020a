"""Schedules of runs that meet in a real database, whose every row is the one that plain Python says, after each transaction.

The judges are those of the simulator (`tests.simulator.day_runs`). Broken statements are caught by what they leave there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import Marker
from airflow_logio.protocol.external_rules import Contender
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.systems import table_runs, warehouse_rows
from airflow_logio.systems.closing_transaction import ClosingTransaction
from airflow_logio.systems.databases.table_upserts import Upsertion
from airflow_logio.systems.owned_rows import OwnedRows
from airflow_logio.systems.table_days import DayRows
from airflow_logio.systems.table_runs import RunRows
from airflow_logio.systems.table_transaction import TableTransaction
from tests.simulator.day_runs.database import KINDS, DatabasePlace, schedule_of
from tests.simulator.day_runs.judges import FILLS, GETS, OLDER, ONCE, STAYS, WHOLE
from tests.simulator.day_runs.schedule import FailedDays, run_through
from tests.simulator.day_runs.updating import GIVEN_UP, GREATEST, LAST, REASON, UNLIKE

PARTS, OF_A_PART = 4, 8
ON_POSTGRESQL = 4
HAPPENS = ("begun again", "no rows", "done")
MORE = {"superseded": ("adopted", "scopes deleted"), "days_at_once": ("fills",), "versions": ("two writers",)}
UNTIL_CAUGHT = 120


def run(kind: str, seed: int, url: str) -> tuple[Counter[str], FailedDays | None]:
    schedule = schedule_of(kind, seed, url)
    assert isinstance(schedule.place, DatabasePlace)
    try:
        return run_through(schedule, seed)
    finally:
        schedule.place.warehouse.close()


def check(kind: str, seeds: Sequence[int], url: str) -> None:
    seen = Counter[str]()
    for seed in seeds:
        figures, failure = run(kind, seed, url)
        assert failure is None, f"schedule_of({kind!r}, {seed}, url): {failure}"
        seen += figures
    assert all(seen[what] for what in (*HAPPENS, *MORE.get(kind, ()))), seen


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in KINDS for part in range(PARTS)])
def test_a_table_of_sqlite_has_what_its_runs_have_left_there(kind: str, part: int, tmp_path: Path) -> None:
    first = part * OF_A_PART
    check(kind, range(first, first + OF_A_PART), f"sqlite:///{tmp_path}/wh.db")


@pytest.mark.postgres
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_postgresql_has_what_its_runs_have_left_there(kind: str, postgres_url: str) -> None:
    check(kind, range(1_000, 1_000 + ON_POSTGRESQL), postgres_url)


# --- broken statements ------------------------------------------------------------------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]
BROKEN: dict[str, tuple[str, tuple[str, ...], int, Break]] = {}


def broken(kind: str, *caught_by: str, rare: int = 0) -> Callable[[Break], Break]:
    """What catches it first; `rare` is a seed from which that comes soon."""

    def register(install: Break) -> Break:
        BROKEN[install.__name__] = (kind, caught_by, rare, install)
        return install

    return register


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_statement_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, caught_by, rare, install = BROKEN[name]
    install(monkeypatch)
    for seed in range(rare, rare + UNTIL_CAUGHT):
        _, failure = run(kind, seed, f"sqlite:///{tmp_path}/wh.db")
        if failure is not None:
            assert failure.invariant in caught_by, f"caught for another reason: {failure}"
            return
    raise AssertionError(f"not noticed: {install.__doc__}")


def _all_rows(_self: OwnedRows) -> sa.ColumnElement[bool]:
    return sa.true()


@broken("days_in_a_table", WHOLE)
def a_closing_deletes_all_days(patch: pytest.MonkeyPatch) -> None:
    """The rows of other days go with those of the run's."""
    patch.setattr(DayRows, "_is_mine", property(_all_rows))


@broken("days_in_a_table", WHOLE)
def the_old_day_stays(patch: pytest.MonkeyPatch) -> None:
    """Nothing is deleted, and nothing counted."""
    patch.setattr(OwnedRows, "delete", lambda _self: None)
    patch.setattr(ClosingTransaction, "_check_count", lambda _self, _found: None)


@broken("days_at_once", FILLS)
def the_day_stays_as_it_begins_to_fill(patch: pytest.MonkeyPatch) -> None:
    """The first write action deletes nothing."""
    patch.setattr(DayRows, "delete", lambda _self: None)


@broken("days_at_once", FILLS)
def that_it_fills_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    """A second writer of the run finds no trace of the first one, and deletes the day again."""
    patch.setattr(warehouse_rows, "close_scope", lambda *_: None)
    patch.setattr(warehouse_rows, "has_begun_elsewhere", lambda *_: False)


@broken("days_at_once", FILLS)
def rows_are_added_again(patch: pytest.MonkeyPatch) -> None:
    """The marker is not asked which write actions it has passed."""
    patch.setattr(Marker, "unapplied", lambda _self, actions, *_marked: actions)


@broken("superseded", WHOLE, STAYS)
def all_rows_of_runs_are_replaced(patch: pytest.MonkeyPatch) -> None:
    """Rows of other partitions, and of other pipelines, go with those of the run's."""
    patch.setattr(RunRows, "_is_mine", property(lambda self: self._column > 0))


@broken("superseded", GETS, WHOLE, STAYS)
def pipelines_share_a_partition(patch: pytest.MonkeyPatch) -> None:
    """A pipeline finds that another one has claimed its partition."""
    patch.setattr(ScopeContender, "key", property(lambda self: self.scope))


@broken("superseded", WHOLE, STAYS)
def a_number_is_given_again(patch: pytest.MonkeyPatch) -> None:
    """Numbers of scopes are one more than the greatest of the scopes, also where rows have a greater one."""
    patch.setattr(table_runs, "_greatest", lambda *_: 0)


@broken("superseded", WHOLE)
def what_a_run_has_written_belongs_to_none(patch: pytest.MonkeyPatch) -> None:
    """Rows get no number: no later run of the partition finds them."""
    patch.setattr(RunRows, "labelled", _without_number)
    patch.setattr(ClosingTransaction, "_check_count", lambda _self, _found: None)


def _without_number(self: RunRows, actions: Sequence[Any]) -> Sequence[Any]:
    return table_runs.labelled(actions, next(iter(self.constants)), 0)


@broken("superseded", STAYS)
def rows_of_runs_are_adopted(patch: pytest.MonkeyPatch) -> None:
    """A person's condition is all that is asked: rows of another partition change hands."""

    def adopt(self: RunRows, condition: str, expected: int | None) -> int:
        change = sa.update(self._table).where(sa.text(condition)).values(dict(self.constants))
        return int(self._connection.execute(change).rowcount)

    patch.setattr(RunRows, "adopt", adopt)


@broken("superseded", STAYS)
def all_rows_are_adopted(patch: pytest.MonkeyPatch) -> None:
    """Rows of none that fulfil no condition go with those that do."""

    def adopt(self: RunRows, condition: str, expected: int | None) -> int:
        change = sa.update(self._table).where(self._column == 0).values(dict(self.constants))
        return int(self._connection.execute(change).rowcount)

    patch.setattr(RunRows, "adopt", adopt)


@broken("superseded", STAYS)
def what_is_adopted_stays(patch: pytest.MonkeyPatch) -> None:
    """The next run of the partition does not find what a person has given to it."""
    patch.setattr(RunRows, "adopt", lambda _self, _condition, expected: expected)


@broken("versions", UNLIKE)
def what_is_put_there_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    """An unlike row of the version that is there goes without a word."""
    patch.setattr(Upsertion, "_check_put", lambda _self, _rows: None)


@broken("versions", GREATEST)
def versions_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The row that comes last is left."""
    execute = Upsertion._execute

    def unconditionally(self: Upsertion, statement: str, rows: Any = None) -> Any:
        return execute(self, statement.rpartition(" WHERE ")[0] if "DO UPDATE SET" in statement else statement, rows)

    patch.setattr(Upsertion, "_execute", unconditionally)
    patch.setattr(Upsertion, "_check_put", lambda _self, _rows: None)


@broken("versions", GREATEST, REASON)
def the_oldest_of_an_event_is_put_there(patch: pytest.MonkeyPatch) -> None:
    """Of the rows of a key in one group, the one of the least version comes first."""
    ranked = Upsertion._ranked
    patch.setattr(Upsertion, "_ranked", lambda self, rows: ranked(self, rows).replace(" DESC", " ASC"))


@broken("versions", OLDER, rare=100)
def what_joins_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    """An older run that begins with an empty table deletes what a younger one has written."""
    patch.setattr(warehouse_rows, "store_appending", lambda *_: None)


@broken("versions", GIVEN_UP, rare=20)
def what_was_given_up_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    """A zombie of a run that was given up writes on."""
    patch.setattr(warehouse_rows, "fence_markers", lambda *_: None)
    patch.setattr(warehouse_rows, "store_given_up", lambda *_: None)


@broken("last_events", LAST)
def a_group_is_applied_from_its_end(patch: pytest.MonkeyPatch) -> None:
    """Of two events of a group, the first one is left."""
    upsert = TableTransaction._upsert

    def from_its_end(self: TableTransaction, connection: Any, actions: Sequence[Any], *, only: bool) -> None:
        upsert(self, connection, list(reversed(actions)), only=only)

    patch.setattr(TableTransaction, "_upsert", from_its_end)


@broken("last_events", LAST, ONCE, rare=38)
def an_event_is_applied_again(patch: pytest.MonkeyPatch) -> None:
    """The number in the marker is not compared, and an event lies over what came behind it."""
    unapplied = Marker.unapplied

    def again(self: Marker, actions: Any, *marked: int) -> Any:
        unapplied(self, actions, *marked)
        return actions

    patch.setattr(Marker, "unapplied", again)


@broken("last_events", OLDER, rare=340)
def an_older_run_writes_on(patch: pytest.MonkeyPatch) -> None:
    """The owner of the table is not compared behind the first write action."""
    patch.setattr(Contender, "check_owner", lambda _self, _owner: None)


def test_there_is_one_of_each_kind() -> None:
    assert {kind for kind, *_ in BROKEN.values()} == set(KINDS)

"""Broken rules of runs that update rows of a table by their keys, with versions and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from airflow_logio.protocol import external_rules
from airflow_logio.protocol.external_rules import Contender
from tests.simulator.day_runs import updating
from tests.simulator.day_runs.judges import OLDER, ONCE, TOKEN
from tests.simulator.day_runs.runs import Driver
from tests.simulator.day_runs.table import CIRCLE, Session
from tests.simulator.day_runs.updating import GIVEN_UP, GREATEST, LAST, REASON, TWICE, UNLIKE, Keyed, UpdatingTable
from tests.unit.testing.mutants.registry import mutant

VERSIONS, EVENTS = "versions", "last_events"


# --- what is put there ------------------------------------------------------------------------------------------------


@mutant(VERSIONS, GREATEST)
def the_last_row_to_come_wins(patch: pytest.MonkeyPatch) -> None:
    """The version in the table is not compared."""
    patch.setattr(updating, "is_newer", lambda _row, _there: True)
    patch.setattr(updating, "is_left", lambda _row, _there: True)


@mutant(VERSIONS, GREATEST)
def the_first_row_of_a_transaction_wins(patch: pytest.MonkeyPatch) -> None:
    """Of the rows of a key that come at once, not the newest one is put there."""
    put = UpdatingTable._put

    def puts(self: UpdatingTable, driver: Driver, session: Session, change: Any, rows: Sequence[Keyed]) -> None:
        firsts = {row.key: row for row in reversed(rows)}
        put(self, driver, session, change, list(firsts.values()))

    patch.setattr(UpdatingTable, "_put", puts)


@mutant(VERSIONS, UNLIKE, GREATEST)
def an_equal_version_wins(patch: pytest.MonkeyPatch) -> None:
    """A row takes the place of one of its version that it is unlike."""
    patch.setattr(updating, "is_newer", lambda row, there: row.version >= there.version)


@mutant(VERSIONS, UNLIKE)
def what_is_there_is_not_compared_afterwards(patch: pytest.MonkeyPatch) -> None:
    """A row that is unlike the one of its version in the table goes without a word."""
    patch.setattr(UpdatingTable, "_check_put", lambda _self, _row, _there: None)


@mutant(VERSIONS, GREATEST, UNLIKE)
def rows_are_compared_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    """Between the comparison of a row and the commit, another transaction puts a newer one there."""
    patch.setattr(UpdatingTable, "_lock", _without("row", UpdatingTable._lock))


@mutant(VERSIONS, CIRCLE)
def rows_are_locked_as_they_come(patch: pytest.MonkeyPatch) -> None:
    """Two transactions that have rows of the same keys take them in unlike orders, and wait for each other."""
    patch.setattr(updating, "taken_in_order", list)


@mutant(EVENTS, LAST)
def actions_of_a_group_change_places(patch: pytest.MonkeyPatch) -> None:
    """A group of write actions is applied from its end."""

    def groups(_self: UpdatingTable, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        yield from ([number] for number in reversed(numbers))

    patch.setattr(UpdatingTable, "_groups", groups)


@mutant(EVENTS, TWICE)
def a_key_twice_in_an_event_is_let_in(patch: pytest.MonkeyPatch) -> None:
    """One of the two rows of a key in one event wins, and nothing says why."""
    put = UpdatingTable._put

    def puts(self: UpdatingTable, driver: Driver, session: Session, change: Any, rows: Sequence[Keyed]) -> None:
        put(self, driver, session, change, list({row.key: row for row in rows}.values()))

    patch.setattr(UpdatingTable, "_put", puts)


@mutant(EVENTS, REASON)
def all_events_of_a_transaction_are_one(patch: pytest.MonkeyPatch) -> None:
    """A key that two events of a group have is taken for one that one of them has twice."""
    patch.setattr(UpdatingTable, "_groups", lambda _self, numbers: iter([numbers]))


# --- whose actions are applied ----------------------------------------------------------------------------------------


@mutant(VERSIONS, ONCE)
def updated_again_when_the_answer_was_lost(patch: pytest.MonkeyPatch) -> None:
    """The marker is not asked: what was committed is applied again if the answer was lost, or the log does not know."""
    patch.setattr(updating, "to_apply", lambda _operator, _connection, _token, actions, _row: actions)


@mutant(EVENTS, ONCE, LAST)
def an_event_that_comes_again_wins(patch: pytest.MonkeyPatch) -> None:
    """The same where the last event wins: an event that is applied again lies over what came behind it."""
    patch.setattr(updating, "to_apply", lambda _operator, _connection, _token, actions, _row: actions)


@mutant(EVENTS, TOKEN)
def a_zombie_updates_behind_its_successor(patch: pytest.MonkeyPatch) -> None:
    """The token is not compared: a driver that was replaced applies what its successor has not come to yet."""

    def to_apply(operator: str, connection: str, _token: int, actions: Any, row: Any) -> Any:
        return external_rules.to_apply(operator, connection, row.token, actions, row)

    patch.setattr(updating, "to_apply", to_apply)


@mutant(EVENTS, OLDER)
def the_owner_is_not_compared_at_each_event(patch: pytest.MonkeyPatch) -> None:
    """A run writes on behind a younger one, and the older event is the last."""
    patch.setattr(Contender, "check_owner", lambda _self, _owner: None)


@mutant(EVENTS, OLDER, GIVEN_UP)
def the_owner_is_looked_at_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    """Between the look at the owner and the commit, a younger run begins."""
    patch.setattr(UpdatingTable, "_lock", _without("owner", UpdatingTable._lock))


@mutant(EVENTS, OLDER)
def an_older_run_takes_the_table_back(patch: pytest.MonkeyPatch) -> None:
    """A run that begins does not ask whether a younger one has begun."""
    patch.setattr(Contender, "takes_over", lambda self, owner: owner is None or owner.run_uid != self.mine.run_uid)


@mutant(EVENTS, REASON)
def each_writer_is_a_run_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """A second writer of a run is taken for a run that is not younger."""
    takes_over = Contender.takes_over

    def asks(self: Contender, owner: Any, *more: Any) -> bool:
        if owner is not None and owner.run_uid == self.mine.run_uid:
            raise self._not_owner(owner, begins=True)
        return takes_over(self, owner, *more)

    patch.setattr(Contender, "takes_over", asks)


@mutant(VERSIONS, OLDER, GREATEST)
def a_run_that_joins_is_not_noted(patch: pytest.MonkeyPatch) -> None:
    """A run that is to begin with an empty table deletes what a younger one has written."""
    patch.setattr(Contender, "is_youngest", lambda _self, _youngest: False)


@mutant(VERSIONS, REASON)
def versions_shut_earlier_runs_out(patch: pytest.MonkeyPatch) -> None:
    """Of two runs at once, the older one is refused, though versions decide whatever the order."""
    patch.setattr(Contender, "_joins", property(lambda self: self.on_new_run == "append"))


@mutant(VERSIONS, GREATEST, OLDER)
def a_second_writer_empties_the_table_again(patch: pytest.MonkeyPatch) -> None:
    """A run that begins with an empty table deletes what another writer of it has written."""
    takes_over = Contender.takes_over

    def again(self: Contender, owner: Any, *more: Any) -> bool:
        is_mine = owner is not None and owner.run_uid == self.mine.run_uid
        return takes_over(self, owner, *more) or (is_mine and self.on_new_run == "replace")

    patch.setattr(Contender, "takes_over", again)


@mutant(VERSIONS, GIVEN_UP)
def a_run_that_was_given_up_writes_on(patch: pytest.MonkeyPatch) -> None:
    """A zombie of a run that was given up is fenced nowhere: versions order its rows, but a person has said it is over."""
    patch.setattr(Contender, "check_not_given_up", lambda _self, _fresh: None)
    patch.setattr(UpdatingTable, "_fence", lambda _self, _uid: None)


def _without(resource: str, lock: Callable[..., None]) -> Callable[..., None]:
    def locks(self: UpdatingTable, driver: Driver, session: Session, *named: str, shared: bool = False) -> None:
        if named[0] != resource:
            lock(self, driver, session, *named, shared=shared)

    return locks

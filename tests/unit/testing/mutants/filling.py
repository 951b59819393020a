"""Broken rules of runs that fill their days of a table at once, beside runs that close them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_logio.protocol import external_rules
from airflow_logio.protocol.scope_rules import ScopeContender
from tests.simulator.day_runs import filling
from tests.simulator.day_runs.filling import FillingTable
from tests.simulator.day_runs.judges import FILLS, GETS, LINES, OLDER, ONCE, TOKEN, WHOLE
from tests.simulator.day_runs.runs import Driver
from tests.unit.testing.mutants.registry import mutant

AT_ONCE = "days_at_once"


@mutant(AT_ONCE, FILLS)
def the_first_action_deletes_nothing(patch: pytest.MonkeyPatch) -> None:
    """The rows of the run come to those of the day before it."""
    patch.setattr(ScopeContender, "clears", lambda _self, _row, **_said: False)


@mutant(AT_ONCE, FILLS)
def each_writer_deletes_the_day(patch: pytest.MonkeyPatch) -> None:
    """A writer that begins later deletes what another one of its run has written."""
    patch.setattr(ScopeContender, "clears", lambda _self, _row, **_said: True)


@mutant(AT_ONCE, ONCE)
def opened_again_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """A driver whose predecessor has begun the run, and could not say so to the log, deletes the day again."""

    def to_apply(operator: str, connection: str, token: int, actions: Any, row: Any) -> Any:
        left = external_rules.to_apply(operator, connection, token, actions, row)
        return actions if actions[0].number == 1 else left

    patch.setattr(filling, "to_apply", to_apply)
    patch.setattr(ScopeContender, "clears", lambda _self, _row, **_said: True)


@mutant(AT_ONCE, FILLS, GETS, OLDER, LINES)
def a_writer_begins_beside_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A writer that begins late does not ask whether the day is still that of its run."""
    clears = ScopeContender.clears

    def asks_nothing(self: ScopeContender, row: Any, *, has_begun: bool) -> bool:
        return clears(self, row, has_begun=False)

    patch.setattr(ScopeContender, "clears", asks_nothing)


@mutant(AT_ONCE, LINES)
def a_late_writer_takes_the_day_back(patch: pytest.MonkeyPatch) -> None:
    """A writer of a run that was told to take the day over claims it behind a run that was told so later."""
    check = ScopeContender.check_fill

    def only_once_it_has_begun(self: ScopeContender, row: Any) -> None:
        if row is None or row.live_run != self.mine.run_uid:
            check(self, row)

    patch.setattr(ScopeContender, "check_fill", only_once_it_has_begun)


@mutant(AT_ONCE, OLDER)
def the_claim_is_not_compared_at_each_event(patch: pytest.MonkeyPatch) -> None:
    """An older run, or its zombie, adds to the day that a younger one has."""
    patch.setattr(ScopeContender, "check_fill", lambda _self, _row: None)


@mutant(AT_ONCE, OLDER, LINES)
def an_older_zombie_empties_the_day(patch: pytest.MonkeyPatch) -> None:
    """A run that begins does not ask whether a younger one has begun."""
    patch.setattr(ScopeContender, "check_claim", lambda _self, _row: None)


@mutant(AT_ONCE, OLDER, FILLS, WHOLE)
def the_scope_is_not_locked_while_it_fills(patch: pytest.MonkeyPatch) -> None:
    """Between the look at the scope and the commit, another run claims it."""
    lock = FillingTable._lock_scope

    def lock_scope(self: FillingTable, driver: Driver, session: Any, *, shared: bool = False) -> None:
        if not shared:
            lock(self, driver, session)

    patch.setattr(FillingTable, "_lock_scope", lock_scope)


@mutant(AT_ONCE, OLDER, FILLS, WHOLE)
def a_claim_shares_the_scope(patch: pytest.MonkeyPatch) -> None:
    """A run that begins does not wait for what is being added to the day."""
    lock: Callable[..., None] = FillingTable._lock_scope

    def lock_scope(self: FillingTable, driver: Driver, session: Any, **_said: bool) -> None:
        lock(self, driver, session, shared=True)

    patch.setattr(FillingTable, "_lock_scope", lock_scope)


@mutant(AT_ONCE, TOKEN, ONCE)
def a_replaced_driver_adds_its_rows(patch: pytest.MonkeyPatch) -> None:
    """The token is not compared: a zombie applies what its successor has not come to yet."""

    def to_apply(operator: str, connection: str, _token: int, actions: Any, row: Any) -> Any:
        return external_rules.to_apply(operator, connection, row.token, actions, row)

    patch.setattr(filling, "to_apply", to_apply)


@mutant(AT_ONCE, ONCE)
def added_again_when_the_answer_was_lost(patch: pytest.MonkeyPatch) -> None:
    """The marker is not asked: rows whose commit was not answered, or not told to the log, are there twice."""
    patch.setattr(filling, "to_apply", lambda _operator, _connection, _token, actions, _row: actions)


@mutant(AT_ONCE, GETS)
def a_run_without_records_never_begins(patch: pytest.MonkeyPatch) -> None:
    """The first write action waits for a record: a run that has none leaves the old day, and is done."""
    filled = Driver._filling
    patch.setattr(Driver, "_filling", lambda self, many: filled(self, many) if self.run.rows else _done(self))


def _done(driver: Driver) -> Any:
    yield lambda: driver.ask(lambda: driver.log.note(driver.run, driver.token, driver.log.closed))

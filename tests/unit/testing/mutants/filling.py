"""Broken rules of runs that fill their days at once, in a table or a folder, beside runs that close them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_logio.dataflow.writers import folder_days
from airflow_logio.dataflow.writers.folder_days import FolderDay
from airflow_logio.protocol import external_rules
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.spark.day_claims import DayClaim
from airflow_logio.spark.published_places import FillingNames, Publication
from airflow_logio.spark.publishing import DayTarget
from tests.simulator.day_runs import filling
from tests.simulator.day_runs.filling import FillingTable
from tests.simulator.day_runs.judges import FILLS, GETS, LINES, LISTED, OLDER, ONCE, ONE_INSTANT, STAYS, TOKEN, WHOLE
from tests.simulator.day_runs.runs import Driver
from tests.unit.testing.mutants.registry import mutant

AT_ONCE, BUCKET, FOLDER = "days_at_once", "days_at_once_in_a_bucket", "days_at_once_in_a_folder"


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


@mutant(AT_ONCE, LINES, rare=1_200)
def a_late_writer_takes_the_day_back(patch: pytest.MonkeyPatch) -> None:
    """A writer of a run that was told to take the day over claims it behind a run that was told so later."""
    clears = ScopeContender.clears

    def asks_whose_rows_are_there(self: ScopeContender, row: Any, *, has_begun: bool) -> bool:
        if row is not None and row.live_run == self.mine.run_uid:
            row = row._replace(claimed_by=self.mine.run_uid)
        return clears(self, row, has_begun=has_begun)

    patch.setattr(ScopeContender, "clears", asks_whose_rows_are_there)


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


# --- a folder ---------------------------------------------------------------------------------------------------------


@mutant(BUCKET, STAYS, FILLS)
def the_old_day_is_not_hidden_as_it_fills(patch: pytest.MonkeyPatch) -> None:
    """The first write action of a run puts no receipt: the old day counts until there is a file."""
    put = DayClaim.put_receipt

    def put_receipt(self: DayClaim, names: Any, files: Any, **said: bool) -> None:
        if names.number > 1:
            put(self, names, files, **said)

    patch.setattr(DayClaim, "put_receipt", put_receipt)


@mutant(BUCKET, FILLS, ONE_INSTANT)
def one_receipt_of_many_counts(patch: pytest.MonkeyPatch) -> None:
    """Of the receipts of a run that fills its day, only one is asked for its files."""
    patch.setattr(folder_days, "_as_one", lambda receipts: receipts[0])


@mutant(BUCKET, WHOLE)
def a_receipt_comes_before_its_files(patch: pytest.MonkeyPatch) -> None:
    """Readers find a write action whose files are not there yet. A driver that dies there leaves it so."""
    put = DayTarget._put

    def puts(self: DayTarget, claim: DayClaim, action: Any) -> Any:
        names = FillingNames(action.run_uid, action.operator, action.number, action.token, claim.mine)
        manifest = self._dataset("", action.dataset).manifest
        plan = Publication(action.run_uid, action.operator, action.number, action.token, manifest)
        claim.put_receipt(names, plan.files(), has_records=True)
        return put(self, claim, action)

    patch.setattr(DayTarget, "_put", puts)


@mutant(BUCKET, OLDER, LINES)
def who_has_claimed_the_folder_is_not_asked_again(patch: pytest.MonkeyPatch) -> None:
    """A run that has claimed its day fills it, whatever was claimed since."""
    check = DayClaim.check_not_replaced

    def looks(self: DayClaim) -> FolderDay:
        day = folder_days.day_of(self._files, self.scope)
        return day if self.mine in day.runs else check(self)

    patch.setattr(DayClaim, "check_not_replaced", looks)


@mutant(BUCKET, LISTED)
def old_files_stay_in_a_day_that_fills(patch: pytest.MonkeyPatch) -> None:
    """The first write action removes no file: who lists the folder sees both days."""
    patch.setattr(DayClaim, "clear", lambda _self: None)


@mutant(BUCKET, GETS)
def a_run_without_records_never_begins_in_a_folder(patch: pytest.MonkeyPatch) -> None:
    """As in a table."""
    filled = Driver._filling
    patch.setattr(Driver, "_filling", lambda self, many: filled(self, many) if self.run.rows else _done(self))


@mutant(FOLDER, STAYS, FILLS, WHOLE)
def what_is_not_known_is_removed_as_it_fills(patch: pytest.MonkeyPatch) -> None:
    """The first write action removes the files of all other runs, also those of a younger one whose claim is shown late."""

    def clear(self: DayClaim) -> None:
        self._remove({run for _, run in self._found() if run is not None} - {self.mine.run_uid})

    patch.setattr(DayClaim, "clear", clear)


def _done(driver: Driver) -> Any:
    yield lambda: driver.ask(lambda: driver.log.note(driver.run, driver.token, driver.log.closed))

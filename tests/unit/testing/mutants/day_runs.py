"""Broken rules of runs that meet at one place: claims, receipts and clears of a folder, scopes of a table, and their logs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio.dataflow.writers import folder_days
from airflow_logio.dataflow.writers.folder_days import RECEIPTS, SIGN, DayReceipt, FolderDay
from airflow_logio.dataflow.writers.published_folder import RUNS
from airflow_logio.protocol.folder_rules import Age, Effect, RunRecord
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.spark.day_claims import DayClaim
from airflow_logio.spark.published_places import ClosingNames, Publication
from airflow_logio.spark.publishing import DayTarget
from tests.simulator.day_runs import table
from tests.simulator.day_runs.judges import EMPTY, GETS, LINES, LISTED, OLDER, STAYS, WHOLE
from tests.simulator.day_runs.runs import Actions, DayLog, Run
from tests.simulator.day_runs.table import Session, TablePlace
from tests.unit.testing.mutants.registry import mutant

TABLE, BUCKET, FOLDER = "days_in_a_table", "days_in_a_bucket", "days_in_a_folder"


# --- a folder ---------------------------------------------------------------------------------------------------------


@mutant(BUCKET, WHOLE)
def receipt_before_files(patch: pytest.MonkeyPatch) -> None:
    """The receipt is put first: readers find a day whose files are not there yet."""
    put = DayTarget._put

    def close_group(self: DayTarget, client: DayClaim, closing: Any, records: int, pages: Iterable[Any]) -> None:
        actions = [action for page in pages for action in page]
        said = (closing.run_uid, closing.operator, closing.number, closing.token)
        plans = (
            Publication(*said[:2], one.number, one.token, self._dataset("", one.dataset).manifest) for one in actions
        )
        some = records > 0 or self._run.may_be_empty
        client.check_files(has_records=some)
        files = [file for plan in plans for file in plan.files()]
        client.put_receipt(ClosingNames(*said, client.mine), files, has_records=some)
        for action in actions:
            put(self, client, action)

    patch.setattr(DayTarget, "close_group", close_group)


@mutant(BUCKET, WHOLE)
def ordinal_ignored(patch: pytest.MonkeyPatch) -> None:
    """Of the receipts of a line, the one counts whose name comes first."""

    def live(self: FolderDay) -> DayReceipt | None:
        return min(self.receipts, default=None)

    patch.setattr(FolderDay, "live", live)


@mutant(BUCKET, WHOLE, GETS)
def hides_ignored(patch: pytest.MonkeyPatch) -> None:
    """A receipt does not say what it was put in the place of."""
    patch.setattr(FolderDay, "to_hide", lambda _self, _mine: frozenset())


@mutant(BUCKET, GETS, LINES, WHOLE, rare=200)
def claimed_after_the_look(patch: pytest.MonkeyPatch) -> None:
    """A run looks, and then claims: of two lines that do so at once, neither sees the other, and none gets the day."""

    def begin(self: DayClaim) -> None:
        self.look()
        self.place.put_records((SIGN,), RECEIPTS)
        self.place.put_records((self.mine.claim,), self._records)

    patch.setattr(DayClaim, "begin", begin)


@mutant(BUCKET, OLDER, LINES, WHOLE)
def not_looked_at_behind_the_claim(patch: pytest.MonkeyPatch) -> None:
    """A run that has claimed the day closes it, whatever was claimed since."""
    check = DayClaim.check_not_replaced

    def looks(self: DayClaim) -> FolderDay:
        day = folder_days.day_of(self._files, self.scope)
        return day if self.mine in day.runs else check(self)

    patch.setattr(DayClaim, "check_not_replaced", looks)


@mutant(FOLDER, STAYS, WHOLE)
def clear_removes_files_of_unknown_runs(patch: pytest.MonkeyPatch) -> None:
    """Whatever is in the day beside the files of the run goes, also those of a younger one whose claim is shown late."""

    def clear(self: DayClaim) -> None:
        self._remove({run for _, run in self._found() if run is not None} - {self.mine.run_uid})

    patch.setattr(DayClaim, "clear", clear)


@mutant(BUCKET, STAYS, WHOLE)
def cleared_by_the_day_of_the_start(patch: pytest.MonkeyPatch) -> None:
    """A run of a day puts a record of its start, so that a slow older one takes it for what it may remove."""
    begin = DayClaim.begin

    def begins(self: DayClaim) -> None:
        begin(self)
        self.place.put_records((RunRecord(Age(2, self.mine.run_uid), Effect.JOINS).name,), RUNS)

    patch.setattr(DayClaim, "begin", begins)


@mutant(BUCKET, STAYS, LISTED, WHOLE)
def cleared_by_ordinals_of_all_lines(patch: pytest.MonkeyPatch) -> None:
    """An ordinal is taken for older whatever its line."""

    def known_older(self: FolderDay) -> frozenset[Any]:
        return frozenset(run for run in self.runs if self.receipts and run.ordinal < max(self.receipts).run.ordinal)

    patch.setattr(FolderDay, "known_older", known_older)


@mutant(BUCKET, LISTED, rare=3_250)
def withdrawn_under_its_own_files(patch: pytest.MonkeyPatch) -> None:
    """An opening that is refused withdraws its claim, though another driver of the run has put files: they stay for ever."""
    patch.setattr(DayClaim, "_is_known_for_good", lambda _self: False)


@mutant(BUCKET, EMPTY)
def nothing_in_the_place_of_rows(patch: pytest.MonkeyPatch) -> None:
    """A run whose input was not there empties its day."""
    check = DayClaim.check_files
    patch.setattr(DayClaim, "check_files", lambda self, *, has_records: check(self, has_records=True))


@mutant(BUCKET, LINES)
def every_run_takes_over(patch: pytest.MonkeyPatch) -> None:
    """Runs of other lines are replaced without a word of a person."""
    patch.setattr(FolderDay, "in_the_way", _without_other_lines(FolderDay.in_the_way))


def _without_other_lines(in_the_way: Callable[..., Any]) -> Callable[..., Any]:
    def asks(self: FolderDay, mine: Any, *, takes_over: bool) -> Any:
        return in_the_way(self, mine, takes_over=True)

    return asks


@mutant(BUCKET, WHOLE)
def a_day_of_two_runs(patch: pytest.MonkeyPatch) -> None:
    """What closes a day names the files that count beside its own."""
    put_receipt = DayClaim.put_receipt

    def with_the_others(self: DayClaim, names: Any, files: Iterable[Any], **about: bool) -> None:
        live = self.check_not_replaced().live()
        put_receipt(self, names, [*files, *(live.files if live is not None else ())], **about)

    patch.setattr(DayClaim, "put_receipt", with_the_others)


# --- logs -------------------------------------------------------------------------------------------------------------


def _older_ordinal(begin: Callable[..., Run]) -> Callable[..., Run]:
    def begins(self: DayLog, day: str, actions: Actions, **said: Any) -> Run:
        before = [run for run in self.runs if run.day == day]
        run = begin(self, day, actions, **said)
        if before:
            self.runs[-1] = run = replace(run, ordinal=before[-1].ordinal)
        return run

    return begins


@mutant(BUCKET, GETS)
def computed_again_under_its_ordinal(patch: pytest.MonkeyPatch) -> None:
    """A day that is computed again keeps the ordinal of its first run: nothing says which is younger."""
    patch.setattr(DayLog, "begin", _older_ordinal(DayLog.begin))


@mutant(TABLE, GETS)
def again_under_its_ordinal_in_a_table(patch: pytest.MonkeyPatch) -> None:
    """The same in a table."""
    patch.setattr(DayLog, "begin", _older_ordinal(DayLog.begin))


# --- a table ----------------------------------------------------------------------------------------------------------


@mutant(TABLE, OLDER, LINES)
def claims_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The last run to open has the day."""
    patch.setattr(ScopeContender, "check_claim", lambda _self, _row: None)


@mutant(TABLE, OLDER)
def closed_without_a_claim(patch: pytest.MonkeyPatch) -> None:
    """A run closes what another one has claimed since."""
    patch.setattr(ScopeContender, "check_close", lambda _self, _row: None)


@mutant(TABLE, LINES)
def every_line_takes_over(patch: pytest.MonkeyPatch) -> None:
    """A run of another line claims the day without a word of a person."""
    check = ScopeContender.check_claim

    def asks_its_line(self: ScopeContender, row: Any) -> None:
        if row is None or row.claimant.line == self.mine.line:
            check(self, row)

    patch.setattr(ScopeContender, "check_claim", asks_its_line)


@mutant(TABLE, EMPTY)
def rows_replaced_by_none(patch: pytest.MonkeyPatch) -> None:
    """A run whose input was not there empties its day."""
    patch.setattr(ScopeContender, "check_records", lambda _self, **_said: None)


@mutant(TABLE, OLDER, LINES)
def scope_without_its_lock(patch: pytest.MonkeyPatch) -> None:
    """Between the look at the scope and the commit, another run claims or closes it."""
    patch.setattr(TablePlace, "_lock_scope", lambda _self, _driver, _session: None)


@mutant(TABLE, WHOLE)
def deleted_in_no_transaction(patch: pytest.MonkeyPatch) -> None:
    """The old day goes before the new one is there."""

    def at_once(self: TablePlace, driver: Any, session: Session) -> None:
        driver.ask(lambda: session.lock("scope", driver.run.day))
        if driver.run.uid in driver.log.opened:
            driver.ask(lambda: self._delete(driver.run.day))

    patch.setattr(TablePlace, "_lock_scope", at_once)


@mutant(TABLE, WHOLE)
def nothing_is_deleted(patch: pytest.MonkeyPatch) -> None:
    """The rows of the run come to those that were there."""
    patch.setattr(TablePlace, "_delete", lambda _self, _day: None)


@mutant(TABLE, WHOLE)
def all_days_are_deleted(patch: pytest.MonkeyPatch) -> None:
    """The closing of one day deletes the rows of all."""

    def delete(self: TablePlace, _day: str) -> None:
        self.rows = []

    patch.setattr(TablePlace, "_delete", delete)


@mutant(TABLE, "a_closing_is_applied_once", OLDER)
def the_marker_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A closing whose answer was lost is executed again."""
    patch.setattr(table, "group_to_apply", lambda *_: True)
    patch.setattr(ScopeContender, "check_close", _unless_filled(ScopeContender.check_close))


def _unless_filled(check: Callable[..., None]) -> Callable[..., None]:
    def checks(self: ScopeContender, row: Any) -> None:
        check(self, None if row is None else row._replace(live_run=None))

    return checks

"""What a run may do in a part of a table that it owns, decided from what was read there (design, "Days").

The row of a *scope*, such as ``day=2026-03-01`` of one table, says which run has claimed it, and which run's rows are there.
Where rows are owned by value, all pipelines share it. Where they are owned by runs, it is the partition of one pipeline.
Runs of one pipeline of one log are a *line*; within it they are ordered by the ordinals that their log has given out, never
by a clock. A run claims its scope with its first write action, and only the run that has claimed it last may put its rows
there with its closing one.

`systems/table_days.py` and `systems/closing_transaction.py` read the rows under their locks. The same rules for a folder,
which has no transaction, are in `folder_rules`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from airflow_logio.errors import WriteRefused
from airflow_logio.protocol.values import FIRST_EVENT_ID


def again(pipeline: str, scope: str, *options: str) -> str:
    """The command by which a person has the run of a scope computed again, with options."""
    words = ("--pipeline", shlex.quote(pipeline), "--partition", scope.partition("=")[2], *options)
    return f"`logio again {' '.join(words)}`"


LONGEST_KEY = 100
"""Characters of a scope's key."""


def scope_of_runs(scope: str, pipeline: str) -> str:
    """The key of a scope that the runs of one pipeline share with no other."""
    key = f"{scope}@{pipeline}"
    return key if len(key) <= LONGEST_KEY else f"{scope}@@{blake2b(pipeline.encode(), digest_size=16).hexdigest()}"


def found_at_fault(where: str, run_uid: str, audit: str, faults: str, stays: str, anew: str) -> str:
    """The sentence for an audit that has found something in the records of a run: `stays` says what stays as it is, `anew`
    is the command that makes new ones."""
    return (
        f"{where}: audit {audit!r} refuses the rows of run {run_uid}: {faults}. {stays}. If what the audit compares them "
        "with was wrong, mend that, then `logio retry` asks again; so does `logio retry --code new` with another audit. If "
        f"the rows are wrong, mend what makes them, then {anew} makes new ones"
    )


DAYS_READ = "days_read"
"""Key of the plan of a read action: the days of a folder that a run reads, each as `DayAsRead` in a list."""


class DayAsRead(NamedTuple):
    """A day of a folder or table that a run is about to read, and which run had left it so when that was asked.

    It is asked before the run begins, which reads later. So what it reads is of that run, or of one since; whatever replaces
    the day between question and reading is younger than what is noted.
    """

    place: str
    """The folder that has the day; of a table, `table_place`."""
    scope: str
    """The day, as ``day=2026-03-01``."""
    live_run: str
    """Empty if no run was known to have the day: none has claimed it, or its database did not answer."""
    is_whole: bool = True
    """False if that run may still add to the day: it has only claimed it, or fills it at once."""


_TABLE, _OF = "table ", " of connection "


def table_place(table: str, connection: str) -> str:
    """What a note says of a table, by the id of its connection. No folder is called so: paths are absolute."""
    return f"{_TABLE}{table}{_OF}{connection}"


def table_of(place: str) -> str | None:
    """The table of `table_place`, as its author wrote it; None for a folder."""
    return place.removeprefix(_TABLE).rpartition(_OF)[0] if place.startswith(_TABLE) else None


class DayRun(NamedTuple):
    """A run that owns parts of tables."""

    pipeline: str
    log_uid: str
    ordinal: int
    run_uid: str

    @property
    def line(self) -> tuple[str, str]:
        """Only runs of one line have an order."""
        return self.pipeline, self.log_uid


class ScopeRow(NamedTuple):
    """The row of a scope."""

    pipeline: str
    log_uid: str
    claimed_ordinal: int
    claimed_by: str
    live_ordinal: int | None = None
    live_run: str | None = None
    live_write: int | None = None
    """The closing write action of `live_run`, whose rows are there; its first one, if it fills the scope as its rows come.
    None: no run has closed the scope."""

    @property
    def claimant(self) -> DayRun:
        """The run that has claimed the scope."""
        return DayRun(self.pipeline, self.log_uid, self.claimed_ordinal, self.claimed_by)


@dataclass(frozen=True, slots=True)
class ScopeContender:
    """A run at the scope that it owns. `takes_over`: a person has said that it replaces what another line has claimed."""

    table: str
    connection: str
    scope: str
    mine: DayRun
    takes_over: bool = False
    replaces_by_nothing: bool = False
    """The scope may become empty: the writer says ``empty="replace"``, or a person has let this run pass."""
    fills_at_once: bool = False
    """Rows that are there go with the first write action, and no action closes the scope."""
    of_runs: bool = False
    """It owns what runs of this partition of its pipeline have written, whatever its values are."""

    @property
    def key(self) -> str:
        """By which the row of the scope is found."""
        return scope_of_runs(self.scope, self.mine.pipeline) if self.of_runs else self.scope

    def check_claim(self, row: ScopeRow | None) -> None:
        """With the first write action. Raises `WriteRefused` if another run has claimed the scope that is not known to be
        older."""
        if row is None or row.claimed_by == self.mine.run_uid:
            return
        other = row.claimant
        if other.line != self.mine.line:
            if not self.takes_over:
                raise WriteRefused(self._of_another_line(other))
        elif other.ordinal >= self.mine.ordinal:
            raise WriteRefused(self._not_younger(other))

    def check_adopts(self, row: ScopeRow) -> None:
        """Before a person gives it rows from before. Raises `WriteRefused` if runs of another log replace its rows."""
        if row.claimant.line != self.mine.line:
            raise WriteRefused(
                f"{self._where} belongs to runs of another log: give it rows with that log (--log), or let a run take it "
                f"over first. {self._stays}"
            )

    def check_retry(self, row: ScopeRow | None) -> None:
        """Before a person resumes the run. Raises `WriteRefused` if its closing write action would be refused, whatever is
        done first."""
        # What it has closed it does not close again.
        if row is None or self.fills_at_once or row.live_run != self.mine.run_uid:
            self.check_claim(row)

    def clears(self, row: ScopeRow | None, *, has_begun: bool) -> bool:
        """Whether the first write action, whose claim passes, deletes what is there: not what another slot of this run has
        put there.

        `has_begun`: another slot has applied its first action. Raises `WriteRefused` if what that one had put there is gone,
        or another run has claimed the scope since, and if another writer of this run has filled it.
        """
        if has_begun:
            self.check_fill(row)
        if row is None or row.live_run != self.mine.run_uid:
            if has_begun:
                raise WriteRefused(self._left(row))
            return True
        if row.live_write != FIRST_EVENT_ID:
            raise WriteRefused(self._filled_by_another())
        return False

    def check_fill(self, row: ScopeRow | None) -> None:
        """With each write action behind the first one of a run that fills the scope at once. Raises `WriteRefused` unless
        this run has claimed it, and no other since."""
        if row is None or row.claimed_by != self.mine.run_uid:
            raise WriteRefused(self._left(row))

    def check_close(self, row: ScopeRow | None) -> None:
        """With the closing write action. Raises `WriteRefused` unless this run has claimed the scope, and no other since."""
        if row is None or row.claimed_by != self.mine.run_uid:
            raise WriteRefused(self._left(row))
        if row.live_run == self.mine.run_uid:  # its marker is not that of the writer that asks
            raise WriteRefused(self._filled_by_another())

    def check_records(self, *, held: int, is_filled: bool) -> None:
        """Raises `WriteRefused` if rows would be replaced by none, which nothing has allowed."""
        if held or not is_filled or self.replaces_by_nothing:
            return
        raise WriteRefused(
            f"{self._where} has rows, and run {self.mine.run_uid} has none to put in their place: was its input there? "
            f"{self._stays}. A retry reads nothing again. When the input is there: {self._again()}. If this day is "
            f"to become empty: {self._again('--empty')}. If all days may, let the writer say empty='replace'"
        )

    def found_at_fault(self, audit: str, faults: str) -> str:
        """The sentence for an audit that has found something in the rows of this run."""
        return found_at_fault(self._where, self.mine.run_uid, audit, faults, self._stays, self._again())

    def _left(self, row: ScopeRow | None) -> str:
        """The run has claimed the scope, and it is not its own any more."""
        if row is None or row.claimed_by == self.mine.run_uid:
            return (
                f"{self._where} is claimed by no run, though run {self.mine.run_uid} has claimed it: a run that replaces the "
                f"whole table has taken it over since, or the row in logio_scope was deleted. {self._stays}. {self._again()}"
            )
        said = (
            f"{self._where} was claimed by run {row.claimed_by} of pipeline {row.pipeline!r} since run "
            f"{self.mine.run_uid} began: what this run has made is not put there. {self._stays}."
        )
        if row.claimant.line == self.mine.line:
            return f"{said} Let that run finish"
        return f"{said} That is {self._whose(row.claimant)}, which a person let take it over. {self._taken_back()}"

    def _filled_by_another(self) -> str:
        return (
            f"{self._where} was filled by another writer of run {self.mine.run_uid}, whose rows would be deleted. "
            f"{self._stays}. Let them write different tables"
        )

    def _of_another_line(self, other: DayRun) -> str:
        return (
            f"{self._where} belongs to {self._whose(other)}: its run {other.run_uid} has claimed it. Nothing orders that run "
            f"and {self.mine.run_uid}. {self._stays}. {self._taken_back()}"
        )

    def _whose(self, other: DayRun) -> str:
        return f"pipeline {other.pipeline!r}{'' if other.log_uid == self.mine.log_uid else ' of another log'}"

    def _taken_back(self) -> str:
        return (
            f"If pipeline {self.mine.pipeline!r} is to replace it, {self._again('--take-over')} lets its next run do so, and "
            "says how that begins"
        )

    def _not_younger(self, other: DayRun) -> str:
        if other.ordinal == self.mine.ordinal:
            is_what = f"run {other.run_uid} has claimed it with the same number, {other.ordinal}, as run"
            why = "One of them is of a log that was restored from a copy"
        else:
            is_what = (
                f"run {other.run_uid}, number {other.ordinal} of its pipeline, has claimed it, and is younger than run"
            )
            why = "If this run is the younger one, its log was restored from a copy"
        return (
            f"{self._where}: {is_what} {self.mine.run_uid}, number {self.mine.ordinal}. {self._stays}. {why}: then "
            f"{self._again(f'--above {other.ordinal}')} begins a run with a greater number"
        )

    def _again(self, *options: str) -> str:
        return again(self.mine.pipeline, self.scope, *options)

    @property
    def _stays(self) -> str:
        return "What is in the table stays as it is"

    @property
    def _where(self) -> str:
        if self.of_runs:
            whose = f"the part of pipeline {self.mine.pipeline!r} for {self.scope}"
            return f"{whose} in table {self.table!r} of connection {self.connection!r}"
        return f"{self.scope} of table {self.table!r} of connection {self.connection!r}"

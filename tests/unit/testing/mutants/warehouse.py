"""Broken transactions of a conditional external system: its locks, and what marker and owner forbid."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_logio.protocol import external_rules
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner
from airflow_logio.protocol.writes import Compared, PendingWrite, WriteQueue, WriterKey
from airflow_logio.testing.simulator import external_systems
from airflow_logio.testing.simulator.driver.writing import SimulatedWriter
from airflow_logio.testing.simulator.external_systems import ExternalSystem, TableChange, WriteAttempt, WritePhase
from tests.unit.testing.mutants.registry import mutant


@mutant("linear", "a_lower_token_writes_nothing", rare=56)
def marker_read_without_its_lock(patch: pytest.MonkeyPatch) -> None:
    """A zombie and its successor read the same marker, and both apply what is behind it, whatever it holds by then."""
    commit = ExternalSystem.commit

    def unconditional(
        self: ExternalSystem, run: Owner, key: WriterKey, _before: MarkerRow, marker: MarkerRow, change: TableChange
    ) -> int:
        return commit(self, run, key, self.marker_row(run, key), marker, change)

    patch.setattr(WriteAttempt, "_lock_marker", lambda _self: True)
    patch.setattr(ExternalSystem, "commit", unconditional)


@mutant("linear", "a_lower_token_writes_nothing", rare=56)
def what_was_not_marked_counts_as_applied(patch: pytest.MonkeyPatch) -> None:
    """A driver does not look at how many rows its update of the marker has changed: its rows are rolled back."""
    patch.setattr(WriteAttempt, "_lock_marker", lambda _self: True)
    patch.setattr(external_systems, "check_advanced", lambda *_: None)


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def marker_not_checked(patch: pytest.MonkeyPatch) -> None:
    """The external system applies a write action again, though its marker has passed it."""

    def everything(writes: Sequence[PendingWrite], _marker: int) -> Sequence[PendingWrite]:
        return writes

    patch.setattr(external_rules, "unapplied", everything)


@mutant("functions", "a_lower_token_writes_nothing", rare=316)
def token_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The external system accepts a driver after its successor has written."""
    patch.setattr(external_rules, "check_token", lambda *_: None)


@mutant("functions", "a_lower_token_writes_nothing", rare=316)
def token_not_kept(patch: pytest.MonkeyPatch) -> None:
    """A transaction advances the number of the marker, and leaves the token of the driver that made the row."""
    commit = ExternalSystem.commit

    def with_the_old_token(
        self: ExternalSystem, run: Owner, key: WriterKey, before: MarkerRow, marker: MarkerRow, change: TableChange
    ) -> int:
        return commit(self, run, key, before, MarkerRow(marker.number, self.marker_row(run, key).token), change)

    patch.setattr(ExternalSystem, "commit", with_the_old_token)


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def owner_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A driver of an earlier run continues inserting into the table that a newer run has taken over."""
    patch.setattr(Contender, "check_owner", lambda _self, _owner: None)


@mutant("linear", "destinations_are_those_of_a_run_without_failures", rare=219)
def owner_read_without_its_lock(patch: pytest.MonkeyPatch) -> None:
    """Between a driver's look at the owner and its commit, a newer run takes the table over, and empties it."""
    patch.setattr(WriteAttempt, "_lock_owner", lambda _self: True)


@mutant("linear", "destinations_are_those_of_a_run_without_failures", rare=55)
def taken_over_without_a_lock(patch: pytest.MonkeyPatch) -> None:
    """A run that begins does not wait for an older one that is writing: its rows come behind the DELETE."""
    patch.setattr(WriteAttempt, "_lock_to_begin", lambda _self: True)


@mutant("copies", "no_group_is_parked")
def taken_over_from_its_own_run(patch: pytest.MonkeyPatch) -> None:
    """The first write action of a slot takes the table over once more, and deletes what its siblings have written."""
    patch.setattr(Contender, "takes_over", lambda _self, _owner: True)


@mutant("linear", "no_group_is_parked")
def an_older_run_takes_over(patch: pytest.MonkeyPatch) -> None:
    """A run that was stopped before its first write empties the table that a newer run owns."""

    def of_any_other(self: Contender, owner: Owner | None) -> bool:
        return owner is None or owner.run_uid != self.mine.run_uid

    patch.setattr(Contender, "takes_over", of_any_other)


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def a_replacing_run_joins(patch: pytest.MonkeyPatch) -> None:
    """A new run that replaces what is there leaves the table to its earlier owner, as one that appends does."""
    patch.setattr(Contender, "_joins", True)


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def not_emptied(patch: pytest.MonkeyPatch) -> None:
    """A new run keeps the rows of an earlier one, though its writer says that it replaces them."""
    patch.setattr(Contender, "empties", lambda _self, *, is_filled: False)


@mutant("linear", "destinations_are_those_of_a_run_without_failures", rare=55)
def locks_let_go_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Marker and owner are looked at in a transaction of their own, and the writing is done in the next one."""
    read = WriteAttempt._read_owner

    def and_lets_go(self: WriteAttempt) -> bool:
        done = read(self)
        self._system.locks.release(self)
        return done

    patch.setitem(external_systems._STEPS, WritePhase.OWNER, and_lets_go)


@mutant("linear", "no_group_is_parked")
def recovered_actions_count_as_new(patch: pytest.MonkeyPatch) -> None:
    """What an earlier driver was given, and has applied, is taken for what a log that lost commits gives out again."""
    look = SimulatedWriter.look

    def at_what_it_has_taken(self: SimulatedWriter) -> None:
        self.log_end = self.taken[0].number - 1
        look(self)

    patch.setattr(SimulatedWriter, "look", at_what_it_has_taken)


@mutant("linear", "no_group_is_parked")
def applied_before_the_log_knows_of_the_comparison(patch: pytest.MonkeyPatch) -> None:
    """A driver writes as soon as it has compared. If it dies before that is logged, its successor compares with an end of
    the log that its own predecessor has passed."""
    compared = WriteQueue.compared

    def and_goes_on(self: WriteQueue) -> Compared:
        done = compared(self)
        WriteQueue.release(self)
        return done

    patch.setattr(WriteQueue, "compared", and_goes_on)
    patch.setattr(SimulatedWriter, "release", lambda _self: None)

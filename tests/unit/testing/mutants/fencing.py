"""Broken fences, read-backs and heartbeats."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.protocol.commit import CommitAttempt, CommitStep
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import FenceRow, GroupRef
from airflow_logio.testing.memory_log.apply import apply_effects
from airflow_logio.testing.memory_log.session import MemoryGroupSession
from airflow_logio.testing.memory_log.store import MemoryLogStore
from airflow_logio.testing.memory_log.tables import BeatRow, GroupKey
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from tests.unit.testing.mutants.registry import mutant


def _commit_unchecked(self: MemoryGroupSession, effects: Effects) -> tuple[Any, ...]:
    with self._tables.transaction():
        fence = self._tables.fences[self._key]
        self._fence = FenceRow(fence.incarnation, fence.epoch, fence.commit_no + 1)
        self._tables.put(self._tables.fences, self._key, self._fence)
        return apply_effects(self._tables, self.ref, effects)


@mutant("linear", "a_replaced_driver_commits_nothing")
def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Commits are not conditional on incarnation, epoch and commit number."""
    patch.setattr(MemoryGroupSession, "commit", _commit_unchecked)


class ChecksThenApplies(SimulatedDriver):
    """The fence is read in one step, the effects are applied in another."""

    checked = False

    def _commit(self, step: Action) -> bool:
        if self.committer.wants is CommitStep.COMMIT and not self.is_in_doubt and not self.checked:
            row = self.session.open()
            self.checked = row.epoch == self.fence.epoch
            return True
        self.checked = False
        return super()._commit(step)


@mutant("linear", "a_replaced_driver_commits_nothing", driver=ChecksThenApplies)
def fence_by_plain_select(patch: pytest.MonkeyPatch) -> None:
    """The incarnation is compared by a SELECT; by the time the effects are applied, a successor may have read the log."""
    patch.setattr(MemoryGroupSession, "commit", _commit_unchecked)


class AsksTooEarly(SimulatedDriver):
    def may_read_back(self) -> bool:
        return True


@mutant("linear", "no_group_is_parked", driver=AsksTooEarly)
def read_back_without_the_lock(_patch: pytest.MonkeyPatch) -> None:
    """After a lost connection the fence is read at once, without waiting for the transaction to be decided."""


@mutant("linear", "no_group_is_parked")
def retry_without_read_back(patch: pytest.MonkeyPatch) -> None:
    """The committer drops the unknown outcome: the transaction is sent again without asking the log what became of it."""
    patch.setattr(CommitAttempt, "is_in_doubt", property(lambda _self: False))


@mutant(
    "linear",
    "a_write_action_is_logged_before_it_is_applied",
    "acknowledgements_are_a_prefix",
    "event_ids_are_gapless",
    "marks_are_what_was_acknowledged",
)
def unknown_is_committed(patch: pytest.MonkeyPatch) -> None:
    """The committer takes a transaction of unknown outcome for committed."""
    patch.setattr(CommitAttempt, "was_committed", lambda _self, _epoch, _commit_no: True)


@mutant("linear", "a_replaced_driver_has_no_heartbeat")
def heartbeat_unfenced(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat is written whichever driver sends it: a zombie looks like a living driver."""

    def heartbeat(self: MemoryLogStore, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int) -> GroupState:
        key = GroupKey(ref.run_id, ref.group)
        with self.tables.transaction():
            self.tables.beats[key, ref.incarnation] = BeatRow(beat, 0.0, ready, rss_bytes)
            return self.tables.groups[key].desired

    patch.setattr(MemoryLogStore, "heartbeat", heartbeat)

"""Broken staging tables: how they are loaded, moved, swept and dropped (ADR-86)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.testing.simulator import external_systems
from airflow_logio.testing.simulator.external_systems import WritePhase
from tests.simulator.lake import lake_store, staging
from tests.simulator.lake.staging import MoveAttempt, SimulatedStaging, StagingDatabase
from tests.unit.testing.mutants.registry import mutant

RIGHT = "destinations_have_what_the_log_says"
LEFT = "no_staging_table_is_left"


@mutant("effects", RIGHT)
def move_without_a_count(patch: pytest.MonkeyPatch) -> None:
    """The move does not compare what is staged with the manifest: after a crash of the server it moves nothing."""
    patch.setattr(staging, "check_counts", lambda *_: None)


@mutant("effects", RIGHT)
def move_of_what_was_staged_before(patch: pytest.MonkeyPatch) -> None:
    """What was counted when it was staged is moved, whatever the table has when the transaction of the marker begins."""
    named = StagingDatabase.named

    def every_attempt(self: Any, staged: Any) -> Any:
        found = {file: list(records) for file, records in named(self, staged).items()}
        for file, attempt, record in self.staging[staged.table].rows:
            if staged.attempts.get(file) != attempt:
                found.setdefault(file, []).append(record)
        return found

    patch.setattr(StagingDatabase, "named", every_attempt)
    patch.setattr(staging, "check_counts", lambda *_: None)


@mutant("effects", LEFT)
def gc_drops_no_staging_table(patch: pytest.MonkeyPatch) -> None:
    """What a driver could not drop, and was not swept, stays."""
    patch.setattr(lake_store, "drop_left", lambda _tables, _run: 0)


@mutant("effects", LEFT)
def drop_without_the_note(patch: pytest.MonkeyPatch) -> None:
    """The note goes in a transaction of its own, before the table: what is cut short in between is not found."""

    def in_two_steps(self: Any, table: Any) -> None:
        def forget() -> None:
            if table in self._database.staging:
                self._database.staging[table].key = ("", "")

        self._client.ask(forget)
        self._client.ask(lambda: self._database.drop(table))

    def noted(self: Any, run_uid: str) -> Sequence[Any]:
        staging = self._database.staging
        found: Sequence[Any] = self._client.ask(lambda: [one for one in staging if staging[one].key != ("", "")])
        return found

    patch.setattr(SimulatedStaging, "_drop_one", in_two_steps)
    patch.setattr(SimulatedStaging, "of_run", noted)


@mutant("effects", LEFT)
def nobody_drops_what_was_staged(patch: pytest.MonkeyPatch) -> None:
    """Not its driver after the move, not the next one in its sweep, and not gc."""
    patch.setattr(StagingTables, "sweep", lambda _self, _marker: None)
    patch.setattr(StagingTables, "drop", lambda _self, tables: list(tables))


@mutant("effects", RIGHT)
def move_in_a_transaction_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """The rows are moved, and committed, before the marker is: who dies in between moves them again."""
    commit, moved = MoveAttempt._commit, WeakKeyDictionary[MoveAttempt, bool]()

    def rows_first(self: MoveAttempt) -> bool:
        if not moved.get(self) and any(held.staged for held in self._stored.values()):
            moved[self] = True
            self._system.applied.setdefault(self.key, []).extend(self._inserted())
            return True
        patch_inserted(self)
        return commit(self)

    def patch_inserted(self: MoveAttempt) -> None:
        if moved.get(self):
            self._inserted = list  # type: ignore[method-assign]

    patch.setitem(
        external_systems._STEPS,
        WritePhase.COMMIT,
        lambda self: rows_first(self) if isinstance(self, MoveAttempt) else commit(self),
    )

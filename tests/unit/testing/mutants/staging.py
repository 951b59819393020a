"""Broken staging tables: how they are loaded, moved, swept and dropped (ADR-86)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_logio.runtime.datasets.table_staging import StagingTarget
from airflow_logio.runtime.systems.staging_tables import StagingTables
from airflow_logio.testing.simulator.data import gc_processes, staged_writes
from airflow_logio.testing.simulator.data.staged_writes import SimulatedStaging
from airflow_logio.testing.simulator.data.staging_database import StagingDatabase
from tests.unit.testing.mutants.registry import mutant

RIGHT = "destinations_are_those_of_a_run_without_failures"
LEFT = "no_staging_table_is_left"
FENCED = "a_lower_token_writes_nothing"


@mutant("effects", RIGHT)
def move_without_a_count(patch: pytest.MonkeyPatch) -> None:
    """The move does not compare what is staged with the manifest: after a crash of the server it moves nothing."""
    patch.setattr(staged_writes, "check_counts", lambda *_: None)


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
    patch.setattr(staged_writes, "check_counts", lambda *_: None)


@mutant("effects", LEFT)
def gc_drops_no_staging_table(patch: pytest.MonkeyPatch) -> None:
    """What a driver could not drop, and nobody swept, stays."""
    patch.setattr(gc_processes, "drop_left", lambda _tables, _run: 0)


@mutant("effects", LEFT)
def drop_without_the_note(patch: pytest.MonkeyPatch) -> None:
    """The note goes in a transaction of its own, before the table: what is cut short in between nobody finds."""

    def in_two_steps(self: Any, table: Any) -> None:
        def forget() -> None:
            if table in self._database.staging:
                self._database.staging[table].key = ("", "")
                forgotten.append(table)

        self._client.ask(forget)
        self._client.ask(lambda: self._database.drop(table))

    def noted(self: Any, run_uid: str) -> Sequence[Any]:
        staging = self._database.staging
        return self._client.ask(lambda: [one for one in staging if staging[one].key != ("", "")])

    forgotten: list[Any] = []
    patch.setattr(SimulatedStaging, "_drop_one", in_two_steps)
    patch.setattr(SimulatedStaging, "of_run", noted)


@mutant("effects", FENCED, RIGHT)
def sweep_without_the_token(patch: pytest.MonkeyPatch) -> None:
    """A driver sweeps what its predecessors have left, and one of them stages and moves behind that."""
    shut_out = StagingDatabase.shut_out
    patch.setattr(StagingDatabase, "shut_out", lambda self, key, _token, before: shut_out(self, key, before.token, before))


@mutant("effects", "no_group_is_parked", "every_schedule_ends", LEFT)
def staged_once_for_all(patch: pytest.MonkeyPatch) -> None:
    """What a replaced driver has staged is dropped by nobody, neither by sweeps nor by gc."""
    patch.setattr(StagingTables, "sweep", lambda _self, _marker: None)
    patch.setattr(StagingTables, "drop", lambda _self, tables: list(tables))


@mutant("effects", RIGHT)
def job_names_what_loses(patch: pytest.MonkeyPatch) -> None:
    """An attempt that loads nothing counts as loaded, and its file is missing in the move."""
    apply = StagingTarget._staged

    def loses(self: Any, table: Any, action: Any, dataset: Any, where: str) -> Any:
        staged = apply(self, table, action, dataset, where)
        return type(staged)(table, {file: attempt for file, attempt in staged.attempts.items() if file})

    patch.setattr(StagingTarget, "_staged", loses)

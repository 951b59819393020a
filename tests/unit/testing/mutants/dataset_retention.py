"""Broken retention of datasets: what expires, what is removed with it, and what `logio gc` does after the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from airflow_logio.protocol import effects as fx
from airflow_logio.supervision import tidying
from airflow_logio.systems.payloads import sweeping
from airflow_logio.testing.memory_log import retention
from airflow_logio.testing.memory_log.tables import BodyKey, Tables
from tests.simulator.lake import lake_store
from tests.simulator.lake.lake_store import Lake
from tests.unit.testing.mutants.registry import mutant

KEPT = "nothing_goes_that_a_living_row_names"
GIVEN_UP = "nothing_is_left_of_a_run_that_is_given_up"


@mutant("lake", KEPT)
def files_of_what_expires_go_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Retention removes the files of old lineage inside its transaction, which may be rolled back."""
    old_bodies, begin, lakes = retention._old_bodies, Lake.__init__, list[Lake]()

    def known(self: Lake, *about: Any) -> None:
        begin(self, *about)
        lakes[:] = [self]

    def removed_at_once(tables: Tables, run_id: int, effect: fx.ExpireLineage, channel: str) -> list[BodyKey]:
        old = old_bodies(tables, run_id, effect, channel)
        lakes[0].payloads.remove([ref for key in old if (ref := tables.bodies[key].ref) is not None])
        return old

    patch.setattr(Lake, "__init__", known)
    patch.setattr(retention, "_old_bodies", removed_at_once)


@mutant("lake", "what_is_in_retention_is_kept")
def young_events_expire_with_old_ones(patch: pytest.MonkeyPatch) -> None:
    """As soon as one event of a port is old, all of its datasets go."""
    old_bodies = retention._old_bodies

    def all_of_them(tables: Tables, run_id: int, effect: fx.ExpireLineage, channel: str) -> list[BodyKey]:
        old = old_bodies(tables, run_id, effect, channel)
        return old and [key for key in tables.bodies if key[:3] == old[0][:3] and tables.bodies[key].kept]

    patch.setattr(retention, "_old_bodies", all_of_them)


@mutant("lake", "only_what_lineage_names_is_left")
def gc_forgets_a_group(patch: pytest.MonkeyPatch) -> None:
    """`logio gc` tidies up the rows of a run, and sweeps the payloads of all of its groups but one."""
    sweep = sweeping.sweep_group

    def but_one(payloads: Any, store: Any, run: Any, group: str, *, below: int) -> int:
        return 0 if group == "hourly" else sweep(payloads, store, run, group, below=below)

    patch.setattr(sweeping, "sweep_group", but_one)


@mutant("lake", "only_what_lineage_names_is_left")
def removals_that_were_cut_short_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """`logio gc` removes what it takes out of the log itself, and does not look for what others have left."""

    def tidied(payloads: Any, store: Any, run: Any) -> None:
        tidying.tidy(store, run.run_id, payloads.remove)

    patch.setattr(lake_store, "_tidied", tidied)
    patch.setattr(Lake, "sweep", lambda _self, _group, _many: None)


@mutant("lake", GIVEN_UP)
def row_of_a_run_goes_before_its_files(patch: pytest.MonkeyPatch) -> None:
    """The row by which an interrupted removal is found goes with the others, before the files."""
    remove = tidying.remove

    def all_rows_first(
        store: Any, run_id: int, discard: Callable[[Sequence[str]], None], clear: Callable[[], None], **named: Any
    ) -> int:
        rows = remove(store, run_id, discard, **named)
        clear()
        return rows

    patch.setattr(tidying, "remove", all_rows_first)


@mutant("lake", GIVEN_UP)
def removal_of_a_run_takes_what_rows_have_named(patch: pytest.MonkeyPatch) -> None:
    """A run is given up, and the files go that its rows have named: not those of a removal that was cut short."""
    patch.setattr(lake_store, "_clear", lambda _payloads, _run: None)

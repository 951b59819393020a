"""Broken upkeep: retries of quarantined Input Sets, retention of lineage, shared bodies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Reopening, reopen
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Status
from airflow_logio.testing.memory_log import retention, runs
from airflow_logio.testing.memory_log.tables import BodyKey, GroupKey, LogRow, Tables
from airflow_logio.testing.simulator.world import World
from tests.unit.testing.mutants.registry import mutant


@mutant("retry", "destinations_are_those_of_a_run_without_failures")
def ends_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    """A retry puts Input Sets back behind the logged end of their stream, which stays."""

    def stays(states: Any, senders: Any, retried: Any) -> Reopening:
        result = reopen(states, {}, retried)
        result.ends = []
        return result

    patch.setattr(runs, "reopen", stays)


@mutant(
    "retry",
    "a_finished_group_holds_nothing",
    "destinations_are_those_of_a_run_without_failures",
    "the_end_of_a_stream_is_once_and_last",
)
def end_not_resumed(patch: pytest.MonkeyPatch) -> None:
    """An end that was taken back and not received yet is delivered as it was: the receiver ends before its time."""

    def forgotten(states: Any, senders: Any, retried: Any) -> Reopening:
        result = reopen(states, senders, retried)
        result.ends = []
        return result

    patch.setattr(runs, "reopen", forgotten)


@mutant("retry", "a_finished_group_holds_nothing")
def epochs_not_raised(patch: pytest.MonkeyPatch) -> None:
    """A retry changes the log under drivers that continue with what they have in memory."""

    def in_the_same_epoch(tables: Tables, key: GroupKey) -> bool:
        row = tables.groups[key]
        if row.state is GroupState.FINISHED:
            row = replace(row, state=GroupState.HALTED)
            tables.put(tables.groups, key, row)
        return row.state is GroupState.HALTED

    patch.setattr(runs, "_reopen_group", in_the_same_epoch)


class DoubtsWithoutTheFence(World):
    def doubt(self, driver: Any, effects: fx.Effects) -> None:
        driver.session.open()
        self._doubts[driver.plan.name] = (driver, effects)


@mutant(
    "retry",
    "destinations_are_those_of_a_run_without_failures",
    "a_finished_group_holds_nothing",
    world=DoubtsWithoutTheFence,
)
def commit_in_a_new_epoch(_patch: pytest.MonkeyPatch) -> None:
    """A driver reads the epoch again before it sends what it has made in the one before."""


@mutant("retry", "destinations_are_those_of_a_run_without_failures")
def state_event_left_aside(patch: pytest.MonkeyPatch) -> None:
    """A retry puts back the events of an Input Set, not the global state that it saw."""
    relog = Tables.relog

    def only_events(self: Tables, rows: Sequence[LogRow], status: Status, inset_id: str | None = None) -> None:
        if status is Status.UNDONE:
            rows = [row for row in rows if row.status is not Status.ASIDE or row.send_port is not None]
        relog(self, rows, status, inset_id)

    patch.setattr(Tables, "relog", only_events)


@mutant("linear", "what_is_in_retention_is_kept")
def retention_not_heeded(patch: pytest.MonkeyPatch) -> None:
    """Lineage expires as soon as it is not needed for recovery, however young it is."""
    old_bodies = retention._old_bodies

    def all_of_them(tables: Tables, run_id: int, effect: fx.ExpireLineage, channel: str) -> list[BodyKey]:
        return old_bodies(tables, run_id, structs.replace(effect, retention_seconds=-1.0), channel)

    patch.setattr(retention, "_old_bodies", all_of_them)


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def expiry_of_what_kept_events_are_made_of(patch: pytest.MonkeyPatch) -> None:
    """What is old goes, though a younger event that is kept was made of it."""

    def used(tables: Tables, _run_id: int, bodies: Sequence[BodyKey]) -> list[LogRow]:
        rows = [row for body in bodies for row in tables.events.of_event(body)]
        gone = [row for row in rows if row.kept and row.status is Status.DONE]
        for row in gone:
            tables.unlog(row)
        return gone

    patch.setattr(retention, "_drop_used_rows", used)


@mutant("swapped", "no_body_is_collected_that_is_needed")
def sweep_of_what_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    """The sweep of a shared port removes bodies that a receiver has not used yet."""

    def all_of_them(tables: Tables, bodies: Iterable[BodyKey], *, kept: bool) -> tuple[list[BodyKey], list[str]]:
        found = [key for key in bodies if key in tables.bodies]
        for key in found:
            tables.drop(tables.bodies, key)
        return found, []

    patch.setattr(retention, "drop_bodies", all_of_them)

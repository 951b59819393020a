"""Broken requests to scale: called done too early, carried out too late, twice there, or never seen to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio.protocol.replicas import Slot, balanced
from airflow_logio.protocol.states import ScalingState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.supervision import scaling
from airflow_logio.testing.memory_log import MemoryLogStore, slots
from airflow_logio.testing.memory_log.tables import Tables
from tests.unit.testing.mutants.registry import mutant


@mutant("spread", "what_is_done_was_done_before")
def settled_before_the_move(patch: pytest.MonkeyPatch) -> None:
    """An executor calls a request done, then moves the slots: it may die in between."""
    move = scaling._move

    def settled(
        store: LogStore, run: Run, request: ScalingRequest, open_slots: Sequence[Slot], plan: scaling.Plan
    ) -> scaling.Step:
        store.settle_scaling(request.request_id, ScalingState.DONE, "as asked")
        return move(store, run, request, open_slots, plan)

    patch.setattr(scaling, "_move", settled)


@mutant("copies", "what_is_done_was_done_before")
def busy_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    """A move that a replica's commit held up is taken for one that was made."""
    move = scaling._move

    def impatient(
        store: LogStore, run: Run, request: ScalingRequest, open_slots: Sequence[Slot], plan: scaling.Plan
    ) -> scaling.Step:
        step = move(store, run, request, open_slots, plan)
        if step.stage is scaling.Stage.BUSY:
            store.settle_scaling(request.request_id, ScalingState.DONE, step.sentence)
        return step

    patch.setattr(scaling, "_move", impatient)


@mutant("spread", "nothing_moves_for_a_settled_request", "a_replica_is_launched_for_an_open_request")
def superseded_request_carried_out(patch: pytest.MonkeyPatch) -> None:
    """The log moves slots for a request that has given way to a newer one."""
    patch.setattr(slots, "check_open", lambda _request_id, _state: None)


@mutant("keyed", "nothing_moves_for_a_settled_request")
def carries_on_from_what_it_saw(patch: pytest.MonkeyPatch) -> None:
    """An executor goes by the request as it read it before it was delayed, and does not say for which one it acts."""
    patch.setattr(scaling, "_as_it_is", lambda _store, request: request)
    claim, rescale = MemoryLogStore.claim, MemoryLogStore.rescale

    def unasked(method: Any) -> Any:
        return lambda *values, **named: method(*values, **{**named, "request_id": None})

    patch.setattr(MemoryLogStore, "claim", unasked(claim))
    patch.setattr(MemoryLogStore, "rescale", unasked(rescale))


@mutant("spread", "a_replica_is_launched_for_an_open_request")
def launched_for_an_older_request(patch: pytest.MonkeyPatch) -> None:
    """A claim does not ask whether the request is open: a replica runs that is not wanted."""
    claim = MemoryLogStore.claim

    def whenever(self: MemoryLogStore, *values: Any, request_id: int | None = None, **named: Any) -> Any:
        return claim(self, *values, **named)

    patch.setattr(MemoryLogStore, "claim", whenever)


@mutant("copies", "a_key_names_one_request")
def key_makes_two_rows(patch: pytest.MonkeyPatch) -> None:
    """A key is kept, and it is not asked whether there is a request of it: a task that is tried again asks twice."""
    request = slots.request

    def unseen(tables: Tables, *about: Any, key: str | None, **named: Any) -> ScalingRequest:
        made = replace(request(tables, *about, key=None, **named), key=key)
        tables.scalings[made.run_id, made.request_id] = made  # as if it had been inserted so
        return made

    patch.setattr(slots, "request", unseen)


@mutant("keyed", "one_request_of_a_group_is_open")
def older_request_stays_open(patch: pytest.MonkeyPatch) -> None:
    """A newer request does not refuse an older one: two executors pull in two directions for ever."""
    patch.setattr(slots, "OPEN_SCALING", frozenset[ScalingState]())


@mutant("spread", "a_request_is_settled_once")
def settled_twice(patch: pytest.MonkeyPatch) -> None:
    """What is settled is settled again by the one that comes late: an executor accepts what is done."""
    patch.setattr(slots, "came_from", lambda _state: frozenset(ScalingState))


@mutant("copies", "an_executor_never_fails")
def fails_when_somebody_was_faster(patch: pytest.MonkeyPatch) -> None:
    """An executor that finds a replica claimed by another one takes that for an error of its own."""
    patch.setattr(
        scaling,
        "_launch",
        lambda launch, status, request: launch(
            status.group, expected=status.incarnation, reason="", by_user=True, request_id=request.request_id
        ),
    )


@mutant("keyed", "every_schedule_ends", rare=77)
def nobody_wakes_who_has_only_to_finish(patch: pytest.MonkeyPatch) -> None:
    """A group that was put to sleep when it had taken the end of its stream is not woken: the run never ends."""
    patch.setattr(slots, "has_left", lambda _spec, _group, _over, _states: False)


@mutant("copies", "every_schedule_ends")
def nobody_wakes_who_sleeps(patch: pytest.MonkeyPatch) -> None:
    """A supervisor carries requests out, and makes none for a group that sleeps and has work."""
    patch.setattr(scaling, "_sleeps", lambda *_: False)


@mutant("spread", "no_request_stays_open")
def open_when_the_run_has_ended(patch: pytest.MonkeyPatch) -> None:
    """What was asked for and not met when the run ended stays open."""
    patch.setattr(scaling, "why_not", lambda _run, _of_group, _request: None)


@mutant("keyed", "slots_are_placed_as_was_asked")
def all_slots_to_one(patch: pytest.MonkeyPatch) -> None:
    """An executor launches as many replicas as were asked for, and gives all slots to the first."""
    patch.setattr(scaling, "balanced", lambda of_group, replicas: balanced(of_group, replicas[:1]))

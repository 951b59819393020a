"""Broken replay: what an event is made of again, what is taken for it, and what becomes of the rows that it is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_logio.protocol import group as group_module
from airflow_logio.protocol.effects import Acknowledge
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.replay import Replay
from airflow_logio.protocol.values import Event, MadeOf, Port, Status
from airflow_logio.store.rules.session_rules import gone
from airflow_logio.testing.memory_log import retention
from airflow_logio.testing.memory_log.session import MemoryGroupSession
from airflow_logio.testing.memory_log.tables import BodyKey, LogRow, Tables
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from tests.unit.testing.mutants.registry import mutant

RIGHT = "destinations_are_those_of_a_run_without_failures"
PARKED = "no_group_is_parked"
"""What is made again has another digest than the log says, or what it is made of is gone."""


# --- what is taken for the body -----------------------------------------------------------------------------------------


@mutant("replayed", RIGHT, PARKED)
def takes_what_is_offered(patch: pytest.MonkeyPatch) -> None:
    """What a sender hands over directly is taken for the body, without a look at the digest in the log."""
    unpacked = Replay.unpacked

    def trusting(self: Replay, event: Event) -> Event:
        if event.made_of is not None and (payload := self._offers.taken(event)) is not None:
            return replace(event, payload=payload, body=None)
        return unpacked(self, event)

    patch.setattr(Replay, "unpacked", trusting)


@mutant("replayed", RIGHT)
def result_unchecked(patch: pytest.MonkeyPatch) -> None:
    """What is made again counts whatever its digest is, and is the first event of its Output Set on the port."""

    def first(self: Replay, event: Event, made_of: MadeOf) -> Any:
        outputs = self._output_set(event.sender.operator, made_of.inset_id)
        return next(emit.payload for emit in outputs if emit.port == event.sender.name)

    patch.setattr(Replay, "_made_again", first)


class ForgetsBodies(SimulatedDriver):
    """What was acknowledged and has no body in the log is recovered without records."""

    def _rebuild(self, step: Action) -> bool:
        empty = tuple(
            LoggedEvent(one.receiver, replace(one.event, payload=[], made_of=None, body=b"\x90"), one.inset_id)
            if one.event.made_of is not None
            else one
            for one in getattr(getattr(self, "recovered", None), "acknowledged", ())
        )
        if hasattr(self, "recovered"):
            self.recovered = changed(self.recovered, acknowledged=empty)
        return super()._rebuild(step)


@mutant("replayed", RIGHT, PARKED, driver=ForgetsBodies)
def recovers_without_bodies(_patch: pytest.MonkeyPatch) -> None:
    """Events that were acknowledged before a failure are rebuilt as they are in the log: empty."""


# --- what it is made of -------------------------------------------------------------------------------------------------


@mutant("replayed", PARKED)
def place_on_any_port(patch: pytest.MonkeyPatch) -> None:
    """Places are counted in the Output Set as a whole, and looked up among the events of a port."""

    class OneCount(Counter[str]):
        def __getitem__(self, _port: str) -> int:
            return super().__getitem__("")

        def __setitem__(self, _port: str, value: int) -> None:
            super().__setitem__("", value)

    patch.setattr(group_module, "Counter", OneCount)


@mutant("replayed", PARKED)
def made_of_the_set_before(patch: pytest.MonkeyPatch) -> None:
    """Where a step makes several Output Sets, their events all name the first Input Set."""
    complete, close = GroupProtocol._complete, GroupProtocol.close_step
    first: dict[str, str] = {}

    def noted(self: GroupProtocol, operator: OperatorProtocol, inset_id: str, *about: Any, **named: Any) -> None:
        first.setdefault(operator.spec.name, inset_id)
        complete(self, operator, inset_id, *about, **named)

    def closed(self: GroupProtocol) -> Any:
        first.clear()
        return close(self)

    produce = Ledger.produce

    def misnamed(self: Ledger, event: Event, *about: Any, **named: Any) -> None:
        if event.made_of is not None:
            event = replace(event, made_of=replace(event.made_of, inset_id=first[event.sender.operator]))
        produce(self, event, *about, **named)

    patch.setattr(GroupProtocol, "_complete", noted)
    patch.setattr(GroupProtocol, "close_step", closed)
    patch.setattr(Ledger, "produce", misnamed)


@mutant("replayed", PARKED)
def events_decided_again(patch: pytest.MonkeyPatch) -> None:
    """As in the paper, events pass through State Update again, which decides anew which Input Sets they are in."""
    output_set = Replay._output_set

    class Anew:
        def __init__(self, logic: Any) -> None:
            self._logic, self._state = logic, logic.initial_state()

        def part(self, port: str, event: Event, _inset_id: str) -> Any:
            return next(iter(self._logic.assign(port, event, self._state).values()), [])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._logic, name)

    def anew(self: Replay, operator: str, inset_id: str) -> Sequence[Emit]:
        logic_of = self._logic_of
        self._logic_of = lambda name: Anew(logic_of(name))
        try:
            return output_set(self, operator, inset_id)
        finally:
            self._logic_of = logic_of

    patch.setattr(Replay, "_output_set", anew)


def _reading(patch: pytest.MonkeyPatch, chosen: Any) -> None:
    input_sets = MemoryGroupSession.input_sets

    def changed_sets(self: MemoryGroupSession, *asked: Any) -> dict[str, Sequence[LoggedEvent]]:
        found = {inset_id: chosen(self, used) for inset_id, used in input_sets(self, *asked).items()}
        return {inset_id: used for inset_id, used in found.items() if used is not None}

    patch.setattr(MemoryGroupSession, "input_sets", changed_sets)


@mutant("replayed", PARKED)
def latest_first(patch: pytest.MonkeyPatch) -> None:
    """The events of an Input Set are read in no order, and accumulated as they come."""
    _reading(patch, lambda _session, found: list(reversed(found)))


@mutant("replayed", PARKED)
def what_is_done_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """Only events that are not done are read: of an Input Set that was used, none is."""

    def undone(session: MemoryGroupSession, found: Sequence[LoggedEvent]) -> Sequence[LoggedEvent]:
        rows = session._tables.events.rows.values()
        living = {
            (Port(row.receiver, row.rec_port or ""), row.body.event_id) for row in rows if row.status is Status.UNDONE
        }
        left = [one for one in found if (one.receiver, one.event.event_id) in living]
        if not left:
            raise gone(found[0].receiver.operator, str(found[0].inset_id))
        return left

    _reading(patch, undone)


@mutant("replayed", PARKED)
def whole_events_in_each_set(patch: pytest.MonkeyPatch) -> None:
    """An event that is in several Input Sets is taken as a whole into each."""
    unpacked = Replay._output_set

    class Whole:
        def __init__(self, logic: Any) -> None:
            self._logic = logic

        def part(self, port: str, event: Event, _inset_id: str) -> Any:
            return self._logic.part(port, event, "y0")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._logic, name)

    def whole(self: Replay, operator: str, inset_id: str) -> Sequence[Emit]:
        logic_of = self._logic_of
        self._logic_of = lambda name: Whole(logic_of(name))
        try:
            return unpacked(self, operator, inset_id)
        finally:
            self._logic_of = logic_of

    patch.setattr(Replay, "_output_set", whole)


@mutant("replayed", PARKED)
def chain_not_followed(patch: pytest.MonkeyPatch) -> None:
    """What an event is made of is taken from the log, where events of a replay operator before it have no records."""
    output_set = Replay._output_set

    def from_the_log(self: Replay, operator: str, inset_id: str) -> Sequence[Emit]:
        read = self._input_set

        def emptied(name: str, inset: str) -> Sequence[LoggedEvent]:
            return [
                LoggedEvent(
                    one.receiver, replace(one.event, made_of=None, body=one.event.body or b"\x90"), one.inset_id
                )
                for one in read(name, inset)
            ]

        vars(self)["_input_set"] = emptied
        try:
            return output_set(self, operator, inset_id)
        finally:
            del vars(self)["_input_set"]

    patch.setattr(Replay, "_output_set", from_the_log)


@mutant("rekeyed", PARKED)
def output_set_of_another_slot(patch: pytest.MonkeyPatch) -> None:
    """Output Sets that were made are known by their Input Set alone, and slots have Input Sets of the same names."""

    def output_set(self: Replay, operator: str, inset_id: str) -> Sequence[Emit]:
        made = vars(self).setdefault("made_by_name", {})
        key = operator.partition("[")[0], inset_id
        if key not in made:
            made[key] = original(self, operator, inset_id)
        found: Sequence[Emit] = made[key]
        return found

    original = Replay._output_set
    patch.setattr(Replay, "_output_set", output_set)


# --- rows and ids -------------------------------------------------------------------------------------------------------


@mutant("replayed", PARKED, RIGHT)
def used_events_are_garbage(patch: pytest.MonkeyPatch) -> None:
    """What a replay operator has used is removed as what any other operator has used: when it is done."""
    close = Ledger.close

    def nothing_kept(self: Ledger) -> Any:
        return [
            replace(effect, kept=False)
            if isinstance(effect, Acknowledge) and effect.receiver.operator == "parts"
            else effect
            for effect in close(self)
        ]

    patch.setattr(Ledger, "close", nothing_kept)
    log = Tables.log

    def unkept(self: Tables, row: LogRow) -> None:
        log(self, row._replace(kept=row.kept and row.receiver != "parts"))

    patch.setattr(Tables, "log", unkept)


@mutant("replayed", PARKED)
def ingredients_expire(patch: pytest.MonkeyPatch) -> None:
    """What is old and used goes, though an event that was made of it is not done."""

    def used(tables: Tables, _run_id: int, bodies: Sequence[BodyKey]) -> list[LogRow]:
        rows = [row for body in bodies for row in tables.events.of_event(body)]
        gone = [row for row in rows if row.kept and row.status is Status.DONE]
        for row in gone:
            tables.unlog(row)
        return gone

    patch.setattr(retention, "_drop_used_rows", used)


@mutant("replayed", "done_never_becomes_undone", PARKED)
def used_events_are_marked_again(patch: pytest.MonkeyPatch) -> None:
    """As in the paper, what an event is made of again becomes undone for its operator."""

    def marked(session: MemoryGroupSession, found: Sequence[LoggedEvent]) -> Sequence[LoggedEvent]:
        tables = session._tables
        with tables.transaction():
            wanted = {(one.receiver.operator, one.inset_id) for one in found}
            rows = [row for row in tables.events.rows.values() if (row.receiver, row.inset_id) in wanted]
            tables.relog([row for row in rows if row.status is Status.DONE], Status.UNDONE)
        return found

    _reading(patch, marked)


@mutant("replayed", "a_context_never_goes_back", PARKED)
def ids_given_out_again(patch: pytest.MonkeyPatch) -> None:
    """As in the paper, a replay operator that recovers goes back to an earlier event id, and sends from there again."""
    restore = OperatorProtocol.restore

    def taken_back(self: OperatorProtocol, data: bytes) -> None:
        restore(self, data)
        if self.spec.replay:
            self.context.next_event = {port: max(1, number - 1) for port, number in self.context.next_event.items()}

    patch.setattr(OperatorProtocol, "restore", taken_back)


@mutant("replayed", "an_event_is_used_once", PARKED)
def replayed_events_pass_the_filter(patch: pytest.MonkeyPatch) -> None:
    """As in the paper, events of a replay operator are taken without the filter for obsolete ones."""
    update = OperatorProtocol.state_update

    def unfiltered(self: OperatorProtocol, port: str, event: Event, ledger: Any, *, in_log: bool) -> bool:
        if event.made_of is not None and event.event_id == self.context.mark(port):
            self.context.marks[port] -= 1
        return update(self, port, event, ledger, in_log=in_log)

    patch.setattr(OperatorProtocol, "state_update", unfiltered)

"""The log's invariants, checked on the changes of each transaction as soon as it commits.

Each invariant is a method of one of the watches here, and its name is the sentence that holds (`INVARIANTS`).
The watches see the tables of a log in memory (`Tables.observer`), and remember what was collected since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import decode_state
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.store.records.run_records import ReplicatedShape
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.store.rules.row_forms import read_header
from airflow_logio.testing.memory_log.tables import ABSENT, Body, Change, GroupKey, GroupRow, RunRow, Tables
from airflow_logio.testing.simulator.actions import Incarnation
from airflow_logio.testing.simulator.datasets import ContentWatch
from airflow_logio.testing.simulator.plan import GroupPlan, Logged, Read, Systems, senders_of
from airflow_logio.testing.simulator.watch.event_watch import ContextWatch, EventWatch
from airflow_logio.testing.simulator.watch.group_watch import DrainWatch, DriverWatch, GroupRowWatch
from airflow_logio.testing.simulator.watch.replica_watch import ScalingWatch, SlotWatch


class LogWatch:
    """The watch of one schedule over its log: passes each change of the tables, and each report of the world, to its watch.

    Raises `Violation` if anything is wrong.
    """

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._contexts = ContextWatch()
        self.contents: ContentWatch | None = None
        """What a scenario with datasets has its files watched by."""
        self._drains = DrainWatch()
        self.bodies: dict[bytes, bytes] = {}
        """Digest → body, of all that replay operators have made: what the log does not have, and results are judged by."""
        self._events = EventWatch(tables, self._contexts, self.content)
        self._groups = GroupRowWatch(tables)
        self._slots = SlotWatch(tables, self._contexts)
        self._requests = ScalingWatch(tables)
        self._drivers = DriverWatch(self._events, self._slots)
        self._group_of_source: Mapping[str, str] = {}
        self._operators: Sequence[str] = ()
        tables.observer = self.observe

    def begin(
        self,
        plans: Mapping[str, GroupPlan],
        systems: Systems,
        from_log: frozenset[tuple[str, str]],
        retention: float | None = None,
        kept: frozenset[Port] = frozenset(),
        replicated: Mapping[str, ReplicatedShape] = MappingProxyType({}),
    ) -> None:
        """In `plans`, a replicated group is one. `from_log` are the input ports whose events come from the log, so that all
        of them have rows.

        Lineage of the output ports `kept` never expires; other lineage expires after `retention` seconds of the log's clock.
        """
        self._contexts.begin(senders_of(plans))
        self._events.begin(plans, systems, from_log, retention, kept)
        self._groups.begin(plans)
        self._slots.begin({name: [spec.name for spec in plans[name].operators] for name in replicated})
        self._requests.begin(replicated)
        self._operators = [spec.name for plan in plans.values() for spec in plan.operators]
        self._group_of_source = {
            spec.name: plan.name for plan in plans.values() for spec in plan.operators if not spec.inputs
        }

    def content(self, body: Body) -> bytes | None:
        """What a body says, wherever it is."""
        if not body.body and body.ref is None and (made_of := read_header("an event", body.header).made_of) is not None:
            return self.bodies[made_of.digest]
        return body.body if self.contents is None else self.contents.content(body)

    def logged(self) -> Logged:
        """What the log has now."""
        bodies = self.tables.bodies.items()
        return {(f"{key.operator}.{key.channel}", key.event_id): self.content(body) for key, body in bodies}

    def close(self) -> None:
        """Stop watching. Tables and watch refer to each other; this frees them without the garbage collector."""
        self.tables.observer = None
        if self.contents is not None:
            self.contents.close()

    # --- what the oracle asks -----------------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """Number of events of all ports, write actions and state events: all that have an event_id in the log."""
        return self._events.count

    @property
    def channels(self) -> Mapping[tuple[str, str], list[bytes]]:
        """(operator, port or channel) → bodies logged on it."""
        return self._events.channels

    @property
    def expired(self) -> Mapping[tuple[str, int], bytes | None]:
        """(output port, event_id) of each event that retention has removed → its body."""
        return self._events.expired

    def references(self) -> set[str]:
        """Payloads that the log names."""
        return {body.ref for body in self.tables.bodies.values() if body.ref is not None}

    def read(self, sources: Sequence[str]) -> Read:
        """How far every source was read, by its stored state."""
        return self._drains.read(sources)

    # --- what the world reports ---------------------------------------------------------------------------------------

    def after_commit(self, driver: Incarnation, effects: fx.Effects) -> None:
        """A driver has committed."""
        self._drivers.after_commit(driver, effects)

    def before_write(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        """A driver is about to apply these writes."""
        self._drivers.a_write_action_is_logged_before_it_is_applied(key, writes)

    def a_lower_token_writes_nothing(self, key: WriterKey, token: int) -> None:
        """An external system has accepted a conditional write with this token."""
        self._drivers.a_lower_token_writes_nothing(key, token)

    def a_replaced_driver_has_no_heartbeat(self, driver: Incarnation) -> None:
        """The log has accepted a heartbeat of this driver."""
        self._drivers.a_replaced_driver_has_no_heartbeat(driver)

    def a_complete_read_action_is_never_read_again(self, operator: str, action_id: int) -> None:
        """A driver executes a read action of a source that is not replayable."""
        self._drivers.a_complete_read_action_is_never_read_again(operator, action_id)

    def asked_to_drain(self, group: str, incarnation: int) -> None:
        """From this incarnation on, drivers of the group know the wish before they read."""
        self._drains.asked_to_drain(group, incarnation)

    def retrying(self) -> AbstractContextManager[None]:
        """Within this context, quarantined Input Sets are retried, so ends of streams may be taken back."""
        return self._contexts.retrying()

    @property
    def reopened(self) -> set[str]:
        """Replicas that had finished, and got work again by a retry. The world adds to it."""
        return self._requests.reopened

    def launching(self) -> AbstractContextManager[None]:
        """Within this context, a retired replica may be claimed."""
        return self._slots.launching()

    def carried_out(self, request: ScalingRequest) -> None:
        """An executor has just placed the slots for this request."""
        self._requests.carried_out(request)

    def a_replica_is_launched_for_an_open_request(self, request: ScalingRequest | None, replica: str) -> None:
        """An executor has just launched a replica for this request."""
        self._requests.a_replica_is_launched_for_an_open_request(request, replica)

    def no_request_stays_open(self) -> None:
        """At the end: a live executor has looked."""
        self._requests.no_request_stays_open()

    # --- what a transaction changed -----------------------------------------------------------------------------------

    def observe(self, changes: Sequence[Change]) -> None:
        """All checks of one transaction."""
        tables = self.tables
        rows: dict[Any, Any] = {}
        last: dict[Any, Any] = {}
        log, bodies, states, fences = tables.events.rows, tables.bodies, tables.states, tables.fences
        for table, key, before in changes:
            if table is log:
                rows.setdefault(key, before)
                last[key] = before
            elif table is bodies:
                if self.contents is not None:
                    self.contents.see_body(before, bodies.get(key, ABSENT))
                self._events.see_body(key, before, bodies.get(key, ABSENT))
            elif table is states:
                self._state(key, before)
            elif table is fences:
                self._groups.fences_only_rise(key, before, fences[key])
                self._slots.note_epoch(key, before, fences[key])
            else:
                self._seldom(table, key, before)
        if self.contents is not None:
            self.contents.see()
        self._slots.see(reopened=self._contexts.is_retrying)
        if rows:
            self._events.see_rows(rows, last)
        self._contexts.marks_are_what_was_acknowledged()
        self._events.what_is_done_is_closed()

    def _seldom(self, table: Any, key: Any, before: Any) -> None:
        tables = self.tables
        if table is tables.lineage:
            self._events.see_lineage(key)
        elif table is tables.groups:
            self._group(key, before, table[key])
        elif table is tables.slots:
            self._slots.note_slot(key, before)
        elif table is tables.scalings:
            self._requests.see(before, table[key])
        elif table is tables.runs:
            self._run(before, table[key])

    def _state(self, key: tuple[int, str, int], before: Any) -> None:
        """State 0 of an operator is its current one; the others belong to state events."""
        if key[2]:
            self._events.count += before is ABSENT
            return
        run_id, operator, _ = key
        stored = decode_state(operator, self.tables.states[key])
        self._contexts.a_context_never_goes_back(operator, stored.context)
        if operator in self._group_of_source:
            group = self._group_of_source[operator]
            incarnation = self.tables.fences[GroupKey(run_id, group)].incarnation
            self._drains.what_is_to_drain_reads_no_further(group, incarnation, operator, stored.state)

    def _group(self, key: GroupKey, before: Any, after: GroupRow) -> None:
        if after.state is GroupState.FINISHED:
            self._groups.a_finished_group_holds_nothing(key)
        elif after.state is GroupState.RETIRED:
            self._slots.a_retired_replica_owns_no_open_slot(key)
        if before is not ABSENT:
            self._groups.a_drain_is_not_taken_back(key, before, after)
            reopened = self._contexts.is_retrying
            self._slots.a_retired_replica_is_launched_by_a_request_alone(key, before, after, reopened=reopened)

    def _run(self, before: Any, after: RunRow) -> None:
        ended = (RunState.FINISHED, RunState.QUARANTINED)
        if before is not ABSENT and before.state not in ended and after.state in ended:
            self._slots.a_run_has_finished_when_all_is_done(self._operators)


INVARIANTS = (
    DriverWatch.a_write_action_is_logged_before_it_is_applied,
    DriverWatch.a_lower_token_writes_nothing,
    DriverWatch.a_replaced_driver_commits_nothing,
    DriverWatch.a_replaced_driver_has_no_heartbeat,
    DriverWatch.a_complete_read_action_is_never_read_again,
    EventWatch.event_ids_are_gapless,
    EventWatch.the_end_of_a_stream_is_once_and_last,
    EventWatch.a_body_never_changes,
    EventWatch.no_body_is_collected_that_is_needed,
    EventWatch.what_is_in_retention_is_kept,
    EventWatch.no_event_enters_an_input_set_twice,
    EventWatch.done_never_becomes_undone,
    EventWatch.nothing_undone_is_removed,
    EventWatch.an_undone_row_has_its_body,
    EventWatch.a_write_action_is_done_when_it_is_applied,
    ContextWatch.acknowledgements_are_a_prefix,
    ContextWatch.marks_are_what_was_acknowledged,
    ContextWatch.a_context_never_goes_back,
    EventWatch.what_is_done_is_closed,
    ContextWatch.closed_input_sets_stay_closed,
    GroupRowWatch.fences_only_rise,
    DrainWatch.what_is_to_drain_reads_no_further,
    GroupRowWatch.a_drain_is_not_taken_back,
    EventWatch.lineage_names_events_of_the_log,
    EventWatch.lineage_goes_with_its_event,
    GroupRowWatch.a_finished_group_holds_nothing,
    SlotWatch.only_its_owner_commits_for_a_slot,
    SlotWatch.a_retired_replica_commits_nothing,
    SlotWatch.a_slot_that_is_done_never_moves,
    SlotWatch.who_loses_or_gains_a_slot_gets_a_new_epoch,
    SlotWatch.a_slot_is_done_when_its_operators_have_ended,
    SlotWatch.a_retired_replica_is_launched_by_a_request_alone,
    SlotWatch.a_retired_replica_owns_no_open_slot,
    SlotWatch.a_run_has_finished_when_all_is_done,
    ScalingWatch.a_key_names_one_request,
    ScalingWatch.a_request_is_settled_once,
    ScalingWatch.one_request_of_a_group_is_open,
    ScalingWatch.nothing_moves_for_a_settled_request,
    ScalingWatch.slots_are_placed_as_was_asked,
    ScalingWatch.what_is_done_was_done_before,
    ScalingWatch.a_replica_is_launched_for_an_open_request,
    ScalingWatch.no_request_stays_open,
)
"""Checked at every transaction of every schedule on a log in memory; a scenario with datasets brings more."""

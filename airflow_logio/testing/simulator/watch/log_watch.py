"""The log's invariants, checked on what each transaction has changed, as soon as it has.

Each invariant is a method of `LogWatch` whose name is the sentence that holds (`invariants.py` lists them). The watch sees
the tables of a log in memory (`Tables.observer`), and remembers what may have been collected since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from airflow_logio.protocol.context import decode_state
from airflow_logio.protocol.logic import Logic
from airflow_logio.protocol.replicas import replicated_group, slot_of
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Kind, Port, Status
from airflow_logio.store.memory.tables import ABSENT, Body, BodyKey, Change, GroupKey, GroupRow, LogRow, RunRow, Tables
from airflow_logio.store.records import FenceRow, ReplicatedShape
from airflow_logio.store.rules.channels import STATE_CHANNEL, WRITES
from airflow_logio.store.rules.header import encode_header
from airflow_logio.testing.simulator.drains import DrainWatch
from airflow_logio.testing.simulator.plan import GroupPlan, Systems
from airflow_logio.testing.simulator.upkeep import senders_of
from airflow_logio.testing.simulator.watch.contexts import ContextWatch
from airflow_logio.testing.simulator.watch.driver_watch import DriverWatch
from airflow_logio.testing.simulator.watch.scaling_watch import ScalingWatch

END_HEADER = encode_header(Kind.END, 0, b"")


class LogWatch(ContextWatch, DrainWatch, DriverWatch, ScalingWatch):
    """One schedule's eye on its log. `ports` and `writes` keep every body in order, for the oracle."""

    def __init__(self, tables: Tables) -> None:
        DriverWatch.__init__(self)
        ContextWatch.__init__(self)
        DrainWatch.__init__(self)
        ScalingWatch.__init__(self)
        self.tables = tables
        self._plans: Mapping[str, GroupPlan] = {}
        self._systems: Systems = {}
        self._from_log: frozenset[tuple[str, str]] = frozenset()
        self._senders: frozenset[tuple[str, str]] = frozenset()
        self.channels: dict[tuple[str, str], list[bytes]] = {}
        """(operator, port or channel) → bodies of what was logged on it."""
        self.events = 0
        """Events of all ports, write actions and state events: what has an event_id in the log."""
        self._assigned: set[Any] = set()
        self.expired: dict[tuple[str, int], bytes | None] = {}
        """(output port, event_id) of what retention has removed → its body."""
        self._kept: frozenset[Port] = frozenset()
        self._retention: float | None = None
        self._logics: Mapping[str, Logic] = {}
        """Of operators with a state."""
        self._group_of_source: Mapping[str, str] = {}
        self._closing: set[tuple[str, str]] = set()
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
        """`plans` have replicated groups as one. `from_log` are the input ports whose events come from the log: all their
        events have rows.

        Lineage of the output ports `kept` never expires, that of others after `retention`.
        """
        self._kept = kept
        self.begin_requests(replicated)
        self.begin_slots({name: [spec.name for spec in plans[name].operators] for name in replicated})
        self._plans, self._systems, self._from_log, self._retention = plans, systems, from_log, retention
        self._receives = senders_of(plans)
        self._logics = {
            spec.name: spec.logic
            for plan in plans.values()
            for spec in plan.operators
            if spec.logic is not None and not spec.stateless
        }
        self._group_of_source = {
            spec.name: plan.name for plan in plans.values() for spec in plan.operators if not spec.inputs
        }
        self._senders = frozenset(
            (sender.operator, sender.name)
            for plan in plans.values()
            for sender, receivers in plan.receivers.items()
            if any(tuple(receiver) in from_log for receiver in receivers)
        )

    def references(self) -> set[str]:
        """Payloads that the log names."""
        return {body.ref for body in self.tables.bodies.values() if body.ref is not None}

    def close(self) -> None:
        """See no more: tables and watch, which refer to each other, are let go of without the garbage collector."""
        self.tables.observer = None

    @contextmanager
    def retrying(self) -> Iterator[None]:
        """Inside, ends of streams may be taken back."""
        self._taken_back = set()
        try:
            yield
        finally:
            self._taken_back = None

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
                self._body(key, before, bodies.get(key, ABSENT))
            elif table is states:
                self._state(key, before)
            elif table is fences:
                self.fences_only_rise(key, before, fences[key])
                self.note_epoch(key, before, fences[key])
            else:
                self._seldom(table, key, before)
        self.see_slots(reopened=self._taken_back is not None)
        if rows:
            self._rows(rows, last)
        self.marks_are_what_was_acknowledged()
        self.what_is_done_is_closed()

    def _seldom(self, table: Any, key: Any, before: Any) -> None:
        tables = self.tables
        if table is tables.lineage:
            self._lineage(key)
        elif table is tables.groups:
            self._group(key, before, table[key])
        elif table is tables.slots:
            self.note_slot(key, before)
        elif table is tables.scalings:
            self.see_request(before, table[key])
        elif table is tables.runs:
            self._run(before, table[key])

    def _state(self, key: tuple[int, str, int], before: Any) -> None:
        """State 0 of an operator is its current one, the others belong to state events."""
        if key[2]:
            self.events += before is ABSENT
            return
        run_id, operator, _ = key
        stored = decode_state(operator, self.tables.states[key])
        self.a_context_never_goes_back(operator, stored.context)
        if operator in self._group_of_source:
            group = self._group_of_source[operator]
            incarnation = self.tables.fences[GroupKey(run_id, group)].incarnation
            self.what_is_to_drain_reads_no_further(group, incarnation, operator, stored.state)

    def _group(self, key: GroupKey, before: Any, after: GroupRow) -> None:
        if after.state is GroupState.FINISHED:
            self.a_finished_group_holds_nothing(key)
        elif after.state is GroupState.RETIRED:
            self.a_retired_replica_owns_no_open_slot(key)
        if before is not ABSENT:
            self.a_drain_is_not_taken_back(key, before, after)
            reopened = self._taken_back is not None
            self.a_retired_replica_is_launched_by_a_request_alone(key, before, after, reopened=reopened)

    def _run(self, before: Any, after: RunRow) -> None:
        ended = (RunState.FINISHED, RunState.QUARANTINED)
        if before is not ABSENT and before.state not in ended and after.state in ended:
            self.a_run_has_finished_when_all_is_done(
                [spec.name for plan in self._plans.values() for spec in plan.operators]
            )

    def _lineage(self, key: Any) -> None:
        if key in self.tables.lineage:
            self.lineage_names_events_of_the_log(key)
        else:
            self.lineage_goes_with_its_event(key)

    def _rows(self, rows: dict[Any, Any], last: dict[Any, Any]) -> None:
        """`rows` are the changed ones as they were before the transaction, `last` as they were before their last change."""
        log = self.tables.events.rows
        acknowledged: dict[tuple[str, str], set[int]] = {}
        for key, before in rows.items():
            after = log.get(key, ABSENT)
            if before is after:
                continue  # assigned and collected in one transaction
            row: LogRow = before if after is ABSENT else after
            if after is ABSENT:
                self.nothing_undone_is_removed(last[key])
            else:
                self._row(key, before, row)
            if row.rec_port is not None and row.send_port is not None:
                port = (row.receiver, row.rec_port)
                taken = after is ABSENT or row.inset_id is not None or row.status is Status.DONE
                if taken and port in self._from_log:
                    acknowledged.setdefault(port, set()).add(row.body.event_id)
        for port, ids in acknowledged.items():
            self.acknowledgements_are_a_prefix(port, ids)

    def _row(self, key: Any, before: Any, row: LogRow) -> None:
        if before is not ABSENT:
            self.done_never_becomes_undone(before, row)
        elif row.inset_id is not None:
            self.no_event_enters_an_input_set_twice(key)
        if row.status is Status.UNDONE:
            self.an_undone_row_has_its_body(row)
        elif row.status is Status.DONE and row.inset_id is not None and row.send_port is not None:
            if row.receiver in self._logics and row.rec_port is not None:
                self._closing.add((row.receiver, row.inset_id))
        elif row.status is Status.DONE and row.send_port is None and row.rec_port is not None:
            self.a_write_action_is_done_when_it_is_applied(row)

    def _body(self, key: BodyKey, before: Any, after: Any) -> None:
        if after is ABSENT:
            self.no_body_is_collected_that_is_needed(key)
            if before.kept:
                self.what_is_in_retention_is_kept(key, before)
                self.expired[f"{key.operator}.{key.channel}", key.event_id] = before.body
        elif before is not ABSENT:
            self.a_body_never_changes(key, before, after)
        else:
            self.events += 1
            self.event_ids_are_gapless(key)
            self.the_end_of_a_stream_is_once_and_last(key, after)
            self.channels.setdefault((key.operator, key.channel), []).append(after.body)

    # --- the invariants -----------------------------------------------------------------------------------------------

    def event_ids_are_gapless(self, key: BodyKey) -> None:
        channel = (key.operator, key.channel)
        last = self._last.get(channel, 0)
        gapless = key.channel.startswith(WRITES) or channel in self._senders
        if key.event_id != last + 1 if gapless else key.event_id <= last:
            self._fail("event_ids_are_gapless", f"{_name(channel)} has event {key.event_id} after {last}")
        self._last[channel] = key.event_id

    def the_end_of_a_stream_is_once_and_last(self, key: BodyKey, body: Body) -> None:
        channel = (key.operator, key.channel)
        if channel in self._ended:
            self._fail("the_end_of_a_stream_is_once_and_last", f"{_name(channel)} has event {key.event_id} behind it")
        if body.header == END_HEADER and not body.body:
            self._ended.add(channel)

    def a_body_never_changes(self, key: BodyKey, before: Body, after: Body) -> None:
        resumed = self._taken_back and (key.operator, key.channel) in self._taken_back and before.header == END_HEADER
        if before != after and not resumed:
            self._fail("a_body_never_changes", f"event {key.event_id} of {key.operator}.{key.channel}")

    def no_body_is_collected_that_is_needed(self, key: BodyKey) -> None:
        for row in self.tables.events.of_event(key):
            self._fail("no_body_is_collected_that_is_needed", f"{row.receiver} has a row of {key}: {row.status}")

    def what_is_in_retention_is_kept(self, key: BodyKey, body: Body) -> None:
        age = self.tables.now() - body.logged_at
        if (key.operator, key.channel) in self._kept:
            self._fail("what_is_in_retention_is_kept", f"{key} was removed, and is to be kept for ever")
        if self._retention is None or age <= self._retention:
            self._fail("what_is_in_retention_is_kept", f"{key} was removed at age {age}, kept are {self._retention}")

    def what_is_done_is_closed(self) -> None:
        closing, self._closing = self._closing, set()
        for operator, inset_id in closing:
            logic, context = self._logics[operator], self._contexts.get(operator)
            if context is None or not context.closed.holds(inset_id, logic.function(inset_id), logic.order(inset_id)):
                self._fail(
                    "what_is_done_is_closed", f"Input Set {inset_id} of {operator} is done, its state does not know"
                )

    def no_event_enters_an_input_set_twice(self, key: Any) -> None:
        if key in self._assigned:
            body, receiver, _, inset = key
            self._fail(
                "no_event_enters_an_input_set_twice",
                f"event {body.event_id} of {body.operator}.{body.channel} in Input Set {inset} of {receiver}",
            )
        self._assigned.add(key)

    def done_never_becomes_undone(self, before: LogRow, row: LogRow) -> None:
        if before.status is Status.DONE and row.status is not Status.DONE:
            self._fail("done_never_becomes_undone", f"{row}")

    def nothing_undone_is_removed(self, before: LogRow) -> None:
        """A waiting row goes when its event is assigned; that one is checked as part of a prefix."""
        if before.status is not Status.DONE and before.inset_id is not None:
            self._fail("nothing_undone_is_removed", f"{before}")

    def an_undone_row_has_its_body(self, row: LogRow) -> None:
        key, tables = row.body, self.tables
        if key not in tables.bodies and (
            key.channel != STATE_CHANNEL or (key.run_id, key.operator, key.event_id) not in tables.states
        ):
            self._fail("an_undone_row_has_its_body", f"{row}")

    def a_write_action_is_done_when_it_is_applied(self, row: LogRow) -> None:
        assert row.rec_port is not None
        marker = self._systems[row.rec_port].marker((row.receiver, row.rec_port))
        if marker < row.body.event_id:
            self._fail(
                "a_write_action_is_done_when_it_is_applied",
                f"write action {row.body.event_id} of {row.receiver} is done, {row.rec_port} has applied {marker}",
            )

    def acknowledgements_are_a_prefix(self, port: tuple[str, str], ids: set[int]) -> None:
        last = self._acknowledged.get(port, 0)
        new = {event_id for event_id in ids if event_id > last}
        if new and (min(new) != last + 1 or max(new) - last != len(new)):
            self._fail("acknowledgements_are_a_prefix", f"{_name(port)}: events {sorted(new)} after {last}")
        if new:
            self._acknowledged[port] = max(new)
            self._stale.add(port[0])

    def fences_only_rise(self, key: GroupKey, before: Any, after: FenceRow) -> None:
        if before is ABSENT:
            return
        low = after.incarnation < before.incarnation or after.epoch < before.epoch
        if low or not 0 <= after.commit_no - before.commit_no <= 1:
            self._fail("fences_only_rise", f"{key.group}: {before} became {after}")

    def a_drain_is_not_taken_back(self, key: GroupKey, before: GroupRow, after: GroupRow) -> None:
        if before.desired is GroupState.DRAINING and after.desired is not GroupState.DRAINING:
            self._fail("a_drain_is_not_taken_back", f"{key.group} was to drain, and is to be {after.desired.value}")

    def lineage_names_events_of_the_log(self, key: Any) -> None:
        run_id, sender, event_id, inset_id = key
        if BodyKey(run_id, sender.operator, sender.name, event_id) not in self.tables.bodies:
            self._fail("lineage_names_events_of_the_log", f"event {event_id} of {sender}, Input Set {inset_id}")

    def lineage_goes_with_its_event(self, key: Any) -> None:
        run_id, sender, event_id, inset_id = key
        if BodyKey(run_id, sender.operator, sender.name, event_id) in self.tables.bodies:
            self._fail(
                "lineage_goes_with_its_event", f"event {event_id} of {sender} is there, not Input Set {inset_id}"
            )

    def _run_by(self, group: str) -> set[str]:
        """Operators of a group, or of the slots that a replica owns."""
        if group in self._plans:
            return {spec.name for spec in self._plans[group].operators}
        base = replicated_group(group)
        mine = {slot.number for (_, name, _), slot in self.tables.slots.items() if (name, slot.owner) == (base, group)}
        return {spec.name for spec in self._plans[base].operators if slot_of(spec.name) in mine}

    def a_finished_group_holds_nothing(self, key: GroupKey) -> None:
        mine = self._run_by(key.group)
        for row in self.tables.events.rows.values():
            if row.receiver in mine and row.status in (Status.UNDONE, Status.HELD):
                self._fail("a_finished_group_holds_nothing", f"{key.group} has finished with {row}")


def _name(channel: tuple[str, str]) -> Port:
    return Port(*channel)

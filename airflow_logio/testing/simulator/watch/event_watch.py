"""Invariants of events, write actions and state events, and of the contexts that operators store with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow_logio.protocol.context import Context
from airflow_logio.protocol.logic import Logic
from airflow_logio.protocol.values import Kind, Port, Status
from airflow_logio.store.rules.row_forms import STATE_CHANNEL, WRITES, encode_header
from airflow_logio.testing.memory_log.tables import ABSENT, Body, BodyKey, LogRow, Tables
from airflow_logio.testing.simulator.plan import GroupPlan, Systems
from airflow_logio.testing.simulator.violation import Violation


class ContextWatch:
    """The last stored context of each operator. `begin` says what feeds its ports."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}
        self._acknowledged: dict[tuple[str, str], int] = {}
        """Input port → last acknowledged event."""
        self._stale: set[str] = set()
        """Operators whose marks are checked when the transaction is over."""
        self.ended: set[tuple[str, str]] = set()
        """Channels whose end is logged."""
        self._receives: Mapping[Port, Port] = {}
        self.taken_back: set[tuple[str, str]] | None = None
        """During a retry of quarantined Input Sets: channels whose end it has taken back."""

    def begin(self, receives: Mapping[Port, Port]) -> None:
        """`receives` maps an input port to the output port that feeds it."""
        self._receives = receives

    @property
    def is_retrying(self) -> bool:
        return self.taken_back is not None

    @contextmanager
    def retrying(self) -> Iterator[None]:
        """Within this context, ends of streams may be taken back."""
        self.taken_back = set()
        try:
            yield
        finally:
            self.taken_back = None

    def of(self, operator: str) -> Context | None:
        """What the operator stored last; None before the first time."""
        return self._contexts.get(operator)

    def has_finished(self, operator: str) -> bool:
        """Whether its stored context says that it has logged the end of its streams."""
        context = self.of(operator)
        return context is not None and context.finished

    def marks_are_what_was_acknowledged(self) -> None:
        stale, self._stale = self._stale, set()
        for (operator, port), last in self._acknowledged.items():
            if operator in stale:
                context = self._contexts.get(operator)
                mark = context.mark(port) if context else 0
                if mark != last:
                    raise Violation(
                        "marks_are_what_was_acknowledged",
                        f"{operator}.{port} has acknowledged event {last}, its stored mark is {mark}",
                    )

    def a_context_never_goes_back(self, operator: str, new: Context) -> None:
        old = self._contexts.get(operator)
        self._contexts[operator] = new
        self._stale.add(operator)
        if old is None:
            return
        pairs = [(old.marks, new.marks), (old.next_event, new.next_event), (old.next_write, new.next_write)]
        falls = any(after.get(name, 0) < value for before, after in pairs for name, value in before.items())
        lower = new.next_state < old.next_state or new.next_action < old.next_action
        ended = self._ended_of(operator, old, new)
        if falls or lower or old.finished > new.finished or old.opened > new.opened or not ended <= new.ended:
            raise Violation("a_context_never_goes_back", f"{operator}: {old} became {new}")
        self.closed_input_sets_stay_closed(operator, old, new)

    def _ended_of(self, operator: str, old: Context, new: Context) -> set[str]:
        """The input ports that must still have ended. A retry takes an end back, and with it all ends that followed."""
        taken_back = self.taken_back
        if taken_back is None:
            return old.ended
        if old.finished and not new.finished and new.taken_back == old.taken_back + 1:
            old.finished = False
            taken_back.update((operator, port) for port in new.next_event)
            self.ended -= taken_back
        return {port for port in old.ended if self._receives[Port(operator, port)] not in taken_back}

    def closed_input_sets_stay_closed(self, operator: str, old: Context, new: Context) -> None:
        before, after = old.closed, new.closed
        lower = any(name not in after.low or after.low[name] < low for name, low in before.low.items())  # type: ignore[operator]  # of one type
        if lower or not before.exceptions <= after.exceptions:
            raise Violation("closed_input_sets_stay_closed", f"{operator}: {before} became {after}")

    def acknowledgements_are_a_prefix(self, port: tuple[str, str], ids: set[int]) -> None:
        last = self._acknowledged.get(port, 0)
        new = {event_id for event_id in ids if event_id > last}
        if new and (min(new) != last + 1 or max(new) - last != len(new)):
            raise Violation("acknowledgements_are_a_prefix", f"{Port(*port)}: events {sorted(new)} after {last}")
        if new:
            self._acknowledged[port] = max(new)
            self._stale.add(port[0])


END_HEADER = encode_header(Kind.END, 0, b"")


class EventWatch:
    """Everything that was ever logged. The tables may have lost a part of it by now."""

    def __init__(
        self, tables: Tables, contexts: ContextWatch, content: Callable[[Body], bytes | None] = lambda body: body.body
    ) -> None:
        """`content` is what a body says, wherever it is."""
        self._tables = tables
        self._content = content
        self._contexts = contexts
        self._systems: Systems = {}
        self._from_log: frozenset[tuple[str, str]] = frozenset()
        self._senders: frozenset[tuple[str, str]] = frozenset()
        self.last: dict[tuple[str, str], int] = {}
        """(operator, port or channel) → the last event_id on it."""
        self.channels: dict[tuple[str, str], list[bytes]] = {}
        """(operator, port or channel) → bodies logged on it."""
        self.count = 0
        """Number of events of all ports, write actions and state events: all that have an event_id in the log."""
        self._assigned: set[Any] = set()
        self.expired: dict[tuple[str, int], bytes | None] = {}
        """(output port, event_id) of each event that retention has removed → its body."""
        self._kept: frozenset[Port] = frozenset()
        self._retention: float | None = None
        self._logics: Mapping[str, Logic] = {}
        """Operator → its logic, for operators with a state."""
        self._closing: set[tuple[str, str]] = set()

    def begin(
        self,
        plans: Mapping[str, GroupPlan],
        systems: Systems,
        from_log: frozenset[tuple[str, str]],
        retention: float | None,
        kept: frozenset[Port],
    ) -> None:
        """As `LogWatch.begin`."""
        self._systems, self._from_log, self._retention, self._kept = systems, from_log, retention, kept
        self._logics = {
            spec.name: spec.logic
            for plan in plans.values()
            for spec in plan.operators
            if spec.logic is not None and not spec.stateless
        }
        self._senders = frozenset(
            (sender.operator, sender.name)
            for plan in plans.values()
            for sender, receivers in plan.receivers.items()
            if any(tuple(receiver) in from_log for receiver in receivers)
        )

    # --- what a transaction changed -----------------------------------------------------------------------------------

    def see_body(self, key: BodyKey, before: Any, after: Any) -> None:
        if after is ABSENT:
            self.no_body_is_collected_that_is_needed(key)
            if before.kept:
                self.what_is_in_retention_is_kept(key, before)
                self.expired[f"{key.operator}.{key.channel}", key.event_id] = self._content(before)
        elif before is not ABSENT:
            self.a_body_never_changes(key, before, after)
        else:
            self.count += 1
            self.event_ids_are_gapless(key)
            self.the_end_of_a_stream_is_once_and_last(key, after)
            self.channels.setdefault((key.operator, key.channel), []).append(self._content(after) or b"")

    def see_lineage(self, key: Any) -> None:
        if key in self._tables.lineage:
            self.lineage_names_events_of_the_log(key)
        else:
            self.lineage_goes_with_its_event(key)

    def see_rows(self, rows: dict[Any, Any], last: dict[Any, Any]) -> None:
        """`rows` are the changed ones as they were before the transaction, `last` as they were before their last change."""
        log = self._tables.events.rows
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
            self._contexts.acknowledgements_are_a_prefix(port, ids)

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

    # --- the invariants -----------------------------------------------------------------------------------------------

    def event_ids_are_gapless(self, key: BodyKey) -> None:
        channel = (key.operator, key.channel)
        last = self.last.get(channel, 0)
        gapless = key.channel.startswith(WRITES) or channel in self._senders
        if key.event_id != last + 1 if gapless else key.event_id <= last:
            raise Violation("event_ids_are_gapless", f"{Port(*channel)} has event {key.event_id} after {last}")
        self.last[channel] = key.event_id

    def the_end_of_a_stream_is_once_and_last(self, key: BodyKey, body: Body) -> None:
        channel = (key.operator, key.channel)
        if channel in self._contexts.ended:
            raise Violation(
                "the_end_of_a_stream_is_once_and_last", f"{Port(*channel)} has event {key.event_id} behind it"
            )
        if body.header == END_HEADER and not body.body and body.ref is None:
            self._contexts.ended.add(channel)

    def a_body_never_changes(self, key: BodyKey, before: Body, after: Body) -> None:
        taken_back = self._contexts.taken_back or ()
        resumed = (key.operator, key.channel) in taken_back and before.header == END_HEADER
        if before != after and not resumed:
            raise Violation("a_body_never_changes", f"event {key.event_id} of {key.operator}.{key.channel}")

    def no_body_is_collected_that_is_needed(self, key: BodyKey) -> None:
        for row in self._tables.events.of_event(key):
            raise Violation("no_body_is_collected_that_is_needed", f"{row.receiver} has a row of {key}: {row.status}")

    def what_is_in_retention_is_kept(self, key: BodyKey, body: Body) -> None:
        age = self._tables.now() - body.logged_at
        if (key.operator, key.channel) in self._kept:
            raise Violation("what_is_in_retention_is_kept", f"{key} was removed, and is to be kept for ever")
        if self._retention is None or age <= self._retention:
            raise Violation(
                "what_is_in_retention_is_kept", f"{key} was removed at age {age}, kept are {self._retention}"
            )

    def what_is_done_is_closed(self) -> None:
        closing, self._closing = self._closing, set()
        for operator, inset_id in closing:
            logic, context = self._logics[operator], self._contexts.of(operator)
            if context is None or not context.closed.holds(inset_id, logic.function(inset_id), logic.order(inset_id)):
                raise Violation(
                    "what_is_done_is_closed", f"Input Set {inset_id} of {operator} is done, its state does not know"
                )

    def no_event_enters_an_input_set_twice(self, key: Any) -> None:
        if key in self._assigned:
            body, receiver, _, inset = key
            raise Violation(
                "no_event_enters_an_input_set_twice",
                f"event {body.event_id} of {body.operator}.{body.channel} in Input Set {inset} of {receiver}",
            )
        self._assigned.add(key)

    def done_never_becomes_undone(self, before: LogRow, row: LogRow) -> None:
        if before.status is Status.DONE and row.status is not Status.DONE:
            raise Violation("done_never_becomes_undone", f"{row}")

    def nothing_undone_is_removed(self, before: LogRow) -> None:
        """A waiting row disappears when its event is assigned, which is checked as part of a prefix."""
        if before.status is not Status.DONE and before.inset_id is not None:
            raise Violation("nothing_undone_is_removed", f"{before}")

    def an_undone_row_has_its_body(self, row: LogRow) -> None:
        key, tables = row.body, self._tables
        if key not in tables.bodies and (
            key.channel != STATE_CHANNEL or (key.run_id, key.operator, key.event_id) not in tables.states
        ):
            raise Violation("an_undone_row_has_its_body", f"{row}")

    def a_write_action_is_done_when_it_is_applied(self, row: LogRow) -> None:
        assert row.rec_port is not None
        marker = self._systems[row.rec_port].marker((row.receiver, row.rec_port))
        if marker < row.body.event_id:
            raise Violation(
                "a_write_action_is_done_when_it_is_applied",
                f"write action {row.body.event_id} of {row.receiver} is done, {row.rec_port} has applied {marker}",
            )

    def lineage_names_events_of_the_log(self, key: Any) -> None:
        run_id, sender, event_id, inset_id = key
        if BodyKey(run_id, sender.operator, sender.name, event_id) not in self._tables.bodies:
            raise Violation("lineage_names_events_of_the_log", f"event {event_id} of {sender}, Input Set {inset_id}")

    def lineage_goes_with_its_event(self, key: Any) -> None:
        run_id, sender, event_id, inset_id = key
        if BodyKey(run_id, sender.operator, sender.name, event_id) in self._tables.bodies:
            raise Violation(
                "lineage_goes_with_its_event", f"event {event_id} of {sender} is there, not Input Set {inset_id}"
            )

"""The book of a hand-written operator: what its handle knows, and its only way into the log, one fenced commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from airflow_logio.contrib.paper_api.accounts import (
    Ids,
    InputSets,
    ReadActions,
    ReadRecord,
    Remembered,
    WriteActions,
    pack,
    read_state_row,
    state_row,
)
from airflow_logio.contrib.paper_api.infos import ActionInfo, EventInfo, StateInfo
from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.errors import ApiMisuse
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, decode_state, encode_state
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.external_rules import MarkerRow, compare
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Event, Port
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.port.session_port import GroupSession

T = TypeVar("T")


class Stopped(Exception):
    """The group was asked to halt. Do not catch it: the driver ends, and `logio retry` resumes from the log."""


class Host(Protocol):
    """The driver process around a hand-written operator. The driver imports this API, never the reverse."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of the run."""
        ...

    def url(self, connection: str) -> str:
        """URL of an external system; raises `ConfigurationError`."""
        ...

    def marker(self, connection: str) -> Marker:
        """The identity of a writer to a connection: run, operator and fencing token."""
        ...

    def commit(self, effects: Effects) -> None:
        """Bodies serialized, everything in one fenced transaction; raises what `GroupSession.commit` does."""
        ...

    def idle(self) -> None:
        """Idle call: collects garbage and checks whether the driver was replaced. Raises `Fenced`, `EpochVoid`."""
        ...

    def encode(self, table: pa.Table) -> bytes:
        """A table as an Arrow IPC stream."""
        ...

    def decode(self, event: Event) -> pa.Table:
        """The records of an event; raises `LogInconsistent`."""
        ...

    def replay(self, what: str, action: Callable[[], T]) -> T:
        """Execute an action until it does not raise `ExternalUnavailable`, with back-off and a limit."""
        ...

    def is_stopping(self) -> bool:
        """The group was asked to halt."""
        ...

    def is_draining(self) -> bool:
        """The group was asked to drain."""
        ...

    def groups_behind(self, port: str) -> Sequence[str]:
        """Other groups that receive from an output port."""
        ...

    def loaded(self, write: PendingWrite) -> PendingWrite:
        """The write action with its body, wherever that is stored."""
        ...

    def sent(self, port: str, event_id: int) -> None:
        """The last event that is logged on an output port."""
        ...

    def is_full(self, port: str) -> bool:
        """The slowest receiver of an output port lags by the run's backlog bound."""
        ...


@dataclass(frozen=True, slots=True)
class Station:
    """The place of a hand-written operator in its pipeline."""

    spec: OperatorSpec
    receivers: Mapping[str, Sequence[Port]]
    """Output port → its receiver ports."""
    captured: frozenset[Port]
    """Input ports of the whole pipeline for which lineage is captured (IN of Section 3.1)."""
    connections: frozenset[str]
    writable: frozenset[str]
    """Connections that the operator declares to write to."""


@dataclass(slots=True)
class Staged:
    """What one transaction adds to the pending work."""

    outputs: list[tuple[Event, str | None]] = field(default_factory=list)
    """Output events, each with the Input Set it was generated from; None for a source."""
    writes: list[WriteAction] = field(default_factory=list)
    writes_done: list[WriteAction] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    """Input Sets that are done."""
    enriched: set[str] = field(default_factory=set)
    """Input Sets whose generation used a side-effect read action."""
    reads: list[ReadRecord] = field(default_factory=list)
    """Read actions in their state after the transaction."""
    effects: fx.Effects = field(default_factory=list)
    state: bytes | None = None
    state_id: int = 0

    def is_empty(self) -> bool:
        return self == Staged()


class Book:
    """Not thread-safe: it belongs to the thread that drives the operator."""

    def __init__(self, station: Station, session: GroupSession, host: Host, recovered: Recovered) -> None:
        spec = station.spec
        self.spec, self.station = spec, station
        self.host = host
        self.session = session
        self._receivers = {port: tuple(station.receivers.get(port, ())) for port in spec.outputs}
        self.context, self._remembered, self.packed = Context(), Remembered(), None
        if spec.name in recovered.states:
            self.context, self._remembered, self.packed = read_state_row(spec.name, recovered.states[spec.name])
        self._row = recovered.states.get(spec.name)
        """The STATE row as the log has it."""
        self.context.reopen()
        for connection in station.writable:
            self.context.uncompared.setdefault(connection, 0)
        self.snapshots = {
            inset_id: read_state_row(spec.name, data)[2] or pack(spec.name, {})
            for _, inset_id, data in recovered.snapshots
        }
        self.marks_at_start = dict(self.context.marks)
        self.input_sets = InputSets(spec, self.context, self._remembered)
        for inset_id in self.snapshots:
            self.input_sets.reload_state(inset_id)
        self.events = Ids(f"operator {spec.name!r}: output event", self.context.next_event)
        self.numbers = Ids(f"operator {spec.name!r}: write action", self.context.next_write)
        self.reads = ReadActions(spec.name, self._remembered.reads)
        self.writes = WriteActions(spec.name)
        self.ledger = Ledger(station.captured)
        self.counted: set[tuple[str, int]] = set()
        """Events that the author's state counts and that no commit has assigned."""
        self.unassigned: dict[tuple[str, int], Event] = {}
        """Received and not assigned: at most one."""
        self.last_received: EventInfo | None = None
        self.pending_since: float | None = None
        self.pending_bytes = 0
        self.unsent: set[str] = set()
        self.new_actions: set[tuple[int, str]] = set()
        """Action ids that were allocated but not used, with their connection."""
        self._broken: BaseException | None = None
        self._thread = threading.get_ident()

    # --- checks -------------------------------------------------------------------------------------------------------

    def check_usable(self) -> None:
        """Raises the error of a failed commit again, and `ApiMisuse` when called from another thread."""
        if self._broken is not None:
            raise self._broken
        if threading.get_ident() != self._thread:
            raise ApiMisuse(f"the handle of operator {self.spec.name!r} is used in another thread than its run()")

    def refuse(self, sentence: str) -> ApiMisuse:
        return ApiMisuse(f"operator {self.spec.name!r}: {sentence}")

    def output_port(self, port: str | None) -> Port:
        """Raises `ApiMisuse` for a port that the operator does not have."""
        if port not in self.spec.outputs:
            raise self.refuse(f"it has no output port {port!r} (it has: {', '.join(self.spec.outputs) or 'none'})")
        return Port(self.spec.name, str(port))

    def check_writable(self, connection: str) -> None:
        """Raises `ApiMisuse` for a connection whose guarantee the operator does not declare."""
        if connection not in self.station.writable:
            raise self.refuse(
                f"it logs a write action on connection {connection!r}, but writes() does not name it: declare it there, "
                "with its guarantee"
            )

    def check_state_id(self, state_info: StateInfo) -> None:
        """Raises `ApiMisuse` for an id that `get_state_id` did not allocate, or that is older than a stored one."""
        last = self._remembered.last_state_id
        if not max(1, last) <= state_info.state_id < self.context.next_state:
            raise self.refuse(
                f"state {state_info.state_id} cannot be stored: get_state_id() has not given this id, or state {last} was "
                "stored after it"
            )

    def use_action_id(self, action: ActionInfo) -> None:
        """Raises `ApiMisuse` for an id that `get_action_id` did not allocate, or that is already used."""
        if (action.action_id, action.connection) not in self.new_actions:
            raise self.refuse(f"{action} has an id that get_action_id() has not given for it, or that is used")
        self.new_actions.remove((action.action_id, action.connection))

    def marks(self) -> dict[str, int]:
        """The last acknowledged event id of each input port."""
        return {port: self.context.mark(port) for port in self.spec.inputs}

    def is_source(self) -> bool:
        return not self.spec.inputs

    # --- what waits for the next commit -------------------------------------------------------------------------------

    def acknowledge(self, port: str, event: Event, inset_ids: Sequence[str] = ()) -> None:
        """Algorithm 2 Step 2; the rows are written by the next commit."""
        self.context.marks[port] = event.event_id
        receiver = Port(self.spec.name, port)
        self.ledger.receive(receiver, event, in_log=True)
        for inset_id in inset_ids:
            self.input_sets.assign(inset_id, (port, event.event_id))
            self.ledger.assign(receiver, event.event_id, inset_id)
        self.pending_bytes += len(event.body or b"")
        self.note_pending()

    def note_pending(self) -> None:
        if self.pending_since is None:
            self.pending_since = time.monotonic()

    def log_state(self, state_id: int, inset_id: str, packed: bytes) -> None:
        """Algorithm 3 Step 2, in the transaction that commits the trigger (hole H4)."""
        self.context.state_events[inset_id] = state_id
        self.input_sets.find(inset_id).state_pending = True
        self.snapshots[inset_id] = packed
        data = state_row(self.context, self._remembered, packed)
        kept = bool(self.spec.lineage_out)
        self.ledger.log_state(fx.LogStateEvent(self.spec.name, state_id, inset_id, data, kept=kept))
        self.note_pending()

    # --- the commit ---------------------------------------------------------------------------------------------------

    def commit(self, staged: Staged) -> None:
        """One fenced transaction: what is pending, what is staged, the author's state, the context.

        Raises `ApiMisuse` before anything is changed; `Fenced`, `EpochVoid`, `LogInconsistent`, `LogUnavailable` from the
        log, and again from every later call: after a refused commit the handle cannot be used.
        """
        self._check_state(staged)
        if staged.is_empty() and self.pending_since is None:
            return
        try:
            self._commit(self._effects(staged))
        except BaseException as error:
            self._broken = error
            raise
        self._settle(staged)

    def _commit(self, effects: fx.Effects) -> None:
        self.host.commit(effects)
        (self._row,) = (effect.data for effect in effects if isinstance(effect, fx.StoreState))

    def look(self, marker: Marker, row: MarkerRow) -> None:
        """The row of a marker, before the author's code applies anything by it: once per connection and epoch it is
        compared with the log, and the log is told before this returns (ADR-88).

        What is pending or staged is not committed with it: the row of the state goes out as it came in, without the note
        that the marker is to be compared. If the log has no such note, no number was given out since. Raises `Fenced`,
        `LogInconsistent`, and what `commit` raises.
        """
        connection = marker.connection
        if connection not in self.context.uncompared:
            return
        self.check_usable()
        compare(self.spec.name, connection, marker.token, row, self.context.uncompared[connection])
        try:
            kept = None if self._row is None else decode_state(self.spec.name, self._row)
            if kept is not None and kept.context.uncompared.pop(connection, None) is not None:
                data = encode_state(kept.context, kept.state)
                self._commit([fx.StoreState(self.spec.name, data), fx.MarkCompared(self.spec.name, connection)])
        except BaseException as error:
            self._broken = error
            raise
        del self.context.uncompared[connection]

    def _check_state(self, staged: Staged) -> None:
        if self.counted and staged.state is None:
            port, event_id = min(self.counted)
            raise self.refuse(
                f"its state counts event {event_id} of port {port!r} (update_context), but the transaction that would "
                "acknowledge the event does not store the state: recovery would find it without the event. Call store_state()"
            )
        if self.counted & self.unassigned.keys():
            port, event_id = min(self.counted & self.unassigned.keys())
            raise self.refuse(
                f"its state counts event {event_id} of port {port!r}, which is not assigned: after a failure the event "
                "would come again and be counted twice. Call assign_in_sets() before the commit, with () if no Input Set "
                "uses it"
            )

    def _effects(self, staged: Staged) -> fx.Effects:
        for inset_id in staged.closed:
            self._close(inset_id, staged)
        for event, _ in staged.outputs:
            self._produce(event)
        for effect in staged.effects:
            self.ledger.add(effect)
        for record in staged.reads:
            self.reads.put(record)
        self.events.settle()
        self.numbers.settle()
        if staged.state is not None:
            self.packed, self._remembered.last_state_id = staged.state, staged.state_id
        effects = self.ledger.close()
        effects.append(fx.StoreState(self.spec.name, state_row(self.context, self._remembered, self.packed)))
        return effects

    def _close(self, inset_id: str, staged: Staged) -> None:
        state = self.input_sets.close(inset_id)
        self.snapshots.pop(inset_id, None)
        if self.context.state_events.pop(inset_id, None) is not None:
            self.ledger.finish_state(self.spec.name, inset_id, keep=bool(self.spec.lineage_out))
        self.ledger.mark_done(self.spec.name, inset_id, state.pending, state.logged_rows)
        lineage = state.lineage or inset_id in staged.enriched
        for event, origin in staged.outputs:
            if origin == inset_id and lineage and event.sender.name in self.spec.lineage_out:
                self.ledger.add(fx.RecordLineage(event.sender, event.event_id, inset_id))

    def _produce(self, event: Event) -> None:
        port = event.sender.name
        self.ledger.produce(event, self._receivers[port], (), in_scope=port in self.spec.lineage_out)

    def _settle(self, staged: Staged) -> None:
        self.input_sets.settle()
        self.counted.clear()
        self.pending_since, self.pending_bytes = None, 0
        for action in staged.writes_done:
            self.writes.done(action)
        for action in staged.writes:
            self.writes.logged(action)
        for event, _ in staged.outputs:
            port = event.sender.name
            self.host.sent(port, event.event_id)
            if self._receivers[port]:
                self.unsent.add(port)

    # --- recovered ----------------------------------------------------------------------------------------------------

    def write_action(self, connection: str, number: int, about: Mapping[str, Any], records: pa.Table) -> WriteAction:
        """The value that `get_write_actions` gives, before and after a failure alike."""
        marker = self.host.marker(connection)
        return WriteAction(marker.run_uid, self.spec.name, connection, number, marker.token, records, dict(about))

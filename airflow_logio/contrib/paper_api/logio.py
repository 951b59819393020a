"""`Logio`: the LOG.io API (Section 6.2) for one hand-written operator."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from airflow_logio.contrib.paper_api.accounts import pack, unpack
from airflow_logio.contrib.paper_api.book import Book, Host, Station, Stopped
from airflow_logio.contrib.paper_api.infos import (
    AcknowledgedEvent,
    ActionInfo,
    EventInfo,
    ReadAction,
    StateInfo,
    StreamEvent,
)
from airflow_logio.contrib.paper_api.transaction import Transaction
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable, LogUnavailable
from airflow_logio.protocol.loop import FLUSH_EVENTS, FLUSH_SECONDS
from airflow_logio.protocol.recovery import LoggedEvent, Recovered, reload_order
from airflow_logio.protocol.source import READ_CONNECTION
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.rules.session_rules import Patience

T = TypeVar("T")
FETCH_EVENTS = 64
FETCH_BYTES = 8 * 2**20
POLL_SECONDS = 0.25
FLUSH_BYTES = 8 * 2**20


class Logio:
    """A handle of the log, bound to one operator of one incarnation of a driver: the paper's procInfo is never an argument.

    All methods belong to the thread of `ManualOperator.run`. Each may raise `ApiMisuse`, which names the correct call,
    and then changes nothing. Those that commit also raise what `Transaction.commit` raises. "Rides" means: written by
    the next commit of the handle, whichever it is (design D2).
    """

    def __init__(self, station: Station, session: GroupSession, host: Host, recovered: Recovered) -> None:
        self._book = Book(station, session, host, recovered)
        self._order = CallOrder(self._book, is_reloaded=not recovered.acknowledged)
        self._flow = EventFlow(self._book, self._order)
        self._acknowledged: Sequence[LoggedEvent] | None = recovered.acknowledged  # until fetch_ack_events() gives them
        for write in map(host.loaded, recovered.writes):
            self._book.writes.logged(
                self._book.write_action(write.connection, write.number, write.header, self._records(write))
            )
        for port in station.spec.outputs:
            host.sent(port, self._book.events.last_logged(port))

    # --- Table 7: identifiers -----------------------------------------------------------------------------------------

    def get_action_id(self, connection: str = READ_CONNECTION) -> int:
        """GetActionID (Table 7): a new identifier for a read action on a connection. Rides."""
        book = self._order.ready("get_action_id()")
        if connection != READ_CONNECTION and connection not in book.station.connections:
            raise book.refuse(f"it does not declare connection {connection!r}, which it tries to read")
        action_id = book.context.allocate_action()
        book.new_actions.add((action_id, connection))
        return action_id

    def get_state_id(self) -> int:
        """GetStateID (Table 7): a new identifier for a global state (Algorithm 3 Step 2). Rides."""
        return self._order.ready("get_state_id()").context.allocate_state()

    def get_event_id(self, port: str | None = None, *, connection: str | None = None) -> int:
        """GetEventID (Listing 2): the next id of an output port, or the next number of a write action on a connection.

        The transaction that logs the event uses it (Algorithm 3 Step 3). If that transaction is dropped, the id is
        given up.
        """
        book = self._order.ready("get_event_id()")
        if connection is not None and port is None:
            book.check_writable(connection)
            return book.numbers.allocate(connection)
        return book.events.allocate(book.output_port(port).name)

    def get_inset_id(self) -> str:
        """GetInSetID (Listing 2): the id of a new Input Set, never used before. Rides."""
        return self._order.ready("get_inset_id()").input_sets.create()

    # --- Table 7: transactions ----------------------------------------------------------------------------------------

    def begin_transaction(self) -> Transaction:
        """BeginTransaction (Table 7): a transaction (Table 8). Only one is open at a time. Send the output events of
        the previous one first: `send`."""
        self._order.ready("begin_transaction()")
        self._order.refuse_unsent("begin_transaction()")
        return self._order.begin()

    # --- Table 7: read actions of a source ----------------------------------------------------------------------------

    def initialize_read_action(self, action_info: ActionInfo, state_info: StateInfo, state: Mapping[str, Any]) -> None:
        """InitializeReadAction (Table 7): an incomplete entry in READ_ACTION, and the state that creates the action
        (Algorithm 1 Step 1). A transaction of its own."""
        self._order.refuse_not_source("initialize_read_action()")
        with self.begin_transaction() as transaction:
            transaction.start_read(action_info)
            transaction.store_state(state_info, state)

    def complete_read_action(self, action_info: ActionInfo, action_data: str, records: int) -> None:
        """CompleteReadAction (Table 7): the effect of a non-replayable action is stored at the reference `action_data`;
        event r is logged as undone (Algorithm 1 Step 2.b). A transaction of its own.

        `records` is the size of the effect. An empty effect, which makes no event, is done with this call (hole H5).
        The stored effect must be durable before the call.
        """
        self._order.refuse_not_source("complete_read_action()")
        with self.begin_transaction() as transaction:
            crash_here(CrashPoint.AFTER_STORE)
            transaction.complete_read(action_info, action_data, records)

    def drop_read_action(self, action_info: ActionInfo, discard: Callable[[str], object]) -> None:
        """DropReadAction (Table 7): discard the stored effect, delete event r (Algorithm 1 Step 2.d, Algorithm 6 Step
        3.a). `discard(action_data)` runs first, perhaps again after a failure; then a transaction of its own.

        Refused until the last event is logged: Listing 1 calls it inside the loop, which loses the rest (hole H5).
        """
        self._order.refuse_not_source("drop_read_action()")
        with self.begin_transaction() as transaction:
            transaction.drop_read(action_info)
            crash_here(CrashPoint.BEFORE_DROP)
            discard(str(self._book.reads.find(action_info).action_data))
            crash_here(CrashPoint.AFTER_DROP)

    # --- Table 7: state update and triggering -------------------------------------------------------------------------

    def check_event(self, event_info: EventInfo) -> bool:
        """CheckEvent (Table 7): whether an input event is not obsolete (Algorithm 2 Step 1).

        An id is obsolete if it is *less than or equal* to the mark of its port. The paper's "smaller" would accept the
        last event twice (hole H1). Raises `ProtocolViolation` for an event that comes too early. No transaction.
        """
        book = self._order.ready("check_event()")
        return not book.context.is_obsolete(self._order.input_port(event_info), event_info.event_id)

    def update_context(self, event_info: EventInfo) -> bool:
        """UpdateContext (Table 7): the author is about to update the global state with an event (Algorithm 2 Step 2).

        False if the stored state counts the event already, as it does for every event of `fetch_ack_events`: skip the
        update then. True obliges the next commit to store the state, with the event assigned. Rides.
        """
        book = self._order.ready("update_context()")
        key = (self._order.input_port(event_info), event_info.event_id)
        if event_info.event_id <= book.marks_at_start.get(key[0], 0):
            return False
        if key not in book.unassigned or key in book.counted:
            raise book.refuse(f"{event_info} is counted by the state already, or assigned, or was not received")
        book.counted.add(key)
        return True

    def assign_in_sets(self, inset_ids: Sequence[str], event_info: EventInfo) -> None:
        """AssignInSets (Table 7): the Input Sets of a received event, one row each (Algorithm 2 Step 2). Rides.

        Assign an event that no Input Set uses to ``()``: it is then done with its acknowledgement (hole H6).
        """
        book = self._order.ready("assign_in_sets()")
        key = (self._order.input_port(event_info), event_info.event_id)
        if key not in book.unassigned:
            raise book.refuse(
                f"{event_info} cannot be assigned: it was not received, or is assigned. An event of fetch_ack_events() is "
                "assigned as the log says; recovery updates the event state of that Input Set only"
            )
        if len(set(inset_ids)) < len(inset_ids):
            raise book.refuse(f"{event_info} is assigned twice to one Input Set: {list(inset_ids)}")
        for inset_id in inset_ids:
            book.input_sets.joinable(inset_id)
        book.acknowledge(key[0], book.unassigned.pop(key), inset_ids)

    def trigger(self, inset_id: str) -> None:
        """The triggering condition of an Input Set holds (Algorithm 2 Step 3); beyond the paper's table. Rides, and so
        commits with the assignment that caused it (design D2): recovery finds it in `triggered_in_sets`."""
        self._order.ready("trigger()").input_sets.trigger(inset_id)
        self._book.note_pending()

    def log_state_event(self, state_info: StateInfo, inset_id: str, state: Mapping[str, Any]) -> None:
        """LogStateEvent (Table 7): `trigger`, with an undone event for the global state that the generation will read
        (Algorithm 3 Step 2). Rides, with the trigger (hole H4); `get_proc_state(inset_id)` gives the state back."""
        book = self._order.ready("log_state_event()")
        book.check_state_id(state_info)
        packed = pack(book.spec.name, state)
        self.trigger(inset_id)
        book.log_state(state_info.state_id, inset_id, packed)

    # --- Table 7: write actions ---------------------------------------------------------------------------------------

    def get_write_actions(self) -> Sequence[WriteAction]:
        """GetWriteActions (Table 7): committed write actions that are not done, in order per connection (Algorithm 8
        Step 1). After a failure the first ones may have been executed. No transaction."""
        self._book.check_usable()
        self._order.refuse_transaction("get_write_actions()")
        return self._book.writes.undone()

    def done_event(self, *event_info: EventInfo | ActionInfo | WriteAction) -> None:
        """DoneEvent, outside a transaction (Listings 2 and 3): `Transaction.done_event` in one of its own."""
        self._book.check_usable()
        with self._order.begin() as transaction:
            for info in event_info:
                transaction.done_event(info)

    # --- Table 9: recovery, called at every start; at the first there is nothing to recover ---------------------------

    def fetch_resend_events(self) -> Iterator[StreamEvent]:
        """FetchResendEvents (Table 9): undone, unassigned output events, in order per port (Algorithm 7 Step 1).

        Give each port to `send`. No transaction.
        """
        self._book.check_usable()
        for port in self._book.spec.outputs:
            last = 0
            for event in self._flow.undelivered(port):
                if event.event_id > last and event.kind is Kind.DATA:
                    last = event.event_id
                    yield StreamEvent(EventInfo(last, port, about=event.about), self._book.host.decode(event))

    def initialize_context(self) -> Mapping[str, int]:
        """InitializeContext (Listing 3): the LOG.io context, from STATE (Algorithm 9 Step 1). No transaction.

        Returns the mark of each input port. Identifiers and transactions are refused before it.
        """
        self._book.check_usable()
        self._order.is_initialized = True
        return self._book.marks()

    def get_proc_state(self, inset_id: str | None = None) -> dict[str, Any] | None:
        """GetProcState (Table 9): the latest global state, None if none is stored (Algorithm 9 Step 1); with `inset_id`,
        the one logged for that Input Set by `log_state_event`. The caller gets its own copy. No transaction."""
        self._book.check_usable()
        if inset_id is None:
            return None if self._book.packed is None else unpack(self._book.packed)
        if inset_id not in self._book.snapshots:
            raise self._book.refuse(f"no state is logged for Input Set {inset_id!r}: log_state_event() does that")
        return unpack(self._book.snapshots[inset_id])

    def fetch_ack_events(self) -> Iterator[AcknowledgedEvent]:
        """FetchAckEvents (Table 9): undone events that are assigned, once per Input Set (Algorithm 9 Step 2), by turns
        between the ports. Consume all of it, once, and update only the event state of `inset_id`. No transaction.

        Trigger nothing before the last one is back: Listing 3 calls onInput for each, which would generate from a part of
        an Input Set (hole H2). Then generate `triggered_in_sets`, then evaluate the conditions.
        """
        book = self._order.ready("fetch_ack_events()")
        acknowledged, self._acknowledged = self._acknowledged, None
        if acknowledged is None:
            raise book.refuse("fetch_ack_events() has given its events already")
        for logged in reload_order(acknowledged, {}):
            assert logged.inset_id is not None
            port, event = logged.receiver.name, logged.event
            book.input_sets.reload(logged.inset_id, (port, event.event_id))
            info = EventInfo(event.event_id, port, about=event.about)
            yield AcknowledgedEvent(info, book.host.decode(event), logged.inset_id)
        self._order.is_reloaded = True

    def triggered_in_sets(self) -> Sequence[str]:
        """Input Sets that are triggered and not done, in order (hole H2). Not in the paper's table."""
        return tuple(self._order.ready("triggered_in_sets()").context.triggered)

    def last_read_action(self) -> ReadAction | None:
        """The last read action on record, None before the first (Algorithm 6 Step 2). Not in the paper's table."""
        self._book.check_usable()
        return self._book.reads.last()

    # --- beyond the tables: events in and out, external actions, the end ----------------------------------------------

    def receive(
        self, port: str | None = None, *, state: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> StreamEvent | None:
        """The next event of an input port, of any by default; waits for one.

        None when these ports have ended (`has_ended`), or after `timeout` seconds. `state` is the global state as it is
        now, needed if `update_context` has been called since the last commit: acknowledgements that nothing else has
        committed are flushed from here, with it. Raises `Stopped`.
        """
        book = self._order.ready("receive()")
        self._order.check_receivable(port)
        ports = [port] if port is not None else list(book.spec.inputs)
        if book.counted and state is None:
            raise book.refuse(
                "its state has changed since the last commit: receive(state=...), so that it can be flushed"
            )
        return self._flow.receive(ports, state, timeout)

    def has_ended(self, *ports: str) -> bool:
        """The streams of these input ports have ended, of all by default."""
        return self._flow.has_ended(*ports)

    def send(self, port: str) -> None:
        """Algorithm 3 Step 5. The log is the channel, so a committed event is on its way: this wakes the receivers, and
        waits while the slowest lags by the run's backlog bound. Raises `Stopped`."""
        self._book.check_usable()
        self._order.refuse_transaction("send()")
        self._book.output_port(port)
        self._flow.send(port)

    def execute_read(self, action_info: ActionInfo, execute: Callable[[], T]) -> T:
        """Execute a read action (Algorithms 1 and 4); again, with back-off, while it raises `ExternalUnavailable`
        or an error that means the same (`dataflow.unavailability`)."""
        stores = self._order.ready("execute_read()").is_source() and not action_info.replayable
        if stores:
            crash_here(CrashPoint.BEFORE_STORE)
        crash_here(CrashPoint.BEFORE_READ)
        effect = self._flow.replayed(f"{action_info}", execute)
        crash_here(CrashPoint.AFTER_READ)
        if stores:
            crash_here(CrashPoint.IN_STORE)
        return effect

    def execute_write(self, action: WriteAction, execute: Callable[[WriteAction], T]) -> T:
        """Execute the write action that is due on its connection (Algorithm 5 Steps 1 and 2); again, with back-off, while
        it raises `ExternalUnavailable` or an error that means the same (`dataflow.unavailability`). The external system's
        marker makes it exactly once: `marker`."""
        self._book.check_usable()
        self._order.refuse_transaction("execute_write()")
        self._book.writes.check_due(action.connection, action.number)
        crash_here(CrashPoint.BEFORE_WRITE)
        answer = self._flow.replayed(f"write action {action.key}", lambda: execute(action))
        crash_here(CrashPoint.AFTER_WRITE)
        return answer

    def end_of_stream(self, state: Mapping[str, Any] | None = None) -> None:
        """Log the end of the stream on every output port (design D9), once; a transaction of its own.

        Refused while work remains: inputs that have not ended, Input Sets that hold events, write actions or
        read actions under way. Called by the driver when `run` returns.
        """
        book = self._order.ready("end_of_stream()")
        if book.context.finished:
            return
        self._order.check_finishable(state_given=state is not None)
        with self._order.begin() as transaction:
            transaction.end_ports()
            if state is not None:
                transaction.store_state(StateInfo(book.context.allocate_state()), state)
            book.context.finished = True
            book.note_pending()
        for port in book.spec.outputs:
            self.send(port)

    @property
    def has_finished(self) -> bool:
        """The end of the stream is logged: nothing is left to do."""
        return self._book.context.finished

    @property
    def is_stopping(self) -> bool:
        """The group was asked to halt; `receive` and `send` raise `Stopped` then."""
        return self._book.host.is_stopping()

    @property
    def is_draining(self) -> bool:
        """The group was asked to drain: a hand-written source must stop reading. It marks what it has read as done, and
        returns.

        No exception announces it. Check between two batches and before each read action; a source that never checks
        reads to its own end. Never true where there are input ports: such an operator ends when they have.
        """
        return self._book.host.is_draining()

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of the run."""
        return self._book.host.params

    @property
    def run_uid(self) -> str:
        """Unique over all runs and all logs."""
        return self.marker("").run_uid

    @property
    def token(self) -> int:
        """The fencing token of this driver: it rises with every recovery. Put it into every name that a zombie must not
        touch."""
        return self.marker("").token

    def url(self, connection: str) -> str:
        """URL of a declared connection. Keep it out of logs, states and descriptions."""
        if connection not in self._book.station.connections:
            raise self._book.refuse(f"it does not declare connection {connection!r}")
        return self._book.host.url(connection)

    def marker(self, connection: str) -> Marker:
        """The writer's identity: run, fencing token, and the key of the high-water row of a conditional system.

        Where `Marker.unapplied` sees that row, it also notices a log that has lost commits.
        """
        marker = self._book.host.marker(connection)
        return replace(marker, look=partial(self._book.look, marker))

    def encode(self, table: pa.Table) -> bytes:
        """A table as bytes, for a state or a file: an Arrow IPC stream."""
        return self._book.host.encode(table)

    def decode(self, body: bytes) -> pa.Table:
        """The table of `encode`; raises `LogInconsistent`."""
        return self._book.host.decode(Event(Port(self._book.spec.name, "encoded"), 1, Kind.DATA, 0, None, body))

    @property
    def last_received(self) -> EventInfo | None:
        """The last event that `receive` has given, for messages."""
        return self._book.last_received

    def _records(self, write: PendingWrite) -> pa.Table:
        if not write.body:
            return pa.table({})
        event = Event(Port(write.operator, write.connection), write.number, Kind.DATA, write.records, None, write.body)
        return self._book.host.decode(event)


# --- which call may come when -----------------------------------------------------------------------------------------


class CallOrder:
    """The allowed order of calls: one transaction at a time, then `send`; recovery comes before anything new.

    A method that refuses a call raises `ApiMisuse`, which names the correct call, and changes nothing.
    """

    def __init__(self, book: Book, *, is_reloaded: bool) -> None:
        self._book = book
        self._transaction: Transaction | None = None
        self.is_initialized = False
        """`initialize_context` was called."""
        self.is_reloaded = is_reloaded
        """`fetch_ack_events` had nothing to return, or has returned everything."""

    def ready(self, what: str) -> Book:
        """The book, if the context is restored."""
        self._book.check_usable()
        if not self.is_initialized:
            raise self._book.refuse(f"{what} comes after initialize_context(), at the first start too")
        return self._book

    def begin(self) -> Transaction:
        """A transaction, if no other is open."""
        self.refuse_transaction("another transaction")
        self._transaction = Transaction(self._book)
        return self._transaction

    def refuse_transaction(self, what: str) -> None:
        """Refuse `what` while a transaction is open."""
        if self._transaction is not None and self._transaction.is_open:
            raise self._book.refuse(f"{what} while a transaction is open: commit() it first")

    def refuse_unsent(self, what: str) -> None:
        """Refuse `what` while logged events wait for `send`."""
        if self._book.unsent:
            port = min(self._book.unsent)
            raise self._book.refuse(
                f"{what} while events of port {port!r} are logged and not sent: send({port!r}) first"
            )

    def refuse_not_source(self, what: str) -> None:
        """Refuse `what` to an operator with input ports."""
        if not self._book.is_source():
            raise self._book.refuse(
                f"{what} is for sources; a read action of a generation is logged by Transaction.log_read_event()"
            )

    def input_port(self, event_info: EventInfo) -> str:
        """The port of an input event."""
        if event_info.port not in self._book.spec.inputs:
            raise self._book.refuse(f"{event_info} is not of an input port")
        return str(event_info.port)

    def check_receivable(self, port: str | None) -> None:
        """Whether `receive` may come now, of this port or of any. Raises `ApiMisuse`."""
        book = self._book
        self.refuse_transaction("receive()")
        self.refuse_unsent("receive()")
        if book.is_source() or (port is not None and port not in book.spec.inputs):
            raise book.refuse(f"it has no input port {port!r} (it has: {', '.join(book.spec.inputs) or 'none'})")
        if not self.is_reloaded:
            raise book.refuse(
                "receive() comes after fetch_ack_events(): there are acknowledged events to recover first"
            )
        if book.unassigned:
            name, event_id = min(book.unassigned)
            raise book.refuse(
                f"event {event_id} of port {name!r} was received and not assigned: assign_in_sets() comes before the next "
                "receive(), with () if no Input Set uses it"
            )

    def check_finishable(self, *, state_given: bool) -> None:
        """Check that the stream may end now. Raises `ApiMisuse` that names the remaining work."""
        book = self._book
        self.refuse_transaction("end_of_stream()")
        self.refuse_unsent("end_of_stream()")
        left = ""
        if not book.context.ended.issuperset(book.spec.inputs):
            left = "its input ports have not ended"
        elif book.unassigned:
            left = f"event {min(book.unassigned)[1]} is not assigned"
        elif book.counted and not state_given:
            left = "its state has changed since the last commit (end_of_stream(state=...) stores it)"
        elif not self.is_reloaded:
            left = "acknowledged events are not recovered (fetch_ack_events)"
        elif names := book.input_sets.with_events():
            left = f"Input Set {names[0]!r} is not done, and nothing would ever generate it"
        elif writes := book.writes.undone():
            left = f"write action {writes[0].number} on connection {writes[0].connection!r} is not done"
        elif reads := book.reads.pending():
            left = f"read action {reads[0].action_id} is {reads[0].progress}"
        if left:
            raise book.refuse(f"the stream cannot end: {left}")


# --- events in and out ------------------------------------------------------------------------------------------------


class EventFlow:
    """Moves events out of the log and into it, and waits for both.

    Every wait raises `Stopped` as soon as the group is asked to halt.
    """

    def __init__(self, book: Book, order: CallOrder) -> None:
        self._book = book
        self._order = order
        self._inbox = Inbox(book.session, book.spec.name, book.marks())

    def receive(
        self, ports: Sequence[str], state: Mapping[str, Any] | None, timeout: float | None
    ) -> StreamEvent | None:
        """The next event of these input ports; None when they have ended, or after `timeout` seconds. Flushes meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._is_flush_due():
            self._flush(state)
        while (event := self._next_event(ports)) is None:
            if self.has_ended(*ports):
                self._flush(state)
                return None
            if self._is_flush_due():
                self._flush(state)
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._pause(POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic()))
        return event

    def has_ended(self, *ports: str) -> bool:
        """The streams of these input ports have ended, of all by default."""
        return self._book.context.ended.issuperset(ports or self._book.spec.inputs)

    def send(self, port: str) -> None:
        """Wake the receivers of what is logged on an output port, and wait while the slowest receiver lags too far."""
        self._book.unsent.discard(port)
        if groups := self._book.host.groups_behind(port):
            self._book.session.announce(groups)
        self._refuse_stopping()  # a source may call nothing else that says so
        while self._book.host.is_full(port):
            self._pause(POLL_SECONDS)

    def undelivered(self, port: str) -> Iterator[Event]:
        """Undone, unassigned events of an output port in order, once per receiver."""
        receivers = self._book.station.receivers.get(port, ())
        return heapq.merge(*map(self._undelivered_to, receivers), key=lambda event: event.event_id)

    def replayed(self, what: str, execute: Callable[[], T]) -> T:
        """Execute an external action; again, with back-off, while the external system is unavailable."""
        try:
            return self._book.host.replay(what, execute)
        except ExternalUnavailable as error:
            if self._book.host.is_stopping():  # that is why it was given up
                raise Stopped from error
            raise

    # --- inside -------------------------------------------------------------------------------------------------------

    def _undelivered_to(self, receiver: Port) -> Iterator[Event]:
        after = 0
        while events := self._next_undelivered(receiver, after):
            yield from (logged.event for logged in events)
            after = events[-1].event.event_id

    def _next_undelivered(self, receiver: Port, after: int) -> Sequence[LoggedEvent]:
        session = self._book.session
        return Patience().call(
            f"events for {receiver}",
            lambda: session.fetch(receiver, after, max_events=FETCH_EVENTS, max_bytes=FETCH_BYTES),
        )

    def _next_event(self, ports: Sequence[str]) -> StreamEvent | None:
        book = self._book
        self._refuse_stopping()
        while (taken := self._inbox.take([port for port in ports if not self.has_ended(port)])) is not None:
            port, event = taken
            if event.kind is Kind.DATA:
                book.unassigned[port, event.event_id] = event
                info = book.last_received = EventInfo(event.event_id, port, about=event.about)
                return StreamEvent(info, book.host.decode(event))
            book.acknowledge(port, event)
            if event.kind is Kind.END:  # and not one that was taken back
                book.context.ended.add(port)
        return None

    def _is_flush_due(self) -> bool:
        book = self._book
        if book.pending_since is None:
            return False
        late = time.monotonic() - book.pending_since >= FLUSH_SECONDS
        return late or book.ledger.received >= FLUSH_EVENTS or book.pending_bytes >= FLUSH_BYTES

    def _flush(self, state: Mapping[str, Any] | None) -> None:
        """Commit riding rows, so that the senders and the next incarnation see them (design D2)."""
        if self._book.pending_since is None:
            return
        with self._order.begin() as transaction:
            if state is not None:
                transaction.store_state(StateInfo(self._book.context.allocate_state()), state)

    def _pause(self, seconds: float) -> None:
        self._refuse_stopping()
        self._book.session.wait(max(0.0, seconds))
        self._book.host.idle()
        self._refuse_stopping()

    def _refuse_stopping(self) -> None:
        if self._book.host.is_stopping():
            raise Stopped


class Inbox:
    """Events on their way to the operator, pulled from the log (design D5: the log is the channel).

    `marks` are the last acknowledged event ids of the input ports; the ports take turns.
    """

    def __init__(self, session: GroupSession, operator: str, marks: Mapping[str, int]) -> None:
        self._session = session
        self._operator = operator
        self._cursors = dict(marks)
        self._fetched: dict[str, deque[Event]] = {port: deque() for port in marks}

    def take(self, ports: Iterable[str]) -> tuple[str, Event] | None:
        """The next event of one of these ports, if there is one: those already fetched first, then by turns."""
        for port in self._by_turns(ports):
            if not self._fetched[port]:
                self._fetch(port)
            if self._fetched[port]:
                event = self._fetched[port].popleft()
                # Its turn is over: the other ports come first the next time.
                self._fetched[port] = self._fetched.pop(port)
                return port, event
        return None

    def _by_turns(self, ports: Iterable[str]) -> Sequence[str]:
        wanted = set(ports)
        return [port for port in self._fetched if port in wanted]

    def _fetch(self, port: str) -> None:
        receiver = Port(self._operator, port)
        try:
            events = self._session.fetch(receiver, self._cursors[port], max_events=FETCH_EVENTS, max_bytes=FETCH_BYTES)
        except LogUnavailable:
            return  # delivery only waits for the log; the next commit reports an outage that lasts
        self._fetched[port].extend(logged.event for logged in events)
        if events:
            self._session.will_hear()  # says again that this group waits, if it was not told of them
            self._cursors[port] = events[-1].event.event_id

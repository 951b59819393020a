"""What the listings leave to custom functions and every author needs: events in and out, external actions, the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from airflow_logio.api.handle import Handle
from airflow_logio.api.host import Stopped
from airflow_logio.api.inbox import Inbox
from airflow_logio.api.infos import ActionInfo, EventInfo, StateInfo, StreamEvent
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.write_actions import Marker, WriteAction
from airflow_logio.errors import ExternalUnavailable
from airflow_logio.protocol.values import Event, Kind, Port

T = TypeVar("T")

POLL_SECONDS = 0.25
FLUSH_SECONDS = 0.25
FLUSH_EVENTS = 512
FLUSH_BYTES = 8 * 2**20


class StreamMethods(Handle):
    """Beyond the paper's tables."""

    _inbox: Inbox
    _reloaded: bool

    def receive(
        self, port: str | None = None, *, state: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> StreamEvent | None:
        """The next event of an input port, of any by default; waits for one.

        None when these ports have ended (`has_ended`), or after `timeout` seconds. `state` is the global state as it is
        now, needed if `update_context` has been called since the last commit: acknowledgements that nothing else has
        committed are flushed from here, with it. Raises `Stopped`.
        """
        book = self._ready("receive()")
        self._check_receivable(port)
        ports = [port] if port is not None else list(book.spec.inputs)
        if book.counted and state is None:
            raise book.refuse(
                "its state has changed since the last commit: receive(state=...), so that it can be flushed"
            )
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._is_flush_due():
            self._flush(state)
        while (event := self._next_event(ports)) is None:
            if self.has_ended(*ports):
                self._flush(state)
                return None
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._pause(POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic()))
            if self._is_flush_due():
                self._flush(state)
        return event

    def has_ended(self, *ports: str) -> bool:
        """The streams of these input ports have ended, of all by default."""
        return self._book.context.ended.issuperset(ports or self._book.spec.inputs)

    def send(self, port: str) -> None:
        """Algorithm 3 Step 5. The log is the channel, so a committed event is on its way: this wakes the receivers, and
        waits while the slowest lags by the run's backlog bound. Raises `Stopped`."""
        self._book.check_usable()
        self._refuse_transaction("send()")
        self._book.output_port(port)
        self._book.unsent.discard(port)
        if groups := self._book.host.groups_behind(port):
            self._book.session.announce(groups)
        self._refuse_stopping()  # a source may call nothing else that says so
        while self._book.host.is_full(port):
            self._pause(POLL_SECONDS)

    def execute_read(self, action_info: ActionInfo, execute: Callable[[], T]) -> T:
        """Execute a read action (Algorithms 1 and 4); again, with back-off, while it raises `ExternalUnavailable`."""
        stores = self._ready("execute_read()").is_source() and not action_info.replayable
        if stores:
            crash_here(CrashPoint.BEFORE_STORE)
        crash_here(CrashPoint.BEFORE_READ)
        effect = self._replayed(f"{action_info}", execute)
        crash_here(CrashPoint.AFTER_READ)
        if stores:
            crash_here(CrashPoint.IN_STORE)
        return effect

    def execute_write(self, action: WriteAction, execute: Callable[[WriteAction], T]) -> T:
        """Execute the write action that is due on its connection (Algorithm 5 Steps 1 and 2); again, with back-off, while
        it raises `ExternalUnavailable`. What makes it exactly once is the external system's marker: `marker`."""
        self._book.check_usable()
        self._refuse_transaction("execute_write()")
        self._book.writes.check_due(action.connection, action.number)
        crash_here(CrashPoint.BEFORE_WRITE)
        answer = self._replayed(f"write action {action.key}", lambda: execute(action))
        crash_here(CrashPoint.AFTER_WRITE)
        return answer

    def end_of_stream(self, state: Mapping[str, Any] | None = None) -> None:
        """Log the end of the stream on every output port (design D9), once; a transaction of its own.

        Refused while anything is left to do: inputs that have not ended, Input Sets that hold events, write actions or
        read actions under way. Called by the driver when `run` returns.
        """
        book = self._ready("end_of_stream()")
        if book.context.finished:
            return
        self._check_finishable(state)
        with self._begin() as transaction:
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
        """The group was asked to drain: a source by hand reads no further. It marks what it has read done, and returns.

        Nothing is raised for it. Ask between two batches and before each read action; a source that never asks goes on
        until its own end. Never true where there are input ports: such an operator ends when they have.
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
        """The fencing token of this driver: it rises with every recovery. Name with it what a zombie must not touch."""
        return self.marker("").token

    def url(self, connection: str) -> str:
        """URL of a declared connection. Keep it out of logs, states and descriptions."""
        if connection not in self._book.station.connections:
            raise self._book.refuse(f"it does not declare connection {connection!r}")
        return self._book.host.url(connection)

    def marker(self, connection: str) -> Marker:
        """Who writes: the key of the high-water row that a conditional external system keeps, run and fencing token."""
        return self._book.host.marker(connection)

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

    # --- inside -------------------------------------------------------------------------------------------------------

    def _check_receivable(self, port: str | None) -> None:
        book = self._book
        self._refuse_transaction("receive()")
        self._refuse_unsent("receive()")
        if book.is_source() or (port is not None and port not in book.spec.inputs):
            raise book.refuse(f"it has no input port {port!r} (it has: {', '.join(book.spec.inputs) or 'none'})")
        if not self._reloaded:
            raise book.refuse(
                "receive() comes after fetch_ack_events(): there are acknowledged events to recover first"
            )
        if book.unassigned:
            name, event_id = min(book.unassigned)
            raise book.refuse(
                f"event {event_id} of port {name!r} was received and not assigned: assign_in_sets() comes before the next "
                "receive(), with () if no Input Set uses it"
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
        """Commit what rides, so that its senders and the next incarnation know (design D2)."""
        if self._book.pending_since is None:
            return
        with self._begin() as transaction:
            if state is not None:
                transaction.store_state(StateInfo(self._book.context.allocate_state()), state)

    def _replayed(self, what: str, execute: Callable[[], T]) -> T:
        try:
            return self._book.host.replay(what, execute)
        except ExternalUnavailable as error:
            if self._book.host.is_stopping():  # that is why it was given up
                raise Stopped from error
            raise

    def _pause(self, seconds: float) -> None:
        self._refuse_stopping()
        self._book.session.wait(max(0.0, seconds))
        self._book.host.idle()
        self._refuse_stopping()

    def _refuse_stopping(self) -> None:
        if self._book.host.is_stopping():
            raise Stopped

    def _check_finishable(self, state: Mapping[str, Any] | None) -> None:
        book = self._book
        self._refuse_transaction("end_of_stream()")
        self._refuse_unsent("end_of_stream()")
        left = ""
        if not self.has_ended():
            left = "its input ports have not ended"
        elif book.unassigned:
            left = f"event {min(book.unassigned)[1]} is not assigned"
        elif book.counted and state is None:
            left = "its state has changed since the last commit (end_of_stream(state=...) stores it)"
        elif not self._reloaded:
            left = "acknowledged events are not recovered (fetch_ack_events)"
        elif names := book.input_sets.with_events():
            left = f"Input Set {names[0]!r} is not done, and nothing would ever generate it"
        elif writes := book.writes.undone():
            left = f"write action {writes[0].number} on connection {writes[0].connection!r} is not done"
        elif reads := book.reads.pending():
            left = f"read action {reads[0].action_id} is {reads[0].progress}"
        if left:
            raise book.refuse(f"the stream cannot end: {left}")

"""The recovery methods (Section 6.2, Table 9), and what Listing 3 needs beside them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_logio.api import stored
from airflow_logio.api.handle import Handle
from airflow_logio.api.inbox import FETCH_BYTES, FETCH_EVENTS
from airflow_logio.api.infos import AcknowledgedEvent, EventInfo, ReadAction, StreamEvent
from airflow_logio.protocol.recovery import LoggedEvent, reload_order
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.rules.patience import Patience


class RecoveryMethods(Handle):
    """Called at every start, the first included: there is nothing to recover then."""

    _acknowledged: Sequence[LoggedEvent] | None
    """What `fetch_ack_events` has to give; None while and after it does."""
    _reloaded: bool

    def fetch_resend_events(self) -> Iterator[StreamEvent]:
        """FetchResendEvents (Table 9): undone, unassigned output events, in order per port (Algorithm 7 Step 1).

        Give each port to `send`. No transaction.
        """
        self._book.check_usable()
        for port in self._book.spec.outputs:
            last = 0
            for event in self._undelivered(port):
                if event.event_id > last and event.kind is Kind.DATA:
                    last = event.event_id
                    yield StreamEvent(EventInfo(last, port, about=event.about), self._book.host.decode(event))

    def initialize_context(self) -> Mapping[str, int]:
        """InitializeContext (Listing 3): the LOG.io context, from STATE (Algorithm 9 Step 1). No transaction.

        Returns the mark of each input port. Identifiers and transactions are refused before it.
        """
        self._book.check_usable()
        self._initialized = True
        return self._marks()

    def get_proc_state(self, inset_id: str | None = None) -> dict[str, Any] | None:
        """GetProcState (Table 9): the latest global state, None if none is stored (Algorithm 9 Step 1); with `inset_id`,
        the one logged for that Input Set by `log_state_event`. A copy of the caller's own. No transaction."""
        self._book.check_usable()
        if inset_id is None:
            return None if self._book.packed is None else stored.unpack(self._book.packed)
        if inset_id not in self._book.snapshots:
            raise self._book.refuse(f"no state is logged for Input Set {inset_id!r}: log_state_event() does that")
        return stored.unpack(self._book.snapshots[inset_id])

    def fetch_ack_events(self) -> Iterator[AcknowledgedEvent]:
        """FetchAckEvents (Table 9): undone events that are assigned, once per Input Set (Algorithm 9 Step 2), by turns
        between the ports. Consume it wholly, once; update only the event state of `inset_id`. No transaction.

        Trigger nothing before the last one is back: Listing 3 calls onInput for each, which would generate from a part of
        an Input Set (hole H2). Then generate `triggered_in_sets`, then evaluate the conditions.
        """
        book = self._ready("fetch_ack_events()")
        acknowledged, self._acknowledged = self._acknowledged, None
        if acknowledged is None:
            raise book.refuse("fetch_ack_events() has given its events already")
        for logged in reload_order(acknowledged, {}):
            assert logged.inset_id is not None
            port, event = logged.receiver.name, logged.event
            book.input_sets.reload(logged.inset_id, (port, event.event_id))
            info = EventInfo(event.event_id, port, about=event.about)
            yield AcknowledgedEvent(info, book.host.decode(event), logged.inset_id)
        self._reloaded = True

    def triggered_in_sets(self) -> Sequence[str]:
        """Input Sets that are triggered and not done, in order (hole H2); beyond the paper's table."""
        return tuple(self._ready("triggered_in_sets()").context.triggered)

    def last_read_action(self) -> ReadAction | None:
        """The last read action on record, None before the first (Algorithm 6 Step 2); beyond the paper's table."""
        self._book.check_usable()
        return self._book.reads.last()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _undelivered(self, port: str) -> Iterator[Event]:
        """Undone, unassigned events of an output port in order, once per receiver."""
        receivers = self._book.station.receivers.get(port, ())
        return heapq.merge(*map(self._undelivered_to, receivers), key=lambda event: event.event_id)

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

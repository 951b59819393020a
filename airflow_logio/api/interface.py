"""The interface methods (Section 6.2, Table 7), and the methods that the listings use beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airflow_logio.api import stored
from airflow_logio.api.handle import Handle
from airflow_logio.api.infos import ActionInfo, EventInfo, StateInfo
from airflow_logio.api.transaction import Transaction
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.protocol.source import READ_CONNECTION


class InterfaceMethods(Handle):
    """ "Rides" means: written by the next commit of the handle, whichever it is (design D2)."""

    # --- Table 7: identifiers -----------------------------------------------------------------------------------------

    def get_action_id(self, connection: str = READ_CONNECTION) -> int:
        """GetActionID (Table 7): a new identifier for a read action on a connection. Rides."""
        book = self._ready("get_action_id()")
        if connection != READ_CONNECTION and connection not in book.station.connections:
            raise book.refuse(f"it does not declare connection {connection!r}, which it wants to read")
        action_id = book.context.allocate_action()
        book.new_actions.add((action_id, connection))
        return action_id

    def get_state_id(self) -> int:
        """GetStateID (Table 7): a new identifier for a global state (Algorithm 3 Step 2). Rides."""
        return self._ready("get_state_id()").context.allocate_state()

    def get_event_id(self, port: str | None = None, *, connection: str | None = None) -> int:
        """GetEventID (Listing 2): the next id of an output port, or the next number of a write action on a connection.

        It is used by the transaction that logs the event (Algorithm 3 Step 3); given up if that is dropped.
        """
        book = self._ready("get_event_id()")
        if connection is not None and port is None:
            book.check_writable(connection)
            return book.numbers.allocate(connection)
        return book.events.allocate(book.output_port(port).name)

    def get_inset_id(self) -> str:
        """GetInSetID (Listing 2): the id of a new Input Set, never used before. Rides."""
        return self._ready("get_inset_id()").input_sets.create()

    # --- Table 7: transactions ----------------------------------------------------------------------------------------

    def begin_transaction(self) -> Transaction:
        """BeginTransaction (Table 7): a transaction (Table 8). One at a time, and no transaction before output events of
        the one before are sent: `send`."""
        self._ready("begin_transaction()")
        self._refuse_unsent("begin_transaction()")
        return self._begin()

    # --- Table 7: read actions of a source ----------------------------------------------------------------------------

    def initialize_read_action(self, action_info: ActionInfo, state_info: StateInfo, state: Mapping[str, Any]) -> None:
        """InitializeReadAction (Table 7): an incomplete entry in READ_ACTION, and the state that creates the action
        (Algorithm 1 Step 1). A transaction of its own."""
        self._refuse_not_source("initialize_read_action()")
        with self.begin_transaction() as transaction:
            transaction.start_read(action_info)
            transaction.store_state(state_info, state)

    def complete_read_action(self, action_info: ActionInfo, action_data: str, records: int) -> None:
        """CompleteReadAction (Table 7): the effect of a non-replayable action is stored at the reference `action_data`;
        event r is logged as undone (Algorithm 1 Step 2.b). A transaction of its own.

        `records` is the size of the effect: an empty one, of which no event is made, is done with this (hole H5).
        The stored effect must be durable before the call.
        """
        self._refuse_not_source("complete_read_action()")
        with self.begin_transaction() as transaction:
            crash_here(CrashPoint.AFTER_STORE)
            transaction.complete_read(action_info, action_data, records)

    def drop_read_action(self, action_info: ActionInfo, discard: Callable[[str], object]) -> None:
        """DropReadAction (Table 7): discard the stored effect, delete event r (Algorithm 1 Step 2.d, Algorithm 6 Step
        3.a). `discard(action_data)` runs first, perhaps again after a failure; then a transaction of its own.

        Refused until the last event is logged: Listing 1 calls it inside the loop, which loses the rest (hole H5).
        """
        self._refuse_not_source("drop_read_action()")
        with self.begin_transaction() as transaction:
            transaction.drop_read(action_info)
            crash_here(CrashPoint.BEFORE_DROP)
            discard(str(self._book.reads.find(action_info).action_data))
            crash_here(CrashPoint.AFTER_DROP)

    # --- Table 7: state update and triggering -------------------------------------------------------------------------

    def check_event(self, event_info: EventInfo) -> bool:
        """CheckEvent (Table 7): whether an input event is not obsolete (Algorithm 2 Step 1).

        Obsolete is an id *less than or equal* to the mark of its port; the paper's "smaller" lets the last one pass twice
        (hole H1). Raises `ProtocolViolation` for an event that comes too early. No transaction.
        """
        book = self._ready("check_event()")
        return not book.context.is_obsolete(self._input_port(event_info), event_info.event_id)

    def update_context(self, event_info: EventInfo) -> bool:
        """UpdateContext (Table 7): the author is about to update the global state with an event (Algorithm 2 Step 2).

        False if the stored state counts the event already, as it does for every event of `fetch_ack_events`: skip the
        update then. True obliges the next commit to store the state, with the event assigned. Rides.
        """
        book = self._ready("update_context()")
        key = (self._input_port(event_info), event_info.event_id)
        if event_info.event_id <= book.marks_at_start.get(key[0], 0):
            return False
        if key not in book.unassigned or key in book.counted:
            raise book.refuse(f"{event_info} is counted by the state already, or assigned, or was not received")
        book.counted.add(key)
        return True

    def assign_in_sets(self, inset_ids: Sequence[str], event_info: EventInfo) -> None:
        """AssignInSets (Table 7): the Input Sets of a received event, one row each (Algorithm 2 Step 2). Rides.

        An event that no Input Set uses is assigned to ``()``: it is done with its acknowledgement (hole H6).
        """
        book = self._ready("assign_in_sets()")
        key = (self._input_port(event_info), event_info.event_id)
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
        self._ready("trigger()").input_sets.trigger(inset_id)
        self._book.note_pending()

    def log_state_event(self, state_info: StateInfo, inset_id: str, state: Mapping[str, Any]) -> None:
        """LogStateEvent (Table 7): `trigger`, with an undone event for the global state that the generation will read
        (Algorithm 3 Step 2). Rides, with the trigger (hole H4); `get_proc_state(inset_id)` gives the state back."""
        book = self._ready("log_state_event()")
        book.check_state_id(state_info)
        packed = stored.pack(book.spec.name, state)
        self.trigger(inset_id)
        book.log_state(state_info.state_id, inset_id, packed)

    # --- Table 7: write actions ---------------------------------------------------------------------------------------

    def get_write_actions(self) -> Sequence[WriteAction]:
        """GetWriteActions (Table 7): committed write actions that are not done, in order per connection (Algorithm 8
        Step 1). After a failure the first ones may have been executed. No transaction."""
        self._book.check_usable()
        self._refuse_transaction("get_write_actions()")
        return self._book.writes.undone()

    def done_event(self, *event_info: EventInfo | ActionInfo | WriteAction) -> None:
        """DoneEvent, outside a transaction (Listings 2 and 3): `Transaction.done_event` in one of its own."""
        self._book.check_usable()
        with self._begin() as transaction:
            for info in event_info:
                transaction.done_event(info)

"""The LOG.io context (Section 3.4) and the stored form of an operator's state.

Nothing here can be recomputed from EVENT_LOG once done rows have been collected, so all of it is stored (hole H1):
the mark per input port, the next ids, the Input Sets that are triggered but not generated, and the closed ones.
"""

from __future__ import annotations

from typing import Any

import msgspec

from airflow_logio.errors import LogInconsistent, ProtocolViolation
from airflow_logio.protocol.values import FIRST_EVENT_ID


class ClosedInputSets(msgspec.Struct):
    """Which Input Sets have been used: low-water marks where they close in an order, exceptions where they do not.

    `low` is, per generative function, the greatest order value that was closed (everything at or below it is closed);
    `exceptions` are Input Sets without an order.
    """

    low: dict[str, int | str] = msgspec.field(default_factory=dict)
    exceptions: set[str] = msgspec.field(default_factory=set)

    def add(self, inset_id: str, function: str, order: int | str | None) -> None:
        if order is None:
            self.exceptions.add(inset_id)
        elif function not in self.low or order > self.low[function]:  # type: ignore[operator]  # of one type
            self.low[function] = order

    def holds(self, inset_id: str, function: str, order: int | str | None) -> bool:
        if order is None:
            return inset_id in self.exceptions
        low = self.low.get(function)
        return low is not None and order <= low  # type: ignore[operator]


class HeldOutput(msgspec.Struct):
    """An Output Set that is logged but not sent: it waits for its write actions, and for the Output Sets before it."""

    writes: dict[str, int] = msgspec.field(default_factory=dict)
    """Connection → number of the last of its write actions."""
    events: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Output port → its first and last event_id."""


class Context(msgspec.Struct):
    """The LOG.io context of one operator."""

    marks: dict[str, int] = msgspec.field(default_factory=dict)
    """Input port → greatest event_id assigned or acknowledged; the filter of Algorithm 2 Step 1 compares with it."""
    ended: set[str] = msgspec.field(default_factory=set)
    """Input ports whose end of stream was received."""
    next_event: dict[str, int] = msgspec.field(default_factory=dict)
    """Output port → next event_id (SSN). Ids are allocated here, never by the database (design D5)."""
    next_write: dict[str, int] = msgspec.field(default_factory=dict)
    """Connection → number of its next write action."""
    uncompared: dict[str, int] = msgspec.field(default_factory=dict)
    """Connection → last write action that the log had given out when an epoch began whose driver has not compared it with
    the external system's marker, and so has applied nothing (ADR-88)."""
    next_state: int = 1
    next_action: int = 1
    triggered: list[str] = msgspec.field(default_factory=list)
    """Input Sets triggered but not generated, in order (hole H2)."""
    state_events: dict[str, int] = msgspec.field(default_factory=dict)
    """Triggered Input Set → id of the state event that keeps the global state as it was at the trigger."""
    closed: ClosedInputSets = msgspec.field(default_factory=ClosedInputSets)
    written: dict[str, int] = msgspec.field(default_factory=dict)
    """Connection → number of its last write action that is done; kept by operators that send after their writes."""
    outbox: list[HeldOutput] = msgspec.field(default_factory=list)
    """Output Sets that wait for write actions, in order (Steps 5 and 6 of Algorithm 3 swapped)."""
    aside: list[str] = msgspec.field(default_factory=list)
    """Quarantined Input Sets; a retry puts them back among the triggered ones."""
    opened: bool = False
    """The opening write actions (what a new run does to its tables) are logged."""
    finished: bool = False
    """End of stream is logged on every output port."""
    taken_back: int = 0
    """How many ends retries have taken back: on every output port, that many ids belong to no data event."""

    def mark(self, port: str) -> int:
        return self.marks.get(port, FIRST_EVENT_ID - 1)

    def is_obsolete(self, port: str, event_id: int) -> bool:
        """Algorithm 2 Step 1, with *less than or equal* (hole H1). A gap is refused: nothing may be skipped."""
        mark = self.mark(port)
        if event_id > mark + 1:
            raise ProtocolViolation(
                f"port {port!r} received event {event_id}, but the next one is {mark + 1}: an event is missing in between"
            )
        return event_id <= mark

    def allocate_event(self, port: str) -> int:
        event_id = self.next_event.get(port, FIRST_EVENT_ID)
        self.next_event[port] = event_id + 1
        return event_id

    def reopen(self) -> None:
        """An epoch begins: a marker beyond what the log has given out by now is ahead of it. Stored with the first write
        action that comes after, and kept until a driver has compared: what this epoch gives out says nothing of markers.
        """
        for connection, number in self.next_write.items():
            self.uncompared.setdefault(connection, number - 1)

    def allocate_write(self, connection: str) -> int:
        if connection not in self.next_write:
            self.uncompared[connection] = FIRST_EVENT_ID - 1
        number = self.next_write.get(connection, FIRST_EVENT_ID)
        self.next_write[connection] = number + 1
        return number

    def allocate_state(self) -> int:
        self.next_state += 1
        return self.next_state - 1

    def allocate_action(self) -> int:
        self.next_action += 1
        return self.next_action - 1


class StoredState(msgspec.Struct):
    """What the STATE row of an operator holds: its context and its global state, consistent with the log."""

    context: Context
    state: dict[str, Any]


class _ContextAlone(msgspec.Struct):
    """A stored state without its other part, which may be large."""

    context: Context


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(StoredState)
_context_decoder = msgspec.msgpack.Decoder(_ContextAlone)


def encode_state(context: Context, state: dict[str, Any]) -> bytes:
    """Serialize now, at the end of the step; never later, when more events may be in it (design D1)."""
    return _encoder.encode(StoredState(context, state))


def decode_state(operator: str, data: bytes) -> StoredState:
    """The stored state, validated against its schema; raises `LogInconsistent` for anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # also text that is not UTF-8, and depth
        if (older := _of_version_1(data)) is not None:
            return older
        raise LogInconsistent(f"the stored state of operator {operator!r} cannot be read: {error}") from error


def decode_context(operator: str, data: bytes) -> Context:
    """As `decode_state`, but only the context: for a look at many states."""
    try:
        return _context_decoder.decode(data).context
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return decode_state(operator, data).context


def _of_version_1(data: bytes) -> StoredState | None:
    """A state from before operators had several generative functions: one low-water mark, that of the only function."""
    try:
        stored = msgspec.msgpack.decode(data)
        closed = stored["context"]["closed"]
        closed["low"] = {} if closed["low"] is None else {"": closed["low"]}
        return msgspec.convert(stored, StoredState)
    except (msgspec.MsgspecError, ValueError, RecursionError, KeyError, TypeError):
        return None

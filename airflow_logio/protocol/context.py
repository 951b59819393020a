"""The LOG.io context (Section 3.4) and the stored form of an operator's state.

Nothing here can be recomputed from EVENT_LOG once done rows have been collected, so all of it is stored (hole H1):
the mark per input port, the next ids, the Input Sets that are triggered but not generated, and the closed ones.

A state must come back from the log as it was stored: equal, and of equal types. msgpack knows fewer types than Python and
silently changes the others: tuples and sets come back as lists, a date as text. The operator would behave differently, but
only after a recovery. So such a state is refused when it is first stored (`is_plain`, `fault`). The contents of containers
are checked by type, in C; values are not.

A retry of quarantined Input Sets changes stored states (`reopen`). An operator that has ended would log new events behind its
end of stream, so that end is taken back first, and with it the ends that followed downstream. An operator that has received
the end forgets that the port has ended; one that has not will receive a `Kind.RESUMED` in its place. Event ids continue, and
nothing that was sent changes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from itertools import chain
from typing import Any

import msgspec

from airflow_logio.errors import LogInconsistent, ProtocolViolation
from airflow_logio.protocol.values import FIRST_EVENT_ID, Port


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


KEPT = (
    "A state holds text, bytes, numbers of 64 bits, booleans, None, datetimes in UTC, lists, and dicts with text keys"
)


MAX_DEPTH = 100


_SCALARS = frozenset({str, int, float, bool, bytes, type(None)})


_CONTAINERS = frozenset({dict, list})


_PLAIN = _SCALARS | _CONTAINERS | {dt.datetime}


_TEXT = frozenset({str})


_INSTEAD: tuple[tuple[tuple[type, ...], str], ...] = (
    ((Enum,), "keep its value"),
    ((tuple, list), "keep a list"),
    ((set, frozenset), "keep a sorted list"),
    ((dict,), "keep a dict, made by dict(...)"),
    ((dt.datetime,), "keep it in datetime.UTC, or its isoformat()"),
    ((dt.date, dt.time), "keep its isoformat()"),
    ((dt.timedelta,), "keep a number of microseconds"),
    ((bytearray, memoryview), "keep bytes"),
    ((Decimal,), "keep its text"),
    ((bool, int), "keep an int"),
    ((float,), "keep a float"),
    ((str,), "keep a str"),
)
"""Types, including subclasses → what to keep instead; the first match counts."""


def is_plain(state: Any) -> bool:
    """Whether the state consists of types that come back unchanged. Does not check for numbers and text that do not fit.

    Goes level by level, so that no container costs a call. Looks at each container of a level once.
    """
    level: list[Any] = [state]
    for _ in range(MAX_DEPTH + 2):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        if dt.datetime in kinds and any(type(one) is dt.datetime and one.tzinfo is not dt.UTC for one in level):
            return False
        if kinds <= _SCALARS:
            return True
        held = {id(one): one for one in level if type(one) in _CONTAINERS}.values()
        dicts = [one for one in held if type(one) is dict]
        if not _TEXT.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        level = list(chain.from_iterable(map(dict.values, dicts)))
        level.extend(chain.from_iterable(one for one in held if type(one) is list))
    return False


def fault(value: Any, path: str = "state", depth: int = MAX_DEPTH) -> str | None:
    """The first value in the state that does not come back unchanged: where it is, what it is, and what to keep instead."""
    if depth < 0:
        return f"it is nested more than {MAX_DEPTH} levels deep, or holds itself"
    kind = type(value)
    if kind is dict:
        for key in value:
            if type(key) is not str:
                return f"{path} has the key {_shown(key)} of type {type(key).__name__}: keep keys as text"
            if (found := fault(key, f"a key of {path}", depth)) is not None:
                return found
        inside: Iterable[tuple[Any, Any]] = value.items()
    elif kind is list:
        inside = enumerate(value)
    else:
        return _fault_of_one(value, path)
    found_inside = (fault(one, f"{path}[{key!r}]", depth - 1) for key, one in inside)
    return next((found for found in found_inside if found is not None), None)


def _fault_of_one(value: Any, path: str) -> str | None:
    kind = type(value)
    if kind is int and not -(1 << 63) <= value < 1 << 64:
        return f"{path} is a number of {value.bit_length()} bits: keep its text"
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{path} is a text with half a surrogate pair, {_shown(value)}"
    if is_plain(value):
        return None
    instead = next((words for types, words in _INSTEAD if isinstance(value, types)), "keep what it is made of")
    return f"{path} is {_shown(value)} of type {kind.__name__}, which would not come back as that: {instead}"


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(slots=True)
class Reopening:
    """New states, and the end-of-stream events that are taken back."""

    states: dict[str, bytes] = field(default_factory=dict)
    ends: list[tuple[Port, int]] = field(default_factory=list)
    concerned: set[str] = field(default_factory=set)
    """Operators whose drivers must not continue with what they have in memory: those above, and every receiver of an end
    that is taken back. A receiver may hold the end in memory without having logged its receipt."""


def reopen(
    states: Mapping[str, bytes], senders: Mapping[Port, Port], retried: Mapping[str, Iterable[str]]
) -> Reopening:
    """`states` are those of all operators, in topological order; `senders` maps input ports to output ports.

    `retried` maps operators to their quarantined Input Sets, which become triggered again, in order. Raises
    `LogInconsistent` for a state that cannot be read.
    """
    result = Reopening()
    taken_back: set[Port] = set()
    for operator, data in states.items():
        stored = decode_state(operator, data)
        changed = _retry(stored, retried.get(operator, ()))
        for receiver, sender in senders.items():
            if receiver.operator == operator and sender in taken_back and receiver.name in stored.context.ended:
                stored.context.ended.remove(receiver.name)
                changed = True
        if not changed:
            continue
        result.concerned.add(operator)
        if stored.context.finished:
            stored.context.finished = False
            stored.context.taken_back += 1
            for name, following in stored.context.next_event.items():
                taken_back.add(Port(operator, name))
                result.ends.append((Port(operator, name), following - 1))
        result.states[operator] = encode_state(stored.context, stored.state)
    result.concerned |= {receiver.operator for receiver, sender in senders.items() if sender in taken_back}
    return result


def _retry(stored: StoredState, insets: Iterable[str]) -> bool:
    wanted = set(insets)
    again = [inset_id for inset_id in stored.context.aside if inset_id in wanted]
    stored.context.aside = [inset_id for inset_id in stored.context.aside if inset_id not in wanted]
    stored.context.triggered += again
    return bool(again)

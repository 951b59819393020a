"""Effects: what one step wants committed, as values (DESIGN decision 1).

The store applies the effects of one or many steps, in order, in one transaction. Effects hold no reference to anything
that a later step changes: states are bytes, payloads are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.protocol.values import Event, Port, Status

Assignments = tuple[tuple[str, Status], ...]
"""Input Sets of an event at one receiver, each with the status of that row."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Rows of EVENT_LOG for one receiver port.

    A receiver in another group gets one undone, unassigned row: the event is on its way. A fused one has already used
    the event: a row per assignment, or one done row if it went into no Input Set.
    """

    receiver: Port
    assignments: Assignments = ()
    fused: bool = False


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Algorithm 1 Step 2.c, Algorithm 3 Step 4 (1) and (2): EVENT_LOG rows and one EVENT_DATA row."""

    event: Event
    deliveries: tuple[Delivery, ...]


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Algorithm 2 Step 2: the Input Sets of a received event; none means used by no Input Set: done at once (hole 6)."""

    sender: Port
    receiver: Port
    event_id: int
    assignments: Assignments


@dataclass(frozen=True, slots=True)
class MarkDone:
    """Algorithm 3 Step 4 (4). Exactly `rows` rows are marked; the store refuses if it finds another number (hole 2)."""

    operator: str
    inset_id: str
    rows: int


@dataclass(frozen=True, slots=True)
class LogWrite:
    """A write action as an event with a null sender port (Algorithm 3 Step 4): `event_id` is its number."""

    operator: str
    connection: str
    number: int
    header: Mapping[str, Any]
    records: int
    payload: Any = field(default=None, compare=False, repr=False)
    body: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class WritesDone:
    """Algorithm 5 Step 3, for the write actions `first` to `last` of one connection."""

    operator: str
    connection: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class StoreState:
    """Context and global state of an operator, serialized when the step ended (an upsert of its current STATE row)."""

    operator: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class LogStateEvent:
    """Algorithm 3 Step 2: the state event of an Input Set and the global state it saw, written with the trigger."""

    operator: str
    state_id: int
    inset_id: str
    data: bytes = field(repr=False)
    status: Status = Status.UNDONE


@dataclass(frozen=True, slots=True)
class RecordLineage:
    """Algorithm 3 Step 4 (5.b): output event and Input Set."""

    sender: Port
    event_id: int
    inset_id: str


@dataclass(frozen=True, slots=True)
class StartReadAction:
    """Algorithm 1 Step 1: the read action, incomplete."""

    operator: str
    connection: str
    action_id: int
    description: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CompleteReadAction:
    """Algorithm 1 Step 3: the last event of a replayable read action is logged."""

    operator: str
    connection: str
    action_id: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """Algorithm 3 Step 4 (5.a): a side-effect read action, a done row per Input Set, one stored effect."""

    operator: str
    connection: str
    action_id: int
    description: Mapping[str, Any]
    inset_ids: tuple[str, ...]
    records: int
    payload: Any = field(default=None, compare=False, repr=False)
    body: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Count:
    """Adds to the counter row of a port: what was sent or acknowledged (back-pressure and progress read it)."""

    port: Port
    direction: str
    """``out``, ``in`` or ``write``."""
    events: int
    records: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FinishGroup:
    """Every operator of the group has ended and no write action is pending."""


Effect = (
    LogEvent
    | Acknowledge
    | MarkDone
    | LogWrite
    | WritesDone
    | StoreState
    | LogStateEvent
    | RecordLineage
    | StartReadAction
    | CompleteReadAction
    | LogRead
    | Count
    | FinishGroup
)
Effects = list[Effect]

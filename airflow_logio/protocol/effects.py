"""Effects: what one step wants committed, as values (design D1).

The store applies the effects of one or many steps, in order, in one transaction. Effects hold no reference to anything
that a later step changes: states are bytes, payloads are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from airflow_logio.protocol.values import Event, Port, Status, Value

LATE = "late"
"""Direction of a count of records that are of other partitions than the run is: the name of its port is the partition's."""

Assignments = tuple[tuple[str, Status], ...]
"""Input Sets of an event at one receiver, each with the status of that row."""


class Delivery(Value, frozen=True):
    """Rows of EVENT_LOG for one receiver port.

    A receiver in another group gets one undone, unassigned row: the event is on its way. A fused one has already used
    the event: a row per assignment, or one done row if it went into no Input Set.
    """

    receiver: Port
    assignments: Assignments = ()
    fused: bool = False
    kept: bool = False
    """The row lies on a data lineage path: garbage collection leaves it to retention (Section 3.6)."""


class LogEvent(Value, frozen=True):
    """Algorithm 1 Step 2.c, Algorithm 3 Step 4 (1) and (2): EVENT_LOG rows and one EVENT_DATA row."""

    event: Event
    deliveries: tuple[Delivery, ...]
    kept: bool = False
    """The sender port is in OUT of a lineage scope: the body stays when all receivers are done (Section 3.6)."""
    held: bool = False
    """Not to be delivered before a `Release`."""


class Acknowledge(Value, frozen=True):
    """Algorithm 2 Step 2: the Input Sets of a received event. Without any, the event is done at once (hole H6)."""

    sender: Port
    receiver: Port
    event_id: int
    assignments: Assignments
    kept: bool = False


class MarkDone(Value, frozen=True):
    """Algorithm 3 Step 4 (4). Exactly `rows` rows are marked; the store refuses if it finds another number (hole H2)."""

    operator: str
    inset_id: str
    rows: int


class LogWrite(Value, frozen=True, eq=False):
    """A write action as an event with a null sender port (Algorithm 3 Step 4): `event_id` is its number."""

    operator: str
    connection: str
    number: int
    header: Mapping[str, Any]
    records: int
    payload: Any = None
    body: bytes | None = None
    ref: str | None = None
    """Where the body is, if it is not in the log (as in `Event`)."""
    hidden: ClassVar[tuple[str, ...]] = ("payload", "body")

    def __eq__(self, other: object) -> bool:
        """Contents are not compared, as in `Event`."""
        return type(other) is LogWrite and self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment]  # a header is a dict

    def _identity(self) -> tuple[str, str, int, Mapping[str, Any], int]:
        return self.operator, self.connection, self.number, self.header, self.records


class WritesDone(Value, frozen=True):
    """Algorithm 5 Step 3, for the write actions `first` to `last` of one connection."""

    operator: str
    connection: str
    first: int
    last: int


class MarkCompared(Value, frozen=True):
    """The marker of a writer is not ahead of the log (ADR-88). Its context, in the same step, has noted it; so nothing is
    left to store, and from this commit on its write actions may be applied."""

    operator: str
    connection: str


class StoreState(Value, frozen=True):
    """Context and global state of an operator, serialized when the step ended (an upsert of its current STATE row)."""

    operator: str
    data: bytes
    hidden: ClassVar[tuple[str, ...]] = ("data",)


class LogStateEvent(Value, frozen=True):
    """Algorithm 3 Step 2: the state event of an Input Set and the global state it saw, written with the trigger."""

    operator: str
    state_id: int
    inset_id: str
    data: bytes
    status: Status = Status.UNDONE
    kept: bool = False
    hidden: ClassVar[tuple[str, ...]] = ("data",)


class RecordLineage(Value, frozen=True):
    """Algorithm 3 Step 4 (5.b): output event and Input Set."""

    sender: Port
    event_id: int
    inset_id: str


class StartReadAction(Value, frozen=True):
    """Algorithm 1 Step 1: the read action, incomplete."""

    operator: str
    connection: str
    action_id: int
    description: Mapping[str, Any]
    kept: bool = False


class CompleteReadAction(Value, frozen=True):
    """Algorithm 1 Step 3: the last event of a replayable read action is logged (`ref` is None).

    Step 2.b: the effect of a non-replayable one is stored at `ref`; event r is logged as undone, its data is `ref`.
    """

    operator: str
    connection: str
    action_id: int
    ref: str | None = None
    records: int = 0


class ReadDone(Value, frozen=True):
    """Algorithm 1 Step 2.c (3): the last event of a non-replayable read action is logged, so event r is done."""

    operator: str
    connection: str
    action_id: int


class DropRead(Value, frozen=True):
    """Algorithm 1 Step 2.d: the stored effect is discarded; event r goes, and the read action unless lineage keeps it."""

    operator: str
    connection: str
    action_id: int


class MayForget(Value, frozen=True):
    """The one event of a replayable read action is in the log, and with it all that was made of it: the external system may
    forget what was read. No step of the paper's, and no row: it is handed over when it is durable."""

    operator: str
    action_id: int
    action: Mapping[str, Any]


class Release(Value, frozen=True):
    """Steps 5 and 6 of Algorithm 3 swapped: the writes are done, so events `first` to `last` are sent, `rows` rows."""

    sender: Port
    first: int
    last: int
    rows: int


class SetAside(Value, frozen=True):
    """Quarantine: the Input Set's `rows` undone rows are set aside, with the error that its generation raised."""

    operator: str
    inset_id: str
    rows: int
    error: str


class Collect(Value, frozen=True):
    """Section 3.6, for what these operators of the group have received or logged for themselves.

    Removes done rows that no lineage scope needs, their bodies if nothing else needs them, used states and read actions; at
    most `limit` rows of EVENT_LOG. What is done stays done, so recovery never asks for any of this.
    """

    operators: tuple[str, ...]
    limit: int


class SweepShared(Value, frozen=True):
    """Section 3.6: bodies of an output port with receivers in several groups that no row of EVENT_LOG needs any more.

    If two groups collect the last two rows of an event at once, both leave its body, because neither sees that the other
    has deleted its row. At most `limit` bodies behind `after` are examined.
    """

    sender: Port
    after: int
    limit: int


class Kept(StrEnum):
    """What is kept for lineage."""

    EVENTS = "events"
    """Events of an output port in OUT, the rows by which their receivers used them, and their lineage relationships."""
    READS = "reads"
    """Side-effect read actions on a connection, with their stored effects."""
    STATES = "states"
    """Global states as they were at a trigger."""
    SOURCE_READS = "source reads"
    """Read actions of a source."""


class ExpireLineage(Value, frozen=True):
    """Section 3.6, retention period: removes what is older than `retention_seconds` and not reached from a kept target event.

    One batch concerns one operator and one kind of item; it examines at most `limit` items behind `after`. Upstream items
    become unreachable when downstream items are gone, so batches go in reverse topological order.
    """

    operator: str
    kept: Kept
    retention_seconds: float
    after: int
    limit: int
    name: str = ""
    """The output port of events, the connection of reads."""
    ports: tuple[str, ...] = ()
    """For the read actions of a source: its output ports in OUT, whose events say which read action they come from."""


class LogRead(Value, frozen=True, eq=False):
    """Algorithm 3 Step 4 (5.a): a side-effect read action, a done row per Input Set, one stored effect."""

    operator: str
    connection: str
    action_id: int
    description: Mapping[str, Any]
    inset_ids: tuple[str, ...]
    records: int
    payload: Any = None
    body: bytes | None = None
    ref: str | None = None
    hidden: ClassVar[tuple[str, ...]] = ("payload", "body")

    def __eq__(self, other: object) -> bool:
        """Contents are not compared, as in `Event`."""
        return type(other) is LogRead and self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment]  # a description is a dict

    def _identity(self) -> tuple[str, str, int, Mapping[str, Any], tuple[str, ...], int]:
        return self.operator, self.connection, self.action_id, self.description, self.inset_ids, self.records


class CountEvents(Value, frozen=True):
    """Adds to the counter row of a port: what was sent or acknowledged (back-pressure and progress read it)."""

    port: Port
    direction: str
    """``out``, ``in``, ``write``, or `LATE`."""
    events: int
    records: int
    bytes: int = 0


class DrainGroup(Value, frozen=True):
    """The group was asked to drain (design D9): its state says so from this commit on. Harmless when repeated."""


class FinishGroup(Value, frozen=True):
    """Every operator of the group has ended and no write action is pending."""


Effect = (
    LogEvent
    | Acknowledge
    | MarkDone
    | LogWrite
    | WritesDone
    | MarkCompared
    | StoreState
    | LogStateEvent
    | RecordLineage
    | StartReadAction
    | CompleteReadAction
    | ReadDone
    | DropRead
    | MayForget
    | Release
    | SetAside
    | Collect
    | SweepShared
    | ExpireLineage
    | LogRead
    | CountEvents
    | DrainGroup
    | FinishGroup
)
Effects = list[Effect]

"""What the protocol needs from an operator: its phases (Section 2.3) as functions of values.

`Logic` is what the runtime adapts an author's operator to, and what tests implement in a few lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.values import Event, Value


class Emit(Value, frozen=True):
    """An output event on an output port."""

    port: str
    payload: Any
    records: int
    body: bytes | None = None
    about: Mapping[str, Any] = msgspec.field(default_factory=dict)
    late: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Partition, other than that of the run → how many of the records are of it: counted in the step that sends them."""


class Write(Value, frozen=True):
    """A write action on a connection; `header` describes it, the payload is its data."""

    connection: str
    header: Mapping[str, Any]
    payload: Any = None
    records: int = 0
    body: bytes | None = None


class Read(Value, frozen=True):
    """A side-effect read action that was performed for a generation, and its effect."""

    connection: str
    description: Mapping[str, Any]
    payload: Any
    records: int


Output = Emit | Write | Read


class Logic(Protocol):
    """The author's side of one operator."""

    def initial_state(self) -> dict[str, Any]: ...

    def opening(self) -> Sequence[Write]:
        """Write actions that a new run begins with, once."""
        ...

    def closing(self) -> Sequence[Write]:
        """The write action behind all others, which replaces what the run owns; none unless the operator `closes`."""
        ...

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        """State Update, exactly once per event: Input Set → part. May change `state`."""
        ...

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        """The part of an event that belongs to an Input Set (Algorithm 9 Step 2.b); changes nothing."""
        ...

    def accumulate(self, held: Any | None, part: Any) -> Any:
        """Add a part to the event state of an Input Set."""
        ...

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """Triggering, level-triggered: which open Input Sets are complete, in order."""
        ...

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        """At end of stream: which open Input Sets to generate, in order."""
        ...

    def function(self, inset_id: str) -> str:
        """The generative function that uses the Input Set; `order` orders the Input Sets of one function."""
        ...

    def order(self, inset_id: str) -> int | str | None:
        """A sortable place in the order in which the Input Sets of a function close; None if they have no order."""
        ...

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        """Generation of one Input Set (operators in mode ``driver``)."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """An operator as the protocol sees it."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    logic: Logic | None
    """None for a source."""
    lineage_in: frozenset[str] = frozenset()
    lineage_out: frozenset[str] = frozenset()
    """Output ports on a data lineage path: their events are kept."""
    lineage_starts: frozenset[str] = frozenset()
    """Those `lineage_out` ports at which paths only start (Section 3.1): how their events were made is not recorded."""
    asynchronous: bool = False
    """Generation is a separate step, for many Input Sets at once (mode ``executors``, windows of mode ``dataframe``)."""
    reads_state: bool = False
    stateless: bool = False
    """Every event is an Input Set of its own: the marks already tell which ones are closed."""
    replayable: bool = True
    """The read actions of a source return the same records again (Algorithm 1 Step 3 instead of Step 2)."""
    forgets: bool = False
    """A source whose read actions have one event each, and which is told when it may forget what was read."""
    port_order: tuple[str, ...] = ()
    """The cyclic order in which events of the input ports are used; empty if there is none."""
    sends_after_writes: bool = False
    """Steps 5 and 6 of Algorithm 3 swapped: events of an Output Set are sent when its write actions are done."""
    evaluated: bool = False
    """Its events are evaluated before the group gets them (mode ``dataframe``): what it makes of an event comes with it,
    unless it is `asynchronous`."""
    quarantines: bool = False
    """An Input Set whose generation raises is set aside instead of failing the group."""
    replay: bool = False
    """A replay operator (Section 5): its events' bodies are not in the log. Its generation does not see the global state."""
    closes: bool = False
    """A writer whose write actions are held in the log until it is closed: `Logic.closing` gives its last one, and only then
    is anything but its opening action applied (Algorithm 5, as a group). It is closed at its end, if everything is there."""
    captured_out: frozenset[str] = field(init=False)
    """OUT of Section 3.1: the output ports whose events get lineage relationships."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "captured_out", self.lineage_out - self.lineage_starts)
        if self.closes and (self.outputs or not self.inputs or self.sends_after_writes):
            raise ProtocolViolation(
                f"operator {self.name!r} holds its write actions until it is closed: it needs an input port, and can send "
                "nothing, since operators behind it would wait for a close that waits for their group"
            )

    @property
    def hands_on(self) -> bool:
        """What it sends comes with the event that it gets, together with what the operators behind it make of it."""
        return self.evaluated and not self.asynchronous


@dataclass(slots=True)
class InputSetState:
    """An open or triggered Input Set in memory: the event state, and how much of it is in the log."""

    held: Any = None
    logged_rows: int = 0
    """Its undone rows in EVENT_LOG, including those from earlier steps of this incarnation."""
    lineage: bool = False
    """It holds an event of a port in IN (Section 3.1)."""
    state_pending: bool = False
    """Its state event belongs to the step that is not closed yet."""
    pending: list[tuple[str, int]] = field(default_factory=list)
    """(input port, event_id) assigned in the step that is not closed yet."""
    spans: dict[str, list[int]] = field(default_factory=dict)
    """Input port → the first and the last of its events that are in the Input Set, even in part. Only errors name them."""

    def note(self, port: str, event_id: int) -> None:
        """Events of a port come in the order of their ids."""
        span = self.spans.get(port)
        if span is None:
            self.spans[port] = [event_id, event_id]
        else:
            span[1] = event_id

    def origin(self) -> str:
        """Where it comes from, in words; empty if nothing is known. Not every event of a span needs to be in it."""
        return ", ".join(
            f"port {port!r}, event {first}" if first == last else f"port {port!r}, events {first} to {last}"
            for port, (first, last) in self.spans.items()
        )

"""The nouns of the protocol (Section 2): ports, events, statuses. Frozen values; an invalid one cannot exist."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple

import msgspec

FIRST_EVENT_ID = 1
"""Event ids of a port, numbers of the write actions of a connection and action ids count from one."""

SENT_SCHEMA = "sent_schema"
"""Key in the state of a `RangeSource`, and of a window of mode ``dataframe``: the columns of the output port, once it had an
event. They stay the same for a whole run."""

MAX_NAME = 250
"""Longest name that the log holds, in characters: Input Sets, operators, ports, groups, runs."""


def unstorable(name: object) -> str | None:
    """Why the log cannot hold `name` in a column of names, on any database; None if it can."""
    if not isinstance(name, str):
        return f"it is not text but {type(name).__name__}"
    if not 0 < len(name) <= MAX_NAME:
        return f"it has {len(name):,} characters; allowed are 1 to {MAX_NAME}"
    if "\0" in name:
        return "it contains the character NUL"
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            return "it contains half a surrogate pair, which is not a character"
    return None


def storable(text: str | None) -> str | None:
    """The text of an error as every database accepts it: NUL, and what is not a character, becomes the replacement character.

    An error must be reported whatever it contains; names are refused instead (`unstorable`).
    """
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return "".join("\ufffd" if letter == "\0" or "\ud800" <= letter <= "\udfff" else letter for letter in text)


class Port(NamedTuple):
    """An operator's input or output port; printed as ``operator.port``."""

    operator: str
    name: str

    def __str__(self) -> str:
        return f"{self.operator}.{self.name}"


class Status(StrEnum):
    """Status of a row of EVENT_LOG (Section 3.2), and two of ours."""

    UNDONE = "undone"
    DONE = "done"
    HELD = "held"
    """Logged and not sent yet: its sender runs its write actions first (Steps 5 and 6 of Algorithm 3 swapped)."""
    ASIDE = "aside"
    """Its Input Set is quarantined: neither recovery nor generation touches it until a person retries it."""


class ReadStatus(StrEnum):
    """Status of a row of READ_ACTION (Section 3.2)."""

    INCOMPLETE = "incomplete"
    COMPLETE = "complete"


class Kind(StrEnum):
    """What an event of a port is: records, or the logged end of the stream (design D9)."""

    DATA = "data"
    END = "end"
    RESUMED = "resumed"
    """An end of stream that was taken back before it was received: quarantined Input Sets are retried behind it."""


class ExecutionMode(StrEnum):
    """Where the Generation phase of an operator runs (design D7)."""

    DRIVER = "driver"
    EXECUTORS = "executors"
    DATAFRAME = "dataframe"


class Value(msgspec.Struct, frozen=True):
    """A frozen value with fields, like a frozen dataclass, but created in a fraction of the time: a step creates many of
    them. `hidden` names the fields that its repr leaves out."""

    hidden: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name not in self.hidden)
        return f"{type(self).__name__}({', '.join(shown)})"


class MadeOf(Value, frozen=True):
    """How the body of an event is made again that is not in the log: its sender is a replay operator (Section 5)."""

    inset_id: str
    """The Input Set of the sender that the event was made of."""
    place: int
    """Its place among the events of the Output Set on its port, from 0."""
    digest: bytes = b""
    """Digest of its contents: a body that is made again counts only if it has the same. Known when the event is logged."""
    size: int = 0
    """Bytes of its contents, about. Known when the event is logged."""


class Event(Value, frozen=True, eq=False):
    """One event on its way to a receiver port.

    `payload` is opaque to the protocol (an Arrow table in the runtime, anything in tests). `body` is its serialized form, if
    it was already serialized. `records` is the number of records it carries.
    """

    sender: Port
    event_id: int
    kind: Kind = Kind.DATA
    records: int = 0
    payload: Any = None
    body: bytes | None = None
    about: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """What the sender says about the event, JSON-able and small: a source says which part of its read action it is."""
    ref: str | None = None
    """Reference into the payload store, if the body is too large for the log. Such an event is read back without `body`."""
    made_of: MadeOf | None = None
    """If the body is not in the log at all. Such an event is read back without a body, and without a reference."""
    hidden: ClassVar[tuple[str, ...]] = ("body",)

    def __eq__(self, other: object) -> bool:
        """Contents are not compared: they may be present as a payload, as a body, or elsewhere."""
        return type(other) is Event and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Port, int, Kind, int]:
        return self.sender, self.event_id, self.kind, self.records

    def __post_init__(self) -> None:
        if self.event_id < FIRST_EVENT_ID:
            raise ValueError(f"event id of {self.sender} must be at least {FIRST_EVENT_ID}, got {self.event_id}")

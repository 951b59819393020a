"""The nouns of the protocol (Section 2): ports, events, statuses. Frozen values; an invalid one cannot exist."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

FIRST_EVENT_ID = 1
"""Event ids of a port, numbers of the write actions of a connection and action ids count from one."""


class Port(NamedTuple):
    """An operator's input or output port; printed as ``operator.port``."""

    operator: str
    name: str

    def __str__(self) -> str:
        return f"{self.operator}.{self.name}"


class Status(StrEnum):
    """Status of a row of EVENT_LOG (Section 3.2)."""

    UNDONE = "undone"
    DONE = "done"


class ReadStatus(StrEnum):
    """Status of a row of READ_ACTION (Section 3.2)."""

    INCOMPLETE = "incomplete"
    COMPLETE = "complete"


class Kind(StrEnum):
    """What an event of a port is: records, or the logged end of the stream (DESIGN decision 9)."""

    DATA = "data"
    END = "end"


class ExecutionMode(StrEnum):
    """Where the Generation phase of an operator runs (DESIGN decision 7)."""

    DRIVER = "driver"
    EXECUTORS = "executors"
    DATAFRAME = "dataframe"


@dataclass(frozen=True, slots=True)
class Event:
    """One event on its way to a receiver port.

    `payload` is opaque to the protocol (an Arrow table in the runtime, anything in tests); `body` is its serialized form
    if somebody has already paid for it; `records` is the number of records it carries.
    """

    sender: Port
    event_id: int
    kind: Kind = Kind.DATA
    records: int = 0
    payload: Any = field(default=None, compare=False)
    body: bytes | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.event_id < FIRST_EVENT_ID:
            raise ValueError(f"event id of {self.sender} must be at least {FIRST_EVENT_ID}, got {self.event_id}")

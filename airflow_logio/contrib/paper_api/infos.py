"""What the methods of the API take and give: the paper's eventInfo, stateInfo and actionInfo, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.errors import ApiMisuse
from airflow_logio.protocol.source import READ_CONNECTION


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Identifies an event of EVENT_LOG: of an input or output port, or (the paper's null sender port) a write action.

    `event_id` is the number of the event on its port, or of the write action on its connection, counted from 1. `about`
    describes it, JSON-able and small: what a write action is to do, or what an output event is. Raises `ApiMisuse` unless
    exactly one of `port` and `connection` is given.
    """

    event_id: int
    port: str | None = None
    connection: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if (self.port is None) == (self.connection is None):
            raise ApiMisuse(
                f"EventInfo({self.event_id}) needs a port (an event) or a connection (a write action), and not both"
            )

    def __str__(self) -> str:
        if self.port is None:
            return f"write action {self.event_id} on connection {self.connection!r}"
        return f"event {self.event_id} of port {self.port!r}"


@dataclass(frozen=True, slots=True)
class StateInfo:
    """Identifies a state of STATE; `state_id` is from `Logio.get_state_id`."""

    state_id: int


@dataclass(frozen=True, slots=True)
class ActionInfo:
    """Identifies a read action of READ_ACTION and describes, JSON-able and small, what it reads.

    `action_id` is from `Logio.get_action_id` for the same `connection`. `replayable` says that the action returns the same
    records in the same order when it is executed again; the effect of one that is not is stored (Algorithm 1 Step 2).
    """

    action_id: int
    connection: str = READ_CONNECTION
    description: Mapping[str, Any] = field(default_factory=dict, compare=False)
    replayable: bool = False

    def __str__(self) -> str:
        return f"read action {self.action_id} on connection {self.connection!r}"


class ReadProgress(StrEnum):
    """How far a read action of a source has come (Algorithm 6 Step 2: "get last read action")."""

    INCOMPLETE = "incomplete"
    """It may have been executed in part; if it is replayable, some of its events are logged."""
    COMPLETE = "complete"
    """Its whole effect is stored, event r is undone: events are made of the effect, from the stored offset on."""
    DONE = "done"
    """Its last event is logged. A stored effect is to be discarded: `Logio.drop_read_action`."""
    ENDED = "ended"
    """Nothing is left to do: it was replayable, or its stored effect is discarded."""


@dataclass(frozen=True, slots=True)
class ReadAction:
    """The read action on record, its progress, and the reference of its stored effect, if there is one."""

    info: ActionInfo
    progress: ReadProgress
    action_data: str | None = None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event and its records: received, or fetched from the log."""

    info: EventInfo
    data: pa.Table = field(repr=False, compare=False)

    @property
    def port(self) -> str:
        """The input or output port."""
        return str(self.info.port)


@dataclass(frozen=True, slots=True)
class AcknowledgedEvent(StreamEvent):
    """An undone event that was assigned before the failure, for one of its Input Sets (Algorithm 9 Step 2)."""

    inset_id: str

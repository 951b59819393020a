"""What the runtime gives a handle, and the end of a run on request. The runtime imports the API, never the reverse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from airflow_logio.dataflow.write_actions import Marker
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.values import Event
from airflow_logio.protocol.writes import PendingWrite

T = TypeVar("T")


class Stopped(Exception):
    """The group was asked to halt. Do not catch it: the driver ends, and `logio retry` resumes from the log."""


class Host(Protocol):
    """The driver process around a hand-written operator."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Parameters of the run."""
        ...

    def url(self, connection: str) -> str:
        """URL of an external system; raises `ConfigurationError`."""
        ...

    def marker(self, connection: str) -> Marker:
        """The identity of a writer to a connection: run, operator and fencing token."""
        ...

    def commit(self, effects: Effects) -> None:
        """Bodies serialized, everything in one fenced transaction; raises what `GroupSession.commit` does."""
        ...

    def idle(self) -> None:
        """Idle call: collects garbage and checks whether the driver was replaced. Raises `Fenced`, `EpochVoid`."""
        ...

    def encode(self, table: pa.Table) -> bytes:
        """A table as an Arrow IPC stream."""
        ...

    def decode(self, event: Event) -> pa.Table:
        """The records of an event; raises `LogInconsistent`."""
        ...

    def replay(self, what: str, action: Callable[[], T]) -> T:
        """Execute an action until it does not raise `ExternalUnavailable`, with back-off and a limit."""
        ...

    def is_stopping(self) -> bool:
        """The group was asked to halt."""
        ...

    def is_draining(self) -> bool:
        """The group was asked to drain."""
        ...

    def groups_behind(self, port: str) -> Sequence[str]:
        """Other groups that receive from an output port."""
        ...

    def loaded(self, write: PendingWrite) -> PendingWrite:
        """The write action with its body, wherever that is stored."""
        ...

    def sent(self, port: str, event_id: int) -> None:
        """The last event that is logged on an output port."""
        ...

    def is_full(self, port: str) -> bool:
        """The slowest receiver of an output port lags by the run's backlog bound."""
        ...

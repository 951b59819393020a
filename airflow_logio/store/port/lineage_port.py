"""The rows that lineage queries join, answered for many keys at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import Header

LARGEST = 2**53 - 1
"""Larger than the number of any event, and a number that every reader of JSON reads alike."""


class StoredBody(NamedTuple):
    """A row of EVENT_DATA: `ref` refers to the payload store, if the body is there."""

    header: bytes
    body: bytes
    ref: str | None


class Delivered(NamedTuple):
    """A row of EVENT_LOG: what has become of an event at one receiver."""

    event_id: int
    receiver: Port
    inset_id: str | None
    """None if no Input Set uses it, or none yet."""
    status: Status


class LineageLog(ABC):
    """One consistent snapshot of the log of one run.

    "Data lineage relationships between events are obtained by joining EVENT_LINEAGE and EVENT_LOG on (receiving) operator,
    port and Input Set, filtering on the ports in IN" (Section 7.3). Each method is a few statements, however many keys.
    """

    run: Run
    most_rows: int | None = None
    """Where it is set, callers take no more rows of one answer, so an adapter need not read more."""

    @abstractmethod
    def input_sets_of(self, sender: Port, event_ids: Collection[int]) -> Iterable[tuple[int, str]]:
        """EVENT_LINEAGE of output events: (event_id, Input Set it was made from)."""

    @abstractmethod
    def outputs_of(
        self, operator: str, inset_ids: Collection[str], ports: Collection[str] | None = None
    ) -> Iterable[tuple[str, Port, int]]:
        """EVENT_LINEAGE of Input Sets: (Input Set, sender, event_id of an output event), of these output ports, or of any.

        With `ports`, those of one Input Set are in the order of ports and ids: a cut takes the first ones.
        """

    @abstractmethod
    def events_in(
        self, operator: str, inset_ids: Collection[str], ports: Collection[str] | None = None
    ) -> Iterable[tuple[str, str, Port, int]]:
        """EVENT_LOG of Input Sets: (Input Set, input port, sender, event_id), for events of these input ports, or of any."""

    @abstractmethod
    def uses_of(self, sender: Port, event_ids: Collection[int]) -> Iterable[tuple[int, Port, str]]:
        """EVENT_LOG of events: (event_id, receiver port, Input Set it was assigned to)."""

    @abstractmethod
    def deliveries_of(self, sender: Port, event_ids: Collection[int]) -> Iterable[Delivered]:
        """EVENT_LOG of events: every row, also of events that no Input Set uses (yet)."""

    @abstractmethod
    def reads_in(self, operator: str, inset_ids: Collection[str]) -> Iterable[tuple[str, str, int]]:
        """Side-effect read actions of Input Sets: (Input Set, connection, action_id)."""

    @abstractmethod
    def input_sets_of_read(self, operator: str, connection: str, action_id: int) -> Iterable[str]:
        """The Input Sets that a side-effect read action was made for."""

    @abstractmethod
    def headers(self, operator: str, channel: str, event_ids: Collection[int]) -> Iterable[tuple[int, Header]]:
        """Headers in EVENT_DATA of events or read actions; those that are not in the log are left out."""

    @abstractmethod
    def read_actions(
        self, operator: str, connection: str, action_ids: Collection[int]
    ) -> Iterable[tuple[int, dict[str, object]]]:
        """READ_ACTION: (action_id, description)."""

    @abstractmethod
    def bodies(self, operator: str, channel: str, event_ids: Collection[int]) -> Iterable[tuple[int, StoredBody]]:
        """Header and body of events or read actions; those that are not in the log (any more) are left out."""

    @abstractmethod
    def size(self, operator: str, channel: str, event_ids: Collection[int]) -> int:
        """How many bytes the bodies of events or read actions have together, in the log or in the payload store; of a
        dataset, its manifest counts."""

    @abstractmethod
    def bodies_before(self, operator: str, channel: str, before: int, limit: int) -> Iterable[tuple[int, StoredBody]]:
        """Header and body of at most `limit` events with numbers below `before`, the newest first; those not in the log are
        left out."""

    @abstractmethod
    def logged_since(self, sender: Port, at: float, limit: int) -> Iterable[int]:
        """The first events, at most `limit`, of those that are kept for lineage and were logged at `at` or later, in seconds
        since the epoch by the database's clock. In the order of their ids, in which they were logged."""

    @abstractmethod
    def newest_by(self, senders: Collection[Port]) -> Mapping[Port, int]:
        """The largest number that each of these ports has in the log, of an event or of an end; 0 if it has none."""

    @abstractmethod
    def sent_by(self, senders: Collection[Port]) -> Mapping[Port, int]:
        """How many events each of these ports has sent so far. One statement for all.

        Their numbers may be larger: an end of the stream that a retry took back had a number, too.
        """

    def sent(self, sender: Port) -> int:
        """`sent_by` for one port."""
        return self.sent_by([sender])[sender]

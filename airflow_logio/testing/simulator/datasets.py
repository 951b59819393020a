"""The place of a plug-in: datasets in a schedule, whose files are written and removed a step at a time.

A scenario whose events are datasets brings a `DatasetWorld` (`Scenario.datasets`). The engine knows of datasets only what
stands here. This repository's own is `tests/simulator/lake`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Output, Read
from airflow_logio.protocol.values import Event, Port
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.testing.memory_log.tables import Body
from airflow_logio.testing.simulator.plan import Batch
from airflow_logio.testing.simulator.stepwise import Steps

Results = tuple[list[tuple[str, Sequence[Output]]], Sequence[Read]]
"""The outputs of each Input Set of a job, and its read actions."""


class ContentWatch(Protocol):
    """Sees which datasets the log names, and what happens to their files."""

    def see_body(self, before: Any, after: Any) -> None:
        """A row of EVENT_DATA has changed; `ABSENT` stands for no row."""

    def see(self) -> None:
        """A transaction is over. Raises `Violation`."""

    def content(self, body: Body) -> bytes | None:
        """The records of a body, in an order of their own."""

    def close(self) -> None:
        """Stop watching."""


class Reader(Protocol):
    """A source's thread, as what it reads is evaluated."""

    action: int
    offset: int
    stored: str | None
    exhausted: bool
    evaluating: deque[Steps[Batch]]
    storing: Steps[tuple[str, int]] | None


class DatasetEpoch(Protocol):
    """The threads of one epoch that evaluate datasets. A step takes each of them a file further."""

    arriving: Mapping[Port, deque[Steps[Event]]]
    """Input port → events that its thread has fetched, and evaluates one after the other."""
    removals: deque[Any]
    """What garbage collection has taken out of the log, and is being removed."""

    def wants(self, receiver: Port) -> bool:
        """Whether the events of a port are evaluated when they arrive."""

    def unpacked(self, event: Event) -> Event:
        """An event of the log with its dataset."""

    def arrives(self, receiver: Port, event: Event) -> None:
        """The channel has fetched an event that is to be evaluated."""

    def advance(self, receiver: Port, many: int) -> bool:
        """Take the evaluation of the first event of a port further; True if something was done."""

    def has_ranges(self, source: str) -> bool:
        """Whether a source is a `RangeSource`."""

    def read(self, source: str, reader: Reader, many: int) -> None:
        """A source's thread reads; what it has read is then evaluated (`Reader.evaluating`) or stored (`storing`)."""

    def discard(self, ref: str) -> None:
        """Discard a stored effect."""

    def job(self, name: str, sets: Sequence[tuple[str, Any]], state: Mapping[str, Any]) -> Steps[Results]:
        """The Output Sets of many Input Sets, and the reads of the job."""

    def serialized(self, effects: fx.Effects) -> fx.Effects:
        """The rows of a transaction."""

    def loaded(self, write: PendingWrite) -> PendingWrite:
        """A write action with its records."""

    def collected(self, collected: Sequence[Collected]) -> None:
        """A transaction has committed, with its garbage collection."""

    def remove(self, many: int) -> bool:
        """The thread that removes payloads takes a few steps; False if it has nothing to do."""


class DatasetWorld(Protocol):
    """What all drivers of a schedule share: the payload store, and the processes that remove from it beside them."""

    watch: ContentWatch

    def epoch(self, driver: Any, protocol: GroupProtocol) -> DatasetEpoch:
        """The threads of a `SimulatedDriver`'s new epoch that evaluate datasets."""

    def sweep(self, group: str, many: int) -> None:
        """Take some steps of a sweep of what a group's fenced incarnations have left."""

    def collect(self, which: int, many: int, *, dies: bool) -> None:
        """One of several `logio gc` that are at the run at once takes some steps."""

    def conclude(self) -> None:
        """No zombie is left: collect, and take the run out of the log. Raises `Violation` if something stays behind."""

"""How a Dispatcher splits events between slots: round robin, least loaded, or by key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from airflow_logio.dataflow.names import check_columns, check_count
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.replication.keys import by_slot
from airflow_logio.errors import PipelineDefinitionError
from airflow_logio.protocol.replicas import MAX_SLOTS

KEY_SLOTS = 16


class Routes(Protocol):
    """What a Dispatcher knows of the replicas when it sends an event. A hint: no result depends on it."""

    def replicas(self) -> Sequence[Sequence[int]]:
        """The slots of each replica that can take an event: not those on which its backlog is full. Never empty."""
        ...

    def backlog(self, slot: int) -> int:
        """Events that were sent to a slot and that its replica has not taken yet."""
        ...


@dataclass(frozen=True, slots=True)
class AllSlots:
    """Routes of a Dispatcher that knows nothing of replicas."""

    slots: int

    def replicas(self) -> Sequence[Sequence[int]]:
        return (range(self.slots),)

    def backlog(self, slot: int) -> int:
        return 0


class Partition(ABC):
    """Which slot takes which records of an event."""

    keyed: ClassVar[bool]
    """All records of a key go to one slot, for ever; else whole events go anywhere, to operators without state."""

    @abstractmethod
    def slots_for(self, replicas: int) -> int:
        """The number of slots of a group that may have so many replicas. Raises PipelineDefinitionError."""

    @abstractmethod
    def part(self, event: InputEvent, slots: int, routes: Routes) -> Iterable[tuple[int, pa.Table]]:
        """(slot, records) of the slots that get any; together they are the records of the event, each once."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""


@dataclass(frozen=True, slots=True)
class RoundRobin(Partition):
    """Whole events, to the replicas in turn; one whose backlog is full is passed over until it has room again.

    `slots` is in how many parts the work can be cut: by default the largest number of replicas. Raises
    PipelineDefinitionError.
    """

    keyed: ClassVar[bool] = False
    slots: int | None = None

    def __post_init__(self) -> None:
        _check_slots("RoundRobin", self.slots)

    def slots_for(self, replicas: int) -> int:
        return _enough(self, self.slots, replicas)

    def part(self, event: InputEvent, slots: int, routes: Routes) -> Iterable[tuple[int, pa.Table]]:
        replicas = routes.replicas()
        turn, whose = divmod(event.event_id, len(replicas))
        mine = replicas[whose]
        return ((mine[turn % len(mine)], event.table),)

    def describe(self) -> dict[str, Any]:
        return {"partition": "RoundRobin", "slots": self.slots}


@dataclass(frozen=True, slots=True)
class LeastLoaded(Partition):
    """Whole events, each to the replica with the smallest backlog per slot. `slots` as for `RoundRobin`."""

    keyed: ClassVar[bool] = False
    slots: int | None = None

    def __post_init__(self) -> None:
        _check_slots("LeastLoaded", self.slots)

    def slots_for(self, replicas: int) -> int:
        return _enough(self, self.slots, replicas)

    def part(self, event: InputEvent, slots: int, routes: Routes) -> Iterable[tuple[int, pa.Table]]:
        # A replica works on its slots one after the other: before a new event, it works off everything they hold.
        least = min(routes.replicas(), key=lambda mine: sum(routes.backlog(slot) for slot in mine))
        return ((min(least, key=lambda slot: (routes.backlog(slot), (slot - event.event_id) % slots)), event.table),)

    def describe(self) -> dict[str, Any]:
        return {"partition": "LeastLoaded", "slots": self.slots}


class ByKey(Partition):
    """All records with the same values of `columns` to one of `slots` slots; an event is split by slot.

    The slot of a key is a fixed hash of the values: it is the same in every process, run and version. More slots spread
    skewed keys more evenly between replicas, but each is an event, and an Input Set, of its own. A null is a value like
    any other. Raises PipelineDefinitionError.
    """

    keyed: ClassVar[bool] = True

    def __init__(self, *columns: str, slots: int = KEY_SLOTS) -> None:
        if not columns:
            raise PipelineDefinitionError("ByKey needs a column: write ByKey('product_id')")
        self.columns = check_columns(columns)
        _check_slots("ByKey", slots)
        self.slots = slots

    def __repr__(self) -> str:
        return f"ByKey({', '.join(map(repr, self.columns))}, slots={self.slots})"

    def slots_for(self, replicas: int) -> int:
        return _enough(self, self.slots, replicas)

    def part(self, event: InputEvent, slots: int, routes: Routes) -> Iterable[tuple[int, pa.Table]]:
        return by_slot(event.table, self.columns, slots)

    def describe(self) -> dict[str, Any]:
        return {"partition": "ByKey", "columns": list(self.columns), "slots": self.slots}


def _check_slots(kind: str, slots: object) -> None:
    if slots is not None and check_count(f"{kind}: slots", slots) > MAX_SLOTS:
        raise PipelineDefinitionError(f"{kind}: slots is {slots}; at most {MAX_SLOTS} are allowed")


def _enough(partition: Partition, slots: int | None, replicas: int) -> int:
    if slots is None:
        return replicas
    if slots < replicas:
        raise PipelineDefinitionError(
            f"{partition!r} cuts the work into {slots} slots, but the group may have {replicas} replicas: "
            f"{replicas - slots} of them would never get any. Give at least {replicas} slots"
        )
    return slots

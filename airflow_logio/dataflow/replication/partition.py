"""How a Dispatcher splits events between slots: round robin, least loaded, or by a key's hash."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from airflow_logio.dataflow.arrow import np, pa, pc
from airflow_logio.dataflow.names import check_columns, check_count, did_you_mean
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.replicas import MAX_SLOTS

if TYPE_CHECKING:
    import numpy.typing as npt

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
    """Which slot takes which records of an event. Use `RoundRobin`, `LeastLoaded` or `ByKey`, or derive one of your
    own.

    Implement `slots_for`, `part` and `describe`, and say in `keyed` whether all records of a key go to one slot.
    """

    keyed: ClassVar[bool]
    """All records of a key go to one slot, for ever; else whole events go anywhere, to operators without state."""

    @abstractmethod
    def slots_for(self, replicas: int) -> int:
        """The number of slots of a group.

        :param replicas: how many replicas it may have.

        Raises PipelineDefinitionError if there are fewer slots than replicas.
        """

    @abstractmethod
    def part(self, event: InputEvent, slots: int, routes: Routes) -> Iterable[tuple[int, pa.Table]]:
        """(slot, records) for the slots that get any; together they are the records of the event, each once.

        :param event: the event to split.
        :param slots: the number of slots.
        :param routes: what is known of the replicas. A hint: no result may depend on it.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """JSON-able settings for the run fingerprint."""


@dataclass(frozen=True, slots=True)
class RoundRobin(Partition):
    """Whole events, to the replicas in turn; one whose backlog is full is passed over until it has room again. For
    operators without state.

    :param slots: into how many parts the work can be cut; by default the largest number of replicas.

    Raises PipelineDefinitionError.
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
    """Whole events, each to the replica with the smallest backlog per slot. For operators without state.

    :param slots: into how many parts the work can be cut; by default the largest number of replicas.

    Raises PipelineDefinitionError.
    """

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
    """All records with the same key to one slot; an event is split by slot. For operators with state by key, as windows
    of time have it.

    :param columns: the columns that make the key: ``ByKey("product_id")``. A null is a value like any other.
    :param slots: into how many parts the work is cut, 16 by default. More slots spread skewed keys more evenly between
        replicas, but each is an event, and an Input Set, of its own.

    The slot of a key is a fixed hash of the values: it is the same in every process, run and version. Raises
    PipelineDefinitionError.
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


_Hashes: TypeAlias = "npt.NDArray[np.uint64]"
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9


def by_slot(table: pa.Table, columns: Sequence[str], slots: int) -> list[tuple[int, pa.Table]]:
    """(slot, its records in their order), in the order of slots. Raises OperatorFailed for a column that is no key."""
    if not table.num_rows:
        return []
    numbers = slots_of(table, columns, slots)
    order = np.argsort(numbers, kind="stable")
    found, begins = np.unique(numbers[order], return_index=True)
    if len(found) == 1:
        return [(int(found[0]), table)]
    grouped = table.take(pa.array(order))
    bounds = [*begins.tolist(), table.num_rows]
    return [
        (int(slot), grouped.slice(begin, end - begin))
        for slot, begin, end in zip(found, bounds[:-1], bounds[1:], strict=True)
    ]


def slots_of(table: pa.Table, columns: Sequence[str], slots: int) -> npt.NDArray[np.int64]:
    """The slot of each record. Raises OperatorFailed."""
    mixed: _Hashes = np.zeros(table.num_rows, np.uint64)
    names = table.schema.names
    for name in columns:
        if names.count(name) != 1:
            hint = did_you_mean(name, names)
            raise OperatorFailed(f"the events are parted by key column {name!r}; the records have {names}.{hint}")
        mixed = _mix(mixed * np.uint64(31) + _hashes(name, table.column(name)))
    return (mixed % np.uint64(slots)).astype(np.int64)


def _hashes(name: str, column: pa.ChunkedArray) -> _Hashes:
    """Hashes of a column. Each distinct value is hashed once, because keys repeat."""
    plain, unit = _plain(name, column)
    encoded = plain.dictionary_encode(null_encoding="encode")
    values = [value if value is None or unit == 1 else value * unit for value in encoded.dictionary.to_pylist()]
    hashed: _Hashes = np.fromiter(map(_hash, values), np.uint64, len(values))
    hashes: _Hashes = np.take(hashed, encoded.indices.to_numpy(zero_copy_only=False))
    return hashes


def _plain(name: str, column: pa.ChunkedArray) -> tuple[pa.Array, int]:
    """The values as text, bytes, numbers or booleans, and what a number of them is in nanoseconds if they are times.

    A key keeps its slot if its column changes to a wider type of the same kind, or a finer unit.
    """
    kind, unit = column.type, 1
    if pa.types.is_dictionary(kind):
        return _plain(name, column.cast(kind.value_type))
    if pa.types.is_temporal(kind) and kind != pa.month_day_nano_interval():
        unit = _DAY if pa.types.is_date32(kind) else _NANOSECONDS["ms" if pa.types.is_date64(kind) else kind.unit]
        small = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        column = column.cast(pa.int32() if small else pa.int64())
    elif pa.types.is_decimal(kind):
        column = pc.cast(column, pa.string())
    elif pa.types.is_floating(kind):
        wide = column.cast(pa.float64())
        column = pc.if_else(pc.equal(wide, 0), pa.scalar(0.0), wide)  # -0.0 equals 0.0
    elif pa.types.is_null(kind):
        column = pc.cast(column, pa.string())
    elif pa.types.is_nested(kind) or pa.types.is_temporal(kind) or isinstance(kind, pa.BaseExtensionType):
        raise OperatorFailed(
            f"the events are parted by key column {name!r}, whose type {kind} is no key; use text or numbers"
        )
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type), unit


def _hash(value: Any) -> int:
    match value:
        case None:
            return 1
        case bytes():
            return zlib.crc32(value, 2)
        case str():
            return zlib.crc32(value.encode(), 3)
        case _:
            return zlib.crc32(repr(value).encode(), 4)


def _mix(hashes: _Hashes) -> _Hashes:
    """The finalizer of SplitMix64: neighbouring hashes do not end in neighbouring slots."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))

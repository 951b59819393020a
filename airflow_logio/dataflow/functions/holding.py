"""How a windowed operator holds what an Input Set has got until it is generated: its event state.

An event state is in memory only: a recovery rebuilds it from the logged events. What a holding adds to the global state
(key ``schemas``) is in the log, and logs of earlier versions have it in this form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.dataflow.arrow import pa
from airflow_logio.dataflow.functions.decorators import ONE_INPUT, GenerativeFunction
from airflow_logio.dataflow.functions.function_operators import EVENT_IDS, project
from airflow_logio.dataflow.operators import InputEvent

SCHEMAS = "schemas"
"""Key of the global state: input port → schema of its records, where a port without events must have one."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""By position, and by name."""


def holding_of(function: GenerativeFunction) -> Holding:
    """The holding that suits a function, chosen once for its operator."""
    inner: Holding
    if function.inputs != ONE_INPUT:
        inner = TablesByPort(function.inputs)
    elif function.accumulate is None:
        inner = Tables(function.columns)
    else:
        inner = Accumulated(function.columns, function.accumulate, function.finish)
    return WithEventIds(inner) if EVENT_IDS in function.asks else inner


class Holding(ABC):
    """The event state of an Input Set, from its first part to the arguments of the function."""

    def initial_state(self) -> dict[str, Any]:
        """What it needs in the global state, beside what the window has there."""
        return {}

    def see(self, event: InputEvent, state: dict[str, Any]) -> None:  # noqa: B027  # most see nothing
        """Its share of State Update: may change the global state."""

    @abstractmethod
    def part(self, event: InputEvent, records: pa.Table) -> Any:
        """The part of an event that an Input Set gets, from the `records` that the window has chosen. Pure."""

    @abstractmethod
    def part_on(self, port: str, records: Any) -> Any:
        """As `part`, for records that are a dataset and not a table."""

    @abstractmethod
    def add(self, held: Any | None, part: Any) -> Any:
        """The event state with one more part; None: there was none yet. May change and return `held`."""

    @abstractmethod
    def by_port(self, held: Any) -> Mapping[str, Sequence[Any]]:
        """The parts of an event state by input port; ports without any are left out."""

    @abstractmethod
    def records(self, held: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        """Input port → what the function gets of it: a table, or what its `accumulate` has made."""

    @abstractmethod
    def arguments(self, records: Mapping[str, Any]) -> Arguments:
        """How the function takes what it gets of its input ports."""

    def facts(self, held: Any) -> dict[str, Any]:
        """What else of the event state the function may ask for by name."""
        return {}

    @abstractmethod
    def numbered(self, ids: Mapping[str, list[int]]) -> Any:
        """The numbers of events as the function takes them, from those by input port."""


@dataclass(frozen=True, slots=True)
class Tables(Holding):
    """A list of the tables of the one input port."""

    columns: tuple[str, ...]
    """Those that the function needs; all if empty."""

    def part(self, event: InputEvent, records: pa.Table) -> Any:
        return project(records, self.columns)

    def part_on(self, port: str, records: Any) -> Any:
        return records

    def add(self, held: Any | None, part: Any) -> Any:
        tables = [] if held is None else held
        tables.append(part)
        return tables

    def by_port(self, held: Any) -> Mapping[str, Sequence[Any]]:
        return {ONE_INPUT[0]: held}

    def records(self, held: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        return {ONE_INPUT[0]: pa.concat_tables(held)}

    def arguments(self, records: Mapping[str, Any]) -> Arguments:
        return (records[ONE_INPUT[0]],), {}

    def numbered(self, ids: Mapping[str, list[int]]) -> Any:
        return ids.get(ONE_INPUT[0], [])


@dataclass(frozen=True, slots=True)
class Accumulated(Tables):
    """What the author's `accumulate` has made of the tables so far, so that it stays small."""

    accumulate: Callable[[Any | None, pa.Table], Any]
    finish: Callable[[Any], Any] | None = None

    def add(self, held: Any | None, part: Any) -> Any:
        return self.accumulate(held, part)

    def records(self, held: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        return {ONE_INPUT[0]: held if self.finish is None else self.finish(held)}


@dataclass(frozen=True, slots=True)
class TablesByPort(Holding):
    """Input port → list of its tables. A port that has brought none gives a table without rows."""

    ports: tuple[str, ...]

    def initial_state(self) -> dict[str, Any]:
        return {SCHEMAS: {}}

    def see(self, event: InputEvent, state: dict[str, Any]) -> None:
        if event.port not in state[SCHEMAS]:
            state[SCHEMAS][event.port] = event.table.schema.remove_metadata().serialize().to_pybytes()

    def part(self, event: InputEvent, records: pa.Table) -> Any:
        return event.port, records

    def part_on(self, port: str, records: Any) -> Any:
        return port, records

    def add(self, held: Any | None, part: Any) -> Any:
        port, records = part
        tables: dict[str, list[Any]] = {} if held is None else held
        tables.setdefault(port, []).append(records)
        return tables

    def by_port(self, held: Any) -> Mapping[str, Sequence[Any]]:
        parts: Mapping[str, Sequence[Any]] = held
        return parts

    def records(self, held: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        return {
            port: pa.concat_tables(held[port]) if port in held else _no_rows(state[SCHEMAS].get(port))
            for port in self.ports
        }

    def arguments(self, records: Mapping[str, Any]) -> Arguments:
        return (), dict(records)

    def numbered(self, ids: Mapping[str, list[int]]) -> Any:
        return {port: ids.get(port, []) for port in self.ports}


@dataclass(slots=True)
class _Numbered:
    """An event state, and which events it is made of: input port → their numbers."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    held: Any = None


@dataclass(frozen=True, slots=True)
class WithEventIds(Holding):
    """Any other holding, and the numbers of the events, for a function that asks for `event_ids`."""

    inner: Holding

    def initial_state(self) -> dict[str, Any]:
        return self.inner.initial_state()

    def see(self, event: InputEvent, state: dict[str, Any]) -> None:
        self.inner.see(event, state)

    def part(self, event: InputEvent, records: pa.Table) -> Any:
        return event.port, event.event_id, self.inner.part(event, records)

    def part_on(self, port: str, records: Any) -> Any:
        raise NotImplementedError("events of mode 'dataframe' have no numbers yet: a pipeline refuses event_ids there")

    def add(self, held: Any | None, part: Any) -> Any:
        port, event_id, inner = part
        numbered: _Numbered = _Numbered() if held is None else held
        numbered.ids.setdefault(port, []).append(event_id)
        numbered.held = self.inner.add(numbered.held, inner)
        return numbered

    def by_port(self, held: Any) -> Mapping[str, Sequence[Any]]:
        return self.inner.by_port(held.held)

    def records(self, held: Any, state: Mapping[str, Any]) -> dict[str, Any]:
        return self.inner.records(held.held, state)

    def arguments(self, records: Mapping[str, Any]) -> Arguments:
        return self.inner.arguments(records)

    def facts(self, held: Any) -> dict[str, Any]:
        return {EVENT_IDS: self.inner.numbered(held.ids)}

    def numbered(self, ids: Mapping[str, list[int]]) -> Any:
        return self.inner.numbered(ids)


def _no_rows(schema: bytes | None) -> pa.Table:
    """Without columns, too, if no event of the port was ever seen."""
    return pa.table({}) if schema is None else pa.ipc.read_schema(pa.py_buffer(schema)).empty_table()

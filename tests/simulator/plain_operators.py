"""Operators in plain Python for scenarios. Payloads are lists; each operator has a few lines, and no hidden state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.protocol.logic import Emit, OperatorSpec, Output, Write
from airflow_logio.protocol.values import Event, Port
from airflow_logio.testing.simulator.plan import GroupPlan

State = dict[str, Any]


class PlainLogic:
    """Every event is its own Input Set, used at once. Subclasses change what they need."""

    stateless = True

    def initial_state(self) -> State:
        return {}

    def opening(self) -> Sequence[Write]:
        return ()

    def closing(self) -> Sequence[Write]:
        return ()

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        part = self.part(port, event, "")
        return {f"{port}{event.event_id}": part} if part else {}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return event.payload

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return part if held is None else [*held, *part]

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return open_insets

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets)

    def function(self, inset_id: str) -> str:
        return ""

    def order(self, inset_id: str) -> int | str | None:
        return None

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Emit("out", held, len(held)),)


class Mapped(PlainLogic):
    """Applies `function` to each record; None drops the record. No Input Set uses an event without remaining records."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        function = self._function
        return [result for value in event.payload if (result := function(value)) is not None]


class CountWindow(PlainLogic):
    """Every `size` events with records make an Input Set. The output contains the number of events so far."""

    stateless = False

    def __init__(self, size: int) -> None:
        self._size = size

    def initial_state(self) -> State:
        return {"seen": 0}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        state["seen"] += 1
        return {str((state["seen"] - 1) // self._size): event.payload}

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        complete = state["seen"] // self._size
        return [inset for inset in open_insets if int(inset) < complete]

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Emit("out", [state["seen"], *held], len(held) + 1),)


class Writing(PlainLogic):
    """Makes each event a write action, and passes it on unchanged. A run begins with an action that clears the table."""

    def __init__(self, connection: str) -> None:
        self._connection = connection

    def opening(self) -> Sequence[Write]:
        return (Write(self._connection, {"action": "begin"}, []),)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Write(self._connection, {"action": "insert"}, held, len(held)), Emit("out", held, len(held)))


class Saving(Writing):
    """Makes each event a write action, and passes nothing on."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Write(self._connection, {"action": "insert"}, held, len(held)),)


class Sink(PlainLogic):
    """Uses every event, and makes nothing from it."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return ()


def operator(
    name: str, logic: PlainLogic, *, inputs: Sequence[str] = ("in",), outputs: Sequence[str] = ("out",), **settings: Any
) -> OperatorSpec:
    """An operator of a scenario; `settings` are fields of OperatorSpec."""
    return OperatorSpec(name, tuple(inputs), tuple(outputs), logic, stateless=logic.stateless, **settings)


def source(name: str, *, in_scope: bool = False, **settings: Any) -> OperatorSpec:
    """A source with one output port ``out``."""
    scope = frozenset({"out"} if in_scope else ())
    return OperatorSpec(name, (), ("out",), None, lineage_out=scope, **settings)


def group(
    name: str,
    operators: Sequence[OperatorSpec],
    wires: Mapping[str, Sequence[str]],
    *,
    lineage_in: Sequence[str] = (),
    weight: float = 1.0,
) -> GroupPlan:
    """A group; `wires` maps each of its output ports to the input ports that receive its events, as ``operator.port``."""
    return GroupPlan(
        name,
        tuple(operators),
        {_port(sender): tuple(_port(receiver) for receiver in receivers) for sender, receivers in wires.items()},
        frozenset(_port(port) for port in lineage_in),
        weight,
    )


def _port(text: str) -> Port:
    operator_name, _, port = text.partition(".")
    return Port(operator_name, port)


SCOPE: Mapping[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})}
"""An operator ``in`` → ``out`` on a data lineage path."""

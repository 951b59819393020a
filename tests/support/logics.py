"""Operators in a few lines, and a group of them over a log in memory, for tests of the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit, OperatorSpec, Output, Read, Write
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.protocol.writes import CLOSE

State = dict[str, Any]


def values(event: Event) -> list[int]:
    """The records of an event, as it was produced or as it comes back from the log."""
    if event.payload is None and event.body is not None:
        return [int(value) for value in json.loads(event.body)]
    return list(event.payload)


def serialized(effects: Iterable[fx.Effect]) -> fx.Effects:
    """What the runtime does before a commit: bodies for payloads."""
    done: fx.Effects = []
    for effect in effects:
        if isinstance(effect, fx.LogEvent) and effect.event.kind is Kind.DATA and effect.event.body is None:
            body = json.dumps(effect.event.payload).encode()
            effect = replace(effect, event=replace(effect.event, body=body))  # noqa: PLW2901
        elif isinstance(effect, (fx.LogWrite, fx.LogRead)):
            effect = replace(effect, body=json.dumps(effect.payload).encode())  # noqa: PLW2901
        done.append(effect)
    return done


class Collecting:
    """Collects the values of an Input Set and emits them, sorted, on port ``out``; subclasses say which and when."""

    def initial_state(self) -> State:
        return {"seen": 0}

    def opening(self) -> Sequence[Write]:
        return ()

    def closing(self) -> Sequence[Write]:
        return ()

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        state["seen"] += 1
        return {inset: self.part(port, event, inset) for inset in self.windows(event, state)}

    def windows(self, event: Event, state: State) -> Sequence[str]:
        raise NotImplementedError

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return values(event)

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return sorted([*(held or []), *part])

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(inset for inset in open_insets if self.is_complete(inset, state))

    def is_complete(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        raise NotImplementedError

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets)

    def function(self, inset_id: str) -> str:
        return ""

    def order(self, inset_id: str) -> int | str | None:
        return None

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Emit("out", held, len(held))


class CountWindow(Collecting):
    """Every `size` events are an Input Set, in order."""

    def __init__(self, size: int) -> None:
        self.size = size

    def windows(self, event: Event, state: State) -> Sequence[str]:
        return [f"{(state['seen'] - 1) // self.size:06d}"]

    def is_complete(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        return bool((int(inset_id) + 1) * self.size <= state["seen"])

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)


class CountWindowWithState(CountWindow):
    """Its generation reads the global state: it must see it as it was at the trigger."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Emit("out", [*held, int(state["seen"])], len(held) + 1)


class TwoCounts(Collecting):
    """Two functions over the same events, one Input Set per two and one per three, without an order (hole H2)."""

    SIZES: Mapping[str, int] = {"a": 2, "b": 3}

    def windows(self, event: Event, state: State) -> Sequence[str]:
        return [f"{name}{(state['seen'] - 1) // size:06d}" for name, size in self.SIZES.items()]

    def is_complete(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        return bool((int(inset_id[1:]) + 1) * self.SIZES[inset_id[0]] <= state["seen"])


class Spans(Collecting):
    """Windows of ten values; an event belongs to every window it has a value in; closed by a later value."""

    def initial_state(self) -> State:
        return {"seen": 0, "high": 0}

    def windows(self, event: Event, state: State) -> Sequence[str]:
        state["high"] = max([state["high"], *values(event)])
        return sorted({f"{value // 10:06d}" for value in values(event)})

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return [value for value in values(event) if value // 10 == int(inset_id)]

    def is_complete(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        return bool(int(inset_id) < state["high"] // 10)

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)


class EachEvent(Collecting):
    """Stateless: every event is an Input Set of its own. Values below zero are filtered away."""

    def initial_state(self) -> State:
        return {}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        kept = [value for value in values(event) if value >= 0]
        return {f"{port}:{event.event_id}": kept} if kept else {}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return [value for value in values(event) if value >= 0]

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return list(open_insets)


class Writing(EachEvent):
    """Writes what it gets to ``wh``, passes it on, and begins a run by clearing its table."""

    def opening(self) -> Sequence[Write]:
        return (Write("wh", {"clear": True}, []),)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Write("wh", {"insert": True}, held, len(held))
        yield Emit("out", held, len(held))


class ByDay(Writing):
    """Writes what it gets as one day, which its closing action replaces, and passes nothing on."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Write("wh", {"insert": True}, held, len(held))

    def closing(self) -> Sequence[Write]:
        return (Write("wh", {"action": CLOSE}, [], 0),)


class Reading(EachEvent):
    """A side-effect read per Input Set."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Read("wh", {"key": inset_id}, [100], 1)
        yield Emit("out", [*held, 100], len(held) + 1)


class Synchronized(Collecting):
    """Two events of port ``a`` with three of port ``b``; it keeps which value came from where."""

    COUNTS: Mapping[str, int] = {"a": 2, "b": 3}

    def initial_state(self) -> State:
        return dict.fromkeys(self.COUNTS, 0)

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        number = state[port] // self.COUNTS[port]
        state[port] += 1
        return {f"{number:06d}": self.part(port, event, "")}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return [[port, value] for value in values(event)]

    def is_complete(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        return all((int(inset_id) + 1) * count <= state[port] for port, count in self.COUNTS.items())

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)


class InSequence(CountWindow):
    """Every `size` events of any port, in the sequence in which they were used: it tells when that has changed."""

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return [[port, *values(event)]]

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return [*(held or []), *part]


class TwoFunctions(TwoCounts):
    """As `TwoCounts`, but the Input Sets of each function close in an order of their own; each has an output port."""

    def function(self, inset_id: str) -> str:
        return inset_id[0]

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id[1:])

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        yield Emit(self.function(inset_id), held, len(held))


class AnyShape(CountWindow):
    """Output Sets of any number of events on two ports, empty ones among them (dynamic batching)."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        for value in held:
            if value % 3:
                yield Emit("odd" if value % 2 else "even", [value] * (value % 4), value % 4)


class WritingSome(Writing):
    """Writes the events that it can divide by four, so that some Output Sets wait for the writes of others alone."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if sum(held) % 8 == 0:
            yield Write("wh", {"insert": True}, held, len(held))
        yield Emit("out", held, len(held))


class Failing(CountWindow):
    """Its generation raises for some Input Sets."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if sum(held) % 8 == 0:
            raise OperatorFailed(f"Input Set {inset_id!r} cannot be generated")
        return super().generate(inset_id, held, state)


def operator(
    name: str,
    logic: Collecting,
    *,
    inputs: Sequence[str] = ("in",),
    outputs: Sequence[str] = ("out",),
    **settings: Any,
) -> OperatorSpec:
    stateless = isinstance(logic, EachEvent)
    return OperatorSpec(name, tuple(inputs), tuple(outputs), logic, stateless=stateless, **settings)


FEED = Port("feed", "out")
"""The sender in another group that all groups under test are fed by."""


def fed(event_id: int, *records: int, sender: Port = FEED) -> Event:
    return Event(sender, event_id, Kind.DATA, len(records), list(records), json.dumps(records).encode())


def end(event_id: int, *, sender: Port = FEED) -> Event:
    return Event(sender, event_id, Kind.END)


@dataclass
class Group:
    """A group whose effects are kept instead of committed."""

    specs: Sequence[OperatorSpec]
    receivers: Mapping[Port, Sequence[Port]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.protocol = GroupProtocol(self.specs, self.receivers)

    def resume(self) -> fx.Effects:
        self.protocol.resume()
        return self.protocol.close_step()

    def step(self, *events: Event, receiver: Port | None = None) -> fx.Effects:
        """Deliver these events, in one step."""
        port = receiver or Port(self.specs[0].name, "in")
        for event in events:
            self.protocol.deliver(port, event)
        return self.protocol.close_step()


def of(kind: type[Any], effects: fx.Effects) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def produced(effects: fx.Effects) -> list[tuple[str, int, Any]]:
    """(port, event_id, payload) of the events that a step logged; ``None`` is the end of the stream."""
    return [
        (str(effect.event.sender), effect.event.event_id, effect.event.payload) for effect in of(fx.LogEvent, effects)
    ]

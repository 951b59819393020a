"""Replicated groups, scaled at random moments: whole events to any slot, with writers in the slots; keys with windows.

Dispatchers send to any legal slot. Plain Python without operators judges the result and its lineage: it wants the same
records at every destination, in any order, and the same lineage from record to record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit, OperatorSpec, Output
from airflow_logio.protocol.replicas import replica_name, slot_operator
from airflow_logio.protocol.values import Event
from airflow_logio.store.records.run_records import ReplicatedShape
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.oracle import Name
from airflow_logio.testing.simulator.plan import GroupPlan, ListSource, Observed, Pair, Scenario, Systems, senders_of
from tests.simulator.plain_operators import (
    SCOPE,
    Mapped,
    PlainLogic,
    Saving,
    State,
    Writing,
    group,
    operator,
    source,
)

SLOTS = 4
REPLICAS = 3
ROUTES = "routes"
"""An external system that never answers the same twice. Dispatchers ask it where to send events."""


class Collapsed:
    """Which events of one port were made from which events of another. `senders` maps input ports to output ports."""

    def __init__(self, pairs: Iterable[Pair], senders: Mapping[str, str]) -> None:
        self._made_of: dict[Name, set[Name]] = {}
        for into, event_id, port, made in pairs:
            self._made_of.setdefault((port, made), set()).add((senders[into], event_id))

    def of(self, port: str, event_id: int, start: str) -> set[int]:
        """Events of output port `start` with a path to the event."""
        todo, seen, found = [(port, event_id)], set[Name](), set[int]()
        while todo:
            name = todo.pop()
            if name[0] == start:
                found.add(name[1])
            elif name not in seen:
                seen.add(name)
                todo += self._made_of.get(name, ())
        return found


def shape(name: str, initial: int = 1, slots: int = SLOTS) -> Mapping[str, ReplicatedShape]:
    return {name: ReplicatedShape(tuple(replica_name(name, n + 1) for n in range(REPLICAS)), slots, initial)}


def slot_ports(slots: int = SLOTS) -> tuple[str, ...]:
    return tuple(f"slot{number}" for number in range(slots))


class Anywhere(PlainLogic):
    """A Dispatcher of whole events: it chooses any slot, and another one when it is asked again."""

    def __init__(self, systems: Systems) -> None:
        self._routes = systems[ROUTES]

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        self._routes.reads += 1
        return (Emit(f"slot{self._routes.reads * 7919 // 13 % SLOTS}", held, len(held)),)


class Merging(PlainLogic):
    """Passes on what arrives on any port, as it arrives."""


def in_slots(make: Mapping[str, PlainLogic], **settings: Any) -> list[OperatorSpec]:
    """A chain of operators, once per slot."""
    return [
        operator(slot_operator(name, slot), logic, **settings) for slot in range(SLOTS) for name, logic in make.items()
    ]


def wires(*names: str, out: str = "") -> dict[str, list[str]]:
    """The wires of the chain in each slot, and from its last operator to one port of `out` per slot, or to nowhere."""
    found = {}
    for slot in range(SLOTS):
        chain = [slot_operator(name, slot) for name in names]
        for one, following in pairwise(chain):
            found[f"{one}.out"] = [f"{following}.in"]
        if out:
            found[f"{chain[-1]}.out"] = [f"{out}.slot{slot}"]
    return found


def dispatched(name: str, to: str) -> dict[str, list[str]]:
    return {f"{name}.slot{slot}": [f"{slot_operator(to, slot)}.in"] for slot in range(SLOTS)}


def merger(name: str = "merge") -> OperatorSpec:
    ports = slot_ports()
    return operator(name, Merging(), inputs=ports, lineage_in=frozenset(ports), lineage_out=frozenset({"out"}))


def dispatcher(name: str, logic: PlainLogic) -> OperatorSpec:
    ports = slot_ports()
    return operator(name, logic, outputs=ports, lineage_in=frozenset({"in"}), lineage_out=frozenset(ports))


# --- whole events, anywhere -------------------------------------------------------------------------------------------

EVENTS = 50
SPREAD_OUT = 32
COPIED = EVENTS
INPUT: tuple[list[int], ...] = tuple([2 * index, 2 * index + 1] for index in range(EVENTS))


def tripled(value: int) -> int:
    return 3 * value


def spread(systems: Systems) -> Sequence[GroupPlan]:
    work = in_slots({"shape": Mapped(tripled), "keep": Writing("near")}, **SCOPE)
    return (
        group(
            "ingest",
            [source("read", in_scope=True), dispatcher("part", Anywhere(systems))],
            {"read.out": ["part.in"], **dispatched("part", "shape")},
            lineage_in=[f"{slot_operator('shape', slot)}.in" for slot in range(SLOTS)],
        ),
        group("work", work, wires("shape", "keep", out="merge"), lineage_in=[f"merge.{port}" for port in slot_ports()]),
        group(
            "store",
            [merger(), operator("save", Writing("far"))],
            {"merge.out": ["save.in"], "save.out": []},
        ),
    )


def judge_spread(seen: Observed, codec: Codec) -> Sequence[str]:
    read = INPUT[: seen.read["read"].offset]
    made = [[3 * value for value in values] for values in read]
    near = [records(seen.writes.get(f"{slot_operator('keep', slot)}>near", ()), codec) for slot in range(SLOTS)]
    merged = [codec.decode(body) for body in seen.ports.get("merge.out", ()) if body]
    begins = [slot for slot, rows in enumerate(near) if rows and rows[0]]
    written = [row for rows in near for row in rows if row]
    far = records(seen.writes.get("save>far", ()), codec)
    origins = Collapsed(seen.lineage, _senders(spread))
    wrong_origins = [
        number
        for number, row in enumerate(merged, start=1)
        if [made[event - 1] for event in sorted(origins.of("merge.out", number, "read.out"))] != [row]
    ]
    return [
        *(["what is merged is not what was read"] if sorted(merged) != sorted(made) else []),
        *(["what the slots have written is not what was read"] if sorted(written) != sorted(made) else []),
        *([f"slots {begins} did not begin with what clears the table"] if begins else []),
        *(["what was written behind the Merger is not what it sent"] if far != [[], *merged] else []),
        *([f"lineage of merged events {wrong_origins} is wrong"] if wrong_origins else []),
    ]


def records(bodies: Iterable[bytes], codec: Codec) -> list[Any]:
    return [codec.decode(body) if body else [] for body in bodies]


SPREAD = Scenario(
    "spread",
    spread,
    {"read": ListSource((INPUT[:SPREAD_OUT],))},
    {ROUTES: ExternalSystem, "near": ExternalSystem, "far": ExternalSystem},
    judge=judge_spread,
    deterministic=False,
    drains=True,
    replicated=shape("work"),
    about="a replicated group of two operators without state, the second a conditional writer, and a Merger",
)


# --- nothing behind the replicas --------------------------------------------------------------------------------------


def copies(systems: Systems) -> Sequence[GroupPlan]:
    return (
        group(
            "ingest",
            [source("read"), dispatcher("part", Anywhere(systems))],
            {"read.out": ["part.in", "near.in"], **dispatched("part", "copy")},
        ),
        group("copies", in_slots({"copy": Saving("far")}, outputs=()), {}),
        group("near", [operator("near", Saving("near"), outputs=())], {}),
    )


def judge_copies(seen: Observed, codec: Codec) -> Sequence[str]:
    read = list(INPUT[: seen.read["read"].offset])
    copied = [
        row
        for slot in range(SLOTS)
        for row in records(seen.writes.get(f"{slot_operator('copy', slot)}>far", ()), codec)
        if row
    ]
    near = records(seen.writes["near>near"], codec)
    return [
        *(["what the slots have written is not what was read"] if sorted(copied) != sorted(read) else []),
        *(["what was written beside them is not what was read"] if near != [[], *read] else []),
    ]


COPIES = Scenario(
    "copies",
    copies,
    {"read": ListSource((INPUT[:COPIED],))},
    {ROUTES: ExternalSystem, "near": ExternalSystem, "far": ExternalSystem},
    judge=judge_copies,
    deterministic=False,
    drains=True,
    replicated=shape("copies", initial=2),
    about="a replicated group of writers with nothing behind it: the last slot ends the run",
)


# --- keys and windows -------------------------------------------------------------------------------------------------

KEYS = 9
LENGTH = 20
"""Length of a window in the records' time, which is their value."""
TIMED = 24
STREAM: tuple[list[int], ...] = tuple(
    [12 * index + step for step in range(0, 12, 5) if index % 5 or step] for index in range(TIMED)
)
"""Sorted. A key appears often, and then not for a long time."""
REACHED = "reached"


def key_of(value: int) -> int:
    return value // 2 % KEYS if value % 100 < 70 else 0


def slot_of_key(key: int) -> int:
    return key * 5 % SLOTS


class ByKeys(PlainLogic):
    """Splits an event by the slots of its keys. An event that starts a later window goes to all slots."""

    stateless = False

    def initial_state(self) -> State:
        return {REACHED: -1, "by": 0}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        latest = max(value // LENGTH for value in event.payload)
        if latest > state[REACHED]:
            state.update({REACHED: latest, "by": event.event_id})
        return {str(event.event_id): event.payload}

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets, key=int)

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        about = {REACHED: state[REACHED]} if state["by"] == int(inset_id) else {}
        parts: dict[int, list[int]] = {}
        for value in held:
            parts.setdefault(slot_of_key(key_of(value)), []).append(value)
        for slot in range(SLOTS) if about else sorted(parts):
            part = parts.get(slot, [])
            yield Emit(f"slot{slot}", part, len(part), about=about)


class Passing(PlainLogic):
    """An operator without state before a window: passes on what it gets, and the time that the stream has reached."""

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        return {str(event.event_id): self.part(port, event, "")}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return [dict(event.about), event.payload]

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return part

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        about, values = held
        return (Emit("out", values, len(values), about=about),)


class Windows(PlainLogic):
    """Groups records by window. A window is complete when the whole stream has reached a later one. Late records raise."""

    stateless = False

    def initial_state(self) -> State:
        return {REACHED: -1}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        parts: dict[str, list[int]] = {}
        for value in event.payload:
            parts.setdefault(str(value // LENGTH), []).append(value)
        if any(int(window) < state[REACHED] for window in parts):
            raise OperatorFailed(f"event {event.event_id} has records of windows that are closed: {sorted(parts)}")
        state[REACHED] = max(state[REACHED], event.about.get(REACHED, -1), *map(int, parts))
        return parts

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return [value for value in event.payload if value // LENGTH == int(inset_id)]

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted((inset for inset in open_insets if int(inset) < state[REACHED]), key=int)

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets, key=int)

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        sums = Counter[int]()
        for value in held:
            sums[key_of(value)] += value
        rows = [[int(inset_id), key, total] for key, total in sorted(sums.items())]
        return (Emit("out", rows, len(rows)),)


def keyed(_systems: Systems, *, replay: bool = False) -> Sequence[GroupPlan]:
    hourly = in_slots({"pass": Passing(), "window": Windows()}, replay=replay, **SCOPE)
    return (
        group(
            "ingest",
            [source("read", in_scope=True), dispatcher("part", ByKeys())],
            {"read.out": ["part.in"], **dispatched("part", "pass")},
            lineage_in=[f"{slot_operator('pass', slot)}.in" for slot in range(SLOTS)],
        ),
        group(
            "hourly",
            hourly,
            wires("pass", "window", out="merge"),
            lineage_in=[f"merge.{port}" for port in slot_ports()],
        ),
        group("store", [merger(), operator("save", Saving("far"), outputs=())], {"merge.out": ["save.in"]}, weight=0.6),
    )


def judge_keyed(seen: Observed, codec: Codec) -> Sequence[str]:
    read = STREAM[: seen.read["read"].offset]
    sums, origins = Counter[tuple[int, int]](), dict[tuple[int, int], set[int]]()
    for number, values in enumerate(read, start=1):
        for value in values:
            window, key = value // LENGTH, key_of(value)
            sums[window, key] += value
            origins.setdefault((window, slot_of_key(key)), set()).add(number)
    wanted = sorted([window, key, total] for (window, key), total in sums.items())
    merged = {
        number: codec.decode(body) for number, body in enumerate(seen.ports.get("merge.out", ()), start=1) if body
    }
    made = [row for rows in merged.values() for row in rows]
    written = [row for rows in records(seen.writes.get("save>far", ()), codec) for row in rows]
    collapsed = Collapsed(seen.lineage, _senders(keyed))
    wrong = [
        number
        for number, rows in merged.items()
        if any(collapsed.of("merge.out", number, "read.out") != origins[row[0], slot_of_key(row[1])] for row in rows)
    ]
    return [
        *(["what is merged is not what the windows of the whole stream make"] if sorted(made) != wanted else []),
        *(["what is written is not what was merged"] if sorted(written) != wanted else []),
        *([f"lineage of merged events {wrong} is wrong"] if wrong else []),
    ]


def _senders(groups: Any) -> Mapping[str, str]:
    plans = {plan.name: plan for plan in groups({ROUTES: ExternalSystem()})}
    return {str(receiver): str(sender) for receiver, sender in senders_of(plans).items()}


KEYED = Scenario(
    "keyed",
    keyed,
    {"read": ListSource((STREAM,))},
    {"far": ExternalSystem},
    judge=judge_keyed,
    deterministic=False,
    drains=True,
    replicated=shape("hourly"),
    about="windows replicated by key behind an operator without state, which learn how far the whole stream has come",
)

"""Replay operators (Section 5), whose bodies are not in the log: a chain of three, fan-out, Input Sets that overlap.

Plain Python without operators says what must come out. What is fast and what lags behind need other events of the same
Output Set again; what is fused holds events that only a recovery needs again; an Input Set is set aside, and retried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.protocol.values import Event
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import (
    Destinations,
    GroupPlan,
    ListSource,
    Observed,
    Pair,
    Scenario,
    Systems,
)
from tests.simulator import replica_groups, retrying
from tests.simulator.plain_operators import (
    SCOPE,
    CountWindow,
    Mapped,
    PlainLogic,
    Saving,
    State,
    Writing,
    group,
    operator,
    source,
)

EVENTS = 48
WINDOW = 5
INPUT: tuple[list[int], ...] = tuple([3 * index, 3 * index + 1, 3 * index + 2] for index in range(EVENTS))
SIZES: Mapping[str, int] = {"x": 2, "y": 3}


def shaped(value: int) -> int | None:
    return None if value % 30 < 3 else 2 * value


def rest(value: int) -> int | None:
    return None if value % 7 == 0 else value + 1


def share(inset_id: str, values: Sequence[int]) -> list[int]:
    """What an Input Set has of an event: all, or its end."""
    return list(values if inset_id[0] == "y" else values[1:])


def output_set(inset_id: str, held: Sequence[int]) -> list[tuple[str, list[int]]]:
    """None to two events to the left, and one in between to the right."""
    number = int(inset_id[1:])
    left = [("left", [number, place, *held]) for place in range(number % 3)]
    return [*left[:1], ("right", [-number, *held]), *left[1:]]


class Parts(PlainLogic):
    """Two functions over the same events, which send to the same two ports."""

    stateless = False

    def initial_state(self) -> State:
        return {"seen": 0}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        state["seen"] += 1
        insets = [f"{name}{(state['seen'] - 1) // size}" for name, size in SIZES.items()]
        return {inset_id: self.part(port, event, inset_id) for inset_id in insets}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return share(inset_id, event.payload)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        complete = {name: state["seen"] // size for name, size in SIZES.items()}
        return self.flush(state, [inset for inset in open_insets if int(inset[1:]) < complete[inset[0]]])

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets, key=lambda inset: (inset[0], int(inset[1:])))

    def function(self, inset_id: str) -> str:
        return inset_id[0]

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id[1:])

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return [Emit(port, values, len(values)) for port, values in output_set(inset_id, held)]


def groups(_systems: Systems) -> Sequence[GroupPlan]:
    ports = ("left", "right")
    shape = operator("shape", Mapped(shaped), replay=True, **SCOPE)
    parts = operator(
        "parts", Parts(), outputs=ports, lineage_in=frozenset({"in"}), lineage_out=frozenset(ports), replay=True
    )
    last = operator("last", Mapped(rest), replay=True, **SCOPE)
    return (
        group("ingest", [source("read", in_scope=True)], {"read.out": ["shape.in"]}, lineage_in=["shape.in"]),
        group("shape", [shape], {"shape.out": ["parts.in"]}, lineage_in=["parts.in"]),
        group("parts", [parts], {"parts.left": ["last.in"], "parts.right": ["other.in"]}, lineage_in=["last.in"]),
        group("last", [last], {"last.out": ["save.in", "window.in"]}),
        group("save", [operator("save", Saving("wh"), outputs=())], {}),
        group(
            "late",
            [operator("window", CountWindow(WINDOW), reads_state=True), operator("sums", Saving("wh"), outputs=())],
            {"window.out": ["sums.in"]},
            weight=0.25,
        ),
        group("other", [operator("other", Saving("wh"), outputs=())], {}, weight=0.6),
    )


def expected(events: int = EVENTS) -> Destinations:
    """The pipeline in plain Python, without its operators, over the given number of events."""
    made: dict[str, list[list[int]]] = {"shape.out": [], "parts.left": [], "parts.right": [], "last.out": []}
    lineage = set[Pair]()

    def send(port: str, values: list[int], into: str, origins: Iterable[int]) -> None:
        made[port].append(values)
        lineage.update((into, origin, port, len(made[port])) for origin in origins)

    for number, values in enumerate(INPUT[:events], start=1):
        if left := [result for value in values if (result := shaped(value)) is not None]:
            send("shape.out", left, "shape.in", [number])
    stream = made["shape.out"]
    sets = {(name, n): range(n * size, (n + 1) * size) for name, size in SIZES.items() for n in range(len(stream))}
    whole = [(each.stop, name, n) for (name, n), each in sets.items() if each.stop <= len(stream)]
    cut = [(len(stream) + 1, name, n) for (name, n), each in sets.items() if each.start < len(stream) < each.stop]
    for _, name, n in sorted([*whole, *cut]):
        used = [index for index in sets[name, n] if index < len(stream)]
        held = [value for index in used for value in share(name, stream[index])]
        for port, values in output_set(f"{name}{n}", held):
            send(f"parts.{port}", values, "parts.in", [index + 1 for index in used])
    for number, values in enumerate(made["parts.left"], start=1):
        if left := [result for value in values if (result := rest(value)) is not None]:
            send("last.out", left, "last.in", [number])
    windows, last = [], made["last.out"]
    for start in range(0, len(last), WINDOW):
        part = last[start : start + WINDOW]
        windows.append([start + len(part), *(value for values in part for value in values)])
    writes = {"save>wh": last, "sums>wh": windows, "other>wh": made["parts.right"]}
    return Destinations(made, {name: [[], *values] for name, values in writes.items()}, frozenset(lineage))


REPLAYED = Scenario(
    "replayed",
    groups,
    {"read": ListSource((INPUT,))},
    {"wh": ExternalSystem},
    expected=expected,
    expected_of=lambda read: expected(read["read"].offset),
    drains=True,
    retention=6.0,
    about="three replay operators in a row, the second with overlapping Input Sets and two ports; one receiver lags",
)


# --- events that are held in the group that has made them, and Input Sets that are set aside ---------------------------

TOGETHER = 4


class Gathered(CountWindow):
    """The records of some events in a row."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Emit("out", held, len(held)),)


class Apart(PlainLogic):
    """Makes an event of each record, all on one port."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return [Emit("out", [value], 1) for value in held]


def set_aside(systems: Systems) -> Sequence[GroupPlan]:
    shape = operator("shape", Mapped(lambda value: value + 1), replay=True, **SCOPE)
    gather = operator("gather", Gathered(TOGETHER), replay=True, **SCOPE)
    split = operator("split", Apart(), replay=True, **SCOPE)
    window = operator("window", retrying.Ailing(systems), reads_state=True, quarantines=True, **SCOPE)
    return (
        group(
            "ingest",
            [source("read", in_scope=True), shape],
            {"read.out": ["shape.in"], "shape.out": ["gather.in"]},
            lineage_in=["gather.in"],
        ),
        group("gather", [gather], {"gather.out": ["split.in"]}, lineage_in=["split.in"]),
        group("window", [split, window], {"split.out": ["window.in"], "window.out": ["save.in"]}),
        group("store", [operator("save", Writing("wh"))], {"save.out": []}),
    )


def judge_set_aside(seen: Observed, codec: Codec) -> list[str]:
    """Checks that the result is that of a run without errors, in any order."""
    read = seen.read["read"].offset
    values = [value + 1 for values in retrying.INPUT[:read] for value in values]
    wanted = [[start + len(part), *part] for start in range(0, len(values), 2) if (part := values[start : start + 2])]
    bodies = seen.ports["window.out"]
    made = {number: codec.decode(body) for number, body in enumerate(bodies, start=1) if body}
    whole = -(-read // TOGETHER)
    used = {index: range(TOGETHER * (index - 1) + 1, min(read, TOGETHER * index) + 1) for index in range(1, whole + 1)}
    lineage = {("shape.in", number, "shape.out", number) for number in range(1, read + 1)}
    lineage |= {("gather.in", number, "gather.out", index) for index, numbers in used.items() for number in numbers}
    per_set = TOGETHER * len(retrying.INPUT[0])
    lineage |= {("split.in", (n - 1) // per_set + 1, "split.out", n) for n in range(1, len(values) + 1)}
    lineage |= {("window.in", row[0] - n, "window.out", number) for number, row in made.items() for n in range(2)}
    written = [codec.decode(body) for body in seen.writes["save>wh"]]
    return [
        *(["what is made is not what a run without errors makes"] if sorted(made.values()) != sorted(wanted) else []),
        *(["what is written is not what was made"] if written != [[], *made.values()] else []),
        *(["lineage is wrong"] if seen.lineage != lineage else []),
        *([f"{sorted(seen.aside)} are still quarantined"] if seen.aside else []),
    ]


RECALLED = Scenario(
    "recalled",
    set_aside,
    {"read": ListSource((retrying.INPUT,))},
    {"service": retrying.Service, "wh": ExternalSystem},
    judge=judge_set_aside,
    deterministic=False,
    retries=True,
    drains=True,
    about="replay operators beside their receivers in one group, whose Input Sets are set aside and retried",
)

# --- replicas ----------------------------------------------------------------------------------------------------------

REKEYED = replace(
    replica_groups.KEYED,
    name="rekeyed",
    groups=partial(replica_groups.keyed, replay=True),
    about="replay operators replicated by key, behind a Dispatcher and in front of a Merger, windows among them",
)

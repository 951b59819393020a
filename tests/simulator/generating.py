"""Generation in all its forms: several functions, jobs, Output Sets of any size, random output, quarantined Input Sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.protocol.values import Event
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import Destinations, GroupPlan, ListSource, Observed, Pair, Scenario, Systems
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

EVENTS = 72
TWICE = 54
"""Number of events that go to the operators with two functions."""
ROLLED = 42
"""Number of events for the operators with random output."""
SORTED = 48
"""Number of events for the operator that quarantines Input Sets."""
INPUT: tuple[list[int], ...] = tuple([index, 100 + index] for index in range(EVENTS))
SIZES: Mapping[str, int] = {"x": 2, "y": 3}


class TwoFunctions(PlainLogic):
    """Two functions over the same events: each event is in an Input Set of both. Their Output Sets have 0 to 2 events."""

    stateless = False

    def initial_state(self) -> State:
        return {"seen": 0}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        state["seen"] += 1
        return {f"{name}{(state['seen'] - 1) // size}": event.payload for name, size in SIZES.items()}

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
        return [Emit(inset_id[0], [int(inset_id[1:]), part, *held], 1) for part in range(int(inset_id[1:]) % 3)]


class Pairs(CountWindow):
    """Its output does not say how many events there were, because a job has no global state."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Emit("out", held, len(held)),)


def functions(_systems: Systems) -> Sequence[GroupPlan]:
    ports = ("x", "y")
    scope: Mapping[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"x"})}
    both = operator("both", TwoFunctions(), outputs=ports, **scope)
    jobs = operator("jobs", TwoFunctions(), outputs=ports, asynchronous=True, **scope)
    kept = ["both.in", "jobs.in"]
    return (
        group("ingest", [source("read", in_scope=True)], {"read.out": ["both.in", "jobs.in"]}, lineage_in=kept),
        group("both", [both], {"both.x": ["left.in"], "both.y": ["right.in"]}),
        group(
            "jobs",
            [jobs, operator("inside", Pairs(2), asynchronous=True)],
            {"jobs.x": ["inside.in"], "jobs.y": [], "inside.out": ["last.in"]},
        ),
        group("left", [operator("left", Saving("wh"), outputs=())], {}),
        group("right", [operator("right", Saving("wh"), outputs=()), operator("last", Saving("wh"), outputs=())], {}),
    )


def expected_functions(events: int = TWICE) -> Destinations:
    made: dict[str, list[list[int]]] = {"x": [], "y": []}
    lineage = set[Pair]()
    for name, size in SIZES.items():
        for number in range((events + size - 1) // size):
            part = range(number * size, min(events, (number + 1) * size))
            for index in range(number % 3):
                made[name].append([number, index, *(value for event in part for value in INPUT[event])])
                if name == "x":
                    lineage |= {(f"{op}.in", e + 1, f"{op}.x", len(made["x"])) for op in ("both", "jobs") for e in part}
    pairs = [made["x"][n : n + 2] for n in range(0, len(made["x"]), 2)]
    windows = [[value for event in pair for value in event] for pair in pairs]
    return Destinations(
        {"both.x": made["x"], "both.y": made["y"], "jobs.x": made["x"]},
        {"left>wh": [[], *made["x"]], "right>wh": [[], *made["y"]], "last>wh": [[], *windows]},
        frozenset(lineage),
    )


FUNCTIONS = Scenario(
    "functions",
    functions,
    {"read": ListSource((INPUT[:TWICE],))},
    {"wh": ExternalSystem},
    expected=expected_functions,
    expected_of=lambda read: expected_functions(read["read"].offset),
    drains=True,
    retention=30.0,
    about="two generative functions per operator, in the loop and in jobs, with Output Sets of 0 to 2 events",
)


class Rolling(CountWindow):
    """Rolls a die for every generation: the number of events, and their contents, differ each time."""

    def __init__(self, size: int, systems: Systems) -> None:
        super().__init__(size)
        self._systems = systems

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        system = self._systems["dice"]
        system.reads += 1
        total = 1 + system.reads * 7 % 3
        return [Emit("out", [int(inset_id), part, total, system.reads, *held], 1) for part in range(total)]


def nondeterministic(systems: Systems) -> Sequence[GroupPlan]:
    first = operator("first", Rolling(2, systems), **SCOPE)
    jobs = operator("jobs", Rolling(2, systems), asynchronous=True)
    return (
        group(
            "ingest", [source("read", in_scope=True)], {"read.out": ["first.in", "jobs.in"]}, lineage_in=["first.in"]
        ),
        group("first", [first], {"first.out": ["save.in"]}),
        group("jobs", [jobs], {"jobs.out": ["copy.in"]}),
        group("store", [operator("save", Saving("wh"), outputs=()), operator("copy", Saving("wh"), outputs=())], {}),
    )


def judge_nondeterministic(seen: Observed, codec: Codec) -> Sequence[str]:
    """Section 4.4: each Input Set has the Output Set of one generation, and everything downstream is made from it."""
    wrong, events = [], seen.read["read"].offset
    for name, writer in (("first", "save"), ("jobs", "copy")):
        made = [codec.decode(body) for body in seen.ports[f"{name}.out"] if body]
        written = [codec.decode(body) for body in seen.writes[f"{writer}>wh"]]
        if written != [[], *made]:
            wrong.append(f"what {writer} has written is not what {name} has made")
        wrong += _generations(name, made, events)
        if name == "first":
            lineage = {
                ("first.in", event + 1, "first.out", index)
                for index, row in enumerate(made, start=1)
                for event in range(2 * row[0], min(events, 2 * row[0] + 2))
            }
            wrong += ["lineage is wrong"] if seen.lineage != lineage else []
    return wrong


def _generations(name: str, made: Sequence[Sequence[int]], events: int) -> Sequence[str]:
    at, inset = 0, 0
    while at < len(made):
        number, _, total, roll, *held = made[at]
        wanted = [value for event in INPUT[2 * inset : min(events, 2 * inset + 2)] for value in event]
        for part in range(total):
            if at + part >= len(made) or list(made[at + part]) != [inset, part, total, roll, *wanted]:
                return [f"Output Set {inset} of {name} is not one of a single generation: {made[at : at + total]}"]
        if number != inset or held != wanted:
            return [f"Output Set {inset} of {name} is {made[at]}"]
        at, inset = at + total, inset + 1
    return [] if inset == (events + 1) // 2 else [f"{name} has {inset} Output Sets"]


NONDETERMINISTIC = Scenario(
    "nondeterministic",
    nondeterministic,
    {"read": ListSource((INPUT[:ROLLED],))},
    {"dice": ExternalSystem, "wh": ExternalSystem},
    judge=judge_nondeterministic,
    drains=True,
    deterministic=False,
    about="operators whose output differs every time it is made, in the loop and in jobs",
)


class Choking(CountWindow):
    """Raises on Input Sets that hold certain values."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if int(inset_id) % 5 == 3:
            raise OperatorFailed(f"Input Set {inset_id} cannot be used")
        return super().generate(inset_id, held, state)


def quarantine(_systems: Systems) -> Sequence[GroupPlan]:
    window = operator("window", Choking(2), reads_state=True, quarantines=True, **SCOPE)
    shape = operator("shape", Mapped(lambda value: value + 1), **SCOPE)
    return (
        group("ingest", [source("read", in_scope=True)], {"read.out": ["shape.in"]}, lineage_in=["shape.in"]),
        group("shape", [shape, window], {"shape.out": ["window.in"], "window.out": ["save.in"]}),
        group("store", [operator("save", Writing("wh"))], {"save.out": ["copy.in"]}),
        group("copy", [operator("copy", Writing("wh"))], {"copy.out": []}),
    )


def expected_quarantine(events: int = SORTED) -> Destinations:
    windows, lineage = [], {("shape.in", n, "shape.out", n) for n in range(1, events + 1)}
    sets = range((events + 1) // 2)
    for number in sets:
        if number % 5 != 3:
            pair = INPUT[2 * number : min(events, 2 * number + 2)]
            windows.append([2 * number + len(pair), *(value + 1 for event in pair for value in event)])
            lineage |= {("window.in", 2 * number + i, "window.out", len(windows)) for i in range(1, len(pair) + 1)}
    return Destinations(
        {"window.out": windows, "save.out": windows},
        {"save>wh": [[], *windows], "copy>wh": [[], *windows]},
        frozenset(lineage),
        frozenset(("window", str(number)) for number in sets if number % 5 == 3),
    )


QUARANTINE = Scenario(
    "quarantine",
    quarantine,
    {"read": ListSource((INPUT[:SORTED],))},
    {"wh": ExternalSystem},
    expected=expected_quarantine,
    expected_of=lambda read: expected_quarantine(read["read"].offset),
    drains=True,
    about="an operator that raises on some Input Sets, which are set aside",
)

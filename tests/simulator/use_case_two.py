"""The paper's use case 2, scaled down: a fixed number of events of each of two ports makes one Input Set.

Two operators receive both streams. One accepts the events of the two ports in any order. The other declares an order, and
its output shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.protocol.values import Event
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import Destinations, GroupPlan, ListSource, Pair, Scenario, Systems
from tests.simulator.plain_operators import PlainLogic, State, Writing, group, operator, source

OF_A, OF_B = 2, 4
SETS = 20
LEFT = 1
"""Number of events of the first port that are left when both streams end. They make an Input Set, too."""
A: tuple[list[int], ...] = tuple([index] for index in range(SETS * OF_A + LEFT))
B: tuple[list[int], ...] = tuple([1_000 + index, 2_000 + index] for index in range(SETS * OF_B))
SCOPE: Mapping[str, Any] = {"lineage_in": frozenset({"a", "b"}), "lineage_out": frozenset({"out"})}


class Together(PlainLogic):
    """Combines events as they arrive: `OF_A` of port ``a`` with `OF_B` of port ``b``."""

    stateless = False

    def __init__(self, *, ordered: bool) -> None:
        self._ordered = ordered

    def initial_state(self) -> State:
        return {"a": 0, "b": 0}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        state[port] += 1
        return {str((state[port] - 1) // (OF_A if port == "a" else OF_B)): event.payload}

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        complete = min(state["a"] // OF_A, state["b"] // OF_B)
        return sorted((inset for inset in open_insets if int(inset) < complete), key=int)

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets, key=int)

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Emit("out", held if self._ordered else sorted(held), len(held)),)


def groups(_systems: Systems) -> Sequence[GroupPlan]:
    ports = ("a", "b")
    turns = ("a",) * OF_A + ("b",) * OF_B
    kept = ["join.a", "join.b", "turns.a", "turns.b"]
    both = [
        operator("join", Together(ordered=False), inputs=ports, **SCOPE),
        operator("turns", Together(ordered=True), inputs=ports, port_order=turns, **SCOPE),
    ]
    return (
        group("left", [source("left", in_scope=True)], {"left.out": ["join.a", "turns.a"]}, lineage_in=kept),
        group("right", [source("right", in_scope=True)], {"right.out": ["join.b", "turns.b"]}, lineage_in=kept),
        group("both", [both[0]], {"join.out": ["save.in"]}),
        group(
            "ordered",
            [both[1], operator("log", Writing("wh"), outputs=("out",))],
            {"turns.out": ["log.in"], "log.out": []},
        ),
        group("store", [operator("save", Writing("wh"))], {"save.out": []}, weight=0.6),
    )


def expected(of_left: int = len(A), of_right: int = len(B)) -> Destinations:
    """The expected Input Sets one after the other, ``a`` before ``b``, from the given numbers of events."""
    left, right = A[:of_left], B[:of_right]
    count = max(-(-of_left // OF_A), -(-of_right // OF_B))
    sets = [left[n * OF_A : (n + 1) * OF_A] + right[n * OF_B : (n + 1) * OF_B] for n in range(count)]
    made = [[value for event in events for value in event] for events in sets]
    lineage = {
        (f"{name}.{port}", n * size + i, f"{name}.out", n + 1)
        for name in ("join", "turns")
        for port, size, stream in (("a", OF_A, left), ("b", OF_B, right))
        for n in range(count)
        for i in range(1, size + 1)
        if n * size + i <= len(stream)
    }
    pairs: frozenset[Pair] = frozenset(lineage)
    sorted_ones = [sorted(values) for values in made]
    return Destinations(
        {"join.out": sorted_ones, "turns.out": made},
        {"save>wh": [[], *sorted_ones], "log>wh": [[], *made]},
        pairs,
    )


SYNCHRONIZED = Scenario(
    "synchronized",
    groups,
    {"left": ListSource((A,)), "right": ListSource((B,))},
    {"wh": ExternalSystem},
    expected=expected,
    expected_of=lambda read: expected(read["left"].offset, read["right"].offset),
    drains=True,
    about="two streams, so many events of each make one Input Set; with and without a declared order of ports",
)

"""Source and map in one group, a window as straggler, and a writer. Lineage covers everything but the writer."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import Destinations, GroupPlan, ListSource, Pair, Scenario, Systems
from tests.simulator.plain_operators import (
    SCOPE,
    CountWindow,
    Mapped,
    Sink,
    Writing,
    group,
    operator,
    source,
)

EVENTS = 80
WINDOW = 4
INPUT: tuple[list[int], ...] = tuple([3 * index, 3 * index + 1] for index in range(EVENTS))


def doubled(value: int) -> int | None:
    """Doubles the value. Drops some, so that no Input Set uses some events."""
    return None if value % 21 in (0, 1) else 2 * value


def groups(_systems: Systems) -> Sequence[GroupPlan]:
    shape = operator("shape", Mapped(doubled), **SCOPE)
    window = operator("window", CountWindow(WINDOW), reads_state=True, asynchronous=True, **SCOPE)
    wires = {"read.out": ["shape.in"], "shape.out": ["window.in"]}
    return (
        group("ingest", [source("read", in_scope=True), shape], wires, lineage_in=["window.in"]),
        group("window", [window], {"window.out": ["save.in"]}, weight=0.4),
        group(
            "store", [operator("save", Writing("wh")), operator("done", Sink(), outputs=())], {"save.out": ["done.in"]}
        ),
    )


def expected(events: int = EVENTS) -> Destinations:
    """The pipeline in plain Python, without its operators, over the given number of events."""
    shaped, origins = [], []
    for index, records in enumerate(INPUT[:events], start=1):
        left = [2 * value for value in records if value % 21 not in (0, 1)]
        if left:
            shaped.append(left)
            origins.append(index)
    windows, lineage = [], set[Pair]()
    for start in range(0, len(shaped), WINDOW):
        part = shaped[start : start + WINDOW]
        windows.append([start + len(part), *(value for records in part for value in records)])
        lineage |= {("window.in", start + i + 1, "window.out", len(windows)) for i in range(len(part))}
    lineage |= {("shape.in", origin, "shape.out", index) for index, origin in enumerate(origins, start=1)}
    return Destinations(
        {"read.out": INPUT[:events], "shape.out": shaped, "window.out": windows},
        {"save>wh": [[], *windows]},
        frozenset(lineage),
    )


LINEAR = Scenario(
    "linear",
    groups,
    {"read": ListSource((INPUT,))},
    {"wh": ExternalSystem},
    expected=expected,
    expected_of=lambda read: expected(read["read"].offset),
    drains=True,
    retention=30.0,
    about="source and map fused, a window that sees its global state in jobs (a straggler), conditional writer",
)

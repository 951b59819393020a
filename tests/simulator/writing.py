"""Writers of every kind: checkable, idempotent, and one that sends its events when its writes are done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit, Output, Write
from airflow_logio.testing.simulator.external_systems import ExternalSystem, Guarantee
from airflow_logio.testing.simulator.plan import Destinations, GroupPlan, ListSource, Scenario, Systems
from tests.simulator.plain_operators import PlainLogic, Sink, Writing, group, operator, source

EVENTS = 51
INPUT: tuple[list[int], ...] = tuple([index, -index] for index in range(1, EVENTS + 1))


def two_writers(_systems: Systems) -> Sequence[GroupPlan]:
    return (
        group("ingest", [source("read")], {"read.out": ["first.in"]}),
        group("first", [operator("first", Writing("one"))], {"first.out": ["second.in"]}),
        group("second", [operator("second", Writing("two"))], {"second.out": []}, weight=0.6),
    )


def expected(events: int = EVENTS) -> Destinations:
    read, written = INPUT[:events], [[], *INPUT[:events]]
    return Destinations({"read.out": read, "first.out": read}, {"first>one": written, "second>two": written})


def _scenario(name: str, guarantee: Guarantee, about: str) -> Scenario:
    system = partial(ExternalSystem, guarantee)
    return Scenario(
        name,
        two_writers,
        {"read": ListSource((INPUT,))},
        {"one": system, "two": system},
        expected=expected,
        expected_of=lambda read: expected(read["read"].offset),
        drains=True,
        crash_stop=True,
        about=about,
    )


CHECKABLE = _scenario("checkable", Guarantee.CHECKABLE, "writers that ask which action was applied last (crash-stop)")
IDEMPOTENT = _scenario("idempotent", Guarantee.IDEMPOTENT, "writers of keyed upserts (crash-stop)")


class Announcing(PlainLogic):
    """Writes each event, and announces the write action to look for. Some events have two write actions, some have none."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        writes = held[0] % 3
        return (
            *(Write("one", {"action": "insert"}, held, len(held)) for _ in range(writes)),
            Emit("out", held, len(held)),
        )


class Looking(PlainLogic):
    """Reads what its events announce; it must be there."""

    def __init__(self, systems: Systems) -> None:
        self._systems = systems

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        system = self._systems["one"]
        needed = sum(values[0] % 3 for values in INPUT[: held[0]])
        if system.marker(("first", "one")) < needed:
            raise OperatorFailed(f"event {held[0]} was sent before write action {needed} was applied")
        return (Write("two", {"action": "insert"}, held, len(held)),)


def swapped(systems: Systems) -> Sequence[GroupPlan]:
    return (
        group("ingest", [source("read")], {"read.out": ["first.in"]}),
        group(
            "first", [operator("first", Announcing(), sends_after_writes=True)], {"first.out": ["second.in", "near.in"]}
        ),
        group("second", [operator("second", Looking(systems), outputs=())], {}),
        group("near", [operator("near", Sink(), outputs=())], {}),
    )


def expected_swapped(events: int = EVENTS) -> Destinations:
    read = INPUT[:events]
    first = [values for values in read for _ in range(values[0] % 3)]
    return Destinations({"first.out": read}, {"first>one": first, "second>two": read})


SWAPPED = Scenario(
    "swapped",
    swapped,
    {"read": ListSource((INPUT,))},
    {"one": ExternalSystem, "two": ExternalSystem},
    expected=expected_swapped,
    expected_of=lambda read: expected_swapped(read["read"].offset),
    drains=True,
    retention=30.0,
    about="Steps 5 and 6 swapped: a reader finds written what the event that it receives tells of",
)

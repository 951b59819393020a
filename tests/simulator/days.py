"""A day that is replaced as a whole: a writer whose actions are held until the log has all of them, beside one that writes at
once. Input Sets upstream are set aside, and retried at any moment.

The destination is the old day, or the whole new one, after each step. In one, two and three groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.external_rules import MarkerRow, Owner
from airflow_logio.protocol.logic import Emit, OperatorSpec, Output, Write
from airflow_logio.protocol.values import Event
from airflow_logio.protocol.writes import CLOSE, WriterKey
from airflow_logio.testing.simulator.codec import Codec, PlainCodec
from airflow_logio.testing.simulator.external_systems import ExternalSystem, TableChange
from airflow_logio.testing.simulator.plan import GroupPlan, ListSource, Observed, Scenario, Systems
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.plain_operators import SCOPE, PlainLogic, Saving, State, group, operator, source

EVENTS = 80
INPUT: tuple[list[int], ...] = tuple([index, 100 + index] for index in range(EVENTS))
REFUSALS = 2
"""How often the generation of some Input Sets raises."""


@dataclass
class Service(ExternalSystem):
    """An external service that a function needs, and that is sometimes unavailable."""

    refused: Counter[str] = field(default_factory=Counter)


class DayTable(ExternalSystem):
    """A table with one day. It changes in `commit` alone, which looks at the day as each reader would see it."""

    def commit(self, run: Owner, key: WriterKey, before: MarkerRow, marker: MarkerRow, change: TableChange) -> int:
        changed = super().commit(run, key, before, marker, change)
        actions = [write.header["action"] for write in self.applied[key]]
        rows = [PlainCodec().decode(write.body) for write in self.applied[key]]
        whole = actions == ["open", *("insert" for _ in INPUT), CLOSE] and sorted(rows[1:-1]) == sorted(wanted())
        if actions != ["open"] and not whole:
            shown = f"{len(rows)} of {len(INPUT) + 2} write actions are applied, the last one is {actions[-1]!r}"
            raise Violation("a_day_is_the_old_one_or_the_whole_new_one", shown)
        return changed


def wanted() -> list[list[int]]:
    return [[2 * value for value in values] for values in INPUT]


class Cleaning(PlainLogic):
    """Raises the first few times on events that need the service."""

    def __init__(self, systems: Systems) -> None:
        self._service = cast(Service, systems["service"])

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if held[0] % 9 in (4, 8) and self._service.refused[inset_id] < REFUSALS:
            self._service.refused[inset_id] += 1
            raise OperatorFailed(f"Input Set {inset_id} cannot be used today")
        return (Emit("out", [2 * value for value in held], len(held)),)


class Each(PlainLogic):
    """A window that closes behind each event, so that late ones find theirs open."""

    stateless = False

    def initial_state(self) -> State:
        return {"seen": 0}

    def assign(self, port: str, event: Event, state: State) -> Mapping[str, Any]:
        state["seen"] += 1
        return {str(state["seen"]): event.payload}

    def order(self, inset_id: str) -> int | str | None:
        return int(inset_id)


class ByDay(Saving):
    """Makes each event a write action. All of them are applied with the closing one."""

    def opening(self) -> Sequence[Write]:
        return (Write(self._connection, {"action": "open"}, []),)

    def closing(self) -> Sequence[Write]:
        return (Write(self._connection, {"action": CLOSE}, []),)


WIRES = {"read.out": ["clean.in"], "clean.out": ["window.in"], "window.out": ["day.in", "copy.in"]}


def plans(*cuts: Sequence[str]) -> Callable[[Systems], Sequence[GroupPlan]]:
    """The pipeline cut into these groups."""

    def groups(systems: Systems) -> Sequence[GroupPlan]:
        specs: Mapping[str, OperatorSpec] = {
            "read": source("read", in_scope=True),
            "clean": operator("clean", Cleaning(systems), quarantines=True, **SCOPE),
            "window": operator("window", Each(), reads_state=True, **SCOPE),
            "day": operator("day", ByDay("wh"), outputs=(), closes=True),
            "copy": operator("copy", Saving("other"), outputs=()),
        }
        return [
            group(
                names[0],
                [specs[name] for name in names],
                {sender: to for sender, to in WIRES.items() if sender.partition(".")[0] in names},
                lineage_in=["clean.in", "window.in"],
            )
            for names in cuts
        ]

    return groups


def judge(seen: Observed, codec: Codec) -> list[str]:
    """Checks that the day was replaced, once, and that nothing is left set aside."""
    day, copy = ([codec.decode(body) for body in seen.writes[name]] for name in ("day>wh", "copy>other"))
    return [
        *([] if sorted(day[1:-1]) == sorted(wanted()) else ["the day was not replaced by all of its rows"]),
        *([] if sorted(copy[1:]) == sorted(wanted()) else ["the writer beside it has not written each row once"]),
        *([f"{sorted(seen.aside)} are still quarantined"] if seen.aside else []),
    ]


def _scenario(name: str, about: str, *cuts: Sequence[str]) -> Scenario:
    return Scenario(
        name,
        plans(*cuts),
        {"read": ListSource((INPUT,))},
        {"service": Service, "wh": DayTable, "other": ExternalSystem},
        judge=judge,
        deterministic=False,
        retries=True,
        about=f"a day that is replaced as a whole, {about}; Input Sets upstream are set aside and retried",
    )


DAY_IN_ONE = _scenario("day_in_one", "in one group", ("read", "clean", "window", "day", "copy"))
DAY_IN_TWO = _scenario("day_in_two", "in two groups", ("read", "clean"), ("window", "day", "copy"))
DAY_IN_THREE = _scenario("day_in_three", "in three groups", ("read",), ("clean", "window"), ("day", "copy"))

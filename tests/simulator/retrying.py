"""Input Sets whose generation raises a few times. They are quarantined, and retried until none is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Output
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import GroupPlan, ListSource, Observed, Scenario, Systems
from tests.simulator.plain_operators import SCOPE, CountWindow, Mapped, Writing, group, operator, source

EVENTS = 44
INPUT: tuple[list[int], ...] = tuple([index, 100 + index] for index in range(EVENTS))
SIZE = 2
REFUSALS = 2
"""How often the generation of some Input Sets raises."""


@dataclass
class Service(ExternalSystem):
    """An external service that a function needs, and that is sometimes unavailable."""

    refused: Counter[str] = field(default_factory=Counter)


class Ailing(CountWindow):
    """Raises the first few times on Input Sets that need the service."""

    def __init__(self, systems: Systems) -> None:
        super().__init__(SIZE)
        self._service = cast(Service, systems["service"])

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if int(inset_id) % 5 in (1, 3) and self._service.refused[inset_id] < REFUSALS:
            self._service.refused[inset_id] += 1
            raise OperatorFailed(f"Input Set {inset_id} cannot be used today")
        return super().generate(inset_id, held, state)


def groups(systems: Systems) -> Sequence[GroupPlan]:
    window = operator("window", Ailing(systems), reads_state=True, quarantines=True, **SCOPE)
    shape = operator("shape", Mapped(lambda value: value + 1), **SCOPE)
    wires = {"read.out": ["shape.in"], "shape.out": ["window.in"]}
    return (
        group("ingest", [source("read", in_scope=True), shape], wires, lineage_in=["window.in"]),
        group("window", [window], {"window.out": ["save.in"]}),
        group("store", [operator("save", Writing("wh"))], {"save.out": ["copy.in"]}),
        group("copy", [operator("copy", Writing("wh"))], {"copy.out": []}),
    )


def judge(seen: Observed, codec: Codec) -> list[str]:
    """Checks that the result is that of a run without errors, in any order."""
    wanted, origins, read = [], {}, seen.read["read"].offset
    for number in range(-(-read // SIZE)):
        events = range(SIZE * number, min(read, SIZE * (number + 1)))
        wanted.append([events.stop, *(value + 1 for event in events for value in INPUT[event])])
        origins[wanted[-1][0]] = [event + 1 for event in events]
    bodies = seen.ports["window.out"]
    made = {number: codec.decode(body) for number, body in enumerate(bodies, start=1) if body}
    lineage = {("window.in", e, "window.out", number) for number, row in made.items() for e in origins.get(row[0], ())}
    lineage |= {("shape.in", number, "shape.out", number) for number in range(1, read + 1)}
    written = {name: [codec.decode(body) for body in seen.writes[f"{name}>wh"]] for name in ("save", "copy")}
    return [
        *(["what is made is not what a run without errors makes"] if sorted(made.values()) != sorted(wanted) else []),
        *(f"{name} has not written what was made" for name, rows in written.items() if rows != [[], *made.values()]),
        *(["lineage is wrong"] if seen.lineage != lineage else []),
        *([f"{sorted(seen.aside)} are still quarantined"] if seen.aside else []),
    ]


RETRY = Scenario(
    "retry",
    groups,
    {"read": ListSource((INPUT,))},
    {"service": Service, "wh": ExternalSystem},
    judge=judge,
    deterministic=False,
    retries=True,
    drains=True,
    about="Input Sets that are set aside and retried, before and after the streams behind them have ended",
)

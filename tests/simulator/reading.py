"""Reads whose effect differs each time. Each is obtained once and stored, and what was made from it stays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.external_systems import ExternalSystem
from airflow_logio.testing.simulator.plan import Batch, GroupPlan, ListSource, Observed, Scenario, Systems
from tests.simulator.plain_operators import SCOPE, PlainLogic, Saving, Writing, group, operator, source

EVENTS = 57
INPUT: tuple[list[int], ...] = tuple([index] for index in range(1, EVENTS + 1))
DROPPED = 7
"""One of so many events needs no read, and nothing is made from it."""


class Enriching(PlainLogic):
    """Makes a side-effect read per Input Set. Its effect goes into the output."""

    def __init__(self, systems: Systems) -> None:
        self._systems = systems

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        if held[0] % DROPPED == 0:
            return ()
        system = self._systems["lookup"]
        system.reads += 1
        effect = [system.reads]
        return (Read("lookup", {"of": held[0]}, effect, 1), Emit("out", [*held, *effect], 2))


def side_reads(systems: Systems) -> Sequence[GroupPlan]:
    enrich = operator("enrich", Enriching(systems), **SCOPE)
    return (
        group("ingest", [source("read", in_scope=True)], {"read.out": ["enrich.in"]}, lineage_in=["enrich.in"]),
        group("enrich", [enrich], {"enrich.out": ["save.in"]}, weight=0.7),
        group("store", [operator("save", Writing("wh"))], {"save.out": []}),
    )


def judge_side_reads(seen: Observed, codec: Codec) -> Sequence[str]:
    """Section 4.4: what was logged is what some failure-free run makes, and everything downstream is made from it."""
    made = [codec.decode(body) for body in seen.ports["enrich.out"] if body]
    wanted = [values[0] for values in INPUT[: seen.read["read"].offset] if values[0] % DROPPED]
    effects = [codec.decode(body)[0] for body in seen.ports.get("enrich<lookup", ())]
    written = [codec.decode(body) for body in seen.writes["save>wh"]]
    lineage = {("enrich.in", value, "enrich.out", index) for index, value in enumerate(wanted, start=1)}
    return [
        *(["outputs are not one per input, in order"] if [value for value, _ in made] != wanted else []),
        *(["an output is not made of the effect that is stored for it"] if [e for _, e in made] != effects else []),
        *(["a read was used twice"] if len(set(effects)) != len(effects) else []),
        *(["what is written is not what was made"] if written != [[], *made] else []),
        *(["lineage is wrong"] if seen.lineage != lineage else []),
    ]


SIDE_READS = Scenario(
    "side_reads",
    side_reads,
    {"read": ListSource((INPUT,))},
    {"lookup": ExternalSystem, "wh": ExternalSystem},
    judge=judge_side_reads,
    drains=True,
    deterministic=False,
    about="side-effect reads in a lineage scope, whose effect is another one each time",
)

ACTIONS, PER_ACTION = 4, 16


@dataclass(frozen=True)
class Feed:
    """An external system that never gives the same data twice: every record contains the number of its reading."""

    actions: Sequence[Mapping[str, Any]] = tuple({"action": index} for index in range(ACTIONS))

    def batch(self, action: int, offset: int, reading: int) -> Batch | None:
        """The third read action has an empty effect."""
        if offset >= PER_ACTION or action == 2:
            return None
        return Batch([action, offset, reading], 1, offset + 1)


def feed(_systems: Systems) -> Sequence[GroupPlan]:
    return (
        group("ingest", [source("feed", replayable=False)], {"feed.out": ["save.in"]}),
        group("store", [operator("save", Writing("wh"))], {"save.out": ["copy.in"]}),
        group("copy", [operator("copy", Saving("wh"), outputs=())], {}),
    )


def judge_feed(seen: Observed, codec: Codec) -> Sequence[str]:
    """Every read action was used once, completely, as one reading returned it; no stored effect is left.

    A drained feed has read all of an action, or nothing.
    """
    up_to = seen.read["feed"]
    if up_to.offset not in (0, PER_ACTION):
        return [f"of read action {up_to.action} {up_to.offset} records were used"]
    whole = [action for action in range(up_to.action + (up_to.offset > 0)) if action != 2]
    events = [codec.decode(body) for body in seen.ports["feed.out"] if body]
    written = [codec.decode(body) for body in seen.writes["save>wh"]]
    order = [(action, offset) for action, offset, _ in events]
    readings = {(action, reading) for action, _, reading in events}
    wanted = [(action, offset) for action in whole for offset in range(PER_ACTION)]
    return [
        *(["records are lost, doubled or out of order"] if order != wanted else []),
        *(["a read action was used in two readings"] if len(readings) != len(whole) else []),
        *(["what is written is not what was read"] if written != [[], *events] else []),
        *([f"{seen.effects} stored effects are left"] if seen.effects else []),
    ]


FEED = Scenario(
    "feed",
    feed,
    {"feed": Feed()},
    {"wh": ExternalSystem},
    judge=judge_feed,
    drains=True,
    deterministic=False,
    about="a source whose read actions cannot be replayed, four of them, one empty",
)

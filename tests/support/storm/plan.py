"""What must happen in a storm before it may end; whatever else happens is left to chance."""

from __future__ import annotations

import random
from collections.abc import Collection
from enum import StrEnum

from tests.support.storm.shape import Shape, Terminal, turn


class Happening(StrEnum):
    KILL = "a driver dies"
    STOP = "a driver stands still for a while"
    LOG = "the log is unavailable, the warehouse is there"
    WAREHOUSE = "the warehouse is unavailable, the log is there"
    POWER = "the server of both is stopped"
    DISK = "the disk of the log is full"
    HALT = "a person halts the run, and resumes it"
    SCALE = "a person asks for another number of replicas"
    MEND = "a person mends the cause of what was set aside, and retries it"
    LEAVE = "the outlet is unavailable"
    TERMINAL = "the command that supervises is killed, and the run taken up by `logio retry`"
    PARK = "the warehouse is unavailable for so long that a group is parked, and `logio retry` resumes it"
    DRAIN = "a person drains the run"


def plan_of(shape: Shape, outages: Collection[str]) -> tuple[Happening, ...]:
    """In this order. `outages` are those that the place may have."""
    by_turns = turn(shape.seed, "people and disks", (Happening.HALT, Happening.DISK, Happening.POWER))
    there = {Happening.DISK: "disk" in outages, Happening.POWER: "power" in outages}
    musts = [Happening.LOG]
    if shape.terminal is not Terminal.SPARK:  # each of its drivers takes seconds to start
        musts += [Happening.KILL, Happening.STOP]
    if shape.terminal is Terminal.HERE:
        musts += [Happening.WAREHOUSE, by_turns if there.get(by_turns, True) else Happening.HALT]
    else:
        musts += [Happening.TERMINAL, Happening.PARK]
    musts += [Happening.SCALE] if shape.spread is not None else []
    random.Random(f"plan {shape.seed}").shuffle(musts)
    return (*musts, *([Happening.DRAIN] if shape.drained else []))

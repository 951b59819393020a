"""Drained runs under the simulator: who asks when, and the part of the input that was read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from airflow_logio.testing.simulator.plan import Batch, Read, Scenario, SourceScript, UpTo

DRAIN_EVERY = 8
"""Of the seeds of a scenario that drains, every so manieth is of a schedule in which somebody asks for it."""
AT_ONCE = 0.1
"""How often before anybody has read anything."""
LATEST = 0.6
"""Of the events of a whole run: the last moment."""
ALONE, LATER, AGAIN = 0.1, 0.2, 0.3
"""How often, of several groups with sources, one is not asked at all, or at another moment; how often one is asked twice."""


class Wish(NamedTuple):
    """A person asks `group` to drain when so many events are logged."""

    events: int
    group: str


def wishes(seed: int, groups: Sequence[str], events: int) -> list[Wish]:
    """Those of one schedule, the last one first; `events` is how many a whole run has.

    A generator of its own: what else happens in a schedule in which nobody asks does not depend on it.
    """
    if seed % DRAIN_EVERY != DRAIN_EVERY - 1 or not groups:
        return []
    chance = random.Random(f"drains of {seed}")

    def moment() -> int:
        return 0 if chance.random() < AT_ONCE else int(chance.random() ** 1.5 * LATEST * events)

    together = moment()
    first = chance.choice(groups)
    found = []
    for group in groups:
        if group != first and chance.random() < ALONE:
            continue
        at = moment() if group != first and chance.random() < LATER else together
        found.append(Wish(at, group))
        if chance.random() < AGAIN:
            found.append(Wish(at + int(chance.random() * 0.2 * events), group))
    return sorted(found, reverse=True)


# --- what was read ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prefix:
    """A source that ends where a drained run has stopped to read it."""

    script: SourceScript
    up_to: UpTo

    @property
    def actions(self) -> Sequence[Mapping[str, Any]]:
        return self.script.actions[: self.up_to.action + 1]

    def batch(self, action: int, offset: int, reading: int) -> Batch | None:
        if (action, offset) >= self.up_to:
            return None
        return self.script.batch(action, offset, reading)


def prefix_of(scenario: Scenario, read: Read) -> Scenario:
    """The same pipeline over the part of its input that was read, and what is expected of that."""
    return replace(
        scenario,
        sources={name: Prefix(script, read[name]) for name, script in scenario.sources.items()},
        expected=None if scenario.expected_of is None else partial(scenario.expected_of, read),
        drains=False,
    )

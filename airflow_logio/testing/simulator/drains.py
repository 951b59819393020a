"""Drained runs in the simulator: when a drain is requested, and the part of the input that was read."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from airflow_logio.testing.simulator.plan import Batch, Read, Scenario, SourceScript, UpTo

DRAIN_EVERY = 8
"""In a scenario that drains, one in so many seeds gives a schedule with a drain."""
AT_ONCE = 0.1
"""How often the request comes before anything was read."""
LATEST = 0.6
"""The last moment of a request, as a share of the events of a whole run."""
ALONE, LATER, AGAIN = 0.1, 0.2, 0.3
"""If several groups have sources: how often one is not asked, or at another moment; and how often one is asked twice."""


class Wish(NamedTuple):
    """A person asks `group` to drain when this many events are logged."""

    events: int
    group: str


def wishes(seed: int, groups: Sequence[str], events: int) -> list[Wish]:
    """The requests of one schedule, the last one first. `events` is the number of events of a whole run.

    They have their own random generator, so a schedule without a request does not depend on them.
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
    """A source that ends where a drained run stopped reading it."""

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
    """The same pipeline over the part of its input that was read, with the result expected of it."""
    return replace(
        scenario,
        sources={name: Prefix(script, read[name]) for name, script in scenario.sources.items()},
        expected=None if scenario.expected_of is None else partial(scenario.expected_of, read),
        drains=False,
    )

"""Garbage collection at any place of any run with any crashes: it ends exactly as without, and nothing is missed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.values import Status
from tests.unit.protocol.test_crashes import ACTIONS, GROUPS, STREAMS, Action, Machine, reference

LINEAGE = ("lineage", "reads")
"""What retention takes from the results, and nothing else may."""


@dataclass
class CollectingMachine(Machine):
    """Puts effects of garbage collection into its steps, in front of everything else; crashes may drop them with it."""

    limits: Iterator[int] = field(default_factory=lambda: itertools.repeat(0))
    """Of the next batch; none at 0."""
    expires: bool = False
    """Lineage is too old as soon as it is logged."""

    def close_step(self) -> None:
        super().close_step()
        limit = next(self.limits)
        if limit and self.uncommitted:
            self.uncommitted[-1][:0] = self.garbage_collection(limit)

    def garbage_collection(self, limit: int) -> fx.Effects:
        effects: fx.Effects = [fx.Collect(tuple(spec.name for spec in self.specs), limit)]
        for spec in reversed(self.specs if self.expires else ()):
            for port in spec.lineage_out:
                effects.append(fx.ExpireLineage(spec.name, Kept.EVENTS, -1.0, 0, limit, port))
            if spec.lineage_out:
                effects.append(fx.ExpireLineage(spec.name, Kept.READS, -1.0, 0, limit, "wh"))
                effects.append(fx.ExpireLineage(spec.name, Kept.STATES, -1.0, 0, limit))
        return effects

    def collect_the_rest(self) -> None:
        for _ in range(5):  # what is upstream goes in a later pass
            collected = self.driver.session.commit(self.garbage_collection(10_000))
            assert not any(one.more for one in collected)

    def left(self) -> tuple[set[tuple[Status, bool]], set[bool]]:
        """(status, kept) of the rows that are left; whether each body has a row, or is kept."""
        tables = self.store.tables
        rows = {(row.status, row.kept) for row in tables.events.rows.values()}
        return rows, {body.kept or bool(tables.events.of_event(key)) for key, body in tables.bodies.items()}


LIMITS = st.lists(st.sampled_from([0, 1, 2, 100]), min_size=1, max_size=8)


def run(machine: CollectingMachine, actions: Sequence[Action]) -> dict[str, Any]:
    for action in actions:
        machine.act(action)
    machine.run_to_the_end()
    return machine.results()


@pytest.mark.parametrize("name", GROUPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jumps=STREAMS, actions=ACTIONS, limits=LIMITS)
def test_collecting_changes_nothing(
    name: str, jumps: list[list[int]], actions: list[Action], limits: list[int]
) -> None:
    machine = CollectingMachine(GROUPS[name], jumps, limits=itertools.cycle(limits))
    expected = reference(GROUPS[name], jumps)
    assert run(machine, actions) == expected
    machine.collect_the_rest()
    rows, bodies = machine.left()
    assert (Status.DONE, False) not in rows, "everything that is done and not kept has gone"
    assert bodies <= {True}, "and no body is left that is not needed"
    assert machine.results() == expected


@pytest.mark.parametrize("name", GROUPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jumps=STREAMS, actions=ACTIONS, limits=LIMITS)
def test_expiring_changes_only_lineage(
    name: str, jumps: list[list[int]], actions: list[Action], limits: list[int]
) -> None:
    machine = CollectingMachine(GROUPS[name], jumps, limits=itertools.cycle(limits), expires=True)
    expected = reference(GROUPS[name], jumps)
    found = run(machine, actions)
    assert {key: found[key] for key in found if key not in LINEAGE} == {
        key: expected[key] for key in expected if key not in LINEAGE
    }
    assert set(found["lineage"]) <= set(expected["lineage"])
    assert {key for key, _ in found["reads"]} <= {key for key, _ in expected["reads"]}


@pytest.mark.parametrize("name", GROUPS)
def test_when_everything_has_been_delivered_and_is_old_nothing_is_left(name: str) -> None:
    jumps = [[0, 1], [2], [1, 3], [0], [2, 2], [3]]
    machine = CollectingMachine(GROUPS[name], jumps, expires=True)
    machine.run_to_the_end()
    for sink in machine.sinks:
        sent = machine.driver.session.fetch(sink, 0, max_events=10_000, max_bytes=1 << 30)
        machine.driver.session.commit(
            [fx.Acknowledge(row.event.sender, sink, row.event.event_id, (), kept=False) for row in sent]
        )
    machine.driver.session.commit([fx.Collect(("sink",), 10_000)])
    machine.collect_the_rest()
    tables = machine.store.tables
    aside = {inset_id for _, _, inset_id in tables.quarantine}
    # In some of these groups a port in IN has a sender that is not in OUT; a pipeline has none such.
    outside = {key for key, body in tables.bodies.items() if not body.kept}
    made = [row for row in tables.events.rows.values() if row.body not in outside]
    assert {row.status for row in made} <= {Status.ASIDE, Status.DONE}
    if not aside:
        assert made == []
        assert set(tables.bodies) == outside
        assert tables.reads == {}
        assert {state_id for _, _, state_id in tables.states} == {0}

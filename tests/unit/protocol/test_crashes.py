"""Any stream, any steps, any crashes: the results are those of a run without failures (Theorem of Section 5, by example).

A group runs over the log in memory. Its steps are committed late and in groups, as in the runtime; a crash drops the
steps that were not committed, and rebuilds the group from the log, as the same incarnation or as the next one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.memory import MemoryLogStore
from tests.support.logics import (
    CountWindow,
    CountWindowWithState,
    EachEvent,
    Reading,
    Spans,
    TwoCounts,
    Writing,
    end,
    fed,
    operator,
    serialized,
)
from tests.support.logs import Driver, replace_driver, spec, start_driver

SINK = Port("sink", "in")
SCOPE: Mapping[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})}

GROUPS: Mapping[str, Sequence[OperatorSpec]] = {
    "count": [operator("op", CountWindow(3), **SCOPE)],
    "count with state": [operator("op", CountWindowWithState(3), reads_state=True, **SCOPE)],
    "two functions": [operator("op", TwoCounts(), **SCOPE)],
    "two functions in jobs": [operator("op", TwoCounts(), asynchronous=True, **SCOPE)],
    "spans": [operator("op", Spans())],
    "spans in jobs": [operator("op", Spans(), asynchronous=True, **SCOPE)],
    "state in jobs": [operator("op", CountWindowWithState(2), reads_state=True, asynchronous=True, **SCOPE)],
    "writer": [operator("op", Writing())],
    "chain": [
        operator("op", EachEvent(), **SCOPE),
        operator("next", CountWindowWithState(2), reads_state=True, **SCOPE),
        operator("last", Writing()),
    ],
    "chain of holders": [operator("op", TwoCounts()), operator("next", CountWindow(2)), operator("last", TwoCounts())],
    "chain with a job": [
        operator("op", CountWindow(2), **SCOPE),
        operator("next", TwoCounts(), asynchronous=True, **SCOPE),
        operator("last", Reading(), **SCOPE),
    ],
}


@dataclass
class Action:
    """What happens next: deliver so many events, then perhaps jobs, then perhaps a commit or a crash."""

    deliver: int
    start_jobs: bool
    end_jobs: int
    commit: int
    crash: str


ACTIONS = st.lists(
    st.builds(
        Action,
        deliver=st.integers(0, 4),
        start_jobs=st.booleans(),
        end_jobs=st.integers(0, 3),
        commit=st.integers(0, 3),
        crash=st.sampled_from(["", "", "", "epoch", "incarnation"]),
    ),
    max_size=12,
)
STREAMS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=14)


def stream_of(jumps: Sequence[Sequence[int]]) -> list[Event]:
    """Values that rise, so that windows close, with events that span several windows and some without any use."""
    high, events = 0, []
    for event_id, steps in enumerate(jumps, start=1):
        records = []
        for step in steps:
            high += step * 4
            records.append(high)
        events.append(fed(event_id, *records))
    return [*events, end(len(events) + 1)]


@dataclass
class Machine:
    """One group with its driver: steps that are made, and how many of them are committed."""

    specs: Sequence[OperatorSpec]
    events: Sequence[Event]
    store: MemoryLogStore = field(default_factory=MemoryLogStore)
    uncommitted: list[fx.Effects] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.specs]
        self.receivers = {
            Port(name, "out"): [Port(names[index + 1], "in") if index + 1 < len(names) else SINK]
            for index, name in enumerate(names)
        }
        run = self.store.start_run(spec("feed", "g", budget=RecoveryBudget(recoveries=1000)))
        feeder = start_driver(self.store, group="feed", run=run)
        feeder.session.commit([fx.LogEvent(event, (fx.Delivery(Port("op", "in")),)) for event in self.events])
        self.driver: Driver = start_driver(self.store, group="g", run=run)
        self._rebuild()

    # --- what may happen ----------------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        for _ in range(action.deliver):
            self.deliver_one()
        self.close_step()
        if action.start_jobs:
            self.start_jobs()
        self.end_jobs(action.end_jobs)
        self.close_step()
        self.commit(action.commit)
        if action.crash:
            self.crash(action.crash)

    def deliver_one(self) -> None:
        """From the log, as the channel does it; sometimes what is known already, because nobody keeps a cursor here."""
        mark = self.protocol.operators["op"].context.mark("in")
        logged = self.driver.session.fetch(Port("op", "in"), mark, max_events=1, max_bytes=1)
        if logged:
            assert self.protocol.deliver(Port("op", "in"), logged[0].event)
            assert not self.protocol.deliver(Port("op", "in"), logged[0].event), "delivered twice, used once"

    def start_jobs(self) -> None:
        for name, protocol in self.protocol.operators.items():
            if protocol.spec.asynchronous:
                waiting = protocol.next_triggered()
                if waiting:
                    self.protocol.start_job(name, waiting)
                    self.jobs.append((name, waiting))

    def end_jobs(self, many: int) -> None:
        """Jobs of one operator end in the order they were started in."""
        for name, inset_ids in self.jobs[:many]:
            protocol = self.protocol.operators[name]
            self.protocol.generated(name, [(inset, list(protocol.generate(inset))) for inset in inset_ids])
        del self.jobs[:many]

    def close_step(self) -> None:
        if effects := self.protocol.close_step():
            self.uncommitted.append(serialized(effects))

    def commit(self, many: int) -> None:
        """Group commit: so many steps in one transaction."""
        if many and self.uncommitted:
            self.driver.session.commit([effect for effects in self.uncommitted[:many] for effect in effects])
            del self.uncommitted[:many]

    def crash(self, kind: str) -> None:
        if kind == "epoch":
            self.driver.session.open(raise_epoch=True)
        else:
            self.driver = replace_driver(self.driver)
        self._rebuild()

    def _rebuild(self) -> None:
        self.uncommitted.clear()
        self.jobs: list[tuple[str, list[str]]] = []
        self.protocol = GroupProtocol(self.specs, self.receivers)
        recovered = self.driver.session.recover([spec.name for spec in self.specs])
        for name, data in recovered.states.items():
            self.protocol.operators[name].restore(data)
        for name, inset_id, data in recovered.snapshots:
            self.protocol.operators[name].restore_snapshot(inset_id, data)
        for row in recovered.acknowledged:
            assert row.inset_id is not None
            self.protocol.operators[row.receiver.operator].reload(row.receiver.name, row.event, row.inset_id)
        self.protocol.resume()
        self.close_step()

    def run_to_the_end(self) -> None:
        rounds = 0
        while not self.protocol.is_finished():
            rounds += 1
            assert rounds < 1000, "the group does not come to its end"
            self.act(Action(deliver=1, start_jobs=True, end_jobs=9, commit=9, crash=""))
        self.commit(len(self.uncommitted))

    # --- what the world sees ------------------------------------------------------------------------------------------

    def results(self) -> dict[str, Any]:
        session = self.driver.session
        names = [spec.name for spec in self.specs]
        recovered = session.recover(names)
        assert recovered.acknowledged == (), "nothing is held after the end of the stream"
        assert recovered.snapshots == ()
        sent = session.fetch(SINK, 0, max_events=10_000, max_bytes=1 << 30)
        tables = self.store.tables
        return {
            "sent": [
                (row.event.event_id, row.event.kind, json.loads(row.event.body or b"null"))
                if row.event.kind is Kind.DATA
                else (row.event.event_id, row.event.kind, None)
                for row in sent
            ],
            "writes": [(write.operator, write.number, write.body) for write in recovered.writes],
            "states": dict(recovered.states),
            "lineage": sorted(tables.lineage),
            "reads": sorted(tables.reads.items(), key=repr),
            "counters": sorted(
                (str(row.port), row.direction, row.events, row.records) for row in tables.counters.values()
            ),
        }


def reference(specs: Sequence[OperatorSpec], events: Sequence[Event]) -> dict[str, Any]:
    """One event, one step, one commit; no failure."""
    machine = Machine(specs, events)
    machine.run_to_the_end()
    return machine.results()


@pytest.mark.parametrize("name", GROUPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jumps=STREAMS, actions=ACTIONS)
def test_crashes_change_nothing(name: str, jumps: list[list[int]], actions: list[Action]) -> None:
    events = stream_of(jumps)
    machine = Machine(GROUPS[name], events)
    for action in actions:
        machine.act(action)
    machine.run_to_the_end()
    assert machine.results() == reference(GROUPS[name], events)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("committed", [0, 1])
def test_a_crash_after_every_event(name: str, committed: int) -> None:
    """Without a commit nothing was used, and it all comes again; with one, everything has been used once."""
    events = stream_of([[0, 1], [2], [1, 3], [0], [2, 2], [3]])
    machine = Machine(GROUPS[name], events)
    for _ in events:
        machine.act(Action(deliver=1, start_jobs=True, end_jobs=9, commit=9 * committed, crash="incarnation"))
    machine.run_to_the_end()
    assert machine.results() == reference(GROUPS[name], events)

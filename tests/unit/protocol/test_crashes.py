"""Any stream, any steps, any crashes: the results are those of a run without failures (Section 4.4, by example).

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

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.protocol.writes import PendingWrite, unapplied
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logics import (
    FEED,
    AnyShape,
    CountWindow,
    CountWindowWithState,
    EachEvent,
    Failing,
    InSequence,
    Reading,
    Spans,
    Synchronized,
    TwoCounts,
    TwoFunctions,
    Writing,
    WritingSome,
    end,
    fed,
    operator,
    serialized,
)
from tests.support.logs import Driver, replace_driver, spec, start_driver

SCOPE: Mapping[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})}
TWO_PORTS: Mapping[str, Any] = {"lineage_in": frozenset({"a"}), "lineage_out": frozenset({"out"})}

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
    "synchronized ports": [operator("op", Synchronized(), inputs=("a", "b"), **TWO_PORTS)],
    "synchronized ports in jobs": [operator("op", Synchronized(), inputs=("a", "b"), asynchronous=True, **TWO_PORTS)],
    "ports in order": [operator("op", InSequence(4), inputs=("a", "b"), port_order=("a", "a", "b"), **TWO_PORTS)],
    "ports in order behind an operator": [
        operator("op", EachEvent(), **SCOPE),
        operator("next", InSequence(3), inputs=("in", "b"), port_order=("b", "in", "in")),
    ],
    "any shape": [
        operator("op", AnyShape(2), outputs=("even", "odd"), lineage_in={"in"}, lineage_out={"odd"}),
    ],
    "any shape in jobs": [operator("op", AnyShape(3), outputs=("even", "odd"), asynchronous=True)],
    "functions with an order each": [operator("op", TwoFunctions(), outputs=("a", "b"))],
    "functions with an order each in jobs": [operator("op", TwoFunctions(), outputs=("a", "b"), asynchronous=True)],
    "sends after its writes": [operator("op", WritingSome(), sends_after_writes=True, **SCOPE)],
    "sends after its writes within the group": [
        operator("op", EachEvent()),
        operator("next", WritingSome(), sends_after_writes=True, **SCOPE),
        operator("last", CountWindow(2), **SCOPE),
    ],
    "writers that wait one after the other": [
        operator("op", WritingSome(), sends_after_writes=True),
        operator("next", TwoCounts()),
        operator("last", Writing(), sends_after_writes=True),
    ],
    "quarantine": [operator("op", Failing(2), quarantines=True, **SCOPE)],
    "quarantine in jobs": [operator("op", Failing(2), quarantines=True, asynchronous=True, **SCOPE)],
    "quarantine with state": [operator("op", Failing(3), quarantines=True, reads_state=True, **SCOPE)],
    "chain with a job": [
        operator("op", CountWindow(2), **SCOPE),
        operator("next", TwoCounts(), asynchronous=True, **SCOPE),
        operator("last", Reading(), **SCOPE),
    ],
}


@dataclass
class Action:
    """What happens next: deliver so many events, then perhaps jobs and write actions, then perhaps a commit or a crash."""

    deliver: int
    start_jobs: bool
    end_jobs: int
    write: int
    commit: int
    crash: str
    port: int = 0
    """Which of the ports that could deliver is asked first."""


ACTIONS = st.lists(
    st.builds(
        Action,
        deliver=st.integers(0, 4),
        start_jobs=st.booleans(),
        end_jobs=st.integers(0, 3),
        write=st.integers(0, 3),
        commit=st.integers(0, 3),
        crash=st.sampled_from(["", "", "", "epoch", "incarnation"]),
        port=st.integers(0, 1),
    ),
    max_size=12,
)
STREAMS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=14)


def stream_of(jumps: Sequence[Sequence[int]], sender: Port = FEED) -> list[Event]:
    """Values that rise, so that windows close, with events that span several windows and some without any use."""
    high, events = 0, []
    for event_id, steps in enumerate(jumps, start=1):
        records = []
        for step in steps:
            high += step * 4
            records.append(high)
        events.append(fed(event_id, *records, sender=sender))
    return [*events, end(len(events) + 1, sender=sender)]


@dataclass
class Machine:
    """One group with its driver: steps that are made, and how many of them are committed.

    Output ports named ``out`` feed the first input port of the next operator, other ones a sink; input ports that no sender
    feeds get shares of the stream. The external system applies a write action once, by its marker, and survives crashes.
    """

    specs: Sequence[OperatorSpec]
    jumps: Sequence[Sequence[int]]
    store: MemoryLogStore = field(default_factory=MemoryLogStore)
    uncommitted: list[fx.Effects] = field(default_factory=list)
    external: dict[tuple[str, str], list[PendingWrite]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sinks: list[Port] = []
        self.receivers = {
            Port(spec.name, port): [self._receiver(index, port)]
            for index, spec in enumerate(self.specs)
            for port in spec.outputs
        }
        run = self.store.start_run(spec("feed", "g", budget=RecoveryBudget(recoveries=1000)))
        self._feed(start_driver(self.store, group="feed", run=run))
        self.driver: Driver = start_driver(self.store, group="g", run=run)
        self._rebuild()

    def _receiver(self, index: int, port: str) -> Port:
        if port == "out" and index + 1 < len(self.specs):
            following = self.specs[index + 1]
            return Port(following.name, following.inputs[0])
        self.sinks.append(Port("sink", f"{self.specs[index].name}_{port}"))
        return self.sinks[-1]

    def _feed(self, feeder: Driver) -> None:
        fused = {port for ports in self.receivers.values() for port in ports}
        inputs = [Port(spec.name, port) for spec in self.specs for port in spec.inputs]
        ports = [port for port in inputs if port not in fused]
        for place, port in enumerate(ports):
            events = stream_of(self.jumps[place :: len(ports)], Port("feed", f"{port.operator}_{port.name}"))
            feeder.session.commit([fx.LogEvent(event, (fx.Delivery(port),)) for event in events])

    # --- what may happen ----------------------------------------------------------------------------------------------

    def act(self, action: Action) -> None:
        for turn in range(action.deliver):
            self.deliver_one(action.port + turn)
        self.close_step()
        if action.start_jobs:
            self.start_jobs()
        self.end_jobs(action.end_jobs)
        self.close_step()
        self.write(action.write)
        self.close_step()
        self.commit(action.commit)
        if action.crash:
            self.crash(action.crash)

    def deliver_one(self, first: int) -> None:
        """From the log, as the channel does it; sometimes what is known already, because no cursor is kept here."""
        ports = [port for port in self.protocol.inputs_from_log() if self._is_due(port)]
        for place in range(len(ports)):
            port = ports[(first + place) % len(ports)]
            mark = self.protocol.operators[port.operator].context.mark(port.name)
            logged = self.driver.session.fetch(port, mark, max_events=1, max_bytes=1)
            if logged:
                assert self.protocol.deliver(port, logged[0].event)
                assert not self.protocol.deliver(port, logged[0].event), "delivered twice, used once"
                return

    def _is_due(self, port: Port) -> bool:
        return self.protocol.operators[port.operator].next_port() in (None, port.name)

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
            results, failed = [], []
            for inset in inset_ids:
                try:
                    results.append((inset, list(protocol.generate(inset))))
                except OperatorFailed as error:
                    failed.append((inset, str(error)))
            for inset, error_text in failed:
                self.protocol.set_aside(name, inset, error_text)
            self.protocol.generated(name, results)
        del self.jobs[:many]

    def write(self, many: int) -> None:
        """The external system applies what is pending, unless its marker says that it has; then the group hears of it."""
        for (name, connection), pending in self.pending.items():
            done, pending[:] = pending[:many], pending[many:]
            if done:
                applied = self.external.setdefault((name, connection), [])
                applied += unapplied(done, len(applied))
                records = sum(write.records for write in done)
                self.protocol.writes_done(name, connection, done[0].number, done[-1].number, records)

    def close_step(self) -> None:
        if effects := self.protocol.close_step():
            self.uncommitted.append(serialized(effects))

    def commit(self, many: int) -> None:
        """Group commit: so many steps in one transaction. Write actions leave the group after it."""
        if many and self.uncommitted:
            effects = [effect for effects in self.uncommitted[:many] for effect in effects]
            self.driver.session.commit(effects)
            del self.uncommitted[:many]
            for e in effects:
                if isinstance(e, fx.LogWrite):
                    write = PendingWrite(e.operator, e.connection, e.number, e.header, e.records, e.body or b"")
                    self.pending.setdefault((e.operator, e.connection), []).append(write)

    def crash(self, kind: str) -> None:
        if kind == "epoch":
            self.driver.session.open(raise_epoch=True)
        else:
            self.driver = replace_driver(self.driver)
        self._rebuild()

    def _rebuild(self) -> None:
        self.uncommitted.clear()
        self.jobs: list[tuple[str, list[str]]] = []
        self.pending: dict[tuple[str, str], list[PendingWrite]] = {}
        self.protocol = GroupProtocol(self.specs, self.receivers)
        recovered = self.driver.session.recover([spec.name for spec in self.specs])
        for write in recovered.writes:
            self.pending.setdefault((write.operator, write.connection), []).append(write)
        self.protocol.rebuild(recovered)
        self.protocol.resume()
        self.close_step()

    def run_to_the_end(self) -> None:
        rounds = 0
        while not self.protocol.is_finished() or self.uncommitted or any(self.pending.values()):
            rounds += 1
            assert rounds < 1000, "the group does not come to its end"
            self.act(Action(deliver=1, start_jobs=True, end_jobs=9, write=9, commit=9, crash=""))

    # --- what the world sees ------------------------------------------------------------------------------------------

    def results(self) -> dict[str, Any]:
        session = self.driver.session
        names = [spec.name for spec in self.specs]
        recovered = session.recover(names)
        assert recovered.acknowledged == (), "nothing is held after the end of the stream"
        assert recovered.snapshots == ()
        assert recovered.writes == (), "every write action is done"
        tables = self.store.tables
        return {
            "sent": {str(sink): self._sent(sink) for sink in self.sinks},
            "writes": {
                writer: [(write.number, write.body) for write in writes] for writer, writes in self.external.items()
            },
            "states": dict(recovered.states),
            "lineage": sorted(tables.lineage),
            "reads": sorted(tables.reads.items(), key=repr),
            "aside": sorted((key, row.error) for key, row in tables.quarantine.items()),
            "counters": sorted(
                (str(row.port), row.direction, row.events, row.records) for row in tables.counters.values()
            ),
        }

    def _sent(self, sink: Port) -> list[Any]:
        rows = self.driver.session.fetch(sink, 0, max_events=10_000, max_bytes=1 << 30)
        return [
            (row.event.event_id, row.event.kind, json.loads(row.event.body or b"null"))
            if row.event.kind is Kind.DATA
            else (row.event.event_id, row.event.kind, None)
            for row in rows
        ]


def reference(specs: Sequence[OperatorSpec], jumps: Sequence[Sequence[int]]) -> dict[str, Any]:
    """One event, one step, one commit; no failure."""
    machine = Machine(specs, jumps)
    machine.run_to_the_end()
    return machine.results()


@pytest.mark.parametrize("name", GROUPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jumps=STREAMS, actions=ACTIONS)
def test_crashes_change_nothing(name: str, jumps: list[list[int]], actions: list[Action]) -> None:
    machine = Machine(GROUPS[name], jumps)
    for action in actions:
        machine.act(action)
    machine.run_to_the_end()
    assert machine.results() == reference(GROUPS[name], jumps)


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("committed", [0, 1])
def test_a_crash_after_every_event(name: str, committed: int) -> None:
    """Without a commit nothing was used, and it all comes again; with one, everything has been used once."""
    jumps = [[0, 1], [2], [1, 3], [0], [2, 2], [3]]
    machine = Machine(GROUPS[name], jumps)
    for turn in range(len(jumps) + 2):
        commit = 9 * committed
        machine.act(
            Action(1, start_jobs=True, end_jobs=9, write=turn % 3, commit=commit, crash="incarnation", port=turn)
        )
    machine.run_to_the_end()
    assert machine.results() == reference(GROUPS[name], jumps)

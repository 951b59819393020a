"""The size of the log depends on what is unfinished and in scope, not on what has passed (Section 3.6)."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.driver.garbage import MAX_BATCH_ROWS, Collection, Sweep
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit, OperatorSpec, Output
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.sql import apply, retention, schema, session
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.conftest import QUICK, STORES
from tests.support.garbage import left
from tests.support.logics import CountWindow, EachEvent, Reading, operator, serialized
from tests.support.logs import open_sql_store, spec, start_driver

log = logging.getLogger(__name__)

STEP = 5_000
"""Events of the source in a step: commits are large, as those of a busy group."""


class FanOut(EachEvent):
    """Seven events of each."""

    MADE = 7

    def assign(self, port: str, event: Any, state: dict[str, Any]) -> Mapping[str, Any]:
        return {str(event.event_id): event.event_id}

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return part

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return [Emit("out", [held], 1)] * self.MADE


class Counting(CountWindow):
    """The number of events in its window."""

    def part(self, port: str, event: Any, inset_id: str) -> Any:
        return 1

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return (held or 0) + part

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return [Emit("out", [held], 1)]


@dataclass
class Flow:
    """A source in group ``a``, and operators of group ``b`` that its events reach through the log."""

    store: LogStore
    operators: Sequence[OperatorSpec]
    scope: Mapping[str, Any] = field(default_factory=dict)
    sweeps: Sequence[Sweep] = ()
    clock: Any = time.monotonic

    def __post_init__(self) -> None:
        run = self.store.start_run(spec("a", "b"))
        self.sessions = [start_driver(self.store, group=name, run=run).session for name in "ab"]
        names = [one.name for one in self.operators]
        first = Port(names[0], "in")
        source = OperatorSpec("source", (), ("out",), None, lineage_out=frozenset(self.scope.get("lineage_out", ())))
        captured = {Port(one.name, port) for one in self.operators for port in one.lineage_in}
        onward = {Port(a, "out"): [Port(b, "in")] for a, b in itertools.pairwise(names)}
        self.groups = [
            GroupProtocol([source], {Port("source", "out"): [first]}, captured),
            GroupProtocol(self.operators, {**onward, Port(names[-1], "out"): []}),
        ]
        self.collections = [
            Collection(["source"], [], clock=self.clock),
            Collection(names, self.sweeps, clock=self.clock),
        ]
        self.passed = 0
        for group in self.groups:
            group.resume()
        self.groups[0].begin_source("source", {})
        self.first = first

    def step(self, events: int) -> None:
        """So many events of the source through everything, in one commit of each group."""
        sender, receiver = self.groups
        sender.emit("source", [Emit("out", [n], 1) for n in range(events)], self.passed + events)
        self.passed += events
        self.commit(0)
        mark = receiver.operators[self.first.operator].context.mark("in")
        for logged in self.sessions[1].fetch(self.first, mark, max_events=events, max_bytes=1 << 30):
            receiver.deliver(self.first, logged.event)
        self.commit(1)

    def commit(self, group: int) -> None:
        effects = serialized(self.groups[group].close_step())
        effects += self.collections[group].due(effects)
        collected = self.sessions[group].commit(effects)
        self.collections[group].committed(effects, collected)

    def events(self) -> int:
        """How many events all ports have sent."""
        contexts = [operator.context for group in self.groups for operator in group.operators.values()]
        return sum(next_event - 1 for context in contexts for next_event in context.next_event.values())


def rows_of(store: SqlLogStore) -> int:
    tables = (schema.event_log, schema.event_data, schema.event_lineage, schema.state, schema.read_action)
    with store.engine.connect().execution_options(logio_writes=False) as connection:
        return sum(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one() for table in tables)


def size_of(store: SqlLogStore) -> int:
    """Bytes of the file, with what is in its write-ahead log brought into it."""
    with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT", logio_writes=False) as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(str(store.engine.url.database)).stat().st_size


def test_a_million_events_leave_a_log_of_what_is_unfinished(sqlite_url: str) -> None:
    """125,100 through the log, each with a row and a body; the others from hand to hand, but for those in open windows."""
    store = open_sql_store(sqlite_url, patience=QUICK)
    flow = Flow(store, [operator("fan", FanOut()), operator("count", Counting(1_000)), operator("pass", EachEvent())])
    flow.step(100)
    unfinished = 7 * 100  # events in the open window: each with a row and a body
    measured: dict[int, tuple[int, int]] = {}
    for percent in range(4, 101, 4):
        flow.step(STEP)
        if percent in (12, 52, 100):
            measured[percent] = (rows_of(store), size_of(store))
    log.info("rows and bytes of the log by percent of %s events: %s", flow.events(), measured)
    assert flow.events() > 1_000_000
    assert flow.passed == 125_100, "have gone through the log"
    rows, sizes = zip(*measured.values(), strict=True)
    assert all(2 * unfinished < count < 2 * unfinished + 2 * MAX_BATCH_ROWS for count in rows), measured
    assert max(sizes) < 1.1 * min(sizes), measured
    store.dispose()


class Clock:
    """Of the log and of the group; a second of no driver's life."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=STORES)
def clocked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MemoryLogStore | SqlLogStore, Clock]]:
    clock = Clock()
    if request.param == "memory":
        yield MemoryLogStore(clock), clock
        return
    monkeypatch.setattr(session, "pass_fence", apply.pass_fence.__wrapped__)  # its statement is built anew
    for module in (apply, retention):
        monkeypatch.setattr(module, "now", lambda _: sa.literal(clock.now))
    store = open_sql_store(str(request.getfixturevalue(f"{request.param}_url")), patience=QUICK)
    yield store, clock
    store.dispose()


def test_with_a_retention_the_log_reaches_a_plateau(clocked: tuple[LogStore, Clock]) -> None:
    """Everything in a scope of 60 s: bodies, rows, relationships, read actions and their effects, states at triggers."""
    store, clock = clocked
    scope: dict[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})}
    operators = [
        operator("read", Reading(), **scope),
        operator("count", Counting(10), reads_state=True, **scope),
        operator("last", EachEvent(), **scope),
    ]
    sweeps = [
        Sweep("last", Kept.EVENTS, "out", retention_seconds=60.0),
        Sweep("count", Kept.EVENTS, "out", retention_seconds=60.0),
        Sweep("count", Kept.STATES),
        Sweep("read", Kept.EVENTS, "out", retention_seconds=60.0),
        Sweep("read", Kept.READS, "wh", retention_seconds=60.0),
        Sweep("source", Kept.EVENTS, "out", retention_seconds=60.0),
        Sweep("source", Kept.SOURCE_READS, ports=("out",)),
    ]
    flow = Flow(store, operators, scope, sweeps, clock)
    kept: list[int] = []
    for second in range(240):
        flow.step(7)
        for _ in range(3):  # steps without events: a busy group has many in a second
            clock.now += 0.25
            flow.commit(1)
        clock.now += 0.25
        if second % 30 == 29:
            found = left(store)
            kept.append(sum(map(len, (found.rows, found.bodies, found.states, found.reads, found.lineage))))
    log.info("rows of the log every 30 s: %s", kept)
    assert kept[0] > 1_000, "everything is in scope"
    assert kept[1] > 1.8 * kept[0], "and is kept until its time has come"
    plateau = kept[3:]
    assert max(plateau) < 1.1 * min(plateau)
    assert max(plateau) < 1.25 * kept[1], "60 s of lineage, and a pass of the sweep behind"
    clock.now += 100
    for _ in range(40):
        clock.now += 1
        flow.commit(1)
    unfinished = left(store)
    assert len(unfinished.rows) < 40 and len(unfinished.lineage) < 20, "what the open window holds"


def test_without_a_retention_lineage_is_kept(clocked: tuple[LogStore, Clock]) -> None:
    """The counterpart: the same flow, nothing swept, and the log grows with what is in scope."""
    store, clock = clocked
    scope: dict[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})}
    flow = Flow(store, [operator("count", Counting(10), **scope)], scope, clock=clock)
    for _ in range(30):
        flow.step(10)
        clock.now += 10
    found = left(store)
    assert len(found.rows) == len([channel for channel, _ in found.bodies]) - 30 == 300
    assert len(found.lineage) == 30
    assert all(isinstance(row, tuple) and row[3] == "done" for row in found.rows)


def test_nothing_is_collected_where_nothing_is_done() -> None:
    """An idle group commits nothing, and a busy one whose rows are all undone asks nothing."""
    now = [0.0]
    collection = Collection(["op"], [], clock=lambda: now[0])
    collection.due([])
    now[0] = 2.0
    (first,) = collection.due([])
    assert isinstance(first, fx.Collect), "whatever an earlier driver has left"
    assert collection.due([]) == [], "one at a time"
    collection.committed([first], [])
    collection.committed([], [])
    now[0] = 4.0
    assert [type(effect) for effect in collection.due([])] == [fx.Collect], "an unknown outcome is asked again"

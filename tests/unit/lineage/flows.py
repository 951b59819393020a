"""Small pipelines whose records say which records they were computed from, run over any store.

A body is ``{record: [records it was computed from]}``, and record ids are unique: what lineage says can be compared with
what the records say, which was not captured.
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_logio.dataflow.pipeline.graph import Graph
from airflow_logio.dataflow.pipeline.lineage import LineageScope, lineage_paths, lineage_ports, lineage_starts
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit, OperatorSpec, Output, Read, Write
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.lineage.result import EventNode, Lineage, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Run, ScopeShape
from tests.support.logics import serialized
from tests.support.logs import Driver, spec, start_driver

Key = tuple[str, int]
"""An event (port, event_id), or a side-effect read action (``read:operator``, action_id)."""
Pairs = set[tuple[Key, Key]]


def port(text: str) -> Port:
    operator, _, name = text.partition(".")
    return Port(operator, name)


@dataclass(frozen=True)
class Op:
    """An operator. `senders` feed its ports ``in1``, ``in2``... in this order; without any it is a source.

    `window`: "each" event an Input Set; "count" of `size` events; "spans": half of the records go into the next window, too;
    "ports": Input Sets of `size` events of one port each. `emits` says how many events an Input Set makes on each port.
    """

    senders: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("out",)
    window: str = "each"
    size: int = 2
    emits: Mapping[str, int] | None = None
    """None: as a hash of the Input Set says, none included."""
    reads: int = 0
    """0: never; 1: every Input Set; 2: every other, by hash."""
    writes: bool = False
    events: int = 0
    """Of a source."""
    in_jobs: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(f"in{n}" for n in range(1, len(self.senders) + 1))


def records_of(event: Event) -> dict[str, list[str]]:
    return dict(json.loads(event.body) if event.payload is None else event.payload)  # type: ignore[arg-type]


class Tracing:
    """The logic of an `Op`."""

    def __init__(self, name: str, op: Op) -> None:
        self._name = name
        self._op = op

    def initial_state(self) -> dict[str, Any]:
        return {"seen": 0, "of_port": dict.fromkeys(self._op.inputs, 0)}

    def opening(self) -> Sequence[Write]:
        return ()

    def closing(self) -> Sequence[Write]:
        return ()

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        state["seen"] += 1
        state["of_port"][port] += 1
        size, records = self._op.size, list(records_of(event))
        window = (state["seen"] - 1) // size
        match self._op.window:
            case "each":
                return {f"{port}:{event.event_id}": records}
            case "count":
                return {f"{window:04d}": records}
            case "ports":
                return {f"{port}:{(state['of_port'][port] - 1) // size:04d}": records}
            case _:
                parts = {f"{window:04d}": records[::2], f"{window + 1:04d}": records[1::2]}
                return {inset: part for inset, part in parts.items() if part}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        raise AssertionError("nothing is recovered here")

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return [*(held or []), *part]

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(inset for inset in open_insets if self._is_complete(inset, state))

    def _is_complete(self, inset_id: str, state: Mapping[str, Any]) -> bool:
        port, _, number = inset_id.rpartition(":")
        match self._op.window:
            case "each":
                return True
            case "ports":
                return bool((int(number) + 1) * self._op.size <= state["of_port"][port])
            case _:
                return bool((int(number) + 1) * self._op.size <= state["seen"])

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return sorted(open_insets)

    def function(self, inset_id: str) -> str:
        return ""

    def order(self, inset_id: str) -> int | str | None:
        return None

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        used = list(held)
        if self.has_read(inset_id) and not self._op.in_jobs:
            effect = f"read:{self._name}|{inset_id}"
            used.append(effect)
            yield Read("db", {"table": "t", "of": inset_id}, {effect: []}, 1)
        yield from self.outputs(inset_id, used)

    def outputs(self, inset_id: str, used: list[str]) -> Iterator[Output]:
        if self._op.writes:
            yield Write("db", {"of": inset_id}, used, len(used))
        for port in self._op.outputs:
            for number in range(self._events(inset_id, port)):
                records = [f"{self._name}.{port}|{inset_id}|{number}|{n}" for n in range(1 + number)]
                yield Emit(port, dict.fromkeys(records, used), len(records))

    def _events(self, inset_id: str, port: str) -> int:
        if self._op.emits is not None:
            return self._op.emits.get(port, 0)
        return zlib.crc32(f"{self._name} {inset_id} {port}".encode()) % 3

    def has_read(self, inset_id: str) -> bool:
        return self._op.reads == 1 or (self._op.reads == 2 and zlib.crc32(f"{self._name} {inset_id}".encode()) % 2 == 0)


@dataclass
class Flow:
    """A pipeline that was run to its end; `groups` are fused, all others are groups of their own."""

    store: LogStore
    ops: Mapping[str, Op]
    scopes: Sequence[tuple[str, str]]
    groups: Sequence[Sequence[str]] = ()
    seed: int = 0
    collects: bool = False
    """Every group collects its garbage after every step (Section 3.6)."""
    run: Run = field(init=False)

    def __post_init__(self) -> None:
        self.graph = Graph(
            {name: op.inputs for name, op in self.ops.items()},
            {name: op.outputs for name, op in self.ops.items()},
            {
                Port(name, receiver): port(sender)
                for name, op in self.ops.items()
                for receiver, sender in zip(op.inputs, op.senders, strict=True)
            },
        )
        self.lineage_scopes = [LineageScope(port(start), port(target)) for start, target in self.scopes]
        self._captured = lineage_ports(self.graph, self.lineage_scopes)
        self._starts = lineage_starts(self.graph, self.lineage_scopes)
        grouped = {name for group in self.groups for name in group}
        self._groups = [*map(list, self.groups), *([name] for name in self.ops if name not in grouped)]
        self.run = self.store.start_run(self._spec())
        self.bodies: dict[Key, dict[str, list[str]]] = {}
        self.effects: dict[Key, str] = {}
        self._machines = [_Machine(self, names) for names in self._groups]

    def _spec(self) -> Any:
        shapes = {
            name: OperatorShape(
                next(group[0] for group in self._groups if name in group),
                {receiver: sender for receiver, sender in zip(op.inputs, op.senders, strict=True)},
                op.outputs,
                tuple(sorted(self._captured[name][0])),
                tuple(sorted(self._captured[name][1])),
                tuple(sorted(self._starts[name])),
            )
            for name, op in self.ops.items()
        }
        named = spec(*(group[0] for group in self._groups), dag_run=f"flow-{next(_numbers)}")
        return replace(named, operators=shapes, scopes=tuple(ScopeShape(*scope) for scope in self.scopes))

    def operator(self, name: str) -> OperatorSpec:
        op, (inside, outside) = self.ops[name], self._captured[name]
        logic = Tracing(name, op) if op.senders else None
        return OperatorSpec(
            name,
            op.inputs,
            op.outputs,
            logic,
            lineage_in=inside,
            lineage_out=outside,
            lineage_starts=self._starts[name],
            asynchronous=op.in_jobs,
            stateless=op.window == "each",
        )

    @property
    def captured_inputs(self) -> frozenset[Port]:
        return frozenset(Port(name, p) for name, (inside, _) in self._captured.items() for p in inside)

    def to_the_end(self) -> Flow:
        """Groups take turns at random, each with as many events as it happens to take."""
        chance = random.Random(self.seed)
        for _ in range(10_000):
            if all(machine.protocol.is_finished() for machine in self._machines):
                return self
            chance.choice(self._machines).turn(chance)
        raise AssertionError("the pipeline does not come to its end")

    # --- brute force --------------------------------------------------------------------------------------------------

    def relationships(self) -> Pairs:
        """Section 3.1 from the records: a record of the one was used for a record of the other, on captured ports."""
        paths = [path for scope in self.lineage_scopes for path in lineage_paths(self.graph, scope)]
        inside = {p for path in paths for p in path[1::2]}
        outside = {str(p) for path in paths for p in path[2::2]}
        fed_by = {
            (str(sender), receiver.operator) for receiver, sender in self.graph.senders.items() if receiver in inside
        }
        home = {record: key for key, body in self.bodies.items() for record in body}
        home |= {effect: key for key, effect in self.effects.items()}
        return {
            (home[used], (name, event_id))
            for (name, event_id), body in self.bodies.items()
            if name in outside
            for sources in body.values()
            for used in sources
            if _is_read(used) or (used.partition("|")[0], port(name).operator) in fed_by
        }

    def closure(self, key: Key, *, backward: bool, to: str | None = None) -> Pairs:
        """The relationships on the ways from one event, to the events of port `to`."""
        pairs = self.relationships()
        found = _onwards(pairs, {key}, backward=backward, stop=to)
        if to is None:
            return found
        ends = {k for pair in found for k in pair if k[0] == to}
        leading = ends | {k for pair in _onwards(found, ends, backward=not backward, stop=None) for k in pair}
        return {
            (a, b)
            for a, b in found
            if (a if backward else b) in leading or (_is_read(a[0]) and backward and b in leading - ends)
        }


def _is_read(name: str) -> bool:
    return name.startswith("read:")


def _onwards(pairs: Pairs, begin: set[Key], *, backward: bool, stop: str | None) -> Pairs:
    """The pairs on all ways from `begin`; a way ends at the events of port `stop`, and at read actions."""
    found: Pairs = set()
    todo, seen = list(begin), set(begin)
    while todo:
        key = todo.pop()
        if key[0] == stop:
            continue
        for a, b in pairs:
            near, far = (b, a) if backward else (a, b)
            if near == key:
                found.add((a, b))
                if far not in seen:
                    seen.add(far)
                    todo.append(far)
    return found


def pairs_of(lineage: Lineage) -> Pairs:
    """What a query says, to be compared; read actions of sources are left out."""
    return {(_key(a), _key(b)) for a, b in lineage.relationships() if not (isinstance(a, ReadNode) and a.is_source)}


def _key(node: EventNode | ReadNode) -> Key:
    if isinstance(node, ReadNode):
        return f"read:{node.operator_in_log}", node.action_id
    return str(node).rpartition(" ")[0], node.event_id


_numbers = itertools.count(1)


class _Machine:
    """One group: takes from the log, makes steps, commits."""

    def __init__(self, flow: Flow, names: Sequence[str]) -> None:
        self._flow = flow
        self.names = names
        receivers = {p: flow.graph.receivers(p) for name in names for p in flow.graph.outputs_of(name)}
        self.protocol = GroupProtocol([flow.operator(name) for name in names], receivers, flow.captured_inputs)
        self._driver: Driver = start_driver(flow.store, group=names[0], run=flow.run)
        self._made = dict.fromkeys(names, 0)
        self._jobs = 0
        self.protocol.resume()

    def turn(self, chance: random.Random) -> None:
        for name in self.names:
            if not self._flow.ops[name].senders:
                self._emit(name, chance.randint(0, 2))
        for receiver in self.protocol.inputs_from_log():
            mark = self.protocol.operators[receiver.operator].context.mark(receiver.name)
            many = chance.randint(1, 3)
            for logged in self._driver.session.fetch(receiver, mark, max_events=many, max_bytes=1 << 20):
                self.protocol.deliver(receiver, logged.event)
        for name in self.names:
            self._run_jobs(name)
        if effects := serialized(self.protocol.close_step()):
            self._note(effects)
            self._driver.session.commit(effects)
        if self._flow.collects:
            self.collect()

    def collect(self) -> None:
        shared = [fx.SweepShared(p, 0, 100) for name in self.names for p in self._flow.graph.outputs_of(name)]
        self._driver.session.commit([fx.Collect(tuple(self.names), 100), *shared])

    def _emit(self, name: str, many: int) -> None:
        op = self._flow.ops[name]
        self.protocol.begin_source(name, {"path": f"{name}.parquet"})
        if self.protocol.source(name).has_ended:
            return
        for number in range(self._made[name], min(self._made[name] + many, op.events)):
            count, about = 1 + number % 3, {"first": number * 10, "last": number * 10 + 9}
            emits = [
                Emit(p, {f"{name}.{p}|{number}|{n}": [] for n in range(count)}, count, about=about) for p in op.outputs
            ]
            self.protocol.emit(name, emits, number + 1)
            self._made[name] = number + 1
        if self._made[name] == op.events:
            self.protocol.end_source(name)

    def _run_jobs(self, name: str) -> None:
        """All triggered Input Sets in one job, with one read action for all of them."""
        operator = self.protocol.operators[name]
        if not self._flow.ops[name].in_jobs or not (waiting := operator.next_triggered()):
            return
        self._jobs += 1
        effect = f"read:{name}|{self._jobs}"
        has_read = bool(self._flow.ops[name].reads)
        logic = operator.logic
        assert isinstance(logic, Tracing)
        results = [
            (inset, list(logic.outputs(inset, [*held, effect] if has_read else list(held))))
            for inset, held in self.protocol.start_job(name, waiting)
        ]
        self.protocol.generated(name, results, [Read("db", {"table": "t"}, {effect: []}, 1)] if has_read else [])

    def _note(self, effects: Sequence[fx.Effect]) -> None:
        """The oracle's memory: what is in which event, whether or not the log keeps it."""
        for effect in effects:
            match effect:
                case fx.LogEvent(event) if event.kind is Kind.DATA:
                    self._flow.bodies[str(event.sender), event.event_id] = records_of(event)
                case fx.LogRead(operator, _, action_id, body=body):
                    self._flow.effects[f"read:{operator}", action_id] = next(iter(json.loads(body or b"{}")))

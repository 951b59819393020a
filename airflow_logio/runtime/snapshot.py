"""What a run looks like at one moment, per group: for displays, whoever launched the drivers (`logio run`, Airflow)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import GroupStatus, PortProgress, Run

RATE_WINDOW_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group. A source group is measured by what it has read, any other by what it has acknowledged."""

    status: GroupStatus
    events: int
    records: int
    rate: float
    """Records per second over the last seconds."""
    done: float | None
    """Share of the whole input, 0 to 1; None if the size of a source is not known."""
    total_records: int | None
    """Of the sources of this group; None for groups without, and if it is not known."""
    lag_events: int
    """Sent to this group, but not acknowledged by it."""
    lag_seconds: float | None
    """How long the lag would take at the present rate; None for a source, and while nothing moves."""
    output_sets: int
    """Events that its operators have sent (fused ones too)."""
    writes: int
    """Write actions applied at external systems."""
    recovered_seconds_ago: float | None
    """Since the driver of the present incarnation registered; None for the first incarnation."""

    @property
    def name(self) -> str:
        return self.status.group


@dataclass(frozen=True, slots=True)
class Snapshot:
    run: Run
    seconds: float
    """Since the observer began."""
    groups: tuple[GroupView, ...]
    ports: tuple[PortProgress, ...]

    @property
    def finished(self) -> bool:
        return all(view.status.state is GroupState.FINISHED for view in self.groups)


def source_totals(pipeline: Pipeline, params: Mapping[str, object]) -> dict[str, int]:
    """Number of records of each source operator that can tell; reads the files' metadata, not the log."""
    totals = {}
    for name, operator in pipeline.operators.items():
        if isinstance(operator, SourceOperator):
            action = operator.action(params)
            rows = action.get("total_rows", action.get("rows"))
            if isinstance(rows, int):
                totals[name] = rows
    return totals


class Observer:
    """Takes snapshots of one run; keeps what rates need. `take` is two reads of the log."""

    def __init__(
        self, store: LogStore, run: Run, pipeline: Pipeline, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._run = run
        self._pipeline = pipeline
        self._clock = clock
        self._began = clock()
        self._totals = source_totals(pipeline, run.spec.params)
        self._inputs = {name: _inputs(pipeline, group.operators) for name, group in pipeline.groups.items()}
        self._history: dict[str, deque[tuple[float, int]]] = {name: deque() for name in pipeline.groups}

    def take(self) -> Snapshot:
        """Raises `LogUnavailable`."""
        statuses = {status.group: status for status in self._store.groups(self._run.run_id)}
        ports = tuple(self._store.progress(self._run.run_id))
        counters = {(row.port, row.direction): row for row in ports}
        now, done = self._clock(), dict[str, float | None]()
        # Groups come in the order of their first operator, so that a sender's share is known before its receiver's.
        views = [self._view(name, statuses[name], counters, done, now) for name in self._pipeline.groups]
        return Snapshot(self._run, now - self._began, tuple(views), ports)

    def _view(
        self,
        name: str,
        status: GroupStatus,
        counters: Mapping[tuple[Port, str], PortProgress],
        done: dict[str, float | None],
        now: float,
    ) -> GroupView:
        operators = self._pipeline.groups[name].operators
        sent = [row for (port, way), row in counters.items() if way == "out" and port.operator in operators]
        writes = [row for (port, way), row in counters.items() if way == "write" and port.operator in operators]
        inputs = self._inputs[name]
        measured = [counters.get((port, "in")) for port in inputs] if inputs else sent
        events, records = _sum(measured)
        sent_events, sent_records = _sum([counters.get((self._pipeline.sender(port), "out")) for port in inputs])
        rate = self._rate(name, now, records)
        lag_records = max(0, sent_records - records)
        total = sum(self._totals[op] for op in operators if op in self._totals) or None
        done[name] = self._share(inputs, done, records, sent_records, total)
        return GroupView(
            status=status,
            events=events,
            records=records,
            rate=rate,
            done=done[name],
            total_records=None if inputs else total,
            lag_events=max(0, sent_events - events) if inputs else 0,
            lag_seconds=lag_records / rate if inputs and rate > 0 else None,
            output_sets=_sum(sent)[0],
            writes=_sum(writes)[0],
            recovered_seconds_ago=_recovered_ago(status),
        )

    def _rate(self, name: str, now: float, records: int) -> float:
        history = self._history[name]
        history.append((now, records))
        while now - history[0][0] > RATE_WINDOW_SECONDS and len(history) > 2:
            history.popleft()
        then, before = history[0]
        return (records - before) / (now - then) if now > then else 0.0

    def _share(
        self, inputs: Sequence[Port], done: Mapping[str, float | None], records: int, sent: int, total: int | None
    ) -> float | None:
        if not inputs:
            return None if total is None else min(1.0, records / total)
        shares = [done.get(group) for group, members in self._pipeline.groups.items() for port in inputs
                  if self._pipeline.sender(port).operator in members.operators]  # fmt: skip
        known = [share for share in shares if share is not None]
        if len(known) < len(shares):
            return None
        return min(known) * (records / sent if sent else 0.0)


def _inputs(pipeline: Pipeline, operators: Sequence[str]) -> list[Port]:
    """Input ports of a group that are fed by another group."""
    ports = [port for operator in operators for port in pipeline.graph.inputs_of(operator)]
    return [port for port in ports if pipeline.sender(port).operator not in operators]


def _sum(rows: Sequence[PortProgress | None]) -> tuple[int, int]:
    present = [row for row in rows if row is not None]
    return sum(row.events for row in present), sum(row.records for row in present)


def _recovered_ago(status: GroupStatus) -> float | None:
    """By the database's clock: the state `running` was entered when the driver registered."""
    if status.incarnation < 2 or status.state is not GroupState.RUNNING or status.beat_at is None:
        return None
    return max(0.0, status.beat_at - status.since)

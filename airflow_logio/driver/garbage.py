"""When a group collects its garbage (Section 3.6): in small batches, in transactions that it makes anyway.

Collecting keeps up with what is done, however fast that is; where nothing is done, nothing is collected. Sweeps go round
behind it: a pass over everything that this group sweeps, then a pause that keeps their cost a small share.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from airflow_logio.dataflow.operators import ManualOperator, SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.lineage import lineage_ports
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import ExpireLineage, Kept, SweepShared
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.records.upkeep_records import Collected

log = logging.getLogger(__name__)
COLLECT_SECONDS = 1.0
COLLECT_ROWS = 500
"""Collect when this many rows are done, or when some are and the last collection was this long ago."""
BATCH_ROWS = 1_000
MAX_BATCH_ROWS = 10_000
"""A batch is as large as what was done since the last one, and as much again, between these bounds."""
SWEEP_ROWS = 1_000
SWEEP_PAUSE_SECONDS = 0.05
SHORTEST_PASS_SECONDS, LONGEST_PASS_SECONDS = 1.0, 60.0
PASSES_PER_RETENTION = 20
"""Lineage is kept up to this share longer than its retention: a twentieth, and never more than a minute."""
EXAMINED_PER_SECOND = 2_000
"""Rows that a pass examines per second. Old rows that are still needed are examined in every pass."""


class Collection:
    """Adds effects of garbage collection to the steps of one epoch of a group. At most one of each kind is under way.

    `discard` removes payload files that no row names any more; it runs on a thread of its own.
    """

    def __init__(
        self,
        operators: Sequence[str],
        sweeps: Sequence[Sweep],
        discard: Callable[[Sequence[str]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        *,
        batch_rows: int = BATCH_ROWS,
        most_rows: int = MAX_BATCH_ROWS,
    ) -> None:
        self._operators = tuple(operators)
        self._sweeps = list(sweeps)
        self._discard = discard
        self._clock = clock
        self._batch_rows, self._most_rows = batch_rows, most_rows
        self._discarding: ThreadPoolExecutor | None = None
        self._done = 1  # whatever an earlier incarnation has left
        self._collecting = False
        self._more = False
        self._collected_at = clock()
        self._sweeping = False
        self._next, self._after, self._examined = 0, 0, 0
        periods = [sweep.retention_seconds for sweep in self._sweeps if sweep.retention_seconds]
        shortest = min(periods, default=LONGEST_PASS_SECONDS * PASSES_PER_RETENTION) / PASSES_PER_RETENTION
        self._pass_seconds = min(max(shortest, SHORTEST_PASS_SECONDS), LONGEST_PASS_SECONDS)
        self._sweep_at = clock() + self._pass_seconds

    # --- on the thread of the loop ------------------------------------------------------------------------------------

    def due(self, step: fx.Effects) -> fx.Effects:
        """What to commit with this step."""
        self._done += sum(map(done_rows, step))
        now = self._clock()
        effects: fx.Effects = []
        if self._is_collection_due(now):
            limit = min(max(self._batch_rows, 2 * self._done), self._most_rows)
            self._collecting, self._collected_at, self._done = True, now, 0
            effects.append(fx.Collect(self._operators, limit))
        if self._is_sweep_due(now):
            self._sweeping = True
            effects.append(self._sweeps[self._next].batch(self._after, SWEEP_ROWS))
        return effects

    def is_overdue(self) -> bool:
        """Whether something is to be collected though the group has no step to commit."""
        now = self._clock()
        late = self._done > 0 and now - self._collected_at >= COLLECT_SECONDS
        return (not self._collecting and (self._more or late)) or self._is_sweep_due(now)

    def _is_collection_due(self, now: float) -> bool:
        if self._collecting:
            return False
        late = self._done > 0 and now - self._collected_at >= COLLECT_SECONDS
        return self._more or late or self._done >= COLLECT_ROWS

    def _is_sweep_due(self, now: float) -> bool:
        return bool(self._sweeps) and not self._sweeping and now >= self._sweep_at

    # --- on the thread of the committer -------------------------------------------------------------------------------

    def committed(self, effects: Sequence[fx.Effect], collected: Sequence[Collected]) -> None:
        """What a transaction has collected; nothing is known of one whose acknowledgement was lost."""
        ours = [e for e in effects if isinstance(e, fx.Collect | fx.SweepShared | fx.ExpireLineage)]
        results = collected or [Collected(more=True) for _ in ours]
        for effect, result in zip(ours, results, strict=True):
            if isinstance(effect, fx.Collect):
                self._more = result.more
                self._collecting = False
            else:
                self._swept(result)
            if result.refs:
                self._discard_later(result.refs)

    def _swept(self, result: Collected) -> None:
        self._after = result.after
        self._examined += result.examined
        self._sweep_at = self._clock() + SWEEP_PAUSE_SECONDS
        if not result.more:
            self._next, self._after = self._next + 1, 0
        if self._next == len(self._sweeps):
            pause = max(self._pass_seconds, self._examined / EXAMINED_PER_SECOND)
            self._next, self._examined, self._sweep_at = 0, 0, self._clock() + pause
        self._sweeping = False

    def _discard_later(self, refs: Sequence[str]) -> None:
        if self._discarding is None:
            self._discarding = ThreadPoolExecutor(1, thread_name_prefix="logio-discard")
        self._discarding.submit(self._discard_now, refs)

    def _discard_now(self, refs: Sequence[str]) -> None:
        try:
            self._discard(refs)
        except Exception as error:  # nothing waits for it, and the sweep of the run finds the files again
            log.warning("%d payload(s) are not removed: %s", len(refs), error)

    def stop(self) -> None:
        """Stop removing. What is not removed yet stays for the sweep of the run."""
        if self._discarding is not None:
            self._discarding.shutdown(wait=True, cancel_futures=True)


def done_rows(effect: fx.Effect) -> int:
    """Rows of EVENT_LOG that an effect marks done, or that are born so, whether they are kept or not."""
    count = _DONE_ROWS.get(type(effect))
    return 0 if count is None else count(effect)


def _done_of(assignments: Sequence[tuple[str, Status]]) -> int:
    return sum(status is Status.DONE for _, status in assignments) if assignments else 1


def _done_deliveries(effect: fx.LogEvent) -> int:
    done = 0
    for delivery in effect.deliveries:
        if delivery.fused:
            done += _done_of(delivery.assignments)
    return done


_DONE_ROWS: Mapping[type, Callable[[Any], int]] = {
    fx.MarkDone: lambda effect: effect.rows,
    fx.WritesDone: lambda effect: effect.last - effect.first + 1,
    fx.Acknowledge: lambda effect: _done_of(effect.assignments),
    fx.LogEvent: _done_deliveries,
    fx.CompleteReadAction: lambda _effect: 1,
}
"""Looked up by type: patterns would be tried one after the other, for every effect of every step."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is swept again and again. `kept` is None for the shared bodies of port `name`."""

    operator: str
    kept: Kept | None
    name: str = ""
    ports: tuple[str, ...] = ()
    retention_seconds: float = 0.0

    def batch(self, after: int, limit: int) -> ExpireLineage | SweepShared:
        if self.kept is None:
            return SweepShared(Port(self.operator, self.name), after, limit)
        return ExpireLineage(self.operator, self.kept, self.retention_seconds, after, limit, self.name, self.ports)


def sweeps_of(pipeline: Pipeline, group: str) -> list[Sweep]:
    """What `group` sweeps, in reverse topological order: what is downstream goes first."""
    order = list(pipeline.operators)
    expiring = _expiring(pipeline)
    found: list[Sweep] = []
    for name in reversed(order):
        periods = {
            port: expiring[Port(name, port)] for port in pipeline.operators[name].outputs if (name, port) in expiring
        }
        if periods:
            last = max((target for target, _ in periods.values()), key=order.index)
            if _group_of(pipeline, last) == group:
                found += _lineage_of(pipeline, name, {port: seconds for port, (_, seconds) in periods.items()})
        found += _shared_of(pipeline, name, group)
    return found


def _expiring(pipeline: Pipeline) -> dict[Port, tuple[str, float]]:
    """Output port → (last target operator, longest retention) of its scopes, where all of them have a retention."""
    order = list(pipeline.operators)
    found: dict[Port, tuple[str, float]] = {}
    for_ever: set[Port] = set()
    for scope in pipeline.scopes:
        captured = lineage_ports(pipeline.graph, [scope])
        for port in (Port(name, port) for name, (_, outside) in captured.items() for port in outside):
            if scope.retention_seconds is None:
                for_ever.add(port)
                continue
            target, seconds = found.get(port, (scope.target.operator, 0.0))
            target = max(target, scope.target.operator, key=order.index)
            found[port] = (target, max(seconds, scope.retention_seconds))
    return {port: period for port, period in found.items() if port not in for_ever}


def _lineage_of(pipeline: Pipeline, name: str, periods: dict[str, float]) -> Iterator[Sweep]:
    operator, longest = pipeline.operators[name], max(periods.values())
    for port, seconds in periods.items():
        yield Sweep(name, Kept.EVENTS, port, retention_seconds=seconds)
    if isinstance(operator, SourceOperator) or not operator.inputs:
        if len(periods) == len(pipeline.lineage_ports(name)[1]):
            yield Sweep(name, Kept.SOURCE_READS, ports=tuple(periods))
        return
    for connection in operator.connections():
        yield Sweep(name, Kept.READS, connection, retention_seconds=longest)
    if operator.reads_state or isinstance(operator, ManualOperator):  # a hand-written operator may log a state
        yield Sweep(name, Kept.STATES)


def _shared_of(pipeline: Pipeline, name: str, group: str) -> Iterator[Sweep]:
    """Ports whose bodies are not kept, and whose receivers are in several groups."""
    kept = pipeline.lineage_ports(name)[1]
    order = list(pipeline.operators)
    for port in pipeline.operators[name].outputs:
        receivers = sorted({receiver.operator for receiver in pipeline.receivers(Port(name, port))}, key=order.index)
        groups = [_group_of(pipeline, receiver) for receiver in receivers]
        if port not in kept and len(set(groups)) > 1 and groups[-1] == group:
            yield Sweep(name, None, port)


def _group_of(pipeline: Pipeline, operator: str) -> str:
    return pipeline.home(operator)

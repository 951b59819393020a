"""Which group sweeps what (Section 3.6): lineage that is older than its retention, and bodies that two groups have left.

Each item is swept by one group, the last one that uses it: the owner of the last target operator of the scopes
concerned, or of the last receiver of a port. It is the last to finish.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_logio.dataflow.operators import ManualOperator, SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.lineage import lineage_ports
from airflow_logio.protocol.effects import ExpireLineage, Kept, SweepShared
from airflow_logio.protocol.values import Port


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

"""The figures of a run's connections and ports as the author drew them: slots together, no Dispatchers and Mergers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_logio.protocol.replicas import base_operator, is_dispatcher, is_merger
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.snapshot import Amount, ConnectionView, Snapshot
from airflow_logio.store.records import PortProgress, Run
from airflow_logio.store.rules.authored_ports import AuthoredPorts


def connections_seen(snapshot: Snapshot) -> Sequence[ConnectionView]:
    """Connections as the author sees them. Those into, out of and inside a replicated group are sums over its slots."""
    if not snapshot.run.spec.replicated:
        return snapshot.connections
    ports = AuthoredPorts(snapshot.run.spec.operators)
    homes = {base_operator(name): shape.group for name, shape in snapshot.run.spec.operators.items()}
    found: dict[tuple[Port, Port], ConnectionView] = {}
    for one in snapshot.connections:
        for seen in _seen(one, ports, homes):
            key = (seen.sender, seen.receiver)
            found[key] = _sum(found[key], seen) if key in found else seen
    return list(found.values())


def _seen(one: ConnectionView, ports: AuthoredPorts, homes: dict[str, str]) -> Iterator[ConnectionView]:
    """The author's connections that a connection of the log stands for; `homes` are the groups of author's operators."""
    if is_dispatcher(one.receiver.operator) or (is_merger(one.sender.operator) and one.inside_group):
        # Inside a group, where events are handed on in one step: the connections of the slots have all counts but this one.
        one = replace(one, sent=Amount(), acknowledged=Amount(), rate=0.0)
    sender = ports.seen(one.sender)
    from_group = homes[sender.operator]
    for receiver in ports.seen_receivers(one.receiver):
        home = homes[receiver.operator]
        # A Merger stands for the receivers that it shares a group with; others receive from it over the log.
        if not is_merger(one.receiver.operator) or home == one.to_group:
            yield replace(one, sender=sender, receiver=receiver, from_group=from_group, to_group=home)


def _sum(one: ConnectionView, other: ConnectionView) -> ConnectionView:
    return replace(
        one,
        sent=one.sent + other.sent,
        acknowledged=one.acknowledged + other.acknowledged,
        rate=one.rate + other.rate,
        open=one.open + other.open,
    )


def ports_seen(run: Run, ports: Sequence[PortProgress]) -> Sequence[PortProgress]:
    """The ports of a replicated operator are sums over its slots."""
    if not run.spec.replicated:
        return ports
    found: dict[tuple[Port, str], PortProgress] = {}
    for row in ports:
        if is_dispatcher(row.port.operator) or is_merger(row.port.operator):
            continue
        port = Port(base_operator(row.port.operator), row.port.name)
        before = found.get((port, row.direction))
        found[port, row.direction] = replace(row, port=port) if before is None else _sum_rows(before, row)
    return list(found.values())


def _sum_rows(one: PortProgress, other: PortProgress) -> PortProgress:
    return replace(
        one,
        events=one.events + other.events,
        records=one.records + other.records,
        bytes=one.bytes + other.bytes,
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
    )


def pending_seen(snapshot: Snapshot) -> Mapping[Port, int]:
    """Pending write actions; those of a replicated writer are sums over its slots."""
    found: dict[Port, int] = {}
    for port, count in snapshot.pending.items():
        seen = Port(base_operator(port.operator), port.name)
        found[seen] = found.get(seen, 0) + count
    return found

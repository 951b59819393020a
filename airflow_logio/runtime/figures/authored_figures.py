"""The figures of a run's connections and ports as the author drew them: slots together, no Dispatchers and Mergers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from airflow_logio.protocol.replicas import base_operator, is_dispatcher, is_merger
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.snapshot import Amount, ConnectionView, Snapshot
from airflow_logio.store.records import PortProgress, Run
from airflow_logio.store.rules.authored_ports import AuthoredPorts


class AuthoredConnections:
    """The connections of one run as its author sees them. Those into, out of and inside a replicated group are sums over its
    slots. What a connection of the log stands for is found once per run."""

    def __init__(self, run: Run) -> None:
        self._is_needed = bool(run.spec.replicated)
        shapes = run.spec.operators
        self._ports = AuthoredPorts(shapes)
        self._homes = {base_operator(name): shape.group for name, shape in shapes.items()}
        self._meant: dict[Port, list[_Meant]] = {}
        """Receiver in the log → the author's connections that it stands for."""

    def seen(self, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        """`connections` are those of a snapshot of the run."""
        return [one for one, _ in self.with_parts(connections)]

    def with_parts(
        self, connections: Sequence[ConnectionView]
    ) -> Sequence[tuple[ConnectionView, Sequence[ConnectionView]]]:
        """The same, each with the connections of the log whose counts it has."""
        if not self._is_needed:
            return [(one, [one]) for one in connections]
        parts: dict[_Meant, list[ConnectionView]] = {}
        for one in connections:
            meant = self._meant.get(one.receiver)
            if meant is None:
                meant = self._meant[one.receiver] = list(self._means(one))
            for named in meant:
                parts.setdefault(named, []).append(one)
        return [(_summed(named, ones), _counted(ones)) for named, ones in parts.items()]

    def _means(self, one: ConnectionView) -> Iterator[_Meant]:
        sender = self._ports.seen(one.sender)
        for receiver in self._ports.seen_receivers(one.receiver):
            home = self._homes[receiver.operator]
            # A Merger stands for the receivers that it shares a group with; others receive from it over the log.
            if not is_merger(one.receiver.operator) or home == one.to_group:
                yield _Meant(sender, receiver, self._homes[sender.operator], home)


def connections_seen(snapshot: Snapshot) -> Sequence[ConnectionView]:
    """`AuthoredConnections` of one snapshot."""
    return AuthoredConnections(snapshot.run).seen(snapshot.connections)


class _Meant(NamedTuple):
    """A connection that an author has drawn."""

    sender: Port
    receiver: Port
    from_group: str
    to_group: str


def _summed(named: _Meant, ones: Sequence[ConnectionView]) -> ConnectionView:
    counted = _counted(ones)
    return ConnectionView(
        *named,
        sent=_total(one.sent for one in counted),
        acknowledged=_total(one.acknowledged for one in counted),
        rate=sum(one.rate for one in counted),
        open=sum(one.open for one in ones),
    )


def _counted(ones: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
    # Inside a group, events are handed on in one step: of those, the connections of the slots have all counts but this one.
    return [one for one in ones if not _hands_on(one)]


def _hands_on(one: ConnectionView) -> bool:
    return is_dispatcher(one.receiver.operator) or (is_merger(one.sender.operator) and one.inside_group)


def _total(amounts: Iterable[Amount]) -> Amount:
    return sum(amounts, Amount())


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

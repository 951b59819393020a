"""The figures of a run's connections and ports as the author drew them: slots together, no Dispatchers and Mergers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from airflow_logio.protocol.replicas import base_operator, is_dispatcher, is_merger
from airflow_logio.protocol.values import Port
from airflow_logio.status.snapshot import ConnectionView, Snapshot, total_of
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import PortProgress


class AuthoredConnections:
    """The connections of one run as its author sees them. Those into, out of and inside a replicated group are sums over its
    slots. What a connection of the log stands for is found once per run."""

    def __init__(self, run: Run) -> None:
        self._is_needed = bool(run.spec.replicated)
        shapes = run.spec.operators
        self._ports = AuthoredPorts(shapes)
        self._homes = {base_operator(name): shape.group for name, shape in shapes.items()}
        self._receivers: list[Port] = []
        """Those of the connections that were seen last."""
        self._shares: list[_Share] = []
        """What of them the author's connections stand for."""

    def seen(self, connections: Sequence[ConnectionView]) -> Sequence[ConnectionView]:
        """`connections` are those of a snapshot of the run."""
        return [one for one, _ in self.with_parts(connections)]

    def with_parts(
        self, connections: Sequence[ConnectionView]
    ) -> Sequence[tuple[ConnectionView, Sequence[ConnectionView]]]:
        """The same, each with the connections of the log whose counts it has."""
        if not self._is_needed:
            return [(one, [one]) for one in connections]
        receivers = [one.receiver for one in connections]
        if receivers != self._receivers:
            self._receivers, self._shares = receivers, self._shared(connections)
        return [_summed(share, connections) for share in self._shares]

    def _shared(self, connections: Sequence[ConnectionView]) -> list[_Share]:
        parts: dict[_Meant, list[int]] = {}
        for place, one in enumerate(connections):
            for named in self._means(one):
                parts.setdefault(named, []).append(place)
        # Inside a group, events are handed on in one step: of those, the connections of the slots have all counts but one.
        return [
            _Share(named, places, [place for place in places if not _hands_on(connections[place])])
            for named, places in parts.items()
        ]

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


class _Share(NamedTuple):
    """Places among the connections of the log: all, and those whose counts are added up."""

    named: _Meant
    every: Sequence[int]
    counted: Sequence[int]


def _summed(share: _Share, connections: Sequence[ConnectionView]) -> tuple[ConnectionView, Sequence[ConnectionView]]:
    counted = [connections[place] for place in share.counted]
    whole = ConnectionView(
        *share.named,
        sent=total_of([one.sent for one in counted]),
        acknowledged=total_of([one.acknowledged for one in counted]),
        rate=sum([one.rate for one in counted]),
        open=sum([connections[place].open for place in share.every]),
    )
    return whole, counted


def _hands_on(one: ConnectionView) -> bool:
    return is_dispatcher(one.receiver.operator) or (is_merger(one.sender.operator) and one.inside_group)


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
        found[port, row.direction] = structs.replace(row, port=port) if before is None else _sum_rows(before, row)
    return list(found.values())


def _sum_rows(one: PortProgress, other: PortProgress) -> PortProgress:
    return structs.replace(
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

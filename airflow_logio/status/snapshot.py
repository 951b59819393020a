"""What a run looks like at one moment: for displays, task logs and metrics, however the drivers were launched.

All figures come from the log's counters and from the graph that the run's description holds: neither the author's code
is needed for them, nor is anything counted in the log.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import structs

from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, GroupState
from airflow_logio.protocol.values import Port
from airflow_logio.status.whole_group import as_one, in_use, members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run, RunSpec, senders_of
from airflow_logio.store.records.status_records import GroupStatus, PortProgress, UnderWay

RATE_WINDOW_SECONDS = 4.0


class Amount(msgspec.Struct, frozen=True, gc=False):
    """A structure, and no dataclass: one look at a large run makes thousands of them."""

    events: int = 0
    records: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.events + other.events, self.records + other.records)

    def less(self, other: Amount) -> Amount:
        """What is left of it after `other`, never below zero."""
        events, records = self.events - other.events, self.records - other.records
        return Amount(events if events > 0 else 0, records if records > 0 else 0)


_NONE = Amount()
_Counters = dict[str, dict[Port, Amount]]
"""Direction, as `PortProgress` has it → port → how much."""


class ConnectionView(msgspec.Struct, frozen=True, gc=False):
    """From an output port to one input port: what was sent, and what its receiver has acknowledged of it."""

    sender: Port
    receiver: Port
    from_group: str
    to_group: str
    sent: Amount
    acknowledged: Amount
    rate: float
    """Records per second that were acknowledged over the last seconds; 0 at the first look."""
    open: int
    """Acknowledged events of Input Sets that are not done; one that is in two of them counts twice."""

    @property
    def undone(self) -> int:
        """Events that are sent and not done: those that lag, and those of Input Sets that are not done."""
        return self.lag.events + self.open

    @property
    def lag(self) -> Amount:
        return self.sent.less(self.acknowledged)

    @property
    def inside_group(self) -> bool:
        return self.from_group == self.to_group


class GroupView(msgspec.Struct, frozen=True, gc=False):
    """One group. A source group is measured by what it has read, any other by what it has acknowledged."""

    status: GroupStatus
    is_source: bool
    """No other group sends to it."""
    measured: Amount
    rate: float
    """Records per second over the last seconds; 0 at the first look."""
    done: float | None
    """Share of the whole input, 0 to 1; None if the size of a source is not known."""
    total_records: int | None
    """Records in the sources of this group; None for groups with input from other groups, or if it is not known."""
    received: Amount
    """What this group has acknowledged of the events that other groups sent."""
    sent: Amount
    """Sent to other groups; an event counts once for each output port."""
    writes: int
    """Write actions applied at external systems."""
    pending_writes: int
    """Write actions that are logged and not applied yet."""
    undone: int
    """Events that were sent to this group's operators, by others or inside it, and are not done."""
    lag: Amount
    """Sent to this group by others, but not acknowledged by it."""
    lag_seconds: float | None
    """How long the lag would take at the present rate; None for a source, and while nothing moves."""
    recovered_seconds_ago: float | None
    """Seconds since the driver of the present incarnation registered; None for the first incarnation."""
    replicas: int | None = None
    """How many replicas of a replicated group are in use; None for any other group, and for a replica."""

    @property
    def name(self) -> str:
        return self.status.group

    @property
    def is_replica(self) -> bool:
        """The figures are those of the whole group then, which has a view of its own."""
        return replicated_group(self.name) != self.name


@dataclass(frozen=True, slots=True)
class Snapshot:
    run: Run
    seconds: float
    """Time since the observer began."""
    groups: tuple[GroupView, ...]
    """The groups, in the order of the data."""
    connections: tuple[ConnectionView, ...]
    ports: tuple[PortProgress, ...]
    pending: Mapping[Port, int]
    """(operator, connection) → write actions that are logged and not applied yet, where there are any."""
    wholes: tuple[GroupView, ...] = ()
    """Replicated groups, each with all its slots and replicas."""

    @property
    def rows(self) -> tuple[GroupView, ...]:
        """All views, for people: a replicated group comes before its replicas."""
        wholes = {view.name: view for view in self.wholes}
        rows = list[GroupView]()
        for view in self.groups:
            if view.is_replica and (whole := wholes.pop(replicated_group(view.name), None)) is not None:
                rows.append(whole)
            rows.append(view)
        return tuple(rows)

    @property
    def finished(self) -> bool:
        return all(view.status.state in CONCLUDED for view in self.groups)

    @property
    def done(self) -> float | None:
        """What the slowest group has done of the whole input; None where the size of an input is not known."""
        shares = [view.done for view in (*self.groups, *self.wholes) if not view.is_replica]
        known = [share for share in shares if share is not None]
        return min(known, default=None) if len(known) == len(shares) else None

    def group(self, name: str) -> GroupView | None:
        """A group, a replica or a replicated group as a whole; None if the log has none of that name (any more)."""
        return next((view for view in (*self.groups, *self.wholes) if view.name == name), None)

    def ports_of(self, group: str) -> tuple[PortProgress, ...]:
        """The counters of a group's operators."""
        return tuple(row for row in self.ports if self._is_of(group, row.port))

    def pending_of(self, group: str) -> Mapping[Port, int]:
        """Pending write actions for each writer connection that has applied a write action, or will."""
        applied = {row.port: 0 for row in self.ports_of(group) if row.direction == "write"}
        return applied | {port: count for port, count in self.pending.items() if self._is_of(group, port)}

    def connections_to(self, group: str) -> tuple[ConnectionView, ...]:
        """Connections to the group, including those inside it."""
        return tuple(one for one in self.connections if one.to_group == group)

    def _is_of(self, group: str, port: Port) -> bool:
        shape = self.run.spec.operators.get(port.operator)
        return shape is not None and shape.group == group


class Observer:
    """Takes snapshots of one run; keeps what rates need. `take` reads the groups and the counters."""

    def __init__(self, store: LogStore, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._run_id = run.run_id
        self._series = SnapshotSeries(run, clock)

    def take(self) -> Snapshot:
        """Raises `LogUnavailable`."""
        groups, ports = self._store.groups(self._run_id), self._store.progress(self._run_id)
        return self._series.next(groups, ports, self._store.under_way(self._run_id))


class SnapshotSeries:
    """The snapshots of one run, one after the other, from what others read; keeps what rates need."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._clock = clock
        self._began = clock()
        self._graph = _Graph(run.spec)
        self._rates = _Rates()

    def next(self, groups: Sequence[GroupStatus], progress: Sequence[PortProgress], under_way: UnderWay) -> Snapshot:
        """The snapshot that follows from what was just read."""
        statuses = {status.group: status for status in groups}
        ports = tuple(progress)
        counters: _Counters = {"in": {}, "out": {}, "write": {}}
        for row in ports:
            counters.setdefault(row.direction, {})[row.port] = Amount(row.events, row.records)
        now = self._clock()
        self._rates.look(now)
        connections = tuple([self._connection(receiver, counters, under_way) for receiver in self._graph.senders])
        seen = _Seen(self._graph, counters, connections, under_way)
        views, wholes, done = list[GroupView](), dict[str, GroupView](), dict[str, float | None]()
        # Groups come in the order of their first operator, so that a sender's share is known before its receiver's.
        for name in self._run.spec.groups:
            if name not in statuses:
                continue
            whole = replicated_group(name)
            if whole in self._run.spec.replicated and whole not in wholes:
                replicas = [statuses[one] for one in members_of(self._run, whole) if one in statuses]
                view = self._view(as_one(whole, replicas), seen, done)
                done[whole] = view.done
                wholes[whole] = structs.replace(view, replicas=in_use(replicas))
            view = self._view(statuses[name], seen, done)
            done[name] = view.done
            views.append(view)
        return Snapshot(
            self._run, now - self._began, tuple(views), connections, ports, under_way.pending, tuple(wholes.values())
        )

    def _connection(self, receiver: Port, counters: _Counters, under_way: UnderWay) -> ConnectionView:
        graph, sender = self._graph, self._graph.senders[receiver]
        acknowledged = counters["in"].get(receiver, _NONE)
        return ConnectionView(
            sender=sender,
            receiver=receiver,
            from_group=graph.group_of[sender.operator],
            to_group=graph.group_of[receiver.operator],
            sent=counters["out"].get(sender, _NONE),
            acknowledged=acknowledged,
            rate=self._rates.of(receiver, acknowledged.records),
            open=under_way.open.get(receiver, 0),
        )

    def _view(self, status: GroupStatus, seen: _Seen, done: Mapping[str, float | None]) -> GroupView:
        name, graph = status.group, self._graph
        inputs, senders = seen.inputs.get(name, ()), seen.senders.get(name, ())
        received, expected = total_of([one.acknowledged for one in inputs]), total_of([one.sent for one in inputs])
        measured = received if inputs else seen.read.get(name, _NONE)
        rate = self._rates.of(name, measured.records)
        lag = total_of([one.lag for one in inputs])
        total = None if inputs else graph.total_records(graph.sources.get(name, ()))
        return GroupView(
            status=status,
            is_source=not inputs and replicated_group(name) == name,
            measured=measured,
            rate=rate,
            done=_share(inputs, done, measured, expected) if inputs else _part(measured, total),
            total_records=total,
            received=received,
            sent=total_of([seen.sent.get(port, _NONE) for port in senders]),
            writes=seen.writes.get(name, _NONE).events,
            pending_writes=seen.pending.get(name, 0),
            undone=seen.undone.get(name, 0),
            lag=lag,
            lag_seconds=lag.records / rate if inputs and rate > 0 else None,
            recovered_seconds_ago=_recovered_ago(status),
        )


class _Seen:
    """What was read for one snapshot, by group: each group is a few look-ups then, however many there are."""

    def __init__(
        self,
        graph: _Graph,
        counters: _Counters,
        connections: Iterable[ConnectionView],
        under_way: UnderWay,
    ) -> None:
        self.sent = counters["out"]
        self.inputs: dict[str, list[ConnectionView]] = {}
        """Connections from other groups."""
        self.senders: dict[str, set[Port]] = {}
        """Ports that other groups receive from."""
        self.read: dict[str, Amount] = {}
        """What its sources have read."""
        self.writes: dict[str, Amount] = {}
        self.pending: dict[str, int] = {}
        self.undone: dict[str, int] = {}
        for one in connections:
            self.undone[one.to_group] = self.undone.get(one.to_group, 0) + one.undone
            if not one.inside_group:
                self.inputs.setdefault(one.to_group, []).append(one)
                self.senders.setdefault(one.from_group, set()).add(one.sender)
        for port, amount in counters["write"].items():
            if (group := graph.group(port)) is not None:
                self.writes[group] = self.writes.get(group, _NONE) + amount
        for port, amount in self.sent.items():
            if port.operator in graph.source_names and (group := graph.group(port)) is not None:
                self.read[group] = self.read.get(group, _NONE) + amount
        for port, count in under_way.pending.items():
            if (group := graph.group(port)) is not None:
                self.pending[group] = self.pending.get(group, 0) + count


class _Graph:
    """The graph of a run as its description holds it; empty for runs that were begun before descriptions held one."""

    def __init__(self, spec: RunSpec) -> None:
        self.senders = senders_of(spec)
        self.group_of = {name: shape.group for name, shape in spec.operators.items()}
        self.source_names = {name for name, shape in spec.operators.items() if not shape.inputs}
        self.sources: dict[str, list[str]] = {}
        """Group → its sources."""
        for name in spec.operators:
            if name in self.source_names:
                self.sources.setdefault(self.group_of[name], []).append(name)
        self._spec = spec

    def group(self, port: Port) -> str | None:
        return self.group_of.get(port.operator)

    def total_records(self, sources: Sequence[str]) -> int | None:
        """Total of the sources' sizes at the start of the run; None if one of them was not known."""
        totals = []
        for name in sources:
            action = self._spec.actions.get(name, {})
            totals.append(action.get("total_rows", action.get("rows")))
        known = [total for total in totals if isinstance(total, int)]
        return sum(known) if known and len(known) == len(totals) else None


class _Rates:
    """Per second, over the last seconds or since the last look, whichever is longer."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[Hashable, int]]] = deque()

    def look(self, now: float) -> None:
        """The values that follow are those of `now`."""
        while len(self._looks) > 1 and now - self._looks[0][0] > RATE_WINDOW_SECONDS:
            self._looks.popleft()
        self._looks.append((now, {}))

    def of(self, what: Hashable, value: int) -> float:
        now, values = self._looks[-1]
        values[what] = value
        for then, earlier in self._looks:
            before = earlier.get(what)
            if before is not None:
                return (value - before) / (now - then) if now > then else 0.0
        return 0.0


def _part(measured: Amount, total: int | None) -> float | None:
    if total is None:
        return None
    return min(1.0, measured.records / total) if total else 1.0


def _share(
    inputs: Sequence[ConnectionView], done: Mapping[str, float | None], measured: Amount, expected: Amount
) -> float | None:
    """What the slowest sender has done of the whole, times what is done of what was sent."""
    shares = [done.get(one.from_group) for one in inputs]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    return min(known) * (min(1.0, measured.records / expected.records) if expected.records else 0.0)


def total_of(amounts: Sequence[Amount]) -> Amount:
    """Their sum."""
    if len(amounts) == 1:
        return amounts[0]
    events = records = 0
    for one in amounts:
        events += one.events
        records += one.records
    return Amount(events, records)


def _recovered_ago(status: GroupStatus) -> float | None:
    """By the database's clock: the state `running` was entered when the driver registered."""
    if status.incarnation < 2 or status.state is not GroupState.RUNNING or status.beat_at is None:
        return None
    return max(0.0, status.beat_at - status.since)


EVERY_SECONDS = 30.0


def progress_line(view: GroupView) -> str:
    """Such as ``hourly, incarnation 2: in 1,234 events (45,678 records), out 120 events, lag 12 events, 56 commits``.

    A replicated group says how many replicas are in use instead of its incarnation. A source group has no input from
    others: what it has read stands there.
    """
    status = view.status
    parts = []
    if view.is_source:
        share = "" if view.done is None else f", {view.done:.0%} of the input"
        parts.append(f"read {_amount(view.measured)}{share}")
    else:
        parts.append(f"in {_amount(view.received)}")
    if view.sent.events:
        parts.append(f"out {view.sent.events:,} events")
    if view.writes:
        parts.append(f"{view.writes:,} writes")
    if view.lag.events:
        parts.append(f"lag {view.lag.events:,} events")
    parts.append(f"{status.commits:,} commits")
    if status.rss_bytes:
        parts.append(f"{status.rss_bytes / 2**20:,.0f} MB")
    who = f"incarnation {status.incarnation}" if view.replicas is None else f"{view.replicas} replica(s)"
    return f"{view.name}, {who}: {', '.join(parts)}"


def _amount(amount: Amount) -> str:
    return f"{amount.events:,} events ({amount.records:,} records)"


class ProgressLines:
    """The lines of one group: one every `every_seconds` at most, and only if the group has moved on since the last."""

    def __init__(self, every_seconds: float = EVERY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every_seconds
        self._clock = clock
        self._asked_at = float("-inf")
        self._last: object = None

    def is_due(self) -> bool:
        """Whether it is time to look again: a look reads the log."""
        return self._clock() - self._asked_at >= self._every

    def line(self, view: GroupView) -> str | None:
        """The line for this look, None if nothing has changed since the last one (its memory does not count)."""
        self._asked_at = self._clock()
        figures = (
            view.status.incarnation,
            view.replicas,
            view.status.commits,
            view.measured,
            view.sent,
            view.writes,
            view.lag,
        )
        if figures == self._last:
            return None
        self._last = figures
        return progress_line(view)

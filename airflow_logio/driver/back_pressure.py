"""Back-pressure (design D5): what holds a sending group, and where its Dispatchers send meanwhile.

A sender may have so many unacknowledged events in the log. That needs no counting there: event ids are gapless, so a
receiver's counter of acknowledged events says which ones are not. Acknowledged events do not count, so a window larger
than the bound cannot deadlock: it acknowledges as it fills.

Two kinds of connections have no such bound, because the bound could hold up what they wait for (`bounded`): those inside a
group that go through the log, and those to an operator with a declared order that waits for another port which the held
sender feeds, too. Their excess waits in the log, on disk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa

from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.replication import Dispatcher, Routes
from airflow_logio.dataflow.replication.partition import AllSlots
from airflow_logio.driver.mailbox import LoadMeter
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.systems.arrow import bytes_shown
from airflow_logio.systems.payloads.bodies import dataset_of

ASK_EVERY_SECONDS = 0.1
FILES_COUNT = 256
"""So many bytes of files are one of the bound: they are in the payload store, and not in the log. Of the usual 256 MiB, 64
GiB of files."""


class BackPressure:
    """Back-pressure of one epoch; belongs to the group's loop. `sent` gives, for each port, its last event and the
    number of ids that belong to ends that were taken back."""

    def __init__(
        self,
        pipeline: Pipeline,
        members: Mapping[str, Operator],
        session: GroupSession,
        bound: BacklogBound,
        sent: Callable[[Port], tuple[int, int]],
        slots_of: Callable[[str], Sequence[Slot]],
    ) -> None:
        self._pipeline = pipeline
        self._backlogs = {
            sender: Backlog(receivers, session.acknowledged, bound, partial(_last, sent, sender), sent(sender)[1])
            for sender, receivers in bounded(pipeline, members).items()
        }
        self.routes: dict[str, Routes] = {}
        """Dispatcher → what it looks at."""
        together = set(self._open_routes(members, session, slots_of))
        alone = [one.is_full for sender, one in self._backlogs.items() if sender.operator not in together]
        self._waits = alone + [one.is_full for one in self.routes.values() if isinstance(one, SlotRoutes)]

    def _open_routes(
        self, members: Mapping[str, Operator], session: GroupSession, slots_of: Callable[[str], Sequence[Slot]]
    ) -> Iterable[str]:
        """Dispatchers whose connections are bounded together."""
        for name, operator in members.items():
            if not isinstance(operator, Dispatcher):
                continue
            receivers = [self._pipeline.receivers(Port(name, port)) for port in operator.outputs]
            group = self._pipeline.home(receivers[0][0].operator)
            if group not in self._pipeline.replicated:
                self.routes[name] = AllSlots(operator.slots)  # used by hand: what is behind it is not replicated
                continue
            backlogs = [self._backlogs[Port(name, port)] for port in operator.outputs]
            self.routes[name] = SlotRoutes(operator, backlogs, session.acknowledged, partial(slots_of, group))
            yield name

    def is_full(self) -> bool:
        """A receiver lags by the bound: take no more input."""
        return any(is_full() for is_full in self._waits)

    def note(self, effects: Collection[fx.Effect], load: LoadMeter) -> None:
        """These events are on their way to the log."""
        for effect in effects:
            if isinstance(effect, fx.LogEvent) and effect.event.sender in self._backlogs:
                event = effect.event
                load.sent(1, event.records)
                self._backlogs[event.sender].note_size(event.event_id, waiting_bytes(event))


def _last(sent: Callable[[Port], tuple[int, int]], sender: Port) -> int:
    return sent(sender)[0]


def waiting_bytes(event: Event) -> int:
    """Bytes of an event that count while a receiver lags."""
    if event.body is not None:
        return len(event.body)
    if (dataset := dataset_of(event.payload)) is not None:
        return dataset.nbytes // FILES_COUNT
    return bytes_shown(event.payload) if isinstance(event.payload, pa.Table) else 0


class Backlog:
    """One output port and its receivers in other groups. Not thread-safe: it belongs to the group's loop.

    `ask` reads the receivers' counters, `last_sent` is the id of the last event that was produced. Receivers count data
    alone: `taken_back` is the number of ids that ends have which were taken back.
    """

    def __init__(
        self,
        receivers: Sequence[Port],
        ask: Callable[[Sequence[Port]], Mapping[Port, tuple[int, int]]],
        bound: BacklogBound,
        last_sent: Callable[[], int],
        taken_back: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.receivers = tuple(receivers)
        self._ask = ask
        self._bound = bound
        self._clock = clock
        self._last_sent = last_sent
        self.taken_back = taken_back
        self._acknowledged = 0
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._asked_at = float("-inf")

    def note_size(self, event_id: int, size: int) -> None:
        """An event of this incarnation is on its way to the log; earlier ones are bounded by their number alone."""
        self._sizes.append((event_id, size))
        self._bytes += size

    def waiting(self) -> int:
        """Events that the slowest receiver has not taken, as far as was asked."""
        return max(0, self._last_sent() - self._acknowledged)

    def is_full(self) -> bool:
        """True while the slowest receiver lags by the bound; asks the log at most every tenth of a second."""
        if not self.is_over():
            return False
        if self._clock() - self._asked_at >= ASK_EVERY_SECONDS:
            self._refresh()
        return self.is_over()

    def is_over(self) -> bool:
        """Whether it is full as far as is known; does not ask the log."""
        return self._last_sent() - self._acknowledged >= self._bound.events or self._bytes >= self._bound.bytes

    def _refresh(self) -> None:
        self._asked_at = self._clock()
        try:
            self.learn(self._ask(self.receivers))
        except LogUnavailable:
            return  # still full as far as is known; the committer waits for the log as well

    def learn(self, counters: Mapping[Port, tuple[int, int]]) -> None:
        """Take over the receivers' counters: (events, bytes) acknowledged."""
        self._acknowledged = self._taken(counters)
        while self._sizes and self._sizes[0][0] <= self._acknowledged:
            self._bytes -= self._sizes.popleft()[1]

    def waiting_behind(self, counters: Mapping[Port, tuple[int, int]]) -> int:
        """As `waiting`, were these the receivers' counters."""
        return max(0, self._last_sent() - self._taken(counters))

    def _taken(self, counters: Mapping[Port, tuple[int, int]]) -> int:
        return min(counters.get(port, (0, 0))[0] for port in self.receivers) + self.taken_back


def bounded(pipeline: Pipeline, members: Collection[str]) -> dict[Port, tuple[Port, ...]]:
    """Output ports of operators that run together → the receivers whose backlog holds them up; others are left out."""
    found = {}
    for sender in (port for name in members for port in pipeline.graph.outputs_of(name)):
        receivers = tuple(
            receiver
            for receiver in pipeline.receivers(sender)
            if receiver.operator not in members and not _starves_itself(pipeline, members, receiver)
        )
        if receivers:
            found[sender] = receivers
    return found


def _starves_itself(pipeline: Pipeline, members: Collection[str], receiver: Port) -> bool:
    """Whether holding the group of `members` up could keep events from another port that the ordered receiver waits for.

    A group that waits makes the groups wait that feed it: back-pressure stops whole groups.
    """
    operator = pipeline.operators[receiver.operator]
    if not operator.port_order:
        return False
    if sum(bool(other.port_order) for other in pipeline.operators.values()) > 1:
        return True  # each may wait for a sender that the other one holds up
    held = _groups_before(pipeline, members, whole_groups=True)
    others = [port for port in pipeline.graph.inputs_of(receiver.operator) if port != receiver]
    senders = [pipeline.sender(port).operator for port in others]
    return bool(held & _groups_before(pipeline, senders, whole_groups=False))


def _groups_before(pipeline: Pipeline, operators: Iterable[str], *, whole_groups: bool) -> set[str]:
    """The groups of these operators and of all that they depend on; with all members of these groups, or only such."""
    seen: set[str] = set()
    todo = list(operators)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        todo += [pipeline.sender(port).operator for port in pipeline.graph.inputs_of(name)]
        if whole_groups:
            todo += pipeline.groups[pipeline.home(name)].operators
    return {pipeline.home(name) for name in seen}


class SlotRoutes:
    """Routes of one Dispatcher. Not thread-safe: it belongs to the group's loop.

    `backlogs` are those of its output ports, in the order of slots; `ask` reads the receivers' counters, `owners` the slots.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        backlogs: Sequence[Backlog],
        ask: Callable[[Sequence[Port]], Mapping[Port, tuple[int, int]]],
        owners: Callable[[], Sequence[Slot]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waits_for_each = dispatcher.partition.keyed or dispatcher.ordered
        self._backlogs = list(backlogs)
        self._ask = ask
        self._owners = owners
        self._clock = clock
        self._asked_at = float("-inf")
        self._by_owner: dict[str | None, list[int]] = {None: list(range(len(self._backlogs)))}

    def replicas(self) -> Sequence[Sequence[int]]:
        """Slots with room, by the replica that owns them; all slots if none has room or none has an owner."""
        self._refresh()
        with_room = [
            mine
            for owner, slots in self._by_owner.items()
            if owner is not None and (mine := [slot for slot in slots if not self._backlogs[slot].is_over()])
        ]
        return with_room or [list(range(len(self._backlogs)))]

    def backlog(self, slot: int) -> int:
        """Events that were sent to the slot and not taken, as far as was asked."""
        return self._backlogs[slot].waiting()

    def is_full(self) -> bool:
        """Whether the Dispatcher must wait: for one slot where keys decide, else only when no slot has room.

        For one slot also where the Merger keeps the order: what overtakes it there is held in memory.
        """
        enough = any if self._waits_for_each else all
        if not enough(backlog.is_over() for backlog in self._backlogs):
            return False
        self._refresh()
        return enough(backlog.is_over() for backlog in self._backlogs)

    def _refresh(self) -> None:
        """One question for all slots, at most every tenth of a second."""
        if self._clock() - self._asked_at < ASK_EVERY_SECONDS:
            return
        self._asked_at = self._clock()
        try:
            counters = self._ask([receiver for backlog in self._backlogs for receiver in backlog.receivers])
            slots = self._owners()
        except LogUnavailable:
            return  # as far as is known, nothing has changed
        for backlog in self._backlogs:
            backlog.learn(counters)
        self._by_owner = {}
        for slot in slots:
            if not slot.done:
                self._by_owner.setdefault(slot.owner, []).append(slot.number)

"""Back-pressure's second bound (design D5): how many unacknowledged events a sender may have in the log.

From numbers that both sides keep anyway: event ids are gapless, so a receiver's counter of acknowledged events says which
are not; nothing is counted in the log. Acknowledged events do not count, so a window larger than the bound cannot
deadlock: it acknowledges as it fills.

Two kinds of connections have no such bound, because the bound itself could hold up what they wait for (`bounded`): those
inside a group that go through the log, and those to an operator with a declared order that waits for another port which
the held sender feeds, too. What is too much there waits in the log, on disk.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import BacklogBound

ASK_EVERY_SECONDS = 0.1


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

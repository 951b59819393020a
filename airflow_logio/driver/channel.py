"""The log as the channel (design D5): pulls undone, unassigned events of the group's input ports.

The cursors of its lanes are volatile and start at the marks; they bound every scan. What is fetched waits in the mailbox,
which bounds memory, however far the receiver lags: besides it there is what one question has brought, some events of each
port and some bytes of all.

A port by itself is read as fast as the group takes its events (`OnePort`). The ports of an operator with a declared order
are read together, in turn (`InTurn`): an event that is not due stays out of the mailbox, so that a port that waits for
another one holds no operator up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from airflow_logio.driver.mailbox import Closed, Mailbox
from airflow_logio.driver.spark_jobs.evaluation import Arrived, Evaluation
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.recovery import LoggedEvent, PortOrder
from airflow_logio.protocol.values import FIRST_EVENT_ID, Event, Kind, Port
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.systems.payloads.bodies import Bodies, size_of

POLL_SECONDS = 0.25
FETCH_EVENTS = 64
"""Number of events fetched for a port at once."""
FETCH_BYTES = 8 * 2**20
"""Bytes fetched for all ports together, or one event. Ports with a declared order are read one by one, each up to this
size."""
EVENTS_PER_ROUND = 64
Fetch = Callable[[Port, int], Sequence[LoggedEvent]]
"""(receiver port, last event_id taken) → the next events in the log, few or none."""
More = Callable[[LoggedEvent], Sequence[LoggedEvent]]
"""The last event that is known → what may be handed over behind it, by now."""
HandOver = Callable[[Port, Sequence[LoggedEvent], More], Iterator[LoggedEvent]]
"""(receiver port, events in their order) → each of them, once it has been handed over, and perhaps more."""


class Unpacks(Protocol):
    """Gives events of the log their payloads (`Replay`), best if it knows which are next."""

    def expect(self, events: Iterable[Event]) -> None: ...
    def unpacked(self, event: Event) -> Event: ...


class OwnBodies:
    """For a pipeline without replay operators: every event has its body in the log, or in the payload store."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def expect(self, events: Iterable[Event]) -> None:
        """They come one by one."""

    def unpacked(self, event: Event) -> Event:
        return self._bodies.unpacked(event)


class Channel:
    """One thread for all input ports of a group that are fed from the log.

    `evaluation` evaluates the events of its chains on the way. `may_move`: the group is a replica.
    """

    def __init__(
        self,
        session: GroupSession,
        lanes: Sequence[Lane],
        bodies: Unpacks,
        mailbox: Mailbox,
        failed: Callable[[BaseException], None],
        *,
        evaluation: Evaluation | None = None,
        may_move: bool = False,
    ) -> None:
        self._session = session
        self._lanes = [lane for lane in lanes if not lane.has_ended()]
        self._bodies = bodies
        self._mailbox = mailbox
        self._failed = failed
        self._evaluation = evaluation
        self._may_move = may_move
        self._has_seen_all = True
        """What was fetched in this round is all that waited."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-channel", daemon=True)

    def start(self) -> None:
        if self._lanes:
            self._thread.start()

    def stop(self) -> threading.Thread:
        """The mailbox must be closed first: the thread may wait for room in it. The thread is to be joined."""
        self._stopping.set()
        return self._thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and self._lanes:
                if not (self._pull() and self._may_have_more()):
                    self._session.wait(POLL_SECONDS)
                    self._notice_moves()
        except Closed:
            return
        except BaseException as error:
            self._failed(error)

    def _pull(self) -> bool:
        """One round over the lanes, with one question to the log for all of them; True if anything was there."""
        self._has_seen_all = True
        try:
            asked = dict(filter(None, (lane.wanted() for lane in self._lanes)))
            found = self._fetch_all(asked)

            def fetch(receiver: Port, after: int) -> Sequence[LoggedEvent]:
                if asked.get(receiver) == after:
                    return found.get(receiver, ())
                # The lane has come to another port, or to the end of what was there.
                return self._fetch_all({receiver: after}).get(receiver, ())

            served = [lane.pull(fetch, self._hand_over) for lane in self._lanes]
        except LogUnavailable:
            return False  # the committer reports an outage that lasts; the channel only waits
        # A lane that got nothing comes first: bytes that others have filled are its own the next time.
        in_turn = sorted(zip(self._lanes, served, strict=True), key=lambda one: one[1])
        self._lanes = [lane for lane, _ in in_turn if not lane.has_ended()]
        return any(served)

    def _may_have_more(self) -> bool:
        """Whether not to wait: a look in vain costs as much as an event where events come one by one."""
        hears = self._session.will_hear()
        is_cut = not self._has_seen_all or any(lane.is_cut() for lane in self._lanes)
        return is_cut or not hears or not self._lanes

    def _notice_moves(self) -> None:
        """A replica that commits nothing would not learn that slots came or went: moves raise its epoch."""
        if not self._may_move:
            return
        try:
            self._session.check()
        except LogUnavailable:
            return

    def _fetch_all(self, cursors: Mapping[Port, int]) -> Mapping[Port, Sequence[LoggedEvent]]:
        if not cursors:
            return {}
        found = self._session.fetch_all(cursors, max_events=FETCH_EVENTS, max_bytes=FETCH_BYTES)
        self._has_seen_all = self._has_seen_all and found.is_all
        return found.events

    def _hand_over(self, receiver: Port, logged: Sequence[LoggedEvent], more: More) -> Iterator[LoggedEvent]:
        self._bodies.expect(one.event for one in logged)
        for one, event in self._ready(receiver, logged, more):
            self._mailbox.put_input((receiver, event), size_of(one.event))
            yield one

    def _ready(self, receiver: Port, logged: Sequence[LoggedEvent], more: More) -> Iterable[tuple[LoggedEvent, Event]]:
        """Events as the loop gets them, one after the other."""
        if self._evaluation is not None and self._evaluation.wants(receiver):
            return self._evaluation.in_order(logged, lambda one: Arrived(receiver, self._unpacked(one)), more)
        return ((one, self._unpacked(one)) for one in logged)

    def _unpacked(self, logged: LoggedEvent) -> Event:
        return self._bodies.unpacked(logged.event)


def lanes_of(group: GroupProtocol) -> list[Lane]:
    """The lanes of a group as recovery left it, for all its ports that are fed from the log and have not ended."""
    lanes: list[Lane] = []
    alone = group.inputs_from_log()
    for name, operator in group.operators.items():
        if operator.order is not None and any(port.operator == name for port in alone):
            lanes.append(InTurn(name, operator.order, operator.context.marks, operator.context.ended))
            alone = [port for port in alone if port.operator != name]
    return lanes + [OnePort(port, group.operators[port.operator].context.mark(port.name)) for port in alone]


class Lane(Protocol):
    """Ports that are read together. Belongs to the channel's thread."""

    def wanted(self) -> tuple[Port, int] | None:
        """What the next round fetches first, so that the channel can ask for all lanes at once. None if it has some."""
        ...

    def pull(self, fetch: Fetch, hand_over: HandOver) -> bool:
        """One round: hand over what is there, but not so much that other lanes starve. False if there was nothing."""
        ...

    def is_cut(self) -> bool:
        """The last round has ended for the sake of other lanes: more may be there."""
        ...

    def has_ended(self) -> bool:
        """The end of stream was handed over on every port."""
        ...


class OnePort:
    """A port whose events are taken as they come; `mark` is the last one taken."""

    def __init__(self, port: Port, mark: int) -> None:
        self._port = port
        self._mark = mark
        self._ended = False

    def wanted(self) -> tuple[Port, int] | None:
        return self._port, self._mark

    def pull(self, fetch: Fetch, hand_over: HandOver) -> bool:
        events = fetch(self._port, self._mark)
        for logged in hand_over(self._port, events, self._more(fetch, len(events))):
            self._mark = logged.event.event_id
            self._ended = logged.event.kind is Kind.END
        return bool(events)

    def _more(self, fetch: Fetch, known: int) -> More:
        """What comes while a round lasts, which has so many events. An outage of the log is none of theirs."""

        def more(last: LoggedEvent) -> Sequence[LoggedEvent]:
            nonlocal known
            if known >= EVENTS_PER_ROUND or last.event.kind is Kind.END:
                return ()
            try:
                found = fetch(self._port, last.event.event_id)
            except LogUnavailable:
                return ()
            known += len(found)
            return found

        return more

    def is_cut(self) -> bool:
        return False

    def has_ended(self) -> bool:
        return self._ended


class InTurn:
    """The ports of an operator with a declared order: `marks` and `ended` are its context's, as recovery left them.

    What was fetched of a port and is not due waits here: one fetch of each port at most.
    """

    def __init__(self, operator: str, order: PortOrder, marks: Mapping[str, int], ended: Collection[str]) -> None:
        self._operator = operator
        self._order = order
        self._marks = dict(marks)
        self._ended = set(ended)
        self._fetched: dict[str, deque[LoggedEvent]] = {}
        self._is_cut = False

    def wanted(self) -> tuple[Port, int] | None:
        port = self._order.next_port(self._marks, self._ended)
        return None if port is None or self._fetched.get(port) else self._at(port)

    def pull(self, fetch: Fetch, hand_over: HandOver) -> bool:
        taken = 0
        for port, logged in islice(iter(lambda: self._next(fetch), None), EVENTS_PER_ROUND):
            for _ in hand_over(Port(self._operator, port), [logged], lambda _: ()):
                self._fetched[port].popleft()  # only now: handing over may fail, and is tried again
                self._marks[port] = logged.event.event_id
                if logged.event.kind is Kind.END:
                    self._ended.add(port)
                taken += 1
        self._is_cut = taken == EVENTS_PER_ROUND
        return taken > 0

    def is_cut(self) -> bool:
        return self._is_cut

    def has_ended(self) -> bool:
        return self._order.next_port(self._marks, self._ended) is None

    def _next(self, fetch: Fetch) -> tuple[str, LoggedEvent] | None:
        """The event whose turn it is, if it has come."""
        port = self._order.next_port(self._marks, self._ended)
        if port is None:
            return None
        waiting = self._fetched.setdefault(port, deque())
        if not waiting:
            waiting.extend(fetch(*self._at(port)))
        return (port, waiting[0]) if waiting else None

    def _at(self, port: str) -> tuple[Port, int]:
        return Port(self._operator, port), self._marks.get(port, FIRST_EVENT_ID - 1)

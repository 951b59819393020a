"""The loop of a group: what one epoch does next, given its observations and the time (Section 4).

Pure: no thread, no clock, no database. The driver's main thread runs a `GroupLoop` over its mailbox. The simulator runs the
same object one step at a time, so what a schedule shows is true of the code that ships. The state machines of the other
threads stand beside it: `Life` (in which order an epoch begins), `CommitQueue` (the committer), `WriteQueue` (a writer),
`JobQueue` (the jobs of asynchronous operators).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import DiscardOrder, ForgetOrder, HandOver, ReadOrder, SourceOrder
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.source import SourceProtocol
from airflow_logio.protocol.values import FIRST_EVENT_ID, Event, Port
from airflow_logio.protocol.writes import Applied, Compared, HeldGroup, PendingWrite, WriterKey

FLUSH_SECONDS = 0.25
"""Assignments without an Output Set are committed at the latest after this time (design D2)."""
FLUSH_EVENTS = 512


class Commits(Protocol):
    """The committer's queue: a `CommitQueue`, or one behind a lock."""

    def add(self, effects: fx.Effects) -> None: ...
    def is_idle(self) -> bool: ...


class Writer(Protocol):
    """A writer's queue: a `WriteQueue`, or one behind a lock."""

    def add(
        self,
        writes: Sequence[PendingWrite],
        *,
        recovered: bool = False,
        log_end: int = 0,
        held: HeldGroup | None = None,
    ) -> None: ...
    def release(self) -> None: ...
    def is_full(self) -> bool: ...
    def is_idle(self) -> bool: ...
    def has_opened(self) -> bool: ...
    def settle(self, applied: Applied) -> None: ...


class Readers(Protocol):
    """The readers of the sources. They exist once the threads of the epoch have started."""

    def ask(self, orders: Iterable[SourceOrder]) -> None: ...
    def drain(self, name: str, *, cut_short: bool) -> None:
        """No further read action follows. `cut_short`: nothing more of the one under way is wanted, either."""


class Jobs(Protocol):
    """The jobs of asynchronous operators."""

    def is_full(self) -> bool: ...


class Garbage(Protocol):
    """Garbage collection, in transactions that the group makes anyway (Section 3.6)."""

    def due(self, step: fx.Effects) -> fx.Effects: ...
    def is_overdue(self) -> bool: ...


class GroupLoop:
    """One epoch of a group. Times are seconds of the caller's monotonic clock.

    `first_actions` gives the first read action of each source. A call with news from a thread is an *observation*.
    Observations gather in a step until `close` hands its effects to the committer.
    """

    def __init__(
        self,
        protocol: GroupProtocol,
        commits: Commits,
        writers: Mapping[WriterKey, Writer],
        readers: Readers,
        jobs: Jobs,
        garbage: Garbage,
        first_actions: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.protocol = protocol
        self._commits = commits
        self._writers = writers
        self._readers = readers
        self._jobs = jobs
        self._garbage = garbage
        self._first_actions = first_actions
        self._log_ends: Mapping[WriterKey, int] = {}
        """Writer → what its marker is compared with; 0 if the log had given out nothing to it."""
        self._open_since: float | None = None
        self._handed_over: set[str] = set()
        """Sources whose stored effect is used up: only what follows their read action is still unknown."""
        self.draining = False
        """The sources were told to drain in this epoch."""
        self.finishing = False
        """The step that finishes the group is closed."""

    # --- beginning: Algorithms 6 to 9 ---------------------------------------------------------------------------------

    def begin(
        self,
        recovered: Recovered,
        unpack: Callable[[Event], Event],
        start_threads: Callable[[], None],
        *,
        drains: Callable[[], bool],
    ) -> fx.Effects:
        """Begin the epoch in the order that recovery needs. Returns the effects of its first step, which is closed.

        Memory is rebuilt from the log without triggering (Algorithm 9 Steps 1 and 2), and pending write actions go to their
        writers (Algorithm 8). Threads start from where memory stands then. The first step generates what was triggered, and
        sources begin (Algorithm 6): what can be done at once is asked of the readers, and a new read action is executed once
        the log has it (`hand_over`). If the group drains (`drains`), only what is already stored is read: readers know that
        before they are asked for anything.
        """
        self.protocol.rebuild(recovered, unpack)
        self._log_ends = self.protocol.log_ends()
        self.write(recovered.writes, recovered=True, held=recovered.held)
        start_threads()
        is_draining = drains()
        self.protocol.resume()
        orders = [order for name in self.sources for order in self._begin_source(name, drains=is_draining)]
        effects = self.close()
        if is_draining:
            for name in self.sources:
                self._readers.drain(name, cut_short=self.protocol.source(name).stored is None)
        self._readers.ask(orders)
        return effects

    @property
    def sources(self) -> list[str]:
        """Source operators of the group."""
        return [name for name, one in self.protocol.operators.items() if isinstance(one, SourceProtocol)]

    def _begin_source(self, name: str, *, drains: bool) -> Iterable[SourceOrder]:
        source = self.protocol.source(name)
        for action_id, ref in source.to_drop():
            yield DiscardOrder(name, action_id, ref)
        if (used := source.to_forget()) is not None:
            yield ForgetOrder(name, *used)
        if source.action is None:
            if not drains:
                self.protocol.begin_source(name, self._first_actions[name])
        elif not source.has_ended and (source.stored is not None or not drains):
            yield ReadOrder(name, source.action_id, source.action, source.offset, source.stored, source.sent_schema)

    def last_sent(self, sender: Port) -> tuple[int, int]:
        """The id of the last event of an output port, and how many ids belong to ends that were taken back."""
        context = self.protocol.operators[sender.operator].context
        return context.next_event.get(sender.name, FIRST_EVENT_ID) - 1, context.taken_back

    # --- observations -------------------------------------------------------------------------------------------------

    def accepts_inputs(self, is_held_up: Callable[[], bool]) -> bool:
        """Whether to take inputs now. Memory stays bounded, however far a job or an external system lags.

        `is_held_up` says whether a receiver lags by its bound. It may ask the log, so it is asked last.
        """
        if self._jobs.is_full():
            return False
        for writer in self._writers.values():
            if writer.is_full():
                return False
        return not is_held_up()

    def deliver(self, receiver: Port, event: Event, now: float) -> bool:
        """An event has come from the log. False if it was used before (Algorithm 2 Step 1)."""
        self.note(now)
        return self.protocol.deliver(receiver, event)

    def emit(self, operator: str, emits: Iterable[Emit], offset: int, now: float, schema: str | None = None) -> None:
        """A source has delivered the records of one event per port, the offset after them (Algorithm 1), and the
        columns of a `RangeSource`."""
        if self.reads_on(operator):
            self.note(now)
            self.protocol.emit(operator, emits, offset, schema)

    def store_effect(self, operator: str, ref: str, records: int, now: float) -> None:
        """The whole effect of a read action that cannot be replayed is stored (Algorithm 1 Step 2.b)."""
        if self.reads_on(operator):
            self.note(now)
            self.protocol.store_effect(operator, ref, records)

    def used_whole(self, operator: str, now: float) -> None:
        """The stored effect of a read action is used up; the external system is asked what follows."""
        if not self.reads_on(operator):
            return
        self.note(now)
        if self.draining:
            self.protocol.end_source(operator)
            self._readers.drain(operator, cut_short=True)  # it may be asking what follows, which no one wants to know
        else:
            self._handed_over.add(operator)

    def end_read(self, operator: str, next_action: Mapping[str, Any] | None, now: float) -> None:
        """The read action has no more records; `next_action` follows, or else the stream ends."""
        if self.reads_on(operator):
            self.note(now)
            self._handed_over.discard(operator)
            self.protocol.end_source(operator, next_action)

    def reads_on(self, operator: str) -> bool:
        """Whether anything from its reader is still wanted: a stream that has ended takes nothing more."""
        return not self.protocol.source(operator).has_ended

    def discarded(self, operator: str, action_id: int, now: float) -> None:
        """A stored effect is discarded (Algorithm 1 Step 2.d)."""
        self.note(now)
        self.protocol.effect_dropped(operator, action_id)

    def compared(self, compared: Compared, now: float) -> None:
        """The marker of a writer is not ahead of the log: it may write once the log knows that."""
        self.note(now)
        self.protocol.compared(compared.operator, compared.connection)

    def forgotten(self, operator: str, action_id: int, now: float) -> None:
        """A source was told what it may forget."""
        self.note(now)
        self.protocol.forgotten(operator, action_id)

    def applied(self, applied: Applied, now: float) -> None:
        """The external system has applied write actions (Algorithm 5 Step 3)."""
        self.note(now)
        self._writers[applied.operator, applied.connection].settle(applied)
        self.protocol.writes_done(applied.operator, applied.connection, applied.first, applied.last, applied.records)

    def generated(
        self, operator: str, results: Sequence[tuple[str, Sequence[Output]]], reads: Sequence[Read], now: float
    ) -> None:
        """A job has ended (Algorithm 3 Step 4 for its Input Sets, in the order triggered)."""
        self.note(now)
        if results:
            self.protocol.generated(operator, results, reads)

    def set_aside(self, operator: str, inset_id: str, error: str, now: float) -> None:
        """A job has found an Input Set on which generation raises: it is quarantined."""
        self.note(now)
        self.protocol.set_aside(operator, inset_id, error)

    def close_writer(self, operator: str, now: float) -> None:
        """One of `to_close` is whole, says the log: its closing action is logged with this step.

        The log is asked right before, and nothing is observed in between. What changes the answer later raises the epoch of
        this group in the same transaction, so the commit of this step is refused.
        """
        if operator not in self.to_close():
            raise ProtocolViolation(f"operator {operator!r} is closed while something of its group is under way")
        self.note(now)
        self.protocol.close_writer(operator)

    def drain(self, now: float) -> None:
        """Drain the group (design D9): stop reading, once per epoch. What is not in a step yet counts as not read.

        A reader stops at once, unless the rest of a stored effect comes first, because that has been read.
        """
        if self.draining:
            return
        self.draining = True
        self.note(now)
        self.protocol.drain()
        for name in self.sources:
            if name in self._handed_over:
                self.protocol.end_source(name)
            self._readers.drain(name, cut_short=self.protocol.drain_source(name))

    # --- after a commit -----------------------------------------------------------------------------------------------

    def hand_over(self, durable: HandOver) -> None:
        """What a transaction releases inside the group, now that it is durable. The committer's thread calls it."""
        self.write(durable.writes)
        for key in durable.compared:
            self._writers[key].release()
        self._readers.ask(durable.sources)

    def write(
        self,
        writes: Sequence[PendingWrite],
        *,
        recovered: bool = False,
        held: Mapping[WriterKey, HeldGroup] = MappingProxyType({}),
    ) -> None:
        """Write actions that are in the log go to their writers, in order (Algorithm 5 Step 2)."""
        by_writer: dict[WriterKey, list[PendingWrite]] = {key: [] for key in held}
        for write in writes:
            by_writer.setdefault((write.operator, write.connection), []).append(write)
        for key, group in by_writer.items():
            self._writers[key].add(group, recovered=recovered, log_end=self._log_ends.get(key, 0), held=held.get(key))

    # --- steps --------------------------------------------------------------------------------------------------------

    def note(self, now: float) -> None:
        """Something was observed: there is a step to close."""
        if self._open_since is None:
            self._open_since = now

    @property
    def has_step(self) -> bool:
        """Something was observed, and the step is not closed."""
        return self._open_since is not None

    def wants_to_commit(self) -> bool:
        """The step has an Output Set, and the committer is free: close the step before observing more."""
        return self.protocol.ledger.has_output and self._commits.is_idle()

    def is_due(self, now: float) -> bool:
        """Output Sets go to the committer as soon as it is free; assignments alone wait for company (design D2)."""
        if self._open_since is None:
            return self._garbage.is_overdue()
        if self.wants_to_commit():
            return True
        late = now - self._open_since >= FLUSH_SECONDS
        return late or self.protocol.ledger.received >= FLUSH_EVENTS or self.protocol.is_finished()

    def awaits_committer(self) -> bool:
        """The step has an Output Set: it is due as soon as the committer is free."""
        return self._open_since is not None and self.protocol.ledger.has_output

    def patience(self, now: float) -> float:
        """How many seconds to wait for news, or until the committer is free if it is awaited."""
        if self._open_since is None:
            return FLUSH_SECONDS
        if self.wants_to_commit():
            return 0.0
        return max(0.0, min(FLUSH_SECONDS, self._open_since + FLUSH_SECONDS - now))

    def close(self) -> fx.Effects:
        """End the step: its effects, and what garbage collection adds, go to the committer together. Returns the effects of
        the step. `Commits.add` may wait."""
        effects = self.protocol.close_step()
        self._open_since = None
        self._commits.add(effects + self._garbage.due(effects))
        return effects

    def to_close(self) -> list[str]:
        """Operators that may be closed if the log calls them whole: all else of the group has ended, is committed and is
        written. So what the log says of them is all there is.

        Of several, none is closed before all have opened: an opening that is refused parks the group, and then nothing is to
        be replaced. Those that are whole are closed first, one by one. If none is, the group parks.
        """
        if not self.protocol.closers or self._open_since is not None or not self._commits.is_idle():
            return []
        found = self.protocol.to_close()
        writers = ((operator in found, writer) for (operator, _), writer in self._writers.items())
        return found if all(one.has_opened() if closes else one.is_idle() for closes, one in writers) else []

    def is_finished(self) -> bool:
        """Everything has ended and is committed, and the success of every write action is logged."""
        return (
            not self.finishing
            and self.protocol.is_finished()
            and self._open_since is None
            and self._commits.is_idle()
            and all(writer.is_idle() for writer in self._writers.values())
        )

    def finish(self) -> fx.Effects:
        """Close the last step of the group; when it is committed, the driver ends."""
        self.finishing = True
        self.protocol.finish()
        return self.close()

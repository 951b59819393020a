"""One epoch of a group: rebuilt from the log, then driven until the group is finished, stopped or void.

The order of a start is the paper's (Section 4): fence first, then the log is read; pending write actions are handed to
their writers (Algorithm 8), event states are rebuilt without triggering (Algorithm 9), what was triggered is generated,
and only then are new events taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.replication import Routes
from airflow_logio.errors import EpochVoid
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.values import FIRST_EVENT_ID, Event, Port
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.runtime.driver.back_pressure import BackPressure
from airflow_logio.runtime.driver.channel import Channel
from airflow_logio.runtime.driver.committer import Committer
from airflow_logio.runtime.driver.epoch_settings import EpochSettings, Failure
from airflow_logio.runtime.driver.garbage import Collection
from airflow_logio.runtime.driver.generation import Generation
from airflow_logio.runtime.driver.jobs import Generated
from airflow_logio.runtime.driver.lanes import lanes_of
from airflow_logio.runtime.driver.load import Doing
from airflow_logio.runtime.driver.logic_adapters import captured_inputs, specs_of
from airflow_logio.runtime.driver.mailbox import Mailbox
from airflow_logio.runtime.driver.source_reader import (
    PLAN,
    Batch,
    Discarded,
    Exhausted,
    HandedOver,
    ReadAction,
    SourceReader,
    Stored,
    UsedUp,
    without_plan,
)
from airflow_logio.runtime.driver.sweeps import sweeps_of
from airflow_logio.runtime.driver.writer_threads import Applied, Writers
from airflow_logio.runtime.payloads import EpochPayloads
from airflow_logio.runtime.payloads.bodies import Bodies
from airflow_logio.store.port import GroupSession

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.25
"""Assignments without an Output Set are committed at the latest after this time (design D2)."""
FLUSH_EVENTS = 512
COMMITTER_POLL_SECONDS = 0.005
MAX_EVENTS_PER_STEP = 64
SOURCE_PATIENCE_SECONDS = 5.0
"""How long a driver that ends for good waits for a read that does not answer."""


class GroupEpoch:
    """`slots` are those that a replica owns, with their moves; None for a group that is not replicated."""

    def __init__(
        self, settings: EpochSettings, session: GroupSession, epoch: int, slots: Mapping[int, int] | None = None
    ) -> None:
        self._settings = settings
        self._session = session
        self._load = settings.load
        self._pipeline = settings.pipeline
        self._slots = slots
        specs, receivers = specs_of(self._pipeline, self._operators(), settings.connections, self._routes_of)
        self._protocol = GroupProtocol(specs, receivers, captured_inputs(self._pipeline))
        self._members = {spec.name: self._pipeline.operators[spec.name] for spec in specs}
        self._mailbox = Mailbox(settings.prefetch)
        self._load.watch(self._mailbox.waiting)
        self._payloads = self._open_payloads(epoch)
        self._bodies = Bodies(self._payloads)
        # What is swept for several groups is swept by the group behind: by a Merger's, never by a replica.
        sweeps = sweeps_of(self._pipeline, settings.group) if slots is None else []
        self._collection = Collection(list(self._members), sweeps, self._bodies.remove)
        self._committer = Committer(session, self._bodies, self._after_commit, self._fail, self._collection.committed)
        self._writers = Writers(self._members, slots, settings.connections, self._bodies, self._mailbox.put, self._fail)
        self._sources: dict[str, SourceReader] = {}
        self._handed_over: set[str] = set()
        """Sources whose stored effect is handed over whole: only their next read action is open."""
        self._draining = False
        self._channel: Channel | None = None
        self._back_pressure: BackPressure
        """From the start of the threads on: it depends on what the log says was sent."""
        self._generation = Generation(self._protocol, settings, self._members, self._mailbox.put)
        self._unflushed_since: float | None = None

    def _routes_of(self, dispatcher: str) -> Routes:
        return self._back_pressure.routes[dispatcher]

    def _operators(self) -> set[str]:
        """What this application runs: the operators of its group, or those of the slots that it owns."""
        names = self._pipeline.group_of(self._settings.group).operators
        return {name for name in names if self._slots is None or slot_of(name) in self._slots}

    def _open_payloads(self, epoch: int) -> EpochPayloads | None:
        payloads, ref = self._settings.payloads, self._session.ref
        if payloads is None:
            return None
        return payloads.epoch(self._settings.run.uid, ref.group, ref.incarnation, epoch)

    # --- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Drive the group; True if it has finished, False if it was asked to halt. Raises what a thread raised."""
        for_good = True
        try:
            try:
                self._recover()
                return self._loop()
            except Exception:
                self._check_moves()
                raise
        except EpochVoid:
            for_good = False
            raise
        finally:
            self._stop(for_good=for_good)

    def _check_moves(self) -> None:
        """What a replica finds strange may be the work of another one, to which a slot has moved.

        The rows of that slot are missing then, or changed: this epoch is void, and the replica not broken.
        """
        if self._slots is not None:
            self._session.check()

    def _recover(self) -> None:
        crash_here(CrashPoint.BEFORE_RECOVERY)
        started = time.monotonic()
        recovered = self._session.recover(list(self._members))
        self._rebuild(recovered)
        self._start_threads(recovered)
        self._protocol.resume()
        self._begin_sources()
        self._submit()
        log.info(
            "group %s rebuilt in %.2f s: %d acknowledged events, %d pending write actions",
            self._settings.group,
            time.monotonic() - started,
            len(recovered.acknowledged),
            len(recovered.writes),
        )
        crash_here(CrashPoint.AFTER_RECOVERY)

    def _rebuild(self, recovered: Recovered) -> None:
        self._protocol.rebuild(recovered, self._bodies.unpacked)

    def _start_threads(self, recovered: Recovered) -> None:
        self._committer.start()
        self._writers.add(recovered.writes, recovered=True)
        self._back_pressure = BackPressure(
            self._pipeline,
            self._members,
            self._session,
            self._settings.run.spec.backlog,
            self._last_sent,
            self._settings.slots_of,
        )
        lanes, moves = lanes_of(self._protocol), self._slots is not None
        self._channel = Channel(self._session, lanes, self._bodies, self._mailbox, self._fail, may_move=moves)
        self._channel.start()

    def _begin_sources(self) -> None:
        """Algorithm 6 Steps 2 to 4. A read action that is new is executed once the log has it (`_after_commit`).

        Where the group is to drain, only what is stored already is read.
        """
        draining = self._settings.drain_requested.is_set()
        for name, operator in self._members.items():
            if not isinstance(operator, SourceOperator):
                continue
            source, first = self._protocol.source(name), self._settings.run.spec.actions[name]
            reader = self._sources[name] = SourceReader(
                name,
                operator,
                self._settings.run.spec.params,
                first.get(PLAN),
                self._settings.connections,
                self._payloads,
                self._mailbox,
                self._fail,
                self._settings.may_start,
            )
            for action_id, ref in source.to_drop():
                reader.ask(UsedUp(action_id, ref))
            if draining:
                reader.drain(cut_short=source.stored is None)
            if source.action is None:
                if not draining:
                    self._protocol.begin_source(name, without_plan(first))
            elif not source.has_ended and (source.stored is not None or not draining):
                reader.ask(ReadAction(source.action_id, source.action, source.offset, source.stored))

    def _drain_if_asked(self) -> None:
        """Stop reading, once per epoch (design D9). What is in the mailbox and not in a step is not read either."""
        if self._draining or not self._settings.drain_requested.is_set():
            return
        self._draining = True
        log.info("group %s drains on request", self._settings.group)
        crash_here(CrashPoint.BEFORE_DRAIN)
        self._protocol.drain()
        for name, reader in self._sources.items():
            if name in self._handed_over:
                self._protocol.end_source(name)
            reader.drain(cut_short=self._protocol.drain_source(name))
        if self._unflushed_since is None:
            self._unflushed_since = time.monotonic()

    def _stop(self, *, for_good: bool) -> None:
        """Join every thread: after this nothing of this epoch can reach the log or an external system.

        Where the process ends, `for_good`, a read that does not answer is not waited for: its process takes it along.
        """
        self._mailbox.close()
        self._load.watch(None)
        if self._payloads is not None:
            self._payloads.stop()
        self._committer.stop()
        self._collection.stop()
        self._writers.stop()
        for source in self._sources.values():
            source.stop(patience=SOURCE_PATIENCE_SECONDS if for_good else None)
        if self._channel is not None:
            self._channel.stop()
        self._generation.join()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _loop(self) -> bool:
        while True:
            self._drain_if_asked()
            accepts = self._accepts_inputs()
            self._load.now(self._waiting(accepts=accepts))
            item = self._mailbox.get(self._patience(), inputs=accepts)
            self._load.now(Doing.BUSY)
            taken = 0
            while item is not None:
                self._observe(item)
                taken += 1
                if taken >= MAX_EVENTS_PER_STEP or (self._protocol.ledger.has_output and self._committer.is_idle()):
                    break
                item = self._mailbox.get(0, inputs=self._accepts_inputs())
            self._generation.start_jobs()
            self._settings.sessions.raise_if_failed()
            if self._settings.stop_requested.is_set():
                return False
            if self._is_due():
                self._submit()
            if self._is_finished():
                return self._finish()

    def _waiting(self, *, accepts: bool) -> Doing:
        """What the loop does while nothing is in its mailbox."""
        if self._generation.is_busy():
            return Doing.BUSY
        return Doing.IDLE if accepts else Doing.BLOCKED

    def _patience(self) -> float:
        """How long to wait for news; an Output Set that waits for the committer is not left lying for a flush."""
        if self._unflushed_since is None:
            return FLUSH_SECONDS
        if self._protocol.ledger.has_output:
            return COMMITTER_POLL_SECONDS
        return max(0.0, min(FLUSH_SECONDS, self._unflushed_since + FLUSH_SECONDS - time.monotonic()))

    def _accepts_inputs(self) -> bool:
        """Memory stays bounded however far a job, a receiver or an external system lags."""
        return not (self._generation.is_full() or self._writers.is_full() or self._back_pressure.is_full())

    def _observe(self, item: Any) -> None:
        if self._unflushed_since is None:
            self._unflushed_since = time.monotonic()
        match item:
            case (Port() as receiver, Event() as event):
                self._load.took(1, event.records)
                self._protocol.deliver(receiver, event)
            case Discarded(operator, action_id):
                self._protocol.effect_dropped(operator, action_id)
            case Batch() | Stored() | HandedOver() | Exhausted() if not self._protocol.source(item.operator).has_ended:
                self._observe_source(item)
            case Generated():
                self._generation.finished(item)
            case Applied(operator, connection, first, last, records):
                self._writers.settle(item)
                self._protocol.writes_done(operator, connection, first, last, records)
            case Failure(error):
                raise error

    def _observe_source(self, item: Batch | Stored | HandedOver | Exhausted) -> None:
        """Algorithm 1 Steps 2 and 3."""
        operator = item.operator
        match item:
            case Batch(_, table, offset, about):
                outputs = self._members[operator].outputs if table.num_rows else ()
                emits = [Emit(port, table, table.num_rows, about=about) for port in outputs]
                self._protocol.emit(operator, emits, offset)
            case Stored(_, ref, records, end):
                self._protocol.store_effect(operator, ref, records)
                if end is not None:
                    self._protocol.end_source(operator, end.next_action)
            case HandedOver():
                if self._draining:
                    self._protocol.end_source(operator)
                else:
                    self._handed_over.add(operator)
            case Exhausted(_, next_action):
                self._handed_over.discard(operator)
                self._protocol.end_source(operator, next_action)

    def _is_due(self) -> bool:
        """Output Sets go to the committer as soon as it is free; assignments alone wait for company (ADR-2)."""
        if self._unflushed_since is None:
            return self._collection.is_overdue()
        ledger = self._protocol.ledger
        if ledger.has_output and self._committer.is_idle():
            return True
        late = time.monotonic() - self._unflushed_since >= FLUSH_SECONDS
        return late or ledger.received >= FLUSH_EVENTS or self._protocol.is_finished()

    def _submit(self) -> None:
        effects = self._protocol.close_step()
        self._back_pressure.note(effects, self._load)
        self._load.now(Doing.BLOCKED)  # the committer lets in so much, and then makes wait
        self._committer.submit(effects + self._collection.due(effects))
        self._load.now(Doing.BUSY)
        self._unflushed_since = None

    def _is_finished(self) -> bool:
        return (
            self._protocol.is_finished()
            and self._unflushed_since is None
            and self._committer.is_idle()
            and self._writers.are_idle()
        )

    def _finish(self) -> bool:
        if (failure := self._mailbox.get(0, inputs=False)) is not None:
            self._observe(failure)
            return self._loop()
        crash_here(CrashPoint.BEFORE_FINISH)
        self._protocol.finish()
        self._submit()
        self._committer.drain()
        if isinstance(failure := self._mailbox.get(0, inputs=False), Failure):
            raise failure.error
        crash_here(CrashPoint.AFTER_FINISH)
        return True

    # --- called by threads --------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        self._mailbox.put(Failure(error))

    def _after_commit(self, effects: Sequence[fx.Effect]) -> None:
        """On the committer's thread: what may leave the group now that it is durable."""
        if any(isinstance(effect, fx.DrainGroup) for effect in effects):
            crash_here(CrashPoint.AFTER_DRAIN)
        writes = [
            PendingWrite(e.operator, e.connection, e.number, e.header, e.records, e.body or b"")
            for e in effects
            if isinstance(e, fx.LogWrite)
        ]
        self._writers.add(writes)
        self._hand_to_sources(effects)
        awaken: set[str] = set()
        for effect in effects:
            if isinstance(effect, fx.LogEvent) and not effect.held:
                sent = [delivery.receiver for delivery in effect.deliveries if not delivery.fused]
            elif isinstance(effect, fx.Release):
                sent = list(self._pipeline.receivers(effect.sender))
            else:
                continue
            awaken.update(name for receiver in sent for name in self._pipeline.applications_of(receiver.operator))
        if awaken:
            self._session.announce(sorted(awaken))

    def _hand_to_sources(self, effects: Sequence[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.StartReadAction(operator, _, action_id, action):
                    self._sources[operator].ask(ReadAction(action_id, action))
                case fx.ReadDone(operator, _, action_id):
                    self._sources[operator].ask(UsedUp(action_id))

    def _last_sent(self, sender: Port) -> tuple[int, int]:
        """Id of the last event of a port, and how many ids ends have that were taken back."""
        context = self._protocol.operators[sender.operator].context
        return context.next_event.get(sender.name, FIRST_EVENT_ID) - 1, context.taken_back

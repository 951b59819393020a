"""One epoch of a group on its threads: a mailbox, a `protocol.loop.GroupLoop`, and the threads that work for it.

The loop decides what is done next; this module does it: which thread reads, commits, writes, runs a job or waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.dataflow.replication import Routes
from airflow_logio.dataflow.sources import RangeSource
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.driver.back_pressure import BackPressure
from airflow_logio.driver.channel import Channel, OwnBodies, Unpacks, lanes_of
from airflow_logio.driver.committer import Committer, not_kept
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.garbage import Collection, sweeps_of
from airflow_logio.driver.logics.operator_specs import captured_inputs, replay_of, specs_of
from airflow_logio.driver.mailbox import Doing, Failure, LoadMeter, Mailbox
from airflow_logio.driver.source_reader import (
    PLAN,
    Discarded,
    Exhausted,
    Forgotten,
    HandedOver,
    ReadBatch,
    ReadFrame,
    SourceReader,
    SourceReaders,
    Stored,
    without_plan,
)
from airflow_logio.driver.spark_jobs.evaluation import Evaluation, has_chains
from airflow_logio.driver.spark_jobs.generation import Generation
from airflow_logio.driver.spark_jobs.job_groups import FunctionJobs, JobCancel
from airflow_logio.driver.spark_jobs.jobs import Generated
from airflow_logio.driver.writer_threads import Executors, writer_threads
from airflow_logio.errors import (
    ConfigurationError,
    EpochVoid,
    FailurePoint,
    Fenced,
    LogInconsistent,
    OperatorFailed,
    SparkLost,
    WriteRefused,
)
from airflow_logio.protocol.commit import HandOver
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.values import Event, ExecutionMode, Port
from airflow_logio.protocol.writes import Applied, Compared, WriterKey
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.systems.payload_roots import HOW_TO_CONFIGURE
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.bodies import Bodies

log = logging.getLogger(__name__)
MAX_EVENTS_PER_STEP = 64
SOURCE_PATIENCE_SECONDS = 5.0
"""How long a driver that ends for good waits for a read that does not answer."""
REBUILD_PATIENCE_SECONDS = 30.0
"""How long a driver that rebuilds itself waits for it. A source should wait for records no longer than seconds at a time."""
WORK_PATIENCE_SECONDS = 300.0
"""How long jobs, writes and evaluations under way are waited for when an epoch ends. They may rightly take minutes, and are
lost if the process ends."""
VOID = "this epoch of the group became void"


class GroupEpoch:
    """`recovered` is what the log said behind the fence of this epoch. `slots` are those that a replica owns, with their
    moves; None for a group that is not replicated."""

    def __init__(
        self,
        settings: EpochSettings,
        session: GroupSession,
        epoch: int,
        recovered: Recovered,
        slots: Mapping[int, int] | None = None,
    ) -> None:
        self._settings = settings
        self._session = session
        self._recovered: Recovered | None = recovered
        self._load = settings.load
        self._pipeline = settings.pipeline
        self._slots = slots
        names = operators_of(settings, slots)
        specs, receivers = specs_of(
            self._pipeline, names, settings.connections, self._routes_of, settings.run.spec.actions
        )
        protocol = GroupProtocol(specs, receivers, captured_inputs(self._pipeline))
        self._members = {name: self._pipeline.operators[name] for name in names}
        self._applications = {name: self._pipeline.applications_of(name) for name in self._pipeline.operators}
        self._may_use_spark = any(
            operator.mode is not ExecutionMode.DRIVER
            or isinstance(operator, TableWriter)  # which loads large events by jobs
            for operator in self._members.values()
        )
        self._mailbox = Mailbox(settings.prefetch)
        self._refusal: BaseException | None = None
        """What the log has said first when it refused a thread."""
        self._load.watch(self._mailbox.waiting)
        self._payloads = self._open_payloads(epoch)
        self._bodies = Bodies(self._payloads)
        self._channel: Channel | None = None
        self._incoming = self._open_incoming()
        # What is swept for several groups is swept by the group behind: by a Merger's, never by a replica.
        sweeps = sweeps_of(self._pipeline, settings.group) if slots is None else []
        self._collection = Collection(names, sweeps, self._bodies.remove)
        self._committer = Committer(
            session,
            self._bodies,
            self._release,
            self._fail,
            self._collection.committed,
            not_kept if settings.direct is None else settings.direct.keep,
            self._mailbox.wake,
        )
        functions = FunctionJobs(settings.sessions, self._job_group(epoch))
        self._evaluation = self._open_evaluation(protocol, functions)
        self._jobs = JobCancel(settings.sessions, functions.groups)
        executors = Executors(
            settings.connections, self._bodies, self._payloads, settings.sessions, self._job_group(epoch)
        )
        self._writers = writer_threads(
            self._members, slots, executors, self._bodies, session, self._mailbox.put, self._fail
        )
        self._sources = SourceReaders()
        self._back_pressure: BackPressure
        """Exists once the threads have started: it depends on what the log says was sent."""
        self._generation: Generation | NoGeneration = NoGeneration()
        if any(spec.asynchronous for spec in specs):
            self._generation = Generation(
                protocol,
                settings,
                self._members,
                self._mailbox.put,
                self._job_group(epoch),
                self._evaluation,
                self._payloads,
            )
        first = settings.run.spec.actions
        self._loop = GroupLoop(
            protocol,
            self._committer,
            self._writers,
            self._sources,
            self._generation,
            self._collection,
            {name: without_plan(first[name]) for name in first if name in self._members},
        )
        self._intake = Intake(self._loop, self._members, self._generation, self._load)

    def _routes_of(self, dispatcher: str) -> Routes:
        return self._back_pressure.routes[dispatcher]

    def _open_incoming(self) -> Unpacks:
        """What gives events of the log their payloads."""
        settings, pipeline = self._settings, self._pipeline
        if not any(map(pipeline.replays, pipeline.operators)):
            return OwnBodies(self._bodies)
        offers = None if settings.direct is None else settings.direct.offers()
        return replay_of(
            pipeline, settings.connections, self._session, self._bodies, lambda: self._channel is None, offers
        )

    def _open_payloads(self, epoch: int) -> EpochPayloads | None:
        payloads, ref = self._settings.payloads, self._session.ref
        if payloads is None:
            return None
        calls = self._settings.connections.calls
        return payloads.epoch(self._settings.run.uid, ref.group, ref.incarnation, epoch, calls)

    def _open_evaluation(self, protocol: GroupProtocol, functions: FunctionJobs) -> Evaluation | None:
        if not has_chains(self._members):
            return None
        if self._payloads is None:
            raise ConfigurationError(
                f"group {self._settings.group!r} has operators of mode 'dataframe', and this deployment has no payload "
                f"store: {HOW_TO_CONFIGURE}"
            )
        return Evaluation(self._settings, protocol, self._members, self._payloads, functions)

    def _job_group(self, epoch: int) -> str:
        """Names the Spark jobs of this epoch, and no others."""
        ref = self._session.ref
        return f"logio {self._settings.run.uid} {ref.group} {ref.incarnation} {epoch}"

    # --- life ---------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Drive the group; True if it has finished, False if it was asked to halt. Raises what a thread raised.

        If this process may begin another epoch, nothing of this one is left when it returns: what does not answer is named
        by the error, or in the log, and the error is one with which the process ends.
        """
        try:
            with moves_explain(self._session, self._slots):
                self._begin()
                crash_here(CrashPoint.AFTER_RECOVERY)
                finished = self._drive()
        except EpochVoid as void:
            if left := self._stop(VOID, for_good=False):
                raise left from void
            raise
        except (OperatorFailed, SparkLost) as error:
            self._stop_after(error)
            raise
        except BaseException:
            self._stop("the group failed", for_good=True)
            raise
        left = self._stop("the group was asked to halt", for_good=True)
        if not finished:
            if left is not None:
                raise left
            with moves_explain(self._session, self._slots):
                self._raise_refusal()
        return finished

    def _stop_after(self, error: OperatorFailed | SparkLost) -> None:
        """Stop; the process may begin again. If it cannot, the error stays the one that is reported."""
        if isinstance(error, SparkLost):
            begins_again = self._settings.sessions.may_return()
        else:
            begins_again = may_be_tried_again(error, self._session.ref.incarnation)
        left = self._stop("the group failed", for_good=not begins_again)
        if left is None or not begins_again:
            return
        log.error("this process cannot begin again: %s", left)
        if isinstance(error, SparkLost):
            error.must_end = True
        else:
            error.is_first = False

    def _raise_refusal(self) -> None:
        """A commit under way may be refused while the group is about to halt: what the log said must not be hidden."""
        if self._refusal is not None:
            raise self._refusal

    def _begin(self) -> None:
        started = time.monotonic()
        # Nothing keeps it once memory is rebuilt: it has the bodies of all that is undone.
        recovered, self._recovered = self._recovered, None
        assert recovered is not None
        self._committer.start()
        self._incoming.expect(logged.event for logged in recovered.acknowledged)
        drains = self._settings.drain_requested.is_set
        effects = self._loop.begin(recovered, self._incoming.unpacked, self._start_threads, drains=drains)
        self._back_pressure.note(effects, self._load)
        log.info(
            "group %s rebuilt in %.2f s: %d acknowledged events, %d pending write actions",
            self._settings.group,
            time.monotonic() - started,
            len(recovered.acknowledged),
            len(recovered.writes),
        )

    def _start_threads(self) -> None:
        self._back_pressure = BackPressure(
            self._pipeline,
            self._members,
            self._session,
            self._settings.run.spec.backlog,
            self._loop.last_sent,
            self._settings.slots_of,
        )
        lanes, moves = lanes_of(self._loop.protocol), self._slots is not None
        self._channel = Channel(
            self._session, lanes, self._incoming, self._mailbox, self._fail, evaluation=self._evaluation, may_move=moves
        )
        self._channel.start()
        for name in self._loop.sources:
            operator = self._members[name]
            assert isinstance(operator, SourceOperator)
            self._sources[name] = SourceReader(
                name,
                operator,
                self._settings.run.spec.params,
                self._settings.run.spec.actions[name].get(PLAN),
                self._settings.connections,
                self._payloads,
                self._mailbox,
                self._fail,
                self._settings.may_start,
                self._evaluation,
            )

    def _stop(self, why: str, *, for_good: bool) -> OperatorFailed | None:
        """Join every thread: nothing of this epoch may reach the log or an external system beside the next one.

        What does not answer is not waited for for ever: then the process must end, and this returns what it does not get an
        answer from. For a process that ends anyway (`for_good`), a read that is left is no matter.
        """
        self._mailbox.close()
        self._load.watch(None)
        if self._payloads is not None:
            self._payloads.stop()
        if self._evaluation is not None:
            self._evaluation.stop()
        self._generation.stop()
        self._jobs.begin()
        self._committer.stop()
        # The commit under way may have been refused: another epoch follows, though the group was asked to halt.
        for_good = for_good and not isinstance(self._refusal, EpochVoid)
        self._collection.stop()
        working = [writer.stop() for writer in self._writers.values()] + self._generation.threads()
        if self._evaluation is not None:
            working += self._evaluation.threads()
        if self._channel is not None:
            working.append(self._channel.stop())
        patience = SOURCE_PATIENCE_SECONDS if for_good else REBUILD_PATIENCE_SECONDS
        blocked = [point for source in self._sources.values() if (point := source.stop(patience=patience))]
        if blocked and not for_good:
            self._jobs.end()
            return _no_answer(str(blocked[0]), blocked[0], patience, why)
        left = [*_still_alive(working, WORK_PATIENCE_SECONDS), *self._jobs.end()]
        if not left:
            return None
        call = self._settings.connections.calls.of(left[0])
        what, point = (left[0].name, None) if call is None else (str(call), call.point)
        return _no_answer(what, point, WORK_PATIENCE_SECONDS, why)

    # --- the main thread ----------------------------------------------------------------------------------------------

    def _drive(self) -> bool:
        while True:
            self._drain_if_asked()
            accepts = self._accepts_inputs()
            self._load.now(self._waiting(accepts=accepts))
            patience, wakes = self._loop.patience(time.monotonic()), self._loop.awaits_committer()
            item = self._mailbox.get(patience, inputs=accepts, wakes=wakes)
            self._load.now(Doing.BUSY)
            self._drain_if_asked()  # what was read since the group was asked is not read further
            taken = 0
            while item is not None:
                self._intake.take(item)
                taken += 1
                if taken >= MAX_EVENTS_PER_STEP or self._loop.wants_to_commit():
                    break
                item = self._mailbox.get(0, inputs=self._accepts_inputs())
            self._generation.start_jobs()
            if self._may_use_spark:
                self._settings.sessions.raise_if_failed()
            if self._settings.stop_requested.is_set():
                return False
            if self._loop.is_due(time.monotonic()):
                self._close()
            if closing := self._loop.to_close():
                self._close_whole(closing)
            if self._loop.is_finished() and self._finish():
                return True

    def _drain_if_asked(self) -> None:
        if self._loop.draining or not self._settings.drain_requested.is_set():
            return
        log.info("group %s drains on request", self._settings.group)
        crash_here(CrashPoint.BEFORE_DRAIN)
        self._loop.drain(time.monotonic())

    def _waiting(self, *, accepts: bool) -> Doing:
        """What the loop does while nothing is in its mailbox."""
        if self._generation.is_busy():
            return Doing.BUSY
        return Doing.IDLE if accepts else Doing.BLOCKED

    def _accepts_inputs(self) -> bool:
        return self._loop.accepts_inputs(self._back_pressure.is_full)

    def _close(self) -> None:
        self._load.now(Doing.BLOCKED)  # the committer lets in so much, and then makes wait
        effects = self._loop.close()
        self._load.now(Doing.BUSY)
        self._back_pressure.note(effects, self._load)

    def _close_whole(self, writers: Sequence[str]) -> None:
        """Close the first of these writers that was sent everything; the others are asked for when it has written.

        The log is asked right before the step that closes. What changes the answer later voids this epoch (`why_short`).
        Raises `WriteRefused` if none is whole: the group is parked then.
        """
        if self._takes_news():
            return
        spec, causes = self._settings.run.spec, []
        for name in writers:
            crash_here(CrashPoint.BEFORE_CLOSING)
            short = self._session.why_short(spec.upstream(name))
            if not short:
                crash_here(CrashPoint.AFTER_CLOSING)
                self._loop.close_writer(name, time.monotonic())
                return
            causes.append(f"{name!r} replaces nothing, because {short.in_words()}")
        cause = f"run {spec.key}: {'; '.join(causes)}"
        self._session.park_short(cause)
        raise WriteRefused(cause)

    def _takes_news(self) -> bool:
        """Whether news has come, which the loop knows now."""
        if (news := self._mailbox.get(0, inputs=False)) is None:
            return False
        self._intake.take(news)
        return True

    def _finish(self) -> bool:
        """Commit the end of the group; False if news came first."""
        if self._takes_news():
            return False
        crash_here(CrashPoint.BEFORE_FINISH)
        self._loop.finish()
        self._committer.drain()
        if isinstance(failure := self._mailbox.get(0, inputs=False), Failure):
            raise failure.error
        crash_here(CrashPoint.AFTER_FINISH)
        return True

    # --- called by threads --------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, EpochVoid | Fenced | LogInconsistent):
            self._refusal = self._refusal or error
        self._mailbox.put(Failure(error))

    def _release(self, durable: HandOver) -> None:
        """On the committer's thread: hand out what may leave the group now that it is durable."""
        if durable.drained:
            crash_here(CrashPoint.AFTER_DRAIN)
        self._loop.hand_over(durable)
        sent = [*durable.sent, *(to for sender in durable.released for to in self._pipeline.receivers(sender))]
        awaken = {name for receiver in sent for name in self._applications[receiver.operator]}
        if awaken:
            self._session.announce(sorted(awaken))


class Intake:
    """Used by the main thread of an epoch."""

    def __init__(
        self, loop: GroupLoop, members: Mapping[str, Operator], generation: Generation | NoGeneration, load: LoadMeter
    ) -> None:
        self._loop = loop
        self._members = members
        self._generation = generation
        self._load = load

    def take(self, item: Any) -> None:
        """One item of the mailbox. Raises the error of a thread that has failed."""
        loop, now = self._loop, time.monotonic()
        match item:
            case (Port() as receiver, Event() as event):
                self._load.took(1, event.records)
                loop.deliver(receiver, event, now)
            case ReadBatch() | ReadFrame() | Stored() | HandedOver() | Exhausted():
                self._observe_source(item, now)
            case Discarded(operator, action_id):
                loop.discarded(operator, action_id, now)
            case Forgotten(operator, action_id):
                loop.forgotten(operator, action_id, now)
            case Generated():
                self._observe_job(item, now)
            case Compared():
                loop.compared(item, now)
            case Applied():
                loop.applied(item, now)
            case Failure(error):
                raise error

    def _observe_source(self, item: ReadBatch | ReadFrame | Stored | HandedOver | Exhausted, now: float) -> None:
        loop = self._loop
        match item:
            case ReadBatch(operator, table, offset, about):
                outputs = self._members[operator].outputs if table.num_rows else ()
                emits = [Emit(port, table, table.num_rows, about=about) for port in outputs]
                loop.emit(operator, emits, offset, now)
            case ReadFrame(operator, payload, records, offset, about):
                source = self._members[operator]
                schema = payload.schema if isinstance(source, RangeSource) else None  # others have one read action
                loop.emit(operator, [Emit(source.outputs[0], payload, records, about=about)], offset, now, schema)
            case Stored(operator, ref, records, end):
                if loop.reads_on(operator):
                    loop.store_effect(operator, ref, records, now)
                    if end is not None:
                        loop.end_read(operator, end.next_action, now)
            case HandedOver(operator):
                loop.used_whole(operator, now)
            case Exhausted(operator, next_action):
                loop.end_read(operator, next_action, now)

    def _observe_job(self, job: Generated, now: float) -> None:
        """The end of a job is a step of its own: Output Sets logged, Input Sets done, state serialized."""
        assert isinstance(self._generation, Generation)
        self._generation.note_columns(job)
        self._loop.generated(job.operator, job.results, job.reads, now)
        for inset_id, error in job.aside:
            self._loop.set_aside(job.operator, inset_id, error, now)
        if job.is_last:
            self._generation.finished(job.operator)


class NoGeneration:
    """In place of a `Generation`, for a group without asynchronous operators."""

    def is_full(self) -> bool:
        return False

    def is_busy(self) -> bool:
        return False

    def start_jobs(self) -> None:
        """There are none."""

    def stop(self) -> None:
        """There is nothing to stop."""

    def threads(self) -> list[threading.Thread]:
        return []


def operators_of(settings: EpochSettings, slots: Mapping[int, int] | None) -> list[str]:
    """What this application runs: the operators of its group, or those of the slots that it owns; in topological order."""
    mine = settings.pipeline.group_of(settings.group).operators
    return [name for name in settings.pipeline.operators if name in mine and (slots is None or slot_of(name) in slots)]


def holding(settings: EpochSettings, slots: Mapping[int, int] | None) -> Sequence[WriterKey]:
    """Its writers whose write actions are held in the log until their closing one."""
    operators = settings.pipeline.operators
    members = ((name, operators[name]) for name in operators_of(settings, slots))
    return [(name, one.connection) for name, one in members if isinstance(one, ActionWriter) and one.closes]


@contextmanager
def moves_explain(session: GroupSession, slots: Mapping[int, int] | None) -> Iterator[None]:
    """An inconsistency that a replica sees may be the work of another one, to which a slot has moved.

    The rows of that slot are missing then, or changed: this epoch is void, and the replica not broken. Raises `EpochVoid`.
    """
    try:
        yield
    except EpochVoid:
        raise
    except Exception:
        if slots is not None:
            session.check()
        raise


def _still_alive(threads: Sequence[threading.Thread], seconds: float) -> Sequence[threading.Thread]:
    """Those that have not ended after so long. Some may never have started."""
    until = time.monotonic() + seconds
    for thread in threads:
        if thread.is_alive():
            thread.join(max(0.0, until - time.monotonic()))
    return [thread for thread in threads if thread.is_alive()]


def _no_answer(what: str, point: FailurePoint | None, seconds: float, why: str) -> OperatorFailed:
    return OperatorFailed(
        f"{what} does not answer, and has been waited for {seconds:g} s after {why}, so the driver ends. Let a source wait "
        "for records no longer than seconds at a time, and give calls that may hang a limit (Pipeline.limit)",
        point,
    )


def may_be_tried_again(error: OperatorFailed, incarnation: int) -> bool:
    """Whether the process that met it may try once more: a recovery spends budget, and its driver would meet it, too."""
    return incarnation == 1 and error.is_first and error.at is not None

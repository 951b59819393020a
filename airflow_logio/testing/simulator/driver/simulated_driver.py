"""One simulated incarnation of a group: the protocol's loop and state machines, one step at a time.

Every method that gets an `Action` is one step (`_STEPS`). The scheduler may take the steps in any order that the threads of a
real driver could. A step that is not possible now does nothing and returns False. The loop, the protocol and the store are
the real ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace

from airflow_logio.driver.back_pressure import ASK_EVERY_SECONDS, Backlog
from airflow_logio.driver.garbage import COLLECT_SECONDS, Collection
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import CommitAttempt, CommitQueue, CommitStep
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.job_queue import JobBounds, JobQueue
from airflow_logio.protocol.life import Life, LifeStep
from airflow_logio.protocol.loop import FLUSH_SECONDS, GroupLoop
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.replay import Replay
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, FenceRow
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.testing.simulator.actions import Action, Verb
from airflow_logio.testing.simulator.codec import serialized
from airflow_logio.testing.simulator.datasets import DatasetEpoch, Results
from airflow_logio.testing.simulator.driver.ports import Epoch, Surroundings
from airflow_logio.testing.simulator.driver.sources import Reading
from airflow_logio.testing.simulator.driver.writing import SimulatedWriters
from airflow_logio.testing.simulator.offers import replayed_size
from airflow_logio.testing.simulator.plan import GroupPlan
from airflow_logio.testing.simulator.stepwise import Steps, finished
from airflow_logio.testing.simulator.violation import Violation

STEP_SECONDS = 0.001
"""Simulated time per step. If a driver waits for something, its clock advances by as much as that takes."""
COLLECTED_ROWS = 12
"""Size of a batch of garbage collection: small, so that a batch often leaves something for the next."""
BOUND = BacklogBound(events=12)
SMALL_JOBS = JobBounds(target_records=4, first_records=2, linger_seconds=0.5, most_records=6)
"""Bounds of jobs; an Input Set counts as one record."""


class SimulatedDriver:
    """`number` is the incarnation; `fence` is the fence row as far as this driver knows."""

    def __init__(self, world: Surroundings, plan: GroupPlan, claim: Claim) -> None:
        self.world = world
        self.plan = plan
        self.claim = claim
        self.number = claim.incarnation
        self.is_alive = True
        self.life = Life(is_replica=bool(plan.replica_of))
        self.session: GroupSession
        self.is_registered = False
        self.fence: FenceRow
        self.slots: Mapping[int, int] | None = None
        """Slot → its moves, for the slots that a replica believes it owns; None for any other group."""
        self.operators = plan.operators
        """The operators that it runs; for a replica, those of its slots."""
        self.recovered: Recovered
        self.loop: GroupLoop
        self.committer = CommitQueue()
        self.attempt: CommitAttempt
        """The attempt to commit the transaction that is taken."""
        self.collection: Collection
        self.writers: SimulatedWriters = SimulatedWriters(self)
        self.reading: Reading
        self.back_pressure: BackPressure
        self.evaluating: DatasetEpoch | None = None
        """In a scenario with datasets."""
        self.jobs: SimulatedGeneration
        self.replay: Replay
        self.cursors: dict[Port, int] = {}
        self.inbox: dict[Port, deque[Event]] = {}
        self.delivered: dict[Port, Event] = {}
        self.fresh = False
        """It is rebuilt, but the step that begins this epoch is not committed yet."""
        self.heard = False
        """It knows that its group is to drain."""
        self.halts = False
        """It knows that its group is to halt."""
        self.drained = False
        """The log says that the group drains."""
        self.short = ""
        """What the log has said that a writer lacks. Its main thread parks the group, and does nothing else before."""
        self.beats = 0
        self.ready = False
        """Its heartbeat says that it works, or that it waits for slots."""
        self.epochs: int = 0
        self.now = 0.0
        """Seconds of its own clock."""

    @property
    def protocol(self) -> GroupProtocol:
        return self.loop.protocol

    @property
    def is_replaced(self) -> bool:
        return self.world.incarnations[self.plan.name] != self.number

    @property
    def is_running(self) -> bool:
        return self.is_alive and self.is_registered and self.life.wants is LifeStep.RUN

    @property
    def is_stopping(self) -> bool:
        """Its epoch is void, or it halts: its threads finish what they are doing, then it rebuilds itself or ends."""
        return self.is_alive and self.life.wants in (LifeStep.STOP, LifeStep.HALT)

    @property
    def must_drain(self) -> bool:
        """It has heard that it is to drain. The loop does that before it observes anything else."""
        return self.heard and not self.loop.draining

    def end(self) -> None:
        """Stop: whatever it was doing, it does nothing more."""
        self.is_alive = False

    def perform(self, step: Action) -> bool:
        """Take one step. Raises what the step raises."""
        self.now += STEP_SECONDS
        return _STEPS[step.verb](self, step)

    # --- an epoch begins: fence, slots, log, memory -------------------------------------------------------------------

    def _register(self, _step: Action) -> bool:
        if self.is_registered:
            return False
        identity = DriverIdentity("simulated", "boot", self.number, float(self.number))
        self.session = self.world.store.session(self.world.store.register(self.claim, identity))
        self.is_registered = True
        self._hear_wish()
        return True

    def _hear_wish(self) -> None:
        """Called before anything is read: a driver that recovers a draining group reads nothing further."""
        if self.plan.name in self.world.wished:
            status = self.world.store.group(self.claim.run_id, self.plan.name)
            self.heard = status.desired is GroupState.DRAINING

    def _wants(self, step: LifeStep) -> bool:
        return self.is_registered and self.life.wants is step

    def _open(self, _step: Action) -> bool:
        if not self._wants(LifeStep.OPEN) or self.world.is_locked(self.plan.name):
            return False
        self.fence = self.session.open(raise_epoch=self.life.raises_epoch)
        self.life.done(LifeStep.OPEN)
        return True

    def _ask(self, _step: Action) -> bool:
        """A replica asks for its slots after the fence, so a later move voids this epoch."""
        if not self._wants(LifeStep.ASK_SLOTS):
            return False
        self.slots = self.session.slots()
        self.operators = tuple(spec for spec in self.plan.operators if slot_of(spec.name) in self.slots)
        self.life.done(LifeStep.ASK_SLOTS)
        if not self.slots:
            self.life.owns_nothing()
        return True

    def _recover(self, _step: Action) -> bool:
        if not self._wants(LifeStep.READ):
            return False
        logics = {spec.name: spec.logic for spec in self.operators if spec.closes}
        held = [(name, write.connection) for name, logic in logics.items() if logic for write in logic.opening()]
        self.recovered = self.session.recover([spec.name for spec in self.operators], held)
        self.life.done(LifeStep.READ)
        return True

    def _rebuild(self, _step: Action) -> bool:
        if not self._wants(LifeStep.REBUILD):
            return False
        self.epochs += 1
        self._new_memory()
        self.replay.expect(logged.event for logged in self.recovered.acknowledged)
        self.loop.begin(self.recovered, self._unpacked, self._start_threads, drains=lambda: self.heard)
        self.fresh = True
        self.life.done(LifeStep.REBUILD)
        return True

    def _new_memory(self) -> None:
        """Start with an empty memory: nothing is left of an earlier epoch."""
        protocol = GroupProtocol(self.operators, self._receivers(), self.plan.lineage_in)
        names = [spec.name for spec in self.operators]
        self.committer, self.writers, self.reading = CommitQueue(), SimulatedWriters(self), Reading(self)
        self.short = ""
        datasets = self.world.datasets
        self.evaluating = None if datasets is None else datasets.epoch(self, protocol)
        self.collection = Collection(
            names, [], clock=lambda: self.now, batch_rows=COLLECTED_ROWS, most_rows=COLLECTED_ROWS
        )
        self.jobs = SimulatedGeneration(self, protocol)
        self.replay = Replay(
            self.world.replayed.__getitem__,
            self.session.input_sets,
            self._loaded,
            self.world.scenario.codec.digest,
            replayed_size,
            self.world.offers,
        )
        first = {name: script.actions[0] for name, script in self.world.scenario.sources.items()}
        self.loop = GroupLoop(
            protocol, self.committer, self.writers, self.reading, self.jobs.queue, self.collection, first
        )

    def _receivers(self) -> Mapping[Port, tuple[Port, ...]]:
        if self.slots is None:
            return self.plan.receivers
        mine = {spec.name for spec in self.operators}
        return {sender: ports for sender, ports in self.plan.receivers.items() if sender.operator in mine}

    def _offer(self, event: Event, body: bytes) -> None:
        """A body that does not go into the log is offered to receivers, before it is known whether its event does."""
        self.world.offers.add(self, event, body)

    def _unpacked(self, event: Event) -> Event:
        return self.replay.unpacked(event) if event.made_of is not None else self._loaded(event)

    def _loaded(self, event: Event) -> Event:
        if event.kind is not Kind.DATA:
            return event
        if self.evaluating is not None:
            return self.evaluating.unpacked(event)
        payload = self.world.scenario.codec.decode(event.body or b"")
        return Event(event.sender, event.event_id, event.kind, event.records, payload, event.body, event.about)

    def _start_threads(self) -> None:
        operators = self.protocol.operators
        self.cursors = {p: operators[p.operator].context.mark(p.name) for p in self.protocol.inputs_from_log()}
        self.inbox = {port: deque() for port in self.cursors}
        self.delivered, self.back_pressure = {}, BackPressure(self)
        self.drained = False

    def void(self) -> None:
        """Its memory is void (a commit was refused for its epoch, or a thread failed): stop, raise the epoch, rebuild."""
        self.life.void()
        self.committer.drop()

    def _void(self, _step: Action) -> bool:
        if not self.is_running or self.loop.finishing:
            return False
        self.void()
        return True

    def _halt(self, _step: Action) -> bool:
        if not self.is_running or not self.halts or self.loop.finishing:
            return False
        self.life.halt()
        self.committer.drop()
        return True

    def _join(self, _step: Action) -> bool:
        """The threads are joined: what they have not begun never happens."""
        if not self.is_stopping or self.world.is_in_doubt(self):
            return False
        self.committer.drop(joined=True)
        self.writers.clear()
        if self.life.wants is LifeStep.HALT:
            self.world.has_halted(self)
        else:
            self.life.stopped()
        return True

    # --- events -------------------------------------------------------------------------------------------------------

    def _fetch(self, step: Action) -> bool:
        """A step of the channel's thread. Outcome ``again``: its cursor is lost; it starts at the first unassigned row."""
        port = step.about
        assert isinstance(port, Port)
        if not self.is_running or port not in self.cursors:
            return False
        # Datasets are not fetched again: a channel hands an event over once in an epoch, and its files go with its row.
        after = 0 if step.outcome == "again" and self.evaluating is None else self.cursors[port]
        events = self.session.fetch(port, after, max_events=step.many, max_bytes=1 << 30)
        if not events:
            return False
        inbox, unpacked = self.inbox[port], self._unpacked
        self.replay.expect(logged.event for logged in events)
        evaluating = self.evaluating
        for logged in events:
            if evaluating is not None and evaluating.wants(port):
                evaluating.arrives(port, unpacked(logged.event))
            else:  # a body that is not in the log is made again as late as can be
                inbox.append(logged.event if logged.event.made_of is not None else unpacked(logged.event))
        last = events[-1].event
        if last.kind is Kind.END:
            del self.cursors[port]
        elif last.event_id > self.cursors[port]:
            self.cursors[port] = last.event_id
        return True

    def _evaluate(self, step: Action) -> bool:
        """The channel's thread takes the evaluation of an event further."""
        if not self.is_running or self.evaluating is None or not isinstance(step.about, Port):
            return False
        return self.evaluating.advance(step.about, step.many)

    def _deliver(self, step: Action) -> bool:
        """Deliver some events of a port, in order. With outcome ``again``, first repeat the last one."""
        port, many = step.about, step.many
        assert isinstance(port, Port)
        waiting = self.inbox.get(port)
        if not self.observes() or not waiting or not self.has_its_turn(port):
            return False
        if (
            step.outcome == "again"
            and port in self.delivered
            and self.loop.deliver(port, self.delivered[port], self.now)
        ):
            raise Violation("an_event_is_used_once", f"{port} used event {self.delivered[port].event_id} twice")
        while waiting and many > 0 and self.has_its_turn(port):
            event = waiting.popleft()
            if event.made_of is not None:
                event = self._unpacked(event)
            if self.loop.deliver(port, event, self.now):
                self.delivered[port] = event
            many -= 1
        return True

    def has_its_turn(self, port: Port) -> bool:
        """Whether the operator's declared order, if it has one, wants an event of this port next."""
        operator = self.protocol.operators[port.operator]
        return operator.order is None or operator.next_port() == port.name

    def observes(self) -> bool:
        """Whether the loop takes inputs now."""
        return self.is_running and not self.must_drain and self.loop.accepts_inputs(self.back_pressure.is_full)

    def _wait(self, _step: Action) -> bool:
        return self.is_running and self.back_pressure.wait()

    def _drain(self, _step: Action) -> bool:
        """Stop reading, once per epoch. What was read but is not in a step counts as not read."""
        if not self.is_running or not self.must_drain or self.loop.finishing:
            return False
        self.loop.drain(self.now)
        return True

    # --- steps and commits --------------------------------------------------------------------------------------------

    def _close(self, _step: Action) -> bool:
        """The step is closed when it is due; if it is not, the driver waits until it is."""
        if not self.is_running or not self.loop.has_step:
            return False
        if not self.loop.is_due(self.now):
            self.now += FLUSH_SECONDS
        if not self.loop.is_due(self.now):
            raise Violation("no_step_waits_for_ever", f"{self.plan.name} has a step that is not due after a flush")
        self.loop.close()
        return True

    def _close_writer(self, _step: Action) -> bool:
        """The main thread asks the log about each writer that it may close. The first that is whole is closed."""
        if not self.is_running or self.short or not (found := self.loop.to_close()):
            return False
        short = {name: self.session.why_short(self.world.run.spec.upstream(name)) for name in found}
        for name in found:
            if not short[name]:
                self.loop.close_writer(name, self.now)
                return True
        self.short = str(short)
        return True

    def _park(self, _step: Action) -> bool:
        """It parks the group in a transaction of its own: a retry may have come in between."""
        if not self.is_running or not self.short or self.world.is_locked(self.plan.name):
            return False
        self.session.park_short(self.short)
        self.world.has_parked(self)
        return True

    def _finish(self, _step: Action) -> bool:
        if not self.is_running or not self.loop.is_finished():
            return False
        self.loop.finish()
        return True

    def _take(self, step: Action) -> bool:
        steps, many = self.committer.steps, step.many
        if not self.is_running or self.committer.wants is not None or not steps:
            return False
        sweeps = bool(self.world.sweeps)
        expires = [sweeps and any(type(effect) is fx.ExpireLineage for effect in queued) for queued in steps][:many]
        if True in expires:  # the clock ticks for every row: what this transaction logs would already be old in it
            many = max(1, expires.index(True))
        self.committer.take(lambda _: 0, most_steps=many)
        taken, evaluating = self.committer.taken, self.evaluating
        codec = self.world.scenario.codec
        self.committer.encoded(
            serialized(taken, codec, self._offer) if evaluating is None else evaluating.serialized(taken)
        )
        self.attempt = CommitAttempt(self.fence.epoch, self.fence.commit_no + 1)
        return True

    def _commit(self, step: Action) -> bool:
        """It commits. ``lost``: and the acknowledgement is lost; ``fails``: nothing commits; ``doubt``: decided later."""
        committer = self.committer
        if committer.wants is not CommitStep.COMMIT or self.attempt.is_in_doubt or self.world.is_locked(self.plan.name):
            return False
        self.attempt.send()
        collected: tuple[Collected, ...] = ()
        if step.outcome == "doubt":
            self.world.doubt(self, committer.taken)
        elif step.outcome != "fails":
            collected = self.world.commit(self, committer.taken)
        if not step.outcome:
            self._committed(collected)
        return True

    def _resolve(self, _step: Action) -> bool:
        """Read-back: the fence row, under its lock, says what became of the transaction (design D3)."""
        if not self.is_in_doubt or not self.may_read_back():
            return False
        if self.session.resolve(self.attempt):
            self._committed(())
        return True

    @property
    def is_in_doubt(self) -> bool:
        """The transaction under way was sent, and no answer came."""
        return self.committer.wants is CommitStep.COMMIT and self.attempt.is_in_doubt

    def may_read_back(self) -> bool:
        """The fence row's lock is free."""
        return not self.world.is_locked(self.plan.name)

    def _committed(self, collected: tuple[Collected, ...]) -> None:
        effects = self.committer.taken
        self.committer.committed()
        self.fence = FenceRow(self.fence.incarnation, self.fence.epoch, self.fence.commit_no + 1)
        self.fresh = False
        self.collection.committed(effects, [replace(one, refs=()) if one.refs else one for one in collected])
        if self.evaluating is not None:
            self.evaluating.collected(collected)
        if self.reading.dropped:
            said = {(one.operator, one.action_id) for one in effects if type(one) is fx.DropRead}
            self.reading.dropped -= said

    def _hand_over(self, _step: Action) -> bool:
        """After the commit: release what is durable now."""
        if self.committer.wants is not CommitStep.HAND_OVER:
            return False
        durable = self.committer.peek()
        self.loop.hand_over(durable)
        self.drained = self.drained or durable.drained
        self.committer.handed_over()
        if self.loop.finishing and self.committer.is_idle():
            self.is_alive = False
        return True

    def _remove(self, step: Action) -> bool:
        """The thread that removes payloads takes a few steps. If it dies, the sweep finds what is left."""
        return self.is_running and self.evaluating is not None and self.evaluating.remove(step.many)

    def _collect(self, _step: Action) -> bool:
        """Time passes until garbage collection is due. It goes through the committer, like everything else (Section 3.6)."""
        if not self.is_running or self.loop.finishing:
            return False
        self.now += COLLECT_SECONDS
        if not self.loop.is_due(self.now):
            return False
        self.loop.close()
        return True

    def _expire(self, step: Action) -> bool:
        """The group that finishes last takes a batch of retention, or of shared bodies."""
        sweeps, about = self.world.sweeps, step.about
        if not self.is_running or self.loop.finishing or not isinstance(about, int) or about >= len(sweeps):
            return False
        self.committer.add([sweeps[about](step.many)])
        return True

    def token(self, operator: str) -> int:
        """The fencing token for the writes of an operator."""
        slot = slot_of(operator)
        moves = 0 if slot is None or self.slots is None else self.slots[slot]
        return WriterIdentity("", self.number, 0.0).token_after(moves)

    # --- beside the loop ----------------------------------------------------------------------------------------------

    def _beat(self, _step: Action) -> bool:
        if not self.is_registered or not self.is_alive:
            return False
        self.beats += 1
        self.ready = self.ready or self.is_running or self.life.wants is LifeStep.WAIT
        desired = self.world.store.heartbeat(self.session.ref, self.beats, ready=self.ready, rss_bytes=0)
        self.heard = self.heard or desired is GroupState.DRAINING
        self.halts = desired is GroupState.HALTED
        self.world.watch.a_replaced_driver_has_no_heartbeat(self)
        return True

    def _check(self, _step: Action) -> bool:
        """A driver with nothing to commit looks at its fence. Nothing changes unless that raises.

        A driver without slots leaves once it can never get any.
        """
        waits = self.is_registered and self.life.wants is LifeStep.WAIT
        looks = waits or (self.is_running and self.committer.is_idle())
        if not looks or self.world.is_locked(self.plan.name):
            return False
        self.session.check()
        return waits and self.world.leave(self)


_STEPS: Mapping[Verb, Callable[[SimulatedDriver, Action], bool]] = {
    Verb.REGISTER: lambda driver, step: driver._register(step),
    Verb.OPEN: lambda driver, step: driver._open(step),
    Verb.ASK: lambda driver, step: driver._ask(step),
    Verb.RECOVER: lambda driver, step: driver._recover(step),
    Verb.REBUILD: lambda driver, step: driver._rebuild(step),
    Verb.VOID: lambda driver, step: driver._void(step),
    Verb.HALT: lambda driver, step: driver._halt(step),
    Verb.JOIN: lambda driver, step: driver._join(step),
    Verb.FETCH: lambda driver, step: driver._fetch(step),
    Verb.EVALUATE: lambda driver, step: driver._evaluate(step),
    Verb.DELIVER: lambda driver, step: driver._deliver(step),
    Verb.WAIT: lambda driver, step: driver._wait(step),
    Verb.DRAIN: lambda driver, step: driver._drain(step),
    Verb.CLOSE: lambda driver, step: driver._close(step),
    Verb.CLOSE_WRITER: lambda driver, step: driver._close_writer(step),
    Verb.PARK: lambda driver, step: driver._park(step),
    Verb.FINISH: lambda driver, step: driver._finish(step),
    Verb.TAKE: lambda driver, step: driver._take(step),
    Verb.COMMIT: lambda driver, step: driver._commit(step),
    Verb.RESOLVE: lambda driver, step: driver._resolve(step),
    Verb.HAND_OVER: lambda driver, step: driver._hand_over(step),
    Verb.REMOVE: lambda driver, step: driver._remove(step),
    Verb.COLLECT: lambda driver, step: driver._collect(step),
    Verb.EXPIRE: lambda driver, step: driver._expire(step),
    Verb.BEAT: lambda driver, step: driver._beat(step),
    Verb.CHECK: lambda driver, step: driver._check(step),
    Verb.READ: lambda driver, step: driver.epochs > 0 and driver.reading.read(step),
    Verb.ADVANCE: lambda driver, step: driver.epochs > 0 and driver.reading.advance(step),
    Verb.NOTE_EFFECT: lambda driver, step: driver.epochs > 0 and driver.reading.note_effect(step),
    Verb.EMIT: lambda driver, step: driver.epochs > 0 and driver.reading.emit(step),
    Verb.END_SOURCE: lambda driver, step: driver.epochs > 0 and driver.reading.end_source(step),
    Verb.DISCARD: lambda driver, step: driver.epochs > 0 and driver.reading.discard(step),
    Verb.START_JOB: lambda driver, step: driver.epochs > 0 and driver.jobs.start_job(step),
    Verb.RUN_JOB: lambda driver, step: driver.epochs > 0 and driver.jobs.run_job(step),
    Verb.NOTE_JOB: lambda driver, step: driver.epochs > 0 and driver.jobs.note_job(step),
    Verb.TAKE_WRITES: lambda driver, step: driver.writers.take_writes(step),
    Verb.APPLY: lambda driver, step: driver.writers.apply(step),
    Verb.NOTE_WRITES: lambda driver, step: driver.writers.note_writes(step),
}
"""Verb → the step. Before an epoch's memory is built there are no sources and no jobs."""


# --- parts of a driver -------------------------------------------------------------------------------------------------


class BackPressure:
    """What holds up a group that sends: the backlogs of its output ports (design D5), with a bound that is soon met.

    It exists only after the rebuild: it depends on what the log says was sent. Groups with Dispatchers, and pipelines in
    which an operator waits for the turn of a port, have no bound here: to decide which of their connections have one,
    `driver/back_pressure.py` needs a pipeline, and a scenario has none.
    """

    def __init__(self, driver: Epoch) -> None:
        self._driver = driver
        mine = set(driver.protocol.operators)
        self._backlogs = [
            self._backlog(sender, others)
            for sender, receivers in driver.plan.receivers.items()
            if driver.world.is_bounded and (others := [to for to in receivers if to.operator not in mine])
        ]

    def _backlog(self, sender: Port, receivers: Sequence[Port]) -> Backlog:
        driver = self._driver
        last_sent, taken_back = driver.loop.last_sent, driver.loop.last_sent(sender)[1]
        asked = driver.session.acknowledged
        return Backlog(receivers, asked, BOUND, lambda: last_sent(sender)[0], taken_back, lambda: driver.now)

    def is_full(self) -> bool:
        """A receiver lags by the bound, as far as is known."""
        for backlog in self._backlogs:  # noqa: SIM110 - asked at every step
            if backlog.is_full():
                return True
        return False

    def lags(self) -> bool:
        """A receiver lags by the bound, as the log has it now: to wait would change nothing."""
        counters = self._driver.session.acknowledged
        return any(backlog.waiting_behind(counters(backlog.receivers)) >= BOUND.events for backlog in self._backlogs)

    def wait(self) -> bool:
        """Time passes until the receivers are asked again; False if they still lag."""
        self._driver.now += ASK_EVERY_SECONDS
        return not self.is_full()


@dataclass(slots=True)
class Job:
    """A job under way: its Input Sets, and, once it has run, their outputs and its read actions; `steps` does that in mode
    ``dataframe``."""

    insets: Sequence[str]
    steps: Steps[Results] | None = None
    ended: Results | None = None


class SimulatedGeneration(dict[str, "Job | None"]):
    """The jobs of one epoch, by operator: asynchronous generation, one job at a time for each."""

    def __init__(self, driver: Epoch, protocol: GroupProtocol) -> None:
        super().__init__({spec.name: None for spec in driver.operators if spec.asynchronous})
        self._driver = driver
        self.queue = JobQueue(protocol, self, lambda _held: (1, 0), SMALL_JOBS)

    def start_job(self, step: Action) -> bool:
        name, driver = str(step.about), self._driver
        if not driver.is_running or self.get(name, 0) is not None:
            return False
        self.queue.note(name, driver.now)
        due_at = self.queue.due_at(name, driver.now)
        if due_at is None:
            return False
        driver.now = max(driver.now, due_at)
        chosen = self.queue.take(name, driver.now, most_records=step.many)
        sets = driver.protocol.start_job(name, chosen)
        state = deepcopy(driver.protocol.operators[name].state)
        self[name] = Job(chosen, None if driver.evaluating is None else driver.evaluating.job(name, sets, state))
        return True

    def run_job(self, step: Action) -> bool:
        job = self.get(str(step.about))
        if not self._driver.is_running or job is None or job.ended is not None:
            return False
        if job.steps is not None:
            job.ended = finished(job.steps, step.many)
            return True
        protocol = self._driver.protocol.operators[str(step.about)]
        job.ended = [(inset_id, list(protocol.generate(inset_id))) for inset_id in job.insets], ()
        return True

    def note_job(self, step: Action) -> bool:
        name = str(step.about)
        job = self.get(name)
        if not self._driver.is_running or job is None or job.ended is None:
            return False
        self._driver.loop.generated(name, *job.ended, self._driver.now)
        self[name] = None
        return True

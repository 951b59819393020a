"""The state of a simulated driver's threads. Each step that a thread of the runtime takes is a separate step here.

The protocol's state machines decide in which order a committer, a writer, a job or an epoch takes its steps. The threads of
`driver/` run the same machines. A call that could be cut off or overtaken in the middle is two steps here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from msgspec.structs import replace

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.external_rules import compare
from airflow_logio.protocol.values import Event, Kind
from airflow_logio.protocol.writes import PendingWrite, WriteQueue, WriterKey, WriteStep, unapplied
from airflow_logio.spark.spark_effects import stored_events
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.data.published import PublishedFolder
from airflow_logio.testing.simulator.data.simulated_jobs import Steps, finished
from airflow_logio.testing.simulator.data.simulated_staging import SimulatedTables
from airflow_logio.testing.simulator.data.staged_writes import StagedWrites, Staging, staging_of
from airflow_logio.testing.simulator.data.staging_database import StagingDatabase
from airflow_logio.testing.simulator.driver.evaluating import Evaluating
from airflow_logio.testing.simulator.external_systems import THIS_RUN, ExternalSystem, Guarantee
from airflow_logio.testing.simulator.plan import Batch
from airflow_logio.testing.simulator.write_attempts import WriteAttempt

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver


class SimulatedWriter(WriteQueue):
    """A writer, and what it knows about its last attempt."""

    tried = False
    """It has tried to apply what it has taken, but does not know the outcome."""
    todo: Sequence[PendingWrite] = ()
    """For a checkable system: what is still to be applied, according to its answer."""
    attempt: WriteAttempt | None = None
    """For a conditional system: the transaction under way."""
    publishing: Steps[bool] | None = None
    """For a folder of datasets: the copies under way."""
    staging: Staging | None = None
    """For a database with staging tables: what drives the writer in this epoch."""
    staged: StagedWrites | None = None
    """The same: the attempt under way."""

    _breaks = 0

    def begin(self, actions: int) -> None:
        """Take the next group of actions."""
        self.take(actions)
        self.tried, self.todo, self.attempt, self.publishing, self.staged = False, (), None, None, None

    def act(self, driver: SimulatedDriver, many: int) -> bool:
        """Take up to `many` steps of an attempt. True if the system has now applied everything that was taken.

        A checkable system is asked in one step, and written to in another.
        """
        system, watch = driver.world.systems[self.key[1]], driver.world.watch
        if isinstance(system, StagingDatabase) and driver.evaluating is not None:
            return self._stage(driver, driver.evaluating, system, many)
        if system.guarantee is Guarantee.CONDITIONAL:
            return self._transact(driver, system, many)
        if isinstance(system, PublishedFolder):
            watch.before_write(self.key, self.taken)
            return self._publish(driver, system, many)
        if system.guarantee is Guarantee.IDEMPOTENT:
            watch.before_write(self.key, self.taken)
            system.upsert(self.key, self.taken)
        elif not self.todo:
            self.todo = unapplied(self.taken, system.marker(self.key))
            return not self.todo
        else:
            watch.before_write(self.key, self.todo)
            system.write(self.key, self.todo)
            self.todo = ()
        return True

    def look(self, driver: SimulatedDriver) -> None:
        """Compare the marker with the log, before anything is applied."""
        row = driver.world.systems[self.key[1]].marker_row(THIS_RUN, self.key)
        assert self.log_end is not None
        compare(*self.key, driver.token(self.key[0]), row, self.log_end)

    def _transact(self, driver: SimulatedDriver, system: ExternalSystem, many: int) -> bool:
        watch = driver.world.watch
        if self.attempt is None:
            watch.before_write(self.key, self.taken)
            token = driver.token(self.key[0])
            client = self._client_of(driver)
            evaluating = driver.evaluating
            taken = self.taken if evaluating is None else [evaluating.loaded(write) for write in self.taken]
            self.attempt = WriteAttempt(system, self.key, token, taken, is_alive=client)
        if not self.attempt.advance(many):
            return False
        if self.attempt.wrote:
            watch.a_lower_token_writes_nothing(self.key, self.attempt.token)
        return True

    def _stage(self, driver: SimulatedDriver, evaluating: Evaluating, system: StagingDatabase, many: int) -> bool:
        watch, token = driver.world.watch, driver.token(self.key[0])
        if self.staging is None:
            writer = evaluating.member(self.key[0])
            tables = SimulatedTables(writer, self.key, token, self._client_of(driver))
            self.staging = staging_of(evaluating, evaluating.read, system, tables)
        if self.staged is None:
            watch.before_write(self.key, self.taken)
            self.staged = StagedWrites(self.staging, driver.world.run.uid, self.key, token, self.taken)
        if not self.staged.advance(many):
            return False
        if self.staging.tables.wrote:
            watch.a_lower_token_writes_nothing(self.key, token)
        return True

    def _publish(self, driver: SimulatedDriver, folder: PublishedFolder, many: int) -> bool:
        assert driver.evaluating is not None
        if self.publishing is None:
            token = driver.token(self.key[0])
            writes = [(write, driver.evaluating.dataset(write)) for write in self.taken]
            read = partial(driver.world.lake.records, driver) if driver.world.lake else None
            self.publishing = folder.published(self.key, token, driver.world.run.uid, writes, read)
        return finished(self.publishing, many) is not None

    def _client_of(self, driver: SimulatedDriver) -> Callable[[], bool]:
        """A function that says whether this thread is alive. It is if its driver is, and has not joined it. Weak references:
        the locks of a database must not keep a driver in memory."""
        of_driver, of_writer = ref(driver), ref(self)

        def is_alive() -> bool:
            alive = of_driver()
            return alive is not None and alive.is_alive and of_writer() is not None

        return is_alive

    def lose_answer(self) -> None:
        """Everything is applied, but the answer is lost: the writer tries again."""
        self.tried, self.todo, self.attempt, self.publishing, self.staged = True, (), None, None, None

    def give_up(self) -> None:
        """The connection breaks: a transaction under way is rolled back."""
        self.publishing = None
        if self.staged is not None:
            self._breaks += 1
            self.staged.fail("before" if self._breaks % 2 else "after")
        if self.attempt is not None:
            self.attempt.end()
            self.attempt = None


class SimulatedWriters(dict[WriterKey, SimulatedWriter]):
    """The writers of one epoch. A plan does not name the connections that its operators write to: a lookup makes the writer.

    Every method named by a verb is a step, as in `SimulatedDriver`.
    """

    def __init__(self, driver: SimulatedDriver) -> None:
        super().__init__()
        self._driver = driver

    def __missing__(self, key: WriterKey) -> SimulatedWriter:
        conditional = self._driver.world.systems[key[1]].guarantee is Guarantee.CONDITIONAL
        self[key] = SimulatedWriter(*key, compares=conditional)
        return self[key]

    def _of(self, about: object) -> SimulatedWriter | None:
        return self.get(about) if isinstance(about, tuple) else None

    def take_writes(self, about: object, many: int, _outcome: str) -> bool:
        writer = self._of(about)
        if not self._driver.is_running or writer is None or writer.wants is not None or not writer.pending:
            return False
        writer.begin(many)
        return True

    def apply(self, about: object, many: int, outcome: str) -> bool:
        """Take up to `many` steps of an attempt at the external system.

        If the steps are enough, everything is applied; with outcome ``lost``, the answer is then lost. With outcome
        ``fails``, the connection breaks.
        """
        writer = self._of(about)
        if writer is not None and writer.wants is WriteStep.COMPARE:
            return self._compare(writer, outcome)
        if writer is None or writer.wants is not WriteStep.APPLY:
            return False
        if outcome == "fails":
            writer.give_up()
        elif writer.act(self._driver, many):
            writer.lose_answer() if outcome == "lost" else writer.applied()
        return True

    def _compare(self, writer: SimulatedWriter, outcome: str) -> bool:
        """Look at the marker, and tell the loop. With any outcome, the answer does not come, and it is asked again."""
        if not self._driver.is_running:
            return False
        if not outcome:
            writer.look(self._driver)
            self._driver.loop.compared(writer.compared(), self._driver.now)
        return True

    def note_writes(self, about: object, _many: int, _outcome: str) -> bool:
        writer = self._of(about)
        if not self._driver.is_running or writer is None or writer.wants is not WriteStep.REPORT:
            return False
        self._driver.loop.applied(writer.report(), self._driver.now)
        return True


@dataclass(slots=True)
class Source:
    """A reading thread: how far it has read, and what the group has not used yet."""

    action: int
    offset: int
    inbox: deque[Batch] = field(default_factory=deque)
    stored: str | None = None
    """Reference of the stored effect of a non-replayable read action; from the log, or just obtained."""
    obtained: tuple[str, int] | None = None
    """The effect is stored, but the group has not noted it: (reference, records)."""
    exhausted: bool = False
    evaluating: deque[Steps[Batch]] = field(default_factory=deque)
    """With datasets: what was read and is being evaluated, one batch after the other."""
    storing: Steps[tuple[str, int]] | None = None
    """With datasets: the effect that is being stored."""
    handed_over: bool = False
    """The group knows that the stored effect is used up, but not yet what follows."""

    @property
    def may_read(self) -> bool:
        return not self.exhausted and self.obtained is None and self.storing is None

    @property
    def has_more(self) -> bool:
        """Something was read, or may be, that the group has not used."""
        return bool(self.inbox or self.evaluating) or not self.exhausted

    def read(self, driver: SimulatedDriver, name: str, many: int) -> None:
        """Continue to read, from the external system or from the stored effect."""
        if driver.evaluating is not None:
            self._read_frames(driver, driver.evaluating, name, many)
            return
        if not driver.protocol.source(name).spec.replayable and self.stored is None:
            self.obtained = driver.world.obtain(driver, name, self.action)
            return
        for _ in range(many):
            batch = driver.world.batch(driver, name, self)
            if batch is None:
                self.exhausted = True
                break
            self.inbox.append(batch)
            self.offset = batch.next_offset

    def _read_frames(self, driver: SimulatedDriver, evaluating: Evaluating, name: str, many: int) -> None:
        """What is read is evaluated, step by step, before it is used."""
        if not driver.protocol.source(name).spec.replayable:
            self._read_effect(driver, evaluating, name)
            return
        for _ in range(many):
            batch = driver.world.scenario.sources[name].batch(self.action, self.offset, 0)
            if batch is None:
                self.exhausted = True
                break
            self.evaluating.append(evaluating.range(name, batch, self.action + 1))
            self.offset = batch.next_offset

    def _read_effect(self, driver: SimulatedDriver, evaluating: Evaluating, name: str) -> None:
        if self.stored is None:
            self.storing = evaluating.effect(name, driver.world.whole(driver, name, self.action), self.action + 1)
            return
        where = f"the stored effect of read action {self.action + 1} of source {name!r}"
        for event in stored_events(evaluating.payloads, where, self.stored, self.offset):
            self.evaluating.append(evaluating.stored(name, self.action + 1, event))
            self.offset = event.next_offset
        self.exhausted = True

    def advance(self, many: int) -> bool:
        """Take what is being stored or evaluated further."""
        if self.storing is not None:
            self.obtained = finished(self.storing, many)
            self.storing = None if self.obtained else self.storing
        elif self.evaluating:
            if (batch := finished(self.evaluating[0], many)) is not None:
                self.evaluating.popleft()
                self.inbox.append(batch)
        else:
            return False
        return True


def serialized(effects: fx.Effects, codec: Codec, offer: Callable[[Event, bytes], None]) -> fx.Effects:
    """Replaces payloads by bodies before the transaction, as `driver/committer.py` does with Arrow.

    `offer` gets events of replay operators, with the bodies that do not go into the log.
    """
    done: fx.Effects = []
    for effect in effects:
        kind = type(effect)
        if kind is fx.LogEvent:
            assert isinstance(effect, fx.LogEvent)
            event = effect.event
            if event.kind is Kind.DATA and (event.body is None or event.made_of is not None):
                body = codec.encode(event.payload)
                if event.made_of is None:
                    sent = Event(event.sender, event.event_id, event.kind, event.records, None, body, event.about)
                else:
                    made_of = replace(event.made_of, digest=codec.digest(event.payload), size=len(body))
                    sent = replace(event, payload=None, body=None, made_of=made_of)
                    offer(sent, body)
                effect = fx.LogEvent(sent, effect.deliveries, effect.kept, effect.held)  # noqa: PLW2901
        elif kind is fx.LogWrite:
            assert isinstance(effect, fx.LogWrite)
            if effect.body is None:
                body = codec.encode(effect.payload)
                effect = fx.LogWrite(  # noqa: PLW2901
                    effect.operator, effect.connection, effect.number, effect.header, effect.records, None, body
                )
        elif kind is fx.LogRead:
            effect = _read(effect, codec)  # noqa: PLW2901
        done.append(effect)
    return done


def _read(effect: Any, codec: Codec) -> fx.LogRead:
    return fx.LogRead(
        effect.operator,
        effect.connection,
        effect.action_id,
        effect.description,
        effect.inset_ids,
        effect.records,
        None,
        codec.encode(effect.payload),
    )

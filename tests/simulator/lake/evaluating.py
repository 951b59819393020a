"""The threads of one epoch that evaluate datasets: events of the log, what sources read, and jobs of windows (ADR-81 to 85).

What is under way is a generator for each thread. A step takes it a little further, so that the driver may die, be replaced
or continue as a zombie between any two files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from msgspec.structs import replace

from airflow_logio.dataflow.functions.function_operators import FrameOperator
from airflow_logio.dataflow.functions.windowed_operators import FrameWindowOperator
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.sources import RangeSource, SparkSource
from airflow_logio.driver.committer import serialize
from airflow_logio.driver.spark_jobs.frame_jobs import ReadEffect
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.spark.chains import (
    Apply,
    Chains,
    CountLate,
    CountWindows,
    Duplicate,
    Evaluated,
    Materialize,
    Reopen,
    Step,
)
from airflow_logio.spark.dataset_parts import DatasetPart
from airflow_logio.spark.spark_effects import StoredEvent, stored_events
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.systems.payloads.bodies import Bodies
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.testing.simulator.datasets import Reader, Results
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.plan import Batch
from airflow_logio.testing.simulator.stepwise import Paused, Questions, Steps, finished
from tests.simulator.lake.dataset_watch import DatasetWatch
from tests.simulator.lake.jobs import SCHEMA, SimulatedJobs
from tests.simulator.lake.storage import Record, SimulatedPayloads, SimulatedStorage, encoded


class SharedDatasets(Protocol):
    """What an epoch needs of the payload store and of what all drivers share (`Lake`)."""

    members: Mapping[str, Operator]
    arrow: str
    storage: SimulatedStorage
    payloads: SimulatedPayloads
    watch: DatasetWatch

    def records(self, driver: SimulatedDriver, dataset: Dataset) -> list[Record]:
        """Read a dataset, as a driver or its tasks do."""

    def remove(self, questions: Questions, refs: tuple[str, ...]) -> None:
        """Remove what garbage collection has taken out of the log. Raises `Paused`."""


READ_RECORDS = 4
"""Records that a read obtains: two files."""


class Evaluating:
    """The threads of one epoch (`DatasetEpoch`). A method that returns `Steps` is work for one event, effect or job."""

    def __init__(self, driver: SimulatedDriver, lake: SharedDatasets, protocol: GroupProtocol) -> None:
        self._driver = driver
        self._lake = lake
        self._members = lake.members
        self.chains = Chains(protocol, lake.members, lambda _: SCHEMA)
        run, group = driver.world.run, driver.plan.name
        self.payloads = lake.payloads.epoch(run.uid, group, driver.number, driver.fence.epoch)
        self._jobs = SimulatedJobs(lake.storage, self.payloads, lake.arrow)
        self.bodies = Bodies(self.payloads)
        self.arriving: dict[Port, deque[Steps[Event]]] = {}
        """Input port → events that its thread has fetched, and evaluates one after the other."""
        self.removals: deque[tuple[Questions, tuple[str, ...]]] = deque()
        """References that garbage collection has taken out of the log, and how far their removal has come."""
        self._sets = 0

    def wants(self, receiver: Port) -> bool:
        """Whether the events of a port are evaluated when they arrive."""
        return bool(self.chains.wants(receiver))

    def unpacked(self, event: Event) -> Event:
        """An event of the log with its dataset."""
        return self.bodies.unpacked(event)

    # --- events of the log --------------------------------------------------------------------------------------------

    def arrives(self, receiver: Port, event: Event) -> None:
        """The channel has fetched an event that is to be evaluated."""
        self.arriving.setdefault(receiver, deque()).append(self._arrived(receiver, event))

    def advance(self, receiver: Port, many: int) -> bool:
        """Take the evaluation of the first event of a port further; True if something was done."""
        waiting = self.arriving.get(receiver)
        if not waiting:
            return False
        done = finished(waiting[0], many)
        if done is not None:
            waiting.popleft()
            self._driver.inbox[receiver].append(done)
        return True

    def _arrived(self, receiver: Port, event: Event) -> Steps[Event]:
        if event.kind is not Kind.DATA:
            return event
        dataset = event.payload
        assert isinstance(dataset, Dataset), f"{receiver} gets what is no dataset"
        number = f"{event.sender}.{event.event_id}"
        made = yield from self._followed(self.chains.arrived(receiver, dataset, number))
        return replace(event, payload=made)

    # --- what sources read --------------------------------------------------------------------------------------------

    def read(self, source: str, reader: Reader, many: int) -> None:
        """Continue to read, from outside or from the stored effect; what is read is evaluated before it is used."""
        if not self._driver.protocol.source(source).spec.replayable:
            self._read_effect(source, reader)
            return
        for _ in range(many):
            batch = self._driver.world.scenario.sources[source].batch(reader.action, reader.offset, 0)
            if batch is None:
                reader.exhausted = True
                break
            reader.evaluating.append(self.ranged(source, batch, reader.action + 1))
            reader.offset = batch.next_offset

    def _read_effect(self, source: str, reader: Reader) -> None:
        if reader.stored is None:
            reader.storing = self.effect(source, self._whole(source, reader.action), reader.action + 1)
            return
        where = f"the stored effect of read action {reader.action + 1} of source {source!r}"
        for event in stored_events(self.payloads, where, reader.stored, reader.offset):
            reader.evaluating.append(self.stored(source, reader.action + 1, event))
            reader.offset = event.next_offset
        reader.exhausted = True

    def _whole(self, source: str, action: int) -> list[Record]:
        """The records of the whole effect of a read action, as they are now."""
        driver = self._driver
        reading = driver.world.count_reading(driver, source, driver.protocol.source(source).action_id)
        batch = driver.world.scenario.sources[source].batch(action, 0, reading)
        return [] if batch is None else list(batch.payload)

    def discard(self, ref: str) -> None:
        """Discard a stored effect, whose events have all been in the log."""
        self._lake.watch.discards(self._driver, ref)
        self.payloads.remove([ref])

    def ranged(self, source: str, batch: Batch, action: int) -> Steps[Batch]:
        """As `evaluation.ReadRange`: the event of a read action."""
        port = self._port(source)
        made = yield from self._followed(self.chains.sent(port, batch.payload, str(action)))
        return Batch(made, made.num_rows, batch.next_offset, batch.about)

    def has_ranges(self, source: str) -> bool:
        """Whether it is a `RangeSource`."""
        return isinstance(self._members[source], RangeSource)

    def effect(self, source: str, records: Sequence[Record], action: int) -> Steps[tuple[str, int]]:
        """As `evaluation.StoreEffect`: the stored effect of a read action."""
        port, operator = self._port(source), self._members[source]
        named = self.chains.is_border(port)
        size = operator.bytes_per_event if isinstance(operator, SparkSource) else None
        return (yield from self._jobs.effect(port, action, records, size, named=named))

    def stored(self, source: str, action: int, event: StoredEvent) -> Steps[Batch]:
        """As `evaluation.ReopenStored`: an event of a stored effect."""
        frame = self._lake.records(self._driver, event.dataset)
        dataset = event.dataset if event.is_named else None
        number = f"{action}-{event.number}"
        made = yield from self._followed(self.chains.sent(self._port(source), frame, number, dataset))
        return Batch(made, event.next_offset - event.first, event.next_offset, event.about)

    def _port(self, source: str) -> Port:
        return Port(source, self._members[source].outputs[0])

    # --- jobs of windows ----------------------------------------------------------------------------------------------

    def job(self, name: str, sets: Sequence[tuple[str, Any]], state: Mapping[str, Any]) -> Steps[Results]:
        """As `FrameJobs`: the Output Sets of many Input Sets, and the reads of the job."""
        operator = cast(FrameWindowOperator, self._members[name])
        self._sets += 1
        admitted = [one for one in sets if operator.window.admits(one[0], state)]
        effects = (yield from self._obtained(name, operator)) if admitted else {}
        frame: list[Record] = []
        for place, (inset_id, held) in enumerate(admitted):
            for part in operator.held_by_port(held)[operator.inputs[0]]:
                frame += [[place, *record] for record in self._part(operator, inset_id, part)]
                yield
        reads = {read: self._lake.records(self._driver, effect.payload) for read, effect in effects.items()}
        result = operator.run_on({operator.inputs[0]: frame}, reads, {})
        by_place: dict[int, list[Record]] = {}
        for place, *record in result:
            by_place.setdefault(place, []).append(record)
        port = Port(name, operator.outputs[0])
        where = [f"the Output Set of Input Set {inset_id!r} of operator {name!r}" for inset_id, _ in admitted]
        made = yield from self._jobs.materialized_sets(where, f"datasets/{port}/{self._sets}", by_place)
        outputs = {inset_id: made.get(place) for place, (inset_id, _) in enumerate(admitted)}
        return [(inset_id, _sent(port, outputs.get(inset_id))) for inset_id, _ in sets], self.logged(effects)

    def _obtained(self, name: str, operator: FrameWindowOperator) -> Steps[Mapping[str, ReadEffect]]:
        """As `FrameReads.obtained`, where all of it is large: each answer of an external system is another one."""
        effects: dict[str, ReadEffect] = {}
        for read, declared in operator.reads.items():
            system = self._driver.world.systems[declared.connection]
            system.reads += 1
            answer = [[row, system.reads] for row in range(READ_RECORDS)]
            yield
            made = yield from self._jobs.materialized("a read", f"datasets/{name}/{read}/{self._sets}", answer)
            effects[read] = ReadEffect(declared, made, None)
        return effects

    def logged(self, effects: Mapping[str, ReadEffect]) -> list[Read]:
        """The read actions of a job, for the log: lineage asks for all of them."""
        return [effect.logged() for effect in effects.values()]

    def _part(self, operator: FrameWindowOperator, inset_id: str, part: DatasetPart) -> list[Record]:
        records, grid = self._lake.records(self._driver, part.dataset), operator.window.grid()
        if grid is None:
            return records
        number = operator.window.number(inset_id)
        return [record for record in records if grid.number(record[0]) == number]

    # --- commits and write actions ------------------------------------------------------------------------------------

    def serialized(self, effects: fx.Effects) -> fx.Effects:
        """The rows of a transaction, by the committer of the runtime."""
        return serialize(effects, self.bodies)

    def loaded(self, write: PendingWrite) -> PendingWrite:
        """A write action with its records, as one whose dataset the driver reads."""
        if write.ref is None:
            return write
        records = self._lake.records(self._driver, self.dataset(write))
        return replace(write, body=encoded(sorted(records)))

    def records(self, dataset: Dataset) -> list[Record]:
        """The records of a dataset, as this driver or its tasks read them."""
        return self._lake.records(self._driver, dataset)

    def member(self, name: str) -> Operator:
        """An operator as its author made it."""
        return self._members[name]

    def dataset(self, write: PendingWrite) -> Dataset:
        """The dataset of a write action."""
        return self.bodies.dataset(f"write action {write.number} of {write.operator!r}", str(write.ref))

    # --- what no row names any more -----------------------------------------------------------------------------------

    def collected(self, collected: Sequence[Collected]) -> None:
        """A transaction has committed, with its garbage collection."""
        if refs := tuple(ref for one in collected for ref in one.refs):
            self.removals.append((Questions(), refs))

    def remove(self, many: int) -> bool:
        """The thread that removes payloads takes a few steps. If it dies, the sweep finds what is left."""
        if not self.removals:
            return False
        questions, refs = self.removals[0]
        questions.begin(many)
        try:
            self._lake.remove(questions, refs)
        except Paused:
            return True
        self.removals.popleft()
        return True

    # --- inside -------------------------------------------------------------------------------------------------------

    def _followed(self, chain: Any) -> Steps[Evaluated]:
        answer: Any = None
        try:
            while True:
                answer = yield from self._done(chain.send(answer))
        except StopIteration as ended:
            return cast(Evaluated, ended.value)

    def _done(self, step: Step) -> Steps[Any]:
        yield
        match step:
            case Apply(receiver, frame):
                operator = cast(FrameOperator, self._members[receiver.operator])
                return operator.frames(receiver.name, frame, {})
            case Materialize(_, where, purpose, frame, partition_by):
                return (yield from self._jobs.materialized(where, purpose, frame, partition_by))
            case Duplicate(_, where, purpose, dataset):
                records = self._lake.records(self._driver, dataset)
                return (yield from self._jobs.materialized(where, purpose, records))
            case Reopen(dataset):
                return self._lake.records(self._driver, dataset)
            case CountWindows(receiver, _, frame):
                grid = cast(FrameWindowOperator, self._members[receiver.operator]).window.grid()
                numbers = [] if grid is None else [grid.number(record[0]) for record in frame]
                return {number: numbers.count(number) for number in numbers}
            case CountLate(sender):
                raise AssertionError(f"{sender}: no pipeline of the lake divides days")


def _sent(port: Port, dataset: Dataset | None) -> Sequence[Output]:
    if dataset is None:
        return []
    payload = Evaluated(dataset, dataset.manifest.schema)
    return [Emit(port.name, payload, dataset.num_rows)]

"""`logio check --try N`: the first events of every source through the pipeline, in this process and without a log.

The operators run as in a driver, all of them in one group. What they would write is inserted into tables in a transaction
that is rolled back. What needs a Spark session or is driven by hand is left out, and so is what comes behind it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from airflow_logio.dataflow.operators import Operator, SourceBatch, SourceOperator, StatefulOperator, StatelessOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.sources import ConnectedSource
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.driver.logics.operator_specs import captured_inputs, specs_of
from airflow_logio.driver.source_reader import PLAN, without_plan
from airflow_logio.errors import LogioError, OperatorFailed, authored_frames
from airflow_logio.protocol.effects import CountEvents, LogEvent, LogWrite, SetAside
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.values import Event, ExecutionMode, Port
from airflow_logio.systems.connections import Connections

T = TypeVar("T")


@dataclass(slots=True)
class Trial:
    """What came of it, as far as it came."""

    events: Counter[Port] = field(default_factory=Counter)
    """Output port → events sent."""
    records: Counter[Port] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    """Writer → records of its write actions."""
    left_out: list[str] = field(default_factory=list)
    """Operators that could not be tried."""
    quarantined: list[str] = field(default_factory=list)
    """The errors of Input Sets that a run would set aside."""
    problem: LogioError | None = None


def try_events(pipeline: Pipeline, params: Mapping[str, Any], connections: Connections, events: int) -> Trial:
    """Send the first `events` events of every source through the operators; then the streams end, so that windows close.

    Nothing is raised for what is wrong with the pipeline: it is the `problem` of the result.
    """
    plain, trial = pipeline.unreplicated(), Trial()
    names = _runnable(plain)
    trial.left_out = [name for name in plain.operators if name not in names]
    try:
        _Trying(plain, params, connections, names, trial).run(events)
    except LogioError as error:
        trial.problem = error
    return trial


def _runnable(pipeline: Pipeline) -> set[str]:
    """Operators that need neither Spark nor a program of their own, and get events from such only."""
    names: set[str] = set()
    for name, operator in pipeline.operators.items():
        senders = {pipeline.sender(Port(name, port)).operator for port in operator.inputs}
        is_ours = isinstance(operator, SourceOperator | StatelessOperator | StatefulOperator)
        if is_ours and operator.mode is ExecutionMode.DRIVER and senders <= names:
            names.add(name)
    return names


class _Trying:
    def __init__(
        self, pipeline: Pipeline, params: Mapping[str, Any], connections: Connections, names: set[str], trial: Trial
    ) -> None:
        self._pipeline, self._params, self._connections, self._trial = pipeline, params, connections, trial
        specs, receivers = specs_of(pipeline, names, connections)
        self._protocol = GroupProtocol(specs, receivers, captured_inputs(pipeline))
        self._waiting: dict[Port, deque[Event]] = {port: deque() for port in self._protocol.inputs_from_log()}
        self._turn = dict.fromkeys(names, 0)
        """How far an operator has come in the declared order of its ports."""

    def run(self, events: int) -> None:
        self._protocol.resume()
        self._settle()
        sources = {
            name: operator
            for name, operator in self._pipeline.operators.items()
            if isinstance(operator, SourceOperator) and name in self._turn
        }
        for name, source in sources.items():
            self._read(name, source, events)
        for name in sources:
            self._protocol.end_source(name)
            self._settle()

    def _read(self, name: str, source: SourceOperator, events: int) -> None:
        """One event after the other, so that what fails is told with the event that it fails at."""
        first = self._asked(name, lambda: source.action(self._params))
        self._protocol.begin_source(name, without_plan(first))
        if not source.replayable:
            self._protocol.store_effect(name, "of a trial", 0)  # never read: nothing of a trial is recovered
        for batch in islice(self._batches(name, source, first), events):
            emits = [Emit(port, batch.table, batch.table.num_rows, about=batch.about) for port in source.outputs]
            self._protocol.emit(name, emits, batch.next_offset)
            self._settle()

    def _batches(self, name: str, source: SourceOperator, action: Mapping[str, Any]) -> Iterator[SourceBatch]:
        """The batches of one read action after the other, until one brings nothing: it may be waiting for data to come."""
        plan = {PLAN: action[PLAN]} if PLAN in action else {}
        following: Mapping[str, Any] | None = action
        while following is not None:
            action, found = without_plan(following), False
            batches = self._asked(name, lambda: self._begin(source, action))  # noqa: B023
            while (batch := self._asked(name, lambda: next(batches, None))) is not None:  # noqa: B023
                if batch.table.num_rows:
                    found = True
                    yield batch
            following = self._asked(name, lambda: source.next_action(self._params, {**action, **plan}))  # noqa: B023
            if not found:
                return

    def _begin(self, source: SourceOperator, action: Mapping[str, Any]) -> Iterator[SourceBatch]:
        if isinstance(source, ConnectedSource):
            connection = self._connections.source(source.connection)
            return iter(source.read_from(connection, self._params, action, 0))
        return iter(source.read(self._params, action, 0))

    def _asked(self, name: str, ask: Callable[[], T]) -> T:
        """What a source answers; an error of its author's code is told with the source."""
        try:
            return ask()
        except LogioError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}{authored_frames(error)}"
            raise OperatorFailed(cause, place=f"pipeline {self._pipeline.name!r}, source {name!r}") from error

    def _settle(self) -> None:
        """Write what was written, and hand over what operators get over the log, until nothing is left to do."""
        while True:
            writes: dict[str, list[LogWrite]] = {}
            for effect in self._protocol.close_step():
                if isinstance(effect, CountEvents) and effect.direction == "out":
                    self._trial.events[effect.port] += effect.events
                    self._trial.records[effect.port] += effect.records
                elif isinstance(effect, LogEvent):
                    self._sent(effect)
                elif isinstance(effect, SetAside):
                    self._trial.quarantined.append(effect.error)
                elif isinstance(effect, LogWrite) and effect.payload is not None:
                    writes.setdefault(effect.operator, []).append(effect)
            for name, logged in writes.items():
                self._write(self._pipeline.operators[name], name, [_action(one) for one in logged])
            if not any([self._hand_over(name) for name in self._protocol.operators]):
                return

    def _sent(self, effect: LogEvent) -> None:
        for delivery in effect.deliveries:
            if not delivery.fused and delivery.receiver in self._waiting:
                self._waiting[delivery.receiver].append(effect.event)

    def _write(self, operator: Operator, name: str, actions: list[WriteAction]) -> None:
        self._trial.written[name] += sum(action.records.num_rows for action in actions)
        if isinstance(operator, TableWriter):
            self._connections.warehouse(operator.connection).rehearse(operator, actions)

    def _hand_over(self, name: str) -> bool:
        """Deliver events that wait at ports of an operator, in the order that it declares; False if none could be."""
        cycle = self._protocol.operators[name].spec.port_order
        ports = [port for port in self._waiting if port.operator == name]
        moved = False
        while ports:
            wanted = [Port(name, cycle[self._turn[name] % len(cycle)])] if cycle else ports
            ready = next((port for port in wanted if self._waiting.get(port)), None)
            if ready is None:
                return moved
            self._protocol.deliver(ready, self._waiting[ready].popleft())
            self._turn[name] += 1
            moved = True
        return moved


def _action(logged: LogWrite) -> WriteAction:
    """As it would be read back from the log; no run has it."""
    return WriteAction("", logged.operator, logged.connection, logged.number, 1, logged.payload, logged.header)

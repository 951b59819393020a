"""An author's operator as the protocol sees it: adapters from `dataflow.Operator` to `protocol.Logic`.

Errors in the author's code come out as `OperatorFailed` with pipeline, operator, port, event and Input Set, as far as they
are known here; `protocol.operator` adds what only it knows. What they say is composed when they are raised.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import pyarrow as pa

from airflow_logio.authored_frames import authored_frames
from airflow_logio.dataflow.action_writers import ActionWriter
from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.frames import needed_table
from airflow_logio.dataflow.function_operators import SCHEMAS, FrameWindowOperator
from airflow_logio.dataflow.operators import InputEvent, InputSet, Operator, StatefulOperator, StatelessOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.replication import Dispatcher, Routes
from airflow_logio.dataflow.schema_text import SCHEMA, schema_of
from airflow_logio.dataflow.sources import ParquetSource
from airflow_logio.dataflow.sources.ranges import forgets
from airflow_logio.dataflow.unavailability import advice_for_code
from airflow_logio.dataflow.windows import Arrival
from airflow_logio.dataflow.write_actions import BEGIN, INSERT
from airflow_logio.errors import FailurePoint, LogioError, OperatorFailed
from airflow_logio.protocol.logic import Emit, Logic, OperatorSpec, Output, Write
from airflow_logio.protocol.replicas import PLACE, PROGRESS
from airflow_logio.protocol.values import Event, ExecutionMode, Port
from airflow_logio.runtime.datasets.dataset_parts import DatasetPart
from airflow_logio.runtime.datasets.evaluated import Evaluated, Outputs
from airflow_logio.runtime.driver.kept_in_files import written_in_files
from airflow_logio.runtime.driver.part_check import is_due, may_be_equal
from airflow_logio.runtime.payloads.bodies import table_of
from airflow_logio.runtime.payloads.dataset import Dataset
from airflow_logio.runtime.systems.arrow import decode
from airflow_logio.runtime.systems.call_watch import Call
from airflow_logio.runtime.systems.connections import Connections, StepExternal

_NO_PROGRESS: Mapping[str, str] = {}
NAMED_INSETS = 5
"""An error message names at most this many open Input Sets."""


class _Adapter:
    """What both kinds of operators share."""

    _has_generated = False
    """Whether it has generated from an Input Set in this epoch."""
    empty_schema: pa.Schema | None = None
    """Of a writer: the schema of the source right before it, if the run knows that this one has no records."""

    def __init__(self, pipeline: str, name: str, operator: Operator, connections: Connections) -> None:
        self._pipeline = pipeline
        self._name = name
        self._operator: Any = operator
        self._connections = connections

    def _call(
        self, phase: str, inset_id: str | None = None, *, port: str | None = None, event: Event | None = None
    ) -> Call:
        """A call of the author's code, whose time is taken."""
        event_id = None if event is None else event.event_id
        return self._connections.calls.call(phase, FailurePoint(self._name, port, event_id, inset_id))

    def opening(self) -> Sequence[Write]:
        """The write action that a run begins with, if the writer has one."""
        if not isinstance(self._operator, ActionWriter):
            return ()
        try:
            if self.empty_schema is None:
                described = self._operator.opening()
            else:
                described = self._operator.opening_of_empty(self.empty_schema)
        except Exception as error:
            self._fail(error, "the write action that a run begins with")
        return () if described is None else (Write(self._operator.connection, {**described, "action": BEGIN}),)

    def function(self, inset_id: str) -> str:
        return ""

    def _fail(
        self, error: Exception, where: str, at: FailurePoint | None = None, *, is_first: bool = False
    ) -> NoReturn:
        """Raise what the author's code has raised; `at` is `where`, unless that is at an event or Input Set."""
        if isinstance(error, LogioError) and not isinstance(error, OperatorFailed):
            raise error
        cause = str(error) if isinstance(error, OperatorFailed) else f"{type(error).__name__}: {error}"
        place = f"pipeline {self._pipeline!r}, operator {self._name!r}, {where}"
        cause += advice_for_code(error) + authored_frames(error)
        at = at or FailurePoint(self._name, action=where)
        raise OperatorFailed(cause, at, place=place, is_first=is_first) from error

    def _fail_at(
        self, error: Exception, port: str, event: Event, inset_id: str | None = None, *, is_first: bool = False
    ) -> NoReturn:
        inset = "" if inset_id is None else f", Input Set {inset_id!r}"
        where = f"port {port!r}, event {event.event_id} of {event.sender}{inset}"
        self._fail(error, where, FailurePoint(self._name, port, event.event_id, inset_id), is_first=is_first)

    def _fail_in(self, error: Exception, inset_id: str, *, is_first: bool = False) -> NoReturn:
        at = FailurePoint(self._name, inset_id=inset_id)
        self._fail(error, f"Input Set {inset_id!r}", at, is_first=is_first)

    def _input(self, port: str, event: Event) -> InputEvent:
        if event.payload is None:
            table = decode(f"event {event.event_id} of {event.sender}", event.body or b"")
        else:
            table = table_of(event.payload)
        place = event.about.get(PLACE)
        progress = event.about.get(PROGRESS, _NO_PROGRESS)
        return InputEvent(port, event.event_id, table, progress, None if place is None else (place[0], place[1]))

    def _external(self) -> StepExternal:
        return StepExternal(self._name, self._operator, self._connections)


class StatelessLogic(_Adapter):
    """Each event is an Input Set of its own; State Update and Triggering are trivial (Section 2.3)."""

    def initial_state(self) -> dict[str, Any]:
        return {}

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        inset_id = str(event.event_id) if len(self._operator.inputs) == 1 else f"{port}:{event.event_id}"
        return {inset_id: (port, event)}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return (port, event)

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return part

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return open_insets

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return open_insets

    def order(self, inset_id: str) -> int | str | None:
        return None

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        port, event = held
        try:
            in_files = written_in_files(self._operator, port, event)
            yield from self._generated(self._input(port, event), event) if in_files is None else in_files
        except Exception as error:
            self._fail_at(error, port, event, inset_id, is_first=not self._has_generated)
        self._has_generated = True

    def _generated(self, given: InputEvent, event: Event) -> Iterator[Output]:
        external = self._external()
        brings_records = given.table.num_rows or given.place is None
        outputs: Sequence[tuple[str, pa.Table]] = []
        if brings_records:
            with self._call("process", port=given.port, event=event):
                outputs = _tables(self._operator.process(given, external))
        serialized = {id(given.table): event.body} if event.body else {}
        for action in external.collected:
            yield _with_body(action, serialized)
        for name, table, about in self._told(given, outputs):
            yield Emit(name, table, table.num_rows, serialized.get(id(table)), about)

    def _told(
        self, given: InputEvent, outputs: Sequence[tuple[str, pa.Table]]
    ) -> Iterator[tuple[str, pa.Table, Mapping[str, Any]]]:
        """What is sent. If a Merger keeps the order, each event has its place. With the last one, a silent port gets an event
        without records, so that the Merger learns that nothing more comes."""
        if given.place is None:
            yield from ((name, table, {}) for name, table in outputs)
            return
        number, is_last = given.place
        left = Counter(name for name, _ in outputs)
        silent = [port for port in self._operator.outputs if port not in left and is_last]
        for name, table in [*outputs, *((port, given.table.slice(0, 0)) for port in silent)]:
            left[name] -= 1
            yield name, table, {PLACE: [number, is_last and left[name] <= 0]}


def _tables(outputs: Iterable[tuple[str, Any]]) -> list[tuple[str, pa.Table]]:
    return [(port, needed_table(table, f"the operator, for output port {port!r},")) for port, table in outputs]


def _with_body(action: Any, serialized: Mapping[int, bytes | None]) -> Output:
    """A write action of the very records that arrived reuses their bytes."""
    body = serialized.get(id(action.payload))
    if isinstance(action, Write) and body is not None:
        return Write(action.connection, action.header, action.payload, action.records, body)
    return action  # type: ignore[no-any-return]


class FrameLogic(StatelessLogic):
    """An operator of mode ``dataframe``: what it makes of an event has come with the event (ADR-81).

    Its state is the schemas of what it has sent, by output port, or written: they stay the same for a whole run.
    """

    def initial_state(self) -> dict[str, Any]:
        return {SCHEMAS: {}}

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        for name, schema in self._schemas(port, event).items():
            known = state[SCHEMAS].setdefault(name, schema)
            if known != schema:
                what = f"output port {name!r}" if self._operator.outputs else f"folder {self._operator}"
                self._fail_at(_other_columns(what, known, schema), port, event)
        return super().assign(port, event, state)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        port, event = held
        if isinstance(self._operator, DatasetWriter):
            written = event.payload.writes[self._name]
            yield Write(self._operator.connection, {"action": INSERT}, written, written.num_rows)
        for name, output in self._outputs(port, event).items():
            yield Emit(name, output, output.num_rows)

    def _schemas(self, port: str, event: Event) -> Mapping[str, str]:
        if isinstance(self._operator, DatasetWriter):
            return {port: event.payload.schema}
        return {name: output.schema for name, output in self._outputs(port, event).items()}

    def _outputs(self, port: str, event: Event) -> Outputs:
        return {} if isinstance(self._operator, DatasetWriter) else event.payload.then[Port(self._name, port)]


def _other_columns(what: str, known: str, schema: str) -> OperatorFailed:
    return OperatorFailed(
        f"{what} has had records with the columns {_columns(known)}, and now gets {_columns(schema)}: they have one schema "
        "for the whole run"
    )


def _columns(schema: str) -> str:
    fields = json.loads(schema)["fields"]
    return ", ".join(f"{field['name']} {_type_name(field['type'])}" for field in fields) or "none"


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", kind))


class StatefulLogic(_Adapter):
    _last: tuple[str, int] | None = None
    """Port and id of the event that was assigned last, in this epoch."""
    _assigned = 0
    """Events assigned in this epoch."""

    def initial_state(self) -> dict[str, Any]:
        try:
            return dict(self._operator.initial_state())
        except Exception as error:
            self._fail(error, "the initial state")

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        self._last = (port, event.event_id)
        given = self._input(port, event)
        try:
            with self._call("assign", port=port, event=event):
                parts = dict(self._operator.assign(given, state))
        except Exception as error:
            self._fail_at(error, port, event, is_first=not self._assigned)
        self._assigned += 1
        if is_due(self._assigned):
            for inset_id, part in parts.items():
                self._check_part(given, event, inset_id, part)
        return parts

    def _check_part(self, given: InputEvent, event: Event, inset_id: str, part: Any) -> None:
        try:
            if not may_be_equal(part, self._operator.part(given, inset_id)):
                raise OperatorFailed(
                    "part() returned for this event and Input Set what is not what assign() returned. A recovery rebuilds "
                    "event states with part(), so both must depend on the event and the name of the Input Set alone: on no "
                    "clock, no random number, nothing that the process remembers"
                )
        except Exception as error:
            self._fail_at(error, given.port, event, inset_id)

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        try:
            with self._call("part", inset_id, port=port, event=event):
                return self._operator.part(self._input(port, event), inset_id)
        except Exception as error:
            self._fail_at(error, port, event, inset_id)

    def accumulate(self, held: Any | None, part: Any) -> Any:
        try:
            with self._call("accumulate"):
                return self._operator.accumulate(held, part)
        except Exception as error:
            self._fail(error, "accumulating an event")  # the protocol says which one, and in which Input Set

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        try:
            with self._call("triggered"):
                return list(self._operator.triggered(state, open_insets))
        except Exception as error:
            self._fail_to_trigger(error, open_insets)

    def _fail_to_trigger(self, error: Exception, open_insets: Sequence[str]) -> NoReturn:
        """Blame the event that was used last, if a recovery uses that one last, too: not if ports just take turns."""
        one_order = len(self._operator.inputs) == 1 or bool(self._operator.port_order)
        at = FailurePoint(self._name, action="the trigger")
        after = "a recovery"
        if self._last is not None:
            port, event_id = self._last
            after = f"port {port!r}, event {event_id}"
            at = FailurePoint(self._name, port, event_id) if one_order else at
        self._fail(error, f"evaluating the trigger after {after}, {_open(open_insets)}", at)

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        try:
            with self._call("flush"):
                return list(self._operator.flush(state, open_insets))
        except Exception as error:
            at = FailurePoint(self._name, action="the flush at the end of the stream")
            self._fail(error, f"flushing at the end of the stream, {_open(open_insets)}", at)

    def function(self, inset_id: str) -> str:
        try:
            return self._operator.function(inset_id)  # type: ignore[no-any-return]
        except Exception as error:
            self._fail_in(error, inset_id)

    def order(self, inset_id: str) -> int | str | None:
        try:
            return self._operator.order(inset_id)  # type: ignore[no-any-return]
        except Exception as error:
            self._fail_in(error, inset_id)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        try:
            external = self._external()
            with self._call("generate", inset_id):
                outputs = _tables(self._operator.generate(InputSet(inset_id, held), state, external))
            yield from external.collected
            for name, table in outputs:
                yield Emit(name, table, table.num_rows)
        except Exception as error:
            self._fail_in(error, inset_id, is_first=not self._has_generated)
        self._has_generated = True


class FrameWindowLogic(StatefulLogic):
    """A window over datasets (ADR-84): an event is materialized before it comes, with how many records each window has."""

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        self._last = (port, event.event_id)
        try:
            with self._call("assign", port=port, event=event):
                parts = self._assign_evaluated(port, event, event.payload, state)
        except Exception as error:
            self._fail_at(error, port, event, is_first=not self._assigned)
        self._assigned += 1
        return parts

    def _assign_evaluated(self, port: str, event: Event, given: Evaluated, state: dict[str, Any]) -> Mapping[str, Any]:
        known = state[SCHEMAS].setdefault(port, given.schema)
        if known != given.schema:
            raise _other_columns(f"input port {port!r}", known, given.schema)
        if given.given is not None:
            return dict(self._operator.assign(self._input(port, event), state))
        dataset, records = given.materialized, given.windows.get(Port(self._name, port), {})
        names = self._operator.window.joined(Arrival(port, event.event_id, records), state)
        counts = [records[number] for number in sorted(records)] if records else [dataset.num_rows] * len(names)
        return {name: self._part(port, dataset, count) for name, count in zip(names, counts, strict=True)}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        """Reference and name say it all: nothing is looked at."""
        given = event.payload
        return self._part(port, given, 0) if isinstance(given, Dataset) else super().part(port, event, inset_id)

    def _part(self, port: str, dataset: Dataset, records: int) -> Any:
        share = dataset.nbytes * records // max(dataset.num_rows, 1)
        return self._operator.part_of(port, DatasetPart(dataset, share))


def _open(insets: Sequence[str]) -> str:
    more = f" and {len(insets) - NAMED_INSETS:,} more" if len(insets) > NAMED_INSETS else ""
    return f"open Input Sets {', '.join(map(repr, insets[:NAMED_INSETS]))}{more}"


RoutesOf = Callable[[str], Routes]
"""Dispatcher → what it knows of the replicas behind it."""


def no_routes(dispatcher: str) -> Routes:
    """The routes of a group that has no Dispatcher: none."""
    raise LookupError(f"operator {dispatcher!r} is no Dispatcher of this group")


class DispatcherLogic(StatefulLogic):
    """A Dispatcher, which looks at the replicas behind it when it sends an event (Section 7.1)."""

    def __init__(
        self, pipeline: str, name: str, operator: Dispatcher, connections: Connections, routes_of: RoutesOf
    ) -> None:
        super().__init__(pipeline, name, operator, connections)
        self._routes_of = routes_of

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        try:
            sent = list(self._operator.dispatch(InputSet(inset_id, held), state, self._routes_of(self._name)))
        except Exception as error:
            self._fail_in(error, inset_id)
        for one in sent:
            about: dict[str, Any] = {PROGRESS: one.progress} if one.progress else {}
            if one.place is not None:
                about[PLACE] = [one.place, True]
            yield Emit(one.port, one.table, one.table.num_rows, about=about)


def specs_of(
    pipeline: Pipeline,
    members: Collection[str],
    connections: Connections,
    routes_of: RoutesOf = no_routes,
    first_actions: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[list[OperatorSpec], dict[Port, tuple[Port, ...]]]:
    """The given operators in topological order, and the receivers of their output ports.

    `first_actions` are those of the run's sources, by which a writer knows that the source before it has no records.
    """
    specs = []
    receivers: dict[Port, tuple[Port, ...]] = {}
    for name, operator in pipeline.operators.items():
        if name not in members:
            continue
        inside, outside = pipeline.lineage_ports(name)
        logic = _logic(pipeline, name, operator, connections, routes_of)
        if isinstance(logic, StatelessLogic) and isinstance(operator, ActionWriter):
            logic.empty_schema = _empty_schema(pipeline, name, first_actions)
        specs.append(
            OperatorSpec(
                name=name,
                inputs=tuple(operator.inputs),
                outputs=tuple(operator.outputs),
                logic=logic,
                lineage_in=frozenset(inside),
                lineage_out=frozenset(outside),
                lineage_starts=pipeline.lineage_starts(name),
                asynchronous=operator.mode is ExecutionMode.EXECUTORS or isinstance(operator, FrameWindowOperator),
                reads_state=operator.reads_state,
                stateless=isinstance(operator, StatelessOperator),
                replayable=getattr(operator, "replayable", True),
                forgets=forgets(operator),
                port_order=tuple(operator.port_order),
                sends_after_writes=operator.sends_after_writes,
                evaluated=operator.mode is ExecutionMode.DATAFRAME,
                quarantines=operator.on_error == "quarantine",
            )
        )
        for port in operator.outputs:
            receivers[Port(name, port)] = pipeline.receivers(Port(name, port))
    return specs, receivers


def captured_inputs(pipeline: Pipeline) -> frozenset[Port]:
    """Input ports of the whole pipeline for which lineage is captured (IN of Section 3.1)."""
    return frozenset(Port(name, port) for name in pipeline.operators for port in pipeline.lineage_ports(name)[0])


def _logic(
    pipeline: Pipeline, name: str, operator: Operator, connections: Connections, routes_of: RoutesOf
) -> Logic | None:
    if isinstance(operator, Dispatcher):
        return DispatcherLogic(pipeline.name, name, operator, connections, routes_of)
    if isinstance(operator, FrameWindowOperator):
        return FrameWindowLogic(pipeline.name, name, operator, connections)
    if operator.mode is ExecutionMode.DATAFRAME and operator.inputs:
        return FrameLogic(pipeline.name, name, operator, connections)
    if isinstance(operator, StatelessOperator):
        return StatelessLogic(pipeline.name, name, operator, connections)
    if isinstance(operator, StatefulOperator):
        return StatefulLogic(pipeline.name, name, operator, connections)
    return None


def _empty_schema(pipeline: Pipeline, writer: str, first_actions: Mapping[str, Mapping[str, Any]]) -> pa.Schema | None:
    """The schema of the source right before a writer, if its files have no rows."""
    senders = [pipeline.sender(Port(writer, port)).operator for port in pipeline.operators[writer].inputs]
    for sender in senders:
        if isinstance(pipeline.operators[sender], ParquetSource) and SCHEMA in first_actions.get(sender, {}):
            return schema_of(first_actions[sender][SCHEMA])
    return None

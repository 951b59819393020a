"""Adapters between an author's operators and the protocol (Algorithms 2 and 3): stateless, stateful, and Dispatchers.

Each calls the author's methods, takes their time, and reports their errors with operator, port, event and Input Set. What a
generation reads and writes outside is performed, or collected, by its `StepExternal`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import needed_table
from airflow_logio.dataflow.functions.function_operators import FunctionOperator
from airflow_logio.dataflow.operators import InputEvent, InputSet, Operator
from airflow_logio.dataflow.reads import DeclaredRead
from airflow_logio.dataflow.replication import Dispatcher, Routes
from airflow_logio.dataflow.unavailability import advice_for_code
from airflow_logio.dataflow.writers.action_writers import BEGIN, EVENT, INSERT, ActionWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.driver.logics.replay_check import is_due, may_be_equal
from airflow_logio.errors import FailurePoint, LogioError, LogUnavailable, OperatorFailed, authored_frames
from airflow_logio.protocol.logic import Emit, Output, Read, Write
from airflow_logio.protocol.replicas import PLACE, PROGRESS
from airflow_logio.protocol.values import Event
from airflow_logio.protocol.writes import CLOSE
from airflow_logio.systems.arrow import decode
from airflow_logio.systems.calls import Call
from airflow_logio.systems.connections import Connections, describe_read, number_of
from airflow_logio.systems.payloads.bodies import dataset_of, table_of
from airflow_logio.systems.payloads.dataset import Borrowed, Dataset

_NO_PROGRESS: Mapping[str, str] = {}
NAMED_INSETS = 5
"""An error message names at most this many open Input Sets."""
RoutesOf = Callable[[str], Routes]
"""Dispatcher → what it knows of the replicas behind it."""


class Adapter:
    """What the adapters of all kinds of operators share.

    Errors in the author's code come out as `OperatorFailed` with pipeline, operator, port, event and Input Set, as far as
    they are known here; `protocol.operator` adds what only it knows. What they say is composed when they are raised.
    """

    _has_generated = False
    """Whether it has generated from an Input Set in this epoch."""
    empty_schema: pa.Schema | None = None
    """For a writer: the schema of the source right before it, if the run knows that the source has no records."""

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

    def closing(self) -> Sequence[Write]:
        """The write action behind all others, if the writer closes."""
        if not isinstance(self._operator, ActionWriter) or not self._operator.closes:
            return ()
        try:
            described = self._operator.closing()
        except Exception as error:
            self._fail(error, "the closing write action")
        return (Write(self._operator.connection, {**described, "action": CLOSE}),)

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


class StepExternal:
    """`External` of one generation: performs reads at once, collects writes; both become part of the Output Set."""

    def __init__(self, name: str, operator: Operator, connections: Connections) -> None:
        self._name = name
        self._operator = operator
        self._connections = connections
        self.collected: list[Read | Write] = []

    @property
    def params(self) -> Mapping[str, Any]:
        """The run's parameters."""
        return self._connections.params

    def read(self, read: DeclaredRead, keys: pa.Array | None = None) -> pa.Table:
        """A side-effect read action: its effect is obtained once, here."""
        if read.connection in self._operator.writes():
            raise OperatorFailed(
                f"operator {self._name!r} reads connection {read.connection!r}, which it writes: what it reads would depend "
                "on how far its writes have come. Read in an operator of another group"
            )
        if read.connection not in self._operator.connections():
            raise OperatorFailed(
                f"operator {self._name!r} reads connection {read.connection!r}, but does not name it in connections(); name "
                "it there, so that the pipeline is checked with it"
            )
        table = self._connections.read(read, keys)
        described = describe_read(read, number_of(keys))
        self.collected.append(Read(read.connection, described, table, table.num_rows))
        return table

    def write(self, connection: str, table: pa.Table) -> None:
        """A write action: logged with the Output Set, executed after that commit."""
        if connection not in self._operator.writes():
            raise OperatorFailed(
                f"operator {self._name!r} writes to connection {connection!r}, but does not say so in writes(); declare it "
                "there or use Pipeline.writer, so that the guarantee of its write actions is known"
            )
        records = needed_table(table, f"the code that writes to connection {connection!r}")
        if isinstance(self._operator, TableWriter | DeltaWriter) and self._operator.owned is not None:
            self._operator.owned.check_records(f"table {self._operator.table!r}", records)
        self.collected.append(Write(connection, {"action": INSERT}, records, records.num_rows))


def checked_tables(outputs: Iterable[tuple[str, Any]]) -> list[tuple[str, pa.Table]]:
    return [(port, needed_table(table, f"the operator, for output port {port!r},")) for port, table in outputs]


class StatelessLogic(Adapter):
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
                outputs = checked_tables(self._operator.process(given, external))
        serialized = {id(given.table): event.body} if event.body else {}
        for action in external.collected:
            yield _with_body(action, serialized)
        for name, table, about in self._told(given, outputs):
            yield Emit(name, table, table.num_rows, serialized.get(id(table)), about, self._late(name, table))

    def _late(self, port: str, table: pa.Table) -> Mapping[str, int]:
        if not isinstance(self._operator, FunctionOperator) or not table.num_rows:
            return {}
        return self._operator.late(port, table, self._connections.params)

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


def _with_body(action: Any, serialized: Mapping[int, bytes | None]) -> Output:
    """A write action of the very records that arrived reuses their bytes."""
    body = serialized.get(id(action.payload))
    if isinstance(action, Write) and body is not None:
        return Write(action.connection, action.header, action.payload, action.records, body)
    return action  # type: ignore[no-any-return]


def written_in_files(operator: Operator, port: str, event: Event) -> Sequence[Output] | None:
    """What a writer of a table makes of an event that is a dataset, whose records stay in files up to the table (ADR-86).

    It is the write action of the event, and the event sent on, if the writer sends. None if the records are to be looked at
    here.

    Raises `OperatorFailed` for records of other columns than the table's, and for those that cannot be of a run's day: by
    their type, or by the statistics of their files.
    """
    dataset = dataset_of(event.payload)
    if dataset is None or PLACE in event.about or not isinstance(operator, TableWriter | DeltaWriter):
        return None
    if not operator.takes_files():
        return None
    nothing = operator.records(InputEvent(port, event.event_id, dataset.empty()))
    if operator.owned is not None:
        where = f"table {operator.table!r}"
        operator.owned.check_records(where, nothing)
        with suppress(LogUnavailable):  # the closing transaction counts them, too
            operator.owned.check_spans(where, dataset.spans(operator.owned.column), dataset.num_rows)
    described: dict[str, Any] = {"action": INSERT}
    if isinstance(operator, TableWriter) and operator.lineage_column is not None:
        described[EVENT] = event.event_id
    # The dataset of an event from the log is that of its row; what a chain has made may have none.
    payload = Borrowed(dataset) if isinstance(event.payload, Dataset) else event.payload
    return (
        Write(operator.connection, described, payload, dataset.num_rows),
        *(Emit(output, payload, dataset.num_rows) for output in operator.outputs),
    )


class StatefulLogic(Adapter):
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
                outputs = checked_tables(self._operator.generate(InputSet(inset_id, held), state, external))
            yield from external.collected
            for name, table in outputs:
                yield Emit(name, table, table.num_rows)
        except Exception as error:
            self._fail_in(error, inset_id, is_first=not self._has_generated)
        self._has_generated = True


def _open(insets: Sequence[str]) -> str:
    more = f" and {len(insets) - NAMED_INSETS:,} more" if len(insets) > NAMED_INSETS else ""
    return f"open Input Sets {', '.join(map(repr, insets[:NAMED_INSETS]))}{more}"


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


def no_routes(dispatcher: str) -> Routes:
    """The routes of a group that has no Dispatcher: none."""
    raise LookupError(f"operator {dispatcher!r} is no Dispatcher of this group")

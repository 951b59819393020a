"""What all adapters do: calls whose time is taken, errors with their place, events as records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa

from airflow_logio.authored_frames import authored_frames
from airflow_logio.dataflow.arrow_tables import needed_table
from airflow_logio.dataflow.operators import InputEvent, Operator
from airflow_logio.dataflow.unavailability import advice_for_code
from airflow_logio.dataflow.writers.action_writers import BEGIN, ActionWriter
from airflow_logio.errors import FailurePoint, LogioError, OperatorFailed
from airflow_logio.protocol.logic import Write
from airflow_logio.protocol.replicas import PLACE, PROGRESS
from airflow_logio.protocol.values import Event
from airflow_logio.systems.arrow import decode
from airflow_logio.systems.call_watch import Call
from airflow_logio.systems.connections import Connections, StepExternal
from airflow_logio.systems.payloads.bodies import table_of

_NO_PROGRESS: Mapping[str, str] = {}


class Adapter:
    """What the adapters of all kinds of operators share.

    Errors in the author's code come out as `OperatorFailed` with pipeline, operator, port, event and Input Set, as far as
    they are known here; `protocol.operator` adds what only it knows. What they say is composed when they are raised.
    """

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


def checked_tables(outputs: Iterable[tuple[str, Any]]) -> list[tuple[str, pa.Table]]:
    return [(port, needed_table(table, f"the operator, for output port {port!r},")) for port, table in outputs]

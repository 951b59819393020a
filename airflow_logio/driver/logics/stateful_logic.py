"""The adapter of a `StatefulOperator`: Input Sets, their parts, triggers and flushes are the author's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from airflow_logio.dataflow.operators import InputEvent, InputSet
from airflow_logio.driver.logics.adapter import Adapter, checked_tables
from airflow_logio.driver.logics.part_check import is_due, may_be_equal
from airflow_logio.errors import FailurePoint, OperatorFailed
from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.protocol.values import Event

NAMED_INSETS = 5
"""An error message names at most this many open Input Sets."""


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

"""What is made again must come out the same: checked now and then, because recovery would be too late to notice.

`StatefulOperator.part` must return what `assign` has returned (Algorithm 9 Step 2.b). Otherwise an event state that is
rebuilt differs from the one that was lost, and a record may count twice, or not at all.

A replay operator must make the same of the same events, wherever that happens (Section 5, ADR-106); otherwise its events
cannot be made again after a failure. Its input and output have the form that they would have if they had been read from the
log: a function may tell apart how the same records lie in memory, and between operators of one group they lie otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from numbers import Number
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from airflow_logio.errors import FailurePoint, OperatorFailed
from airflow_logio.protocol.logic import Emit, Logic, Output, Write
from airflow_logio.protocol.values import Event
from airflow_logio.systems.arrow import as_read, bytes_held, digest_of
from airflow_logio.systems.payloads.bodies import table_of

PLAIN = (str, bytes, bytearray, date, time, timedelta, UUID, type(None))
"""Besides numbers: what is equal if ``==`` says so. Other objects may hold what is never equal to itself."""


def is_due(events: int) -> bool:
    """Whether to look at the event of this number, counted from 1 in each epoch: at the first, and ever more rarely."""
    return events > 0 and events & (events - 1) == 0


def may_be_equal(one: Any, other: Any) -> bool:
    """False only for what is certainly different: what cannot be compared may be equal. NaN equals NaN."""
    if isinstance(one, Number) and isinstance(other, Number):
        return _values(one, other)
    if type(one) is not type(other):
        return False
    match one:
        case pa.Table():
            return _tables(one, other)
        case tuple() | list():
            return len(one) == len(other) and all(map(may_be_equal, one, other))
        case Mapping():
            return one.keys() == other.keys() and all(may_be_equal(one[key], other[key]) for key in one)
    return not isinstance(one, PLAIN) or _values(one, other)


def _values(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124  # that is what NaN is
    except Exception:  # arrays and frames have no truth
        return True


def _tables(one: pa.Table, other: pa.Table) -> bool:
    if one.num_rows != other.num_rows or one.schema.names != other.schema.names:
        return False
    if one.equals(other):
        return True
    return all(map(_columns, one.columns, other.columns))


def _columns(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    if one.type != other.type:
        return False
    if one.equals(other) or not pa.types.is_floating(one.type):
        holds_others = pa.types.is_nested(one.type) or pa.types.is_dictionary(one.type)  # perhaps NaN
        return bool(one.equals(other)) or holds_others
    return bool(_without_nan(one).equals(_without_nan(other)) and pc.is_nan(one).equals(pc.is_nan(other)))


def _without_nan(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_nan(column), pa.scalar(0, column.type), column)


def contents(payload: Any) -> bytes:
    """The digest of an event's payload."""
    return digest_of(table_of(payload))


def size(payload: Any) -> int:
    """The bytes that an event's payload keeps in memory."""
    return bytes_held(table_of(payload))


class ReplayLogic:
    """The logic of a replay operator. Some Output Sets are generated twice: the first one, and ever fewer."""

    def __init__(self, operator: str, logic: Logic) -> None:
        self._operator = operator
        self._logic = logic
        self._generated = 0

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        """Raises `OperatorFailed` where the second Output Set differs from the first, or where the state is looked at."""
        unread = UnreadState(self._operator)
        outputs = [_as_read(output) for output in self._logic.generate(inset_id, held, unread)]
        self._generated += 1
        if is_due(self._generated):
            again = list(self._logic.generate(inset_id, held, unread))
            if list(map(_seen, outputs)) != list(map(_seen, again)):
                raise OperatorFailed(
                    "it was generated twice, and the results differ. The log does not keep what a replay operator makes, so "
                    "it must make the same of the same events: use no clock, no random number, nothing from outside, change "
                    "nothing that is given, and sort what threads have aggregated. Else leave out replay=True",
                    FailurePoint(self._operator, inset_id=inset_id),
                    place=f"replay operator {self._operator!r}, Input Set {inset_id!r}",
                    is_first=self._generated == 1,
                )
        return outputs

    # --- as it is -----------------------------------------------------------------------------------------------------

    def initial_state(self) -> dict[str, Any]:
        return self._logic.initial_state()

    def opening(self) -> Sequence[Write]:
        return self._logic.opening()

    def closing(self) -> Sequence[Write]:
        return self._logic.closing()

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        return self._logic.assign(port, _read(event), state)

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return self._logic.part(port, _read(event), inset_id)

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return self._logic.accumulate(held, part)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return self._logic.triggered(state, open_insets)

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return self._logic.flush(state, open_insets)

    def function(self, inset_id: str) -> str:
        return self._logic.function(inset_id)

    def order(self, inset_id: str) -> int | str | None:
        return self._logic.order(inset_id)


class UnreadState(Mapping[str, Any]):
    """The global state, as the generation of a replay operator gets it: it is another one when the event is made again."""

    def __init__(self, operator: str) -> None:
        self._operator = operator

    def __getitem__(self, name: str) -> Any:
        raise self._refusal()

    def __iter__(self) -> Iterator[str]:
        raise self._refusal()

    def __len__(self) -> int:
        raise self._refusal()

    def _refusal(self) -> OperatorFailed:
        return OperatorFailed(
            "its generation looks at the global state, which is another one when its events are made again. Let it depend on "
            "the Input Set alone, or leave out replay=True",
            FailurePoint(self._operator),
            place=f"replay operator {self._operator!r}",
        )


def _read(event: Event) -> Event:
    return replace(event, payload=as_read(event.payload)) if isinstance(event.payload, pa.Table) else event


def _as_read(output: Output) -> Output:
    return replace(output, payload=as_read(output.payload)) if isinstance(output.payload, pa.Table) else output


def _seen(output: Output) -> tuple[str, bytes]:
    assert isinstance(output, Emit), f"{output} of a replay operator"
    return output.port, digest_of(table_of(output.payload))

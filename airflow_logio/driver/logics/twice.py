"""The logic of a replay operator: it makes the same of the same events, wherever that happens (Section 5, ADR-106).

What it gets and what it gives has the form that it would have if it had been read from the log: a function may tell apart
how the same records lie in memory, and they lie otherwise when they come from an operator in the same group. Where it does
not make the same of the same, its events cannot be made again after a failure, which would be too late to notice. So this is
looked at now and then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from airflow_logio.driver.logics.part_check import is_due
from airflow_logio.errors import FailurePoint, OperatorFailed
from airflow_logio.protocol.logic import Emit, Logic, Output, Write
from airflow_logio.protocol.values import Event
from airflow_logio.systems.arrow import as_read
from airflow_logio.systems.contents import digest_of
from airflow_logio.systems.payloads.bodies import table_of


class Twice:
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

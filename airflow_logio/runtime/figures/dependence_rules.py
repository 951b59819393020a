"""One step of record lineage: from records of an Input Set's output events to the records of its input events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_logio.protocol.record_rules import Dependence, RecordRules, Uses
from airflow_logio.runtime.figures.event_columns import EventColumns, common
from airflow_logio.runtime.figures.input_set_parts import InputSetPart
from airflow_logio.runtime.figures.record_matching import Places, Values, comparable, counts
from airflow_logio.store.lineage.result import EventNode, InputSetNode


class WantedRecords(NamedTuple):
    """Records of an output event whose origin is sought."""

    event: EventNode
    places: Places | None
    """None: its records are not in the log."""
    doubts: Sequence[str]
    """Why some of them may not belong to the answer."""


@dataclass(frozen=True, slots=True)
class Made:
    """Wanted records of one output port, and the events of an input port in the Input Set that they were made from."""

    inset: InputSetNode
    rules: RecordRules
    output: str
    wanted: Sequence[WantedRecords]
    input: str
    taken: Sequence[EventNode]


Found = tuple[EventNode, Places | None, Sequence[str]]
"""An input event, its records that count (None: perhaps all), and why some of them may not."""
Mask = npt.NDArray[np.bool_]


def made_from(made: Made, columns: EventColumns) -> Iterator[Found]:
    """The records of each input event that the wanted ones were made from; none is missing."""
    taken = [event for event in made.taken if columns.records(event) != 0]
    if not taken:
        return
    step = _Step(replace(made, taken=taken), columns)
    found = step.as_they_are() or step.by_values()
    for event, places in found.items():
        yield event, places, tuple(step.doubts)


class _Step:
    def __init__(self, made: Made, columns: EventColumns) -> None:
        self._made = made
        self._columns = columns
        self._dependence = made.rules.outputs.get(made.output)
        self._part = InputSetPart.of(made.rules, made.inset.inset_id)
        self.doubts: dict[str, None] = {}
        for one in made.wanted:
            self.doubts |= dict.fromkeys(one.doubts)

    def _doubt(self, sentence: str) -> None:
        self.doubts[sentence] = None

    def as_they_are(self) -> dict[EventNode, Places | None] | None:
        """If the output event is the input event, its records are the same; None if they may not be."""
        made = self._made
        if self._dependence is None or self._dependence.uses is not Uses.SAME:
            return None
        if len(made.wanted) != 1 or len(made.taken) != 1:
            return None
        (wanted,), (taken,) = made.wanted, made.taken
        is_same = self._columns.records(wanted.event) == self._columns.records(taken)
        return {taken: wanted.places} if is_same else None

    def by_values(self) -> dict[EventNode, Places | None]:
        made = self._made
        inputs = {event: self._kept(event, self._input_columns()) for event in made.taken}
        outputs = {
            one.event: None if one.places is None else self._kept(one.event, self._output_columns())
            for one in made.wanted
        }
        if self._part.rule is None:
            self._doubt(f"it is not known which records of an event an Input Set of {made.inset.operator} has")
        inside = {event: self._inside(event, table) for event, table in inputs.items() if table is not None}
        found = dict(inside)
        tables = [one for one in outputs.values() if one is not None]
        if len(tables) == len(outputs) and self._dependence is not None:
            compared = self._compared(self._dependence, tables, [one for one in inputs.values() if one is not None])
            found = self._with_the_values(self._dependence, compared, inputs, outputs, inside)
        elif self._dependence is None:
            self._doubt(f"{made.inset.operator} does not say how its records depend on those it gets (depends=...)")
        return {event: np.flatnonzero(found[event]) if event in found else None for event in inputs}

    # --- what is read ---------------------------------------------------------------------------------------------------

    def _output_columns(self) -> Sequence[str] | None:
        """None: all."""
        if self._dependence is None:
            return ()
        columns = self._dependence.columns
        return None if columns is None else tuple(columns.get(self._made.input, ()))

    def _input_columns(self) -> Sequence[str] | None:
        if self._dependence is None:
            return self._part.columns
        columns = self._dependence.columns
        return None if columns is None else (*columns.get(self._made.input, {}).values(), *self._part.columns)

    def _kept(self, event: EventNode, columns: Sequence[str] | None) -> pa.Table | None:
        table = self._columns.kept(event, columns)
        if table is None:
            self._doubt(f"records of {event.port} are not in the log")
        return table

    def _inside(self, event: EventNode, table: pa.Table) -> Mask:
        return self._part.mask(self._made.input, event.event_id, table, self._many(event))

    def _many(self, event: EventNode) -> int:
        return self._columns.records(event) or 0

    # --- what is compared -----------------------------------------------------------------------------------------------

    def _compared(
        self, dependence: Dependence, outputs: Sequence[pa.Table], inputs: Sequence[pa.Table]
    ) -> dict[str, tuple[str, pa.DataType]]:
        """Output column → the input column with the same value, and as what type both are compared."""
        operator = self._made.inset.operator
        if dependence.columns is None:
            pairs = [(name, name) for name in common([*outputs, *inputs])]
        else:
            if dependence.columns and self._made.input not in dependence.columns:
                self._doubt(f"depends=... of {operator} names no column of its input port {self._made.input!r}")
            pairs = list(dependence.columns.get(self._made.input, {}).items())
        found = {}
        for name, column in pairs:
            if any(one.column_names.count(name) != 1 for one in outputs) or any(
                one.column_names.count(column) != 1 for one in inputs
            ):
                self._doubt(f"depends=... of {operator} names {name!r} and {column!r}, which the records do not have")
                continue
            kinds = [one.schema.field(name).type for one in outputs] + [one.schema.field(column).type for one in inputs]
            compared = comparable(kinds)
            if compared is None:
                self._doubt(f"{name!r} of {operator} cannot be compared with {column!r} before it: their types differ")
                continue
            found[name] = column, compared.kind
            if not compared.is_exact:
                self._doubt(f"{name!r} of {operator} and {column!r} before it are floating point numbers")
        return found

    def _with_the_values(
        self,
        dependence: Dependence,
        compared: Mapping[str, tuple[str, pa.DataType]],
        inputs: Mapping[EventNode, pa.Table | None],
        outputs: Mapping[EventNode, pa.Table | None],
        inside: Mapping[EventNode, Mask],
    ) -> dict[EventNode, Mask]:
        values = Values({name: kind for name, (_, kind) in compared.items()})

        def of_input(event: EventNode) -> Places:
            table = inputs[event]
            columns = {} if table is None else {name: table.column(column) for name, (column, _) in compared.items()}
            return values.numbers(columns, self._many(event))

        def of_output(event: EventNode, table: pa.Table | None) -> Places:
            columns = {} if table is None else {name: table.column(name) for name in compared}
            return values.numbers(columns, self._many(event))

        wanted = np.concatenate([of_output(one.event, outputs[one.event])[one.places] for one in self._made.wanted])
        numbers = {event: of_input(event) for event in inside}
        held = {event: one[inside[event]] for event, one in numbers.items()}
        is_all = len(inside) == len(inputs) and len(dependence.columns or {}) <= 1  # else they may be on another port
        if is_all and not np.isin(wanted, np.concatenate(list(held.values()))).all():
            self._doubt(
                f"{self._made.inset.operator} has made records with values that no record of its Input Set has, against its "
                "depends=...: none can be left out"
            )
            return dict(inside)
        if dependence.uses is Uses.SOME:
            self._doubt(f"{self._made.inset.operator} may use only some of the records with these values")
        elif dependence.uses is not Uses.EVERY:
            self._check_one(of_output, outputs, counts(list(held.values())), counts([wanted]))
        return {event: inside[event] & np.isin(numbers[event], wanted) for event in inside}

    def _check_one(
        self,
        of_output: Callable[[EventNode, pa.Table | None], Places],
        outputs: Mapping[EventNode, pa.Table | None],
        held: Mapping[int, int],
        wanted: Mapping[int, int],
    ) -> None:
        """Every input record with these values has made one of the wanted records, if there are as many of these, and no
        other output record has the values."""
        every = []
        for event in self._columns.siblings(self._made.wanted[0].event, self._made.inset.inset_id):
            table = outputs.get(event)
            if table is None:
                table = self._columns.kept(event, self._output_columns())
            every.append(of_output(event, table))
        made = counts(every)
        if any(held.get(number) != many or made.get(number) != many for number, many in wanted.items()):
            self._doubt(f"{self._made.inset.operator} may have left out some of the records with these values")

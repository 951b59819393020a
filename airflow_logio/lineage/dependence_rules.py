"""One step of record lineage: from records of an Input Set's output events to the records of its input events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.windows.timeline import Grid, window_numbers
from airflow_logio.errors import OperatorFailed
from airflow_logio.lineage.event_columns import EventColumns, common
from airflow_logio.lineage.record_matching import Places, Side, comparable, counts, numbered
from airflow_logio.protocol.record_rules import Dependence, Part, RecordRules, Uses
from airflow_logio.store.lineage.result import EventNode, InputSetNode


class WantedRecords(NamedTuple):
    """Records of an output event whose origin is sought."""

    event: EventNode
    places: Places | None
    """None: its records are not in the log."""
    doubts: Sequence[str]
    """Why some of them may not belong to the answer."""


class Taken(NamedTuple):
    """An event in the Input Set, and the input port on which it came."""

    port: str
    event: EventNode


@dataclass(frozen=True, slots=True)
class Made:
    """Wanted records of one output port, and the events in the Input Set that they were made from."""

    inset: InputSetNode
    rules: RecordRules
    output: str
    wanted: Sequence[WantedRecords]
    taken: Sequence[Taken]
    is_whole: bool
    """No event of the Input Set is missing, because lineage is not captured on its port or only one path is asked for."""


Found = tuple[EventNode, Places | None, Sequence[str]]
"""An input event, its records that count (None: perhaps all), and why some of them may not."""
Mask = npt.NDArray[np.bool_]
COUNTED = (Uses.ONE, Uses.SAME)
"""An output record is made of one input record: if there are as many of both that are alike, none was left out."""


def made_from(made: Made, columns: EventColumns) -> Iterator[Found]:
    """The records of each input event that the wanted ones were made from; none is missing."""
    taken = [one for one in made.taken if columns.records(one.event) != 0]
    if not taken:
        return
    step = _Step(replace(made, taken=taken), columns)
    found = step.as_they_are() or step.by_values()
    for one, places in found.items():
        yield one.event, places, tuple(step.doubts)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Columns of some input ports that are compared with output columns, and the type in which they are."""

    ports: Sequence[str]
    columns: Mapping[str, Mapping[str, str]]
    """Input port → {output column: input column}."""
    kinds: Mapping[str, pa.DataType]


class _Step:
    def __init__(self, made: Made, columns: EventColumns) -> None:
        self._made = made
        self._columns = columns
        self._dependence = made.rules.outputs.get(made.output)
        self._part = InputSetPart.of(made.rules, made.inset.inset_id)
        self._operator = made.inset.operator
        self.doubts: dict[str, None] = {}
        for one in made.wanted:
            self.doubts |= dict.fromkeys(one.doubts)

    def _doubt(self, sentence: str) -> None:
        self.doubts[sentence] = None

    def as_they_are(self) -> dict[Taken, Places | None] | None:
        """If the output event is the input event, its records are the same; None if they may not be."""
        made = self._made
        if self._dependence is None or self._dependence.uses is not Uses.SAME:
            return None
        if len(made.wanted) != 1 or len(made.taken) != 1:
            return None
        (wanted,), (taken,) = made.wanted, made.taken
        is_same = self._columns.records(wanted.event) == self._columns.records(taken.event)
        return {taken: wanted.places} if is_same else None

    def by_values(self) -> dict[Taken, Places | None]:
        inputs = self._inputs()
        inside = {one: self._inside(one, table) for one, table in inputs.items() if table is not None}
        found: Mapping[Taken, Mask] = inside
        if self._dependence is None:
            self._doubt(f"{self._operator} does not say how its records depend on those it gets (depends=...)")
        else:
            outputs = self._outputs(self._dependence)
            if outputs is not None:
                found = self._with_the_values(self._dependence, inputs, outputs, inside)
        return {one: np.flatnonzero(found[one]) if one in found else None for one in inputs}

    # --- what is read ---------------------------------------------------------------------------------------------------

    def _inputs(self) -> dict[Taken, pa.Table | None]:
        """The columns that are needed of the events in the Input Set."""
        by_port: dict[str, list[Taken]] = {}
        for one in self._made.taken:
            by_port.setdefault(one.port, []).append(one)
        found: dict[Taken, pa.Table | None] = {}
        for port, taken in by_port.items():
            tables = self._kept([one.event for one in taken], self._input_columns(port))
            found |= {one: tables.get(one.event) for one in taken}
        return found

    def _outputs(self, dependence: Dependence) -> dict[EventNode, pa.Table] | None:
        """The events with wanted records, and where records are counted those beside them that were made from the Input Set.
        None if records of one are not in the log."""
        events = {one.event: one.places for one in self._made.wanted}
        if dependence.uses in COUNTED:
            beside = self._columns.siblings(self._made.wanted[0].event, self._made.inset.inset_id)
            events |= {one: np.arange(0) for one in beside if one not in events}
        if any(places is None for places in events.values()):
            return None
        found = self._kept(list(events), self._output_columns())
        return found if len(found) == len(events) else None

    def _output_columns(self) -> Sequence[str] | None:
        """None: all."""
        if self._dependence is None or self._dependence.columns is None:
            return None
        return tuple({name: None for columns in self._dependence.columns.values() for name in columns})

    def _input_columns(self, port: str) -> Sequence[str] | None:
        if self._dependence is None:
            return self._part.columns
        columns = self._dependence.columns
        return None if columns is None else (*columns.get(port, {}).values(), *self._part.columns)

    def _kept(self, events: Sequence[EventNode], columns: Sequence[str] | None) -> dict[EventNode, pa.Table]:
        tables = dict(self._columns.each_kept(events, columns))
        for event in events:
            if event not in tables:
                self._doubt(f"records of {event.port} are not in the log")
        return tables

    def _inside(self, one: Taken, table: pa.Table) -> Mask:
        mask = self._part.mask(one.port, one.event.event_id, table, self._many(one.event))
        if mask is not None:
            return mask
        self._doubt(f"it is not known which records of an event an Input Set of {self._operator} has")
        return np.ones(self._many(one.event), dtype=bool)

    def _many(self, event: EventNode) -> int:
        return self._columns.records(event) or 0

    # --- what is compared -----------------------------------------------------------------------------------------------

    def _comparisons(
        self, dependence: Dependence, inputs: Mapping[Taken, pa.Table | None], outputs: Iterable[pa.Table]
    ) -> list[_Comparison]:
        """One comparison for all ports that depend on the same output columns."""
        known = {one: table for one, table in inputs.items() if table is not None}
        ports = list(dict.fromkeys(one.port for one in known))
        if dependence.columns is None:
            names = common([*outputs, *known.values()])
            columns = {port: {name: name for name in names} for port in ports}
        else:
            columns = {port: dict(dependence.columns.get(port, {})) for port in ports}
            for port in ports:
                if dependence.columns and port not in dependence.columns:
                    self._doubt(f"depends=... of {self._operator} names no column of its input port {port!r}")
        alike: dict[tuple[str, ...], list[str]] = {}
        for port in ports:
            alike.setdefault(tuple(sorted(columns[port])), []).append(port)
        return [
            self._comparison(some, columns, names, outputs, known, is_named=dependence.columns is not None)
            for names, some in alike.items()
        ]

    def _comparison(
        self,
        ports: Sequence[str],
        columns: Mapping[str, Mapping[str, str]],
        names: Sequence[str],
        outputs: Iterable[pa.Table],
        inputs: Mapping[Taken, pa.Table],
        *,
        is_named: bool,
    ) -> _Comparison:
        kinds = {}
        for name in names:
            sides = [(name, table) for table in outputs]
            sides += [(columns[one.port][name], table) for one, table in inputs.items() if one.port in ports]
            lacking = next((side for side, table in sides if table.column_names.count(side) != 1), None)
            if lacking is not None:
                self._inexact(f"depends=... of {self._operator} names {lacking!r}, which the records do not have once")
                continue
            compared = comparable([table.schema.field(side).type for side, table in sides])
            if compared is None and is_named:
                types = " and ".join(dict.fromkeys(str(table.schema.field(side).type) for side, table in sides))
                self._inexact(
                    f"values of {name!r} of {self._operator} and of those before it are not compared: {types}"
                )
            elif compared is not None and not compared.is_exact:
                self._inexact(
                    f"{name!r} of {self._operator} has floating point numbers, and several of them count as one"
                )
            if compared is not None:
                kinds[name] = compared.kind
        return _Comparison(ports, columns, kinds)

    def _inexact(self, sentence: str) -> None:
        """A doubt, unless each record is made of one: then it is counted how many are alike, however they are compared."""
        if self._dependence is not None and self._dependence.uses not in COUNTED:
            self._doubt(sentence)

    def _with_the_values(
        self,
        dependence: Dependence,
        inputs: Mapping[Taken, pa.Table | None],
        outputs: Mapping[EventNode, pa.Table],
        inside: Mapping[Taken, Mask],
    ) -> Mapping[Taken, Mask]:
        comparisons = self._comparisons(dependence, inputs, list(outputs.values()))
        is_whole = self._made.is_whole and len(inside) == len(inputs)
        found: dict[Taken, Mask] = {}
        met = np.zeros(sum(0 if one.places is None else len(one.places) for one in self._made.wanted), dtype=bool)
        for comparison in comparisons:
            taken = [one for one in inside if one.port in comparison.ports]
            numbers = self._numbers(comparison, inputs, outputs, taken)
            wanted = self._chosen(numbers)
            held = [numbers[one][inside[one]] for one in taken]
            met |= np.isin(wanted, np.concatenate(held) if held else wanted[:0])
            is_wanted = _among(numbers.values(), wanted)
            found |= {one: inside[one] & is_wanted[numbers[one]] for one in taken}
            if dependence.uses in COUNTED:
                made = counts([numbers[event] for event in outputs])
                self._check_counts(counts(held), made, counts([wanted]), is_whole=is_whole and len(comparisons) == 1)
        if is_whole and not met.all():
            self._doubt(
                f"{self._operator} has made records with values that no record of its Input Set has, against its "
                "depends=...: none can be left out"
            )
            return inside
        if dependence.uses is Uses.SOME:
            self._doubt(f"{self._operator} may use only some of the records with these values")
        return found

    def _numbers(
        self,
        comparison: _Comparison,
        inputs: Mapping[Taken, pa.Table | None],
        outputs: Mapping[EventNode, pa.Table],
        taken: Sequence[Taken],
    ) -> dict[Taken | EventNode, Places]:
        keys: list[Taken | EventNode] = [*outputs, *taken]
        sides = [self._side(comparison, event, table) for event, table in outputs.items()]
        for one in taken:
            table, columns = inputs[one], comparison.columns[one.port]
            assert table is not None
            sides.append(Side({name: table.column(columns[name]) for name in comparison.kinds}, self._many(one.event)))
        return dict(zip(keys, numbered(comparison.kinds, sides), strict=True))

    def _side(self, comparison: _Comparison, event: EventNode, table: pa.Table) -> Side:
        return Side({name: table.column(name) for name in comparison.kinds}, self._many(event))

    def _chosen(self, numbers: Mapping[Taken | EventNode, Places]) -> Places:
        """The numbers of the wanted records."""
        return np.concatenate([numbers[one.event][one.places] for one in self._made.wanted])

    def _check_counts(
        self, held: Mapping[int, int], made: Mapping[int, int], wanted: Mapping[int, int], *, is_whole: bool
    ) -> None:
        """Each input record with these values has made one of the wanted records, if there are as many of these, and no other
        output record has the values."""
        is_each = all(held.get(number) == many == made.get(number) for number, many in wanted.items())
        if not is_whole or not is_each:
            self._doubt(f"{self._operator} may have left out some of the records with these values")


def _among(numbers: Iterable[Places], wanted: Places) -> Mask:
    """For each number that there may be, whether it is wanted: to look that up costs a hundredth of a search."""
    found = np.zeros(1 + int(np.concatenate(list(numbers)).max(initial=-1)), dtype=bool)
    found[wanted] = True
    return found


# --- which records of an event an Input Set has -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InputSetPart:
    """The rule for one Input Set; with `rule` None, nothing is known of the parts that it has."""

    rule: Part | None
    name: str
    """The Input Set for its generative function."""

    @classmethod
    def of(cls, rules: RecordRules, inset_id: str) -> InputSetPart:
        if "" in rules.parts:
            return cls(rules.parts[""], inset_id)
        function, _, name = inset_id.partition(":")
        return cls(rules.parts.get(function), name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of an event that decide it."""
        return (self.rule.on,) if self.rule is not None and self.rule.on else ()

    def mask(self, port: str, event_id: int, table: pa.Table, records: int) -> npt.NDArray[np.bool_] | None:
        """For each record of an event of an input port, whether the Input Set has it; None if that is not known."""
        if self.rule is None:
            return None
        if not self.rule.on:
            return np.ones(records, dtype=bool)
        grid = Grid(self.rule.on, self.rule.seconds, self.rule.origin)
        try:
            start = datetime.fromisoformat(self.name).replace(tzinfo=UTC)
            numbers, _ = window_numbers(InputEvent(port, event_id, table), grid.on, grid.seconds, grid.origin)
        except (ValueError, OperatorFailed):
            return None
        found: npt.NDArray[np.bool_] = numbers == grid.number(int(start.timestamp()))
        return found

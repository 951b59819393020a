"""From output records to the input records that they were made from (Section 7.3).

Events lead to events by the log. Among the records of those events, attribute dependencies that operators declare find the
ones that count: within the part of an event that its Input Set has, those with the values of the output records. Each answer
says whether it is exact or has too many records, and why; none has too few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage.dependence_rules import Made, Taken, WantedRecords, made_from
from airflow_logio.lineage.event_columns import EventColumns
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.lineage.record_matching import Places, Side, comparable, numbered
from airflow_logio.lineage.record_values import holding
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import AnyPort, EventIds, backward, step
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, Lineage, Node, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import OperatorShape, Run

MOST_STEP_EVENTS = 1_000
MOST_STEP_RECORDS = 50_000
MOST_STEP_BYTES = 8 * 2**20
"""`step_behind` searches through no more, so that it takes less than 300 ms (docs/performance.md): rows of the log of each
kind, records, and bytes of bodies in the log."""


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """Records of an event that those which were asked for were made from, or the latter themselves."""

    event: EventNode
    places: Places | None
    """Which of its records, from 0; None if the event has no records in the log any more: perhaps all."""
    in_all: int | None
    doubts: tuple[str, ...] = ()
    """Why some of them may not have been used; empty: all were."""

    @property
    def is_exact(self) -> bool:
        return not self.doubts

    def source_row(self, place: int) -> int | None:
        """The row of what a source has read, if it has said which rows the event has; None if that is not known."""
        first, last = self.event.about.get("first"), self.event.about.get("last")
        if isinstance(first, int) and isinstance(last, int) and last - first + 1 == self.in_all:
            return first + place
        return None


@dataclass(frozen=True, slots=True)
class TracedRead:
    """A side-effect read action, and the keys of the records found: of those, its rows were joined to them."""

    read: ReadNode
    keys: pa.Array | None
    """None if it is restricted by no key, or if not all keys are known: perhaps all rows."""

    def rows(self, effect: pa.Table) -> tuple[pa.Table, bool]:
        """The rows of its stored effect, and whether these are exactly the ones: all rows, if keys cannot be found in it."""
        key = str(self.read.description.get("key"))
        if self.keys is None or effect.column_names.count(key) != 1:
            return effect, False
        column = effect.column(key)
        compared = comparable([self.keys.type, column.type])
        if compared is None:
            return effect, False
        sides = [Side({key: pa.chunked_array([self.keys])}, len(self.keys)), Side({key: column}, effect.num_rows)]
        wanted, found = numbered({key: compared.kind}, sides)
        return effect.filter(pa.array(np.isin(found, wanted))), True


@dataclass(frozen=True)
class TracedRecords:
    """The answer, under the names of the pipeline's author; without events that have no record in it."""

    roots: tuple[TracedEvent, ...]
    origins: tuple[TracedEvent, ...]
    """The nearest operator first."""
    reads: tuple[TracedRead, ...]
    """Side-effect read actions of the Input Sets on the way."""
    lineage: Lineage
    """The lineage of the events, as `backward` gives it."""

    @property
    def is_exact(self) -> bool:
        """False without origins: no log says what the records of a source were made from."""
        return bool(self.origins) and all(one.is_exact for one in self.origins)


def records_behind(
    store: LogStore,
    run: Run | str,
    port: AnyPort,
    event_id: EventIds,
    values: Mapping[str, str] | None = None,
    load: Elsewhere | None = None,
    to: AnyPort | None = None,
) -> TracedRecords:
    """The records that records of output events were made from: of all, or of those with these values (column → as text).

    Along the paths of `backward`, whose other arguments these are; `load` as for `lineage_records.records`. Raises as these
    two, and `LineageUnknown` if no record has the values, or for a column that the events do not have.
    """
    found = store.find_run(run) if isinstance(run, str) else run
    graph = backward(store, found, port, event_id, to, slots=True)
    with store.lineage(found) as log:
        tracing = _Tracing(found, graph, EventColumns(log, load), is_whole=to is None)
        tracing.begin(values or {})
        tracing.pass_all()
        return tracing.answer(backward(store, found, port, event_id, to) if found.spec.replicated else graph)


def step_behind(
    store: LogStore, run: Run, port: AnyPort, event_id: int, place: int, load: Elsewhere | None = None
) -> TracedRecords:
    """One step of `records_behind` from one record, by its place in the event, from 0: to the operator before it.

    Raises as `records_behind`, and `LineageUnknown` if that would be a search through more than `MOST_STEP_EVENTS` events,
    `MOST_STEP_RECORDS` records or `MOST_STEP_BYTES`.
    """
    most_rows = MOST_STEP_EVENTS + 1
    graph, is_cut = step(store, run, Direction.BACKWARD, port, event_id, most_rows=most_rows, slots=True)
    in_all = sum(event.records or 0 for event in graph.events())
    if is_cut:
        raise _too_many(f"more than {MOST_STEP_EVENTS:,} events")
    if in_all > MOST_STEP_RECORDS:
        raise _too_many(f"{in_all:,} records")
    with store.lineage(run) as log:
        columns = EventColumns(
            log, load, (MOST_STEP_BYTES, _too_many(f"records of more than {MOST_STEP_BYTES:,} bytes"))
        )
        tracing = _Tracing(run, graph, columns)
        tracing.begin_with(place)
        tracing.pass_all()
        authored = graph
        if run.spec.replicated:
            authored, _ = step(store, run, Direction.BACKWARD, port, event_id, most_rows=most_rows)
        return tracing.answer(authored)


def _too_many(what: str) -> LineageUnknown:
    return LineageUnknown(
        f"the Input Set of this record has {what}, too many to be searched at once: ask `logio lineage ... --records`"
    )


@dataclass
class _Selected:
    """The records of an event that count so far; it may be in several Input Sets."""

    places: Places | None
    doubts: dict[str, None] = field(default_factory=dict)

    def add(self, places: Places | None, doubts: Iterable[str]) -> None:
        self.places = None if places is None or self.places is None else np.union1d(self.places, places)
        self.doubts |= dict.fromkeys(doubts)


class _Tracing:
    def __init__(self, run: Run, graph: Lineage, columns: EventColumns, *, is_whole: bool = True) -> None:
        """`is_whole`: the graph has all that was captured, and not only the paths to a port."""
        self._run = run
        self._is_whole = is_whole
        self._graph = graph
        self._columns = columns
        self._selected: dict[EventNode, _Selected] = {}
        self._keys: dict[ReadNode, list[pa.Array | None]] = defaultdict(list)

    def begin(self, values: Mapping[str, str]) -> None:
        self._columns.know(self._graph.events())
        lacking = ""
        for event, table in self._columns.each_needed(self._graph.roots, tuple(values)):
            places = np.arange(self._columns.records(event) or 0)
            if values:
                if missing := next((name for name in values if name not in table.column_names), None):
                    lacking = f"the records of {event} have no column {missing!r}"
                    continue
                places = np.flatnonzero(holding(table, values).to_numpy())
                lacking = ""
            if len(places):
                self._selected[event] = _Selected(places)
        if lacking and not self._selected:
            raise LineageUnknown(lacking)
        if values and not self._selected:
            told = ", ".join(f"{name}={value}" for name, value in values.items())
            events = ", ".join(map(str, self._graph.roots[:3])) + (" ..." if len(self._graph.roots) > 3 else "")
            raise LineageUnknown(f"no record of {events} has {told}")

    def begin_with(self, place: int) -> None:
        """One record of the only root."""
        self._columns.know(self._graph.events())
        (event,) = self._graph.roots
        many = self._columns.records(event) or 0
        if not 0 <= place < many:
            raise LineageUnknown(f"{event} has {many:,} records; there is no record {place} among them (from 0)")
        self._selected[event] = _Selected(np.array([place], np.int64))

    def pass_all(self) -> None:
        for operator in reversed(tuple(self._run.spec.operators)):
            self._pass_by(operator)

    def _pass_by(self, operator: str) -> None:
        """From the selected records of an operator's events to those of the events before it."""
        made: dict[InputSetNode, list[EventNode]] = defaultdict(list)
        for event in [one for one in self._selected if one.port.operator == operator]:
            for node in self._graph.after(event):
                if isinstance(node, InputSetNode):
                    made[node].append(event)
        for inset, events in made.items():
            self._follow(inset, events)

    def _follow(self, inset: InputSetNode, events: Collection[EventNode]) -> None:
        ends = self._graph.after(inset)
        reads = [node for node in ends if isinstance(node, ReadNode)]
        for read in reads:
            self._keys.setdefault(read, [])
        shape = self._run.spec.operators[inset.operator]
        by_output: dict[str, list[WantedRecords]] = defaultdict(list)
        for event in events:
            selected = self._selected[event]
            by_output[event.port.name].append(WantedRecords(event, selected.places, tuple(selected.doubts)))
        taken = [Taken(port, event) for port, event in self._taken(inset, shape, ends)]
        is_whole = set(shape.inputs) == set(shape.lineage_in) and (self._is_whole or len(shape.inputs) == 1)
        for output, wanted in by_output.items():
            made = Made(inset, shape.rules, output, wanted, taken, is_whole)
            used: dict[EventNode, _Selected] = {}  # an event may come on two ports
            for event, places, doubts in made_from(made, self._columns):
                if places is None or len(places):
                    for one in (self._selected, used):
                        if event in one:
                            one[event].add(places, doubts)
                        else:
                            one[event] = _Selected(places, dict.fromkeys(doubts))
            for read in reads:
                self._keys[read] += self._keys_of(read, {event: sel.places for event, sel in used.items()})

    def _taken(
        self, inset: InputSetNode, shape: OperatorShape, ends: Iterable[Node]
    ) -> Iterator[tuple[str, EventNode]]:
        """The events in an Input Set, each with the input port on which it came."""
        by_sender: dict[str, list[EventNode]] = defaultdict(list)
        for node in ends:
            if isinstance(node, EventNode):
                by_sender[str(node.port)].append(node)
        at = self._columns.ports_of(inset) if len({*shape.inputs.values()}) < len(shape.inputs) else None
        for port, sender in shape.inputs.items():
            for node in by_sender[sender]:
                if at is None or (port, node.port, node.event_id) in at:
                    yield port, node

    def _keys_of(self, read: ReadNode, used: Mapping[EventNode, Places | None]) -> Iterator[pa.Array | None]:
        """The keys of a read in records of events; None for an event whose keys are not known."""
        key = read.description.get("key")
        if not isinstance(key, str) or any(places is None for places in used.values()):
            yield None
            return
        known = 0
        for event, table in self._columns.each_kept(used, (key,)):
            known += 1
            yield _different(table, used[event])
        if known < len(used):
            yield None

    def answer(self, authored: Lineage) -> TracedRecords:
        ports = CapturedPorts(self._run)
        known = {(node.port, node.slot, node.event_id): node for node in authored.events()}
        traced = []
        for event, selected in self._selected.items():
            if ports.passes_on(event.port) and event not in self._graph.roots:
                continue
            seen = known.get((ports.authored.seen(event.port), slot_of(event.port.operator), event.event_id), event)
            traced.append(TracedEvent(seen, selected.places, self._columns.records(event), tuple(selected.doubts)))
        roots = tuple(one for one in traced if one.event in authored.roots)
        origins = tuple(one for one in traced if one.event not in authored.roots)
        keys = {(one.operator, one.connection, one.action_id): found for one, found in self._keys.items()}
        reads = [
            TracedRead(one, _every(found))
            for one in authored.reads()
            if (found := keys.get((one.operator_in_log, one.connection, one.action_id))) is not None
        ]
        return TracedRecords(roots, origins, tuple(reads), authored)


def _different(table: pa.Table, places: Places | None) -> pa.Array | None:
    """The values of its only column at these places; None if it is not known which are equal."""
    try:
        return pc.unique(table.column(0).take(places)).drop_null() if table.num_columns else pa.nulls(0)
    except pa.ArrowException:  # of some types, Arrow cannot say
        return None


def _every(keys: Sequence[pa.Array | None]) -> pa.Array | None:
    """The different ones; None if some are not known, or are of another type than others."""
    known = [one for one in keys if one is not None and not pa.types.is_null(one.type)]
    if any(one is None for one in keys) or len({one.type for one in known}) > 1:
        return None
    return pc.unique(pa.concat_arrays(known)) if known else None

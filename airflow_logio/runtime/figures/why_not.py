"""Why a record is *not* among the output: back along attribute dependencies to where it was last seen (Section 7.3)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import pyarrow as pa

from airflow_logio.dataflow.timeline import Grid
from airflow_logio.errors import LineageUnknown, NotKept
from airflow_logio.protocol.record_rules import Dependence, Part
from airflow_logio.protocol.values import Kind, Port, Status
from airflow_logio.runtime.figures.event_columns import EventColumns
from airflow_logio.runtime.figures.event_search import NO_LIMITS, Holding, SearchLimits, Spent, events_holding
from airflow_logio.runtime.figures.input_set_parts import InputSetPart
from airflow_logio.runtime.figures.lineage_records import Elsewhere
from airflow_logio.runtime.figures.record_values import AllOf, Condition, Sought, Stretch, column_names, holding
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import AnyPort
from airflow_logio.store.lineage.result import EventNode
from airflow_logio.store.lineage_port import Delivered, LineageLog
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import OperatorShape, Run
from airflow_logio.store.rules.header import decode_header

LEAST_FATES = 20
"""Events of which it is said what became of them, even if the time is over."""
LARGEST = 2**62
"""Larger than the number of any event."""


class Fate(StrEnum):
    """What an operator has done with a record that reached it."""

    UNUSED_YET = "unused_yet"
    """It has not processed the event."""
    WAITING = "waiting"
    """The Input Set is not complete, or not generated."""
    ASIDE = "aside"
    """The Input Set is quarantined."""
    IGNORED = "ignored"
    """No Input Set uses the event."""
    LEFT_OUT = "left_out"
    """The Input Set was generated, without the record that is sought."""
    MADE_SINCE = "made_since"
    """The Input Set was generated after its output was searched."""


@dataclass(frozen=True, slots=True)
class Met:
    """An event with such records, and what an operator behind it has done with it."""

    event_id: int
    operator: str
    """As the log names it."""
    inset_id: str | None
    fate: Fate
    made: tuple[int, ...] = ()
    """The events on the operator's port that were made from the Input Set."""
    error: str = ""
    """Of a quarantined Input Set."""


@dataclass(frozen=True, slots=True)
class PortSearch:
    """One output port on the way back, and what records with the values were found there."""

    port: Port
    """As the log names it."""
    values: Sought
    found: Mapping[int, int]
    """Event → how many of its records have the values."""
    searched: int
    sent: int
    """More than were searched, if retention has removed some, or if a replay operator has made them."""
    not_followed: Mapping[str, str] = field(default_factory=dict)
    """Column that was asked for → the operator that does not say what it depends on: records were sought without it."""
    met: tuple[Met, ...] = ()
    is_output_known: bool = True
    """All records of the port behind it were searched, and none of them is what was sought."""
    output: Port | None = None
    """The port behind it, that `Met.made` numbers the events of; None for the port that was asked for."""
    is_cut: bool = False
    """Limits were reached: only the newest events were searched."""
    is_partly: bool = False
    """Of large events only the first records were searched."""
    is_met_cut: bool = False
    """Limits were reached: more may have become of the events than `met` says."""

    @property
    def is_whole(self) -> bool:
        return self.searched == self.sent and not self.is_partly


@dataclass
class WhyNot:
    """The answer: the searches, from the port that was asked for towards the sources."""

    searches: list[PortSearch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences: where the search ends without having found such records, and why."""

    @property
    def is_there(self) -> bool:
        """The record is among the output, after all."""
        return bool(self.searches[0].found)


def why_not(
    store: LogStore,
    run: Run | str,
    port: AnyPort,
    values: Mapping[str, str],
    load: Elsewhere | None = None,
    limits: SearchLimits = NO_LIMITS,
) -> WhyNot:
    """Where a record with these values (column → as text) got to that is not among the output of a port.

    All events of the port are searched, as far as they are retained; then those of the ports before it, for the records that
    it would have been made from by what operators declare. Where some are found, the search ends. `limits` are those of all
    searches together: where they are reached, a note says so, and nothing behind that is searched. Raises as
    `events_holding`.
    """
    found = store.find_run(run) if isinstance(run, str) else run
    return _Search(store, found, load, Spent(limits)).all(CapturedPorts(found).checked(port), values)


@dataclass(frozen=True, slots=True)
class _Ask:
    port: Port
    values: Sought
    not_followed: Mapping[str, str] = field(default_factory=dict)
    receiver: Port | None = None
    """The input port towards the output that was asked for, and that output."""
    output: str = ""
    is_output_known: bool = True
    output_sent: int = LARGEST
    """Events that the output had sent when it was searched: later ones may have the record."""


class _Search:
    def __init__(self, store: LogStore, run: Run, load: Elsewhere | None, spent: Spent) -> None:
        self._store = store
        self._run = run
        self._load = load
        self._spent = spent
        self._answer = WhyNot()

    def all(self, port: Port, values: Mapping[str, str]) -> WhyNot:
        todo, asked = deque([_Ask(port, values)]), set()
        while todo:
            ask = todo.popleft()
            place = ask.port, ask.receiver, tuple(sorted((name, str(value)) for name, value in ask.values.items()))
            if place in asked:
                continue
            asked.add(place)
            if self._answer.searches and self._spent.is_over():
                self._answer.notes.append(f"{ask.port} was not searched: the limits of this search are reached")
            elif not self._is_found(ask):
                todo += self._before(ask)
        return self._answer

    def _is_found(self, ask: _Ask) -> bool:
        """Whether the way back ends here: such records are found, or it is not known whether there are any."""
        try:
            (one,) = events_holding(self._store, self._run, ask.port, ask.values, self._load, self._spent)
        except NotKept as error:
            self._answer.notes.append(str(error))
            self._note(ask, Holding(ask.port, ask.port, {}, 0, self._sent(ask.port)))
            return False
        except LineageUnknown as error:
            if ask.receiver is None:
                raise
            self._answer.notes.append(str(error))
            return True
        self._note(ask, one)
        if one.records:
            return True
        if left_out := _left_out(one):
            self._answer.notes.append(f"of {ask.port} {left_out} may have such a record")
        return bool(left_out)

    def _note(self, ask: _Ask, held: Holding) -> None:
        met, is_met_cut = self._fates(ask, held) if ask.receiver is not None and held.records else ([], False)
        search = PortSearch(
            ask.port,
            ask.values,
            held.records,
            held.searched,
            held.sent,
            ask.not_followed,
            tuple(met),
            ask.is_output_known,
            output=None if ask.receiver is None else Port(ask.receiver.operator, ask.output),
            is_cut=held.before > 1,
            is_partly=bool(held.partly),
            is_met_cut=is_met_cut,
        )
        self._answer.searches.append(search)

    def _sent(self, port: Port) -> int:
        with self._store.lineage(self._run) as log:
            return log.sent(port)

    # --- what has become of it ------------------------------------------------------------------------------------------

    def _fates(self, ask: _Ask, held: Holding) -> tuple[list[Met], bool]:
        """What has become of the events that hold such records, in their order; and whether some may be missing."""
        assert ask.receiver is not None
        aside = {
            one.inset_id: one.error
            for one in self._store.quarantined(self._run.run_id)
            if one.operator == ask.receiver.operator
        }
        with self._store.lineage(self._run) as log:
            rows: dict[int, list[Delivered]] = defaultdict(list)
            for row in log.deliveries_of(ask.port, held.records):
                if row.receiver == ask.receiver:
                    rows[row.event_id].append(row)
            met: list[Met] = []
            known = 0
            for with_such in self._delivered(ask, ask.receiver.operator, rows, log):
                met += [_fate(row, ask, log, aside) for row in with_such]
                known += 1
                if known >= LEAST_FATES and self._spent.is_late():
                    break
        return sorted(met, key=lambda one: one.event_id), known < len(rows)

    def _delivered(
        self, ask: _Ask, receiver: str, rows: Mapping[int, Sequence[Delivered]], log: LineageLog
    ) -> Iterator[Sequence[Delivered]]:
        """Of each event the rows whose Input Set has such a record of it, or that have none. Without the events that
        retention has removed meanwhile."""
        rules = self._shape(receiver).rules
        insets = {row.inset_id for some in rows.values() for row in some if row.inset_id is not None}
        parts = {inset: InputSetPart.of(rules, inset) for inset in insets}
        assigned = {number for number, some in rows.items() if any(row.inset_id is not None for row in some)}
        yield from (some for number, some in rows.items() if number not in assigned)
        columns = dict.fromkeys([*ask.values, *(name for part in parts.values() for name in part.columns)])
        events = [EventNode(ask.port, number) for number in sorted(assigned)]
        for event, table in EventColumns(log, self._load).each_kept(events, tuple(columns)):
            some = rows[event.event_id]
            yield [one for one in some if one.inset_id is None or _has(one, ask.values, parts[one.inset_id], table)]

    # --- what it would have been made from ------------------------------------------------------------------------------

    def _before(self, ask: _Ask) -> Iterator[_Ask]:
        operator, shape = ask.port.operator, self._shape(ask.port.operator)
        searched = self._answer.searches[-1]
        is_known = searched.is_whole
        if not shape.inputs:
            which = "none of its events so far has" if is_known else "none of its events in the log has"
            self._answer.notes.append(f"{operator} is a source, and {which} such a record")
        for name in shape.inputs:
            sender = CapturedPorts(self._run).checked(shape.inputs[name])
            if name not in shape.lineage_in:
                self._answer.notes.append(f"no lineage is captured on {operator}.{name}")
                continue
            values, lost = self._translated(ask, name, sender)
            if values:
                not_followed = {**ask.not_followed, **dict.fromkeys(lost, operator)}
                yield _Ask(sender, values, not_followed, Port(operator, name), ask.port.name, is_known, searched.sent)
            elif lost:
                self._answer.notes.append(f"{operator} does not say what {' and '.join(lost)} depends on (depends=...)")

    def _translated(self, ask: _Ask, name: str, sender: Port) -> tuple[Sought, list[str]]:
        """What records of the sender would have, and the columns that nothing is known of."""
        dependence = self._shape(ask.port.operator).rules.outputs.get(ask.port.name)
        if dependence is None:
            return {}, list(ask.values)
        found: dict[str, list[Condition]] = {}
        lost: list[str] = []
        for column, value in ask.values.items():
            before = self._column_before(dependence, column, name, sender)
            if before:
                found.setdefault(before, []).extend(value.conditions if isinstance(value, AllOf) else [value])
            elif column in dependence.window_starts and dependence.window is not None and isinstance(value, str):
                stretch = _stretch(dependence.window, ask.port.operator, value)
                found.setdefault(dependence.window.on, []).append(stretch)
            else:
                lost.append(column)
        return {name: AllOf(tuple(all_)) if len(all_) > 1 else all_[0] for name, all_ in found.items()}, lost

    def _column_before(self, dependence: Dependence, column: str, name: str, sender: Port) -> str | None:
        if dependence.columns is not None:
            return dependence.columns.get(name, {}).get(column)
        known = self._columns_at(sender)
        return column if not known or column in known else None

    def _columns_at(self, sender: Port) -> Sequence[str]:
        """The columns of the newest event; none if they are not known."""
        with self._store.lineage(self._run) as log:
            for number, stored in log.bodies_before(sender.operator, sender.name, LARGEST, 2):  # the end has none
                where = f"event {number} of {sender}"
                header = decode_header(where, stored.header, stored.body, stored.ref)
                if header.kind is Kind.DATA and header.made_of is None:
                    return column_names(where, stored, self._load)
        return ()

    def _shape(self, operator: str) -> OperatorShape:
        return self._run.spec.operators[operator]


def _left_out(one: Holding) -> str:
    """What limits have left out of a search."""
    if one.before > 1:
        return f"only the newest {one.searched:,} of {one.sent:,} events were searched: earlier ones"
    return "large events were searched in part: their other parts" if one.partly else ""


def _stretch(window: Part, operator: str, value: str) -> Stretch:
    """The window that starts at a time. Raises `LineageUnknown` if none does."""
    grid = Grid(window.on, window.seconds, window.origin)
    try:
        at = datetime.fromisoformat(value)
        start = (at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        number = grid.number(int(start))
        begin, end = (datetime.fromtimestamp(grid.start(one), UTC).replace(tzinfo=None) for one in (number, number + 1))
    except (ValueError, OverflowError, OSError) as error:
        raise LineageUnknown(f"{value!r} is no time at which a window of {operator} could start: {error}") from error
    if grid.start(number) != start:
        started = grid.name(number)
        raise LineageUnknown(f"no window of {operator} starts at {value}: the one that it is in starts at {started}")
    return Stretch(begin, end)


def _has(row: Delivered, values: Sought, part: InputSetPart, table: pa.Table) -> bool:
    """Whether the Input Set has such a record of the event."""
    inside = part.mask(row.receiver.name, row.event_id, table, table.num_rows)
    has = holding(table, values).to_numpy()
    return bool((has if inside is None else has & inside).any())


def _fate(row: Delivered, ask: _Ask, log: LineageLog, aside: Mapping[str, str]) -> Met:
    operator = row.receiver.operator
    if row.inset_id is None:
        fate = Fate.IGNORED if row.status is Status.DONE else Fate.UNUSED_YET
        return Met(row.event_id, operator, None, fate)
    if row.status is Status.ASIDE:
        return Met(row.event_id, operator, row.inset_id, Fate.ASIDE, error=aside.get(row.inset_id, ""))
    if row.status is not Status.DONE:
        return Met(row.event_id, operator, row.inset_id, Fate.WAITING)
    made = tuple(number for _, _, number in log.outputs_of(operator, [row.inset_id], [ask.output]))
    fate = Fate.MADE_SINCE if max(made, default=0) > ask.output_sent else Fate.LEFT_OUT
    return Met(row.event_id, operator, row.inset_id, fate, made)

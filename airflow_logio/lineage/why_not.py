"""Why a record is *not* among the output: back along attribute dependencies to where it was last seen (Section 7.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum

from airflow_logio.dataflow.windows.timeline import Grid
from airflow_logio.errors import LineageUnknown, LogioError, LogUnavailable, NotKept
from airflow_logio.lineage.event_search import Holding, events_holding
from airflow_logio.lineage.lineage_records import Elsewhere
from airflow_logio.lineage.record_fates import Met, RecordFates, Way
from airflow_logio.lineage.record_values import AllOf, Condition, Sought, Stretch, column_names
from airflow_logio.lineage.search_limits import NO_LIMITS, SearchLimits, SearchWatch, Spent
from airflow_logio.protocol.record_rules import Dependence, Part
from airflow_logio.protocol.replicas import base_operator, is_dispatcher, slot_of
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.lineage.authored_events import authored_events
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import AnyPort
from airflow_logio.store.lineage.result import Direction, EventNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LARGEST
from airflow_logio.store.records.run_records import OperatorShape, Run
from airflow_logio.store.rules.row_forms import decode_header


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
    named: Mapping[int, EventNode] = field(default_factory=dict)
    """Event that was found → as its author numbers it: without Dispatchers, Mergers and, if there is a Merger, slots."""
    is_cut: bool = False
    """Limits were reached: only the newest events were searched."""
    is_partly: bool = False
    """Only the first records of large events were searched."""
    is_met_cut: bool = False
    """Limits were reached: more may have become of the events than `met` says."""
    slots: int = 1
    """So many ports of slots are summed up here, if none has such records; `port` is the first of them."""

    @property
    def is_whole(self) -> bool:
        return self.searched == self.sent and not self.is_partly


@dataclass
class WhyNot:
    """The answer, or what is known of it so far: the searches, from the port that was asked for towards the sources."""

    ports: AuthoredPorts
    """The ports of the run, for their names."""
    searches: list[PortSearch] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences: where the search ends without having found such records, and why."""

    @property
    def is_there(self) -> bool:
        """The record is among the output, after all."""
        return bool(self.searches and self.searches[0].found)


class AnswerWatch(SearchWatch):
    """May look at the answer while it grows; this one does not."""

    def grows(self, so_far: Callable[[], WhyNot]) -> None:
        """One more port was searched; `so_far` may be called in here, and makes the answer as far as it is known."""


def why_not(
    store: LogStore,
    run: Run | str,
    port: AnyPort,
    values: Mapping[str, str],
    load: Elsewhere | None = None,
    limits: SearchLimits = NO_LIMITS,
    watch: AnswerWatch | None = None,
) -> WhyNot:
    """Where a record with these values (column → as text) got to that is not among the output of a port.

    All events of the port are searched, as far as they are retained; then those of the ports before it, for the records that
    it would have been made from by what operators declare. Where some are found, the search ends. `limits` are those of all
    searches together: where they are reached, a note says so, and nothing behind that is searched. Raises as
    `events_holding`, and `SearchStopped` if `watch` says so.
    """
    found = store.find_run(run) if isinstance(run, str) else run
    return _Search(store, found, load, limits, watch or AnswerWatch()).all(CapturedPorts(found).checked(port), values)


@dataclass
class _Ask:
    """Records to be sought on a port, for the ways from there on which none was found."""

    port: Port
    values: Sought
    not_followed: dict[str, str] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)
    is_behind: bool = False
    """Such records were found further on, where they have come by here."""


class _State(IntEnum):
    """State of a search; of two on one port for the same records before it, the larger one counts."""

    NONE = 0
    """No record that is in the log is the one: it is sought before the operator."""
    UNKNOWN = 1
    """Not all was searched, and a note says why."""
    FOUND = 2
    """Here, or further on."""


@dataclass(frozen=True, slots=True)
class _Searched:
    state: _State
    is_whole: bool = False
    newest: int = LARGEST

    def and_(self, other: _Searched) -> _Searched:
        """The two together."""
        state = max(self.state, other.state)
        return _Searched(state, self.is_whole and other.is_whole, min(self.newest, other.newest))


@dataclass
class _Before:
    """What is asked for before an operator, for those of its outputs where the same values would come from there. Outputs
    that were not searched to the end are not among them."""

    values: Sought
    not_followed: dict[str, str] = field(default_factory=dict)
    outputs: dict[Port, _Searched] = field(default_factory=dict)

    @property
    def is_found(self) -> bool:
        """Behind one of the outputs, at least."""
        return any(one.state is _State.FOUND for one in self.outputs.values())

    @property
    def is_known(self) -> bool:
        return all(one.is_whole for one in self.outputs.values())


class _Search:
    """Operator by operator from the port that was asked for to the sources, each after all operators behind it: what one
    of its outputs has, another one need not have."""

    def __init__(
        self, store: LogStore, run: Run, load: Elsewhere | None, limits: SearchLimits, watch: AnswerWatch
    ) -> None:
        self._store = store
        self._run = run
        self._ports = CapturedPorts(run)
        self._load = load
        self._watch = watch
        self._spent = Spent(limits, watch)
        self._fates = RecordFates(store, run, load, self._spent)
        self._answer = WhyNot(self._ports.authored)
        self._asks: dict[Port, dict[tuple[tuple[str, str], ...], _Ask]] = {}
        self._columns: dict[Port, Sequence[str]] = {}
        self._unsearched: dict[tuple[str, str], list[Port]] = {}
        """(a sentence with a place for ports, what they have in common) → the ports."""

    def all(self, port: Port, values: Mapping[str, str]) -> WhyNot:
        self._asks = {port: {_key(values): _Ask(port, values)}}
        leading = self._ports.between(port, None, Direction.BACKWARD)
        for operator in reversed(self._ports.operators):
            outputs = [output for output in self._ports.outputs(operator) if output in leading]
            asks = [ask for output in outputs for ask in self._asks.pop(output, {}).values()]
            if asks:
                known = [(ask, self._known(ask)) for ask in asks]
                if self._answer.is_there:
                    break
                self._ask_before(operator, outputs, known)
        return self._so_far()

    def _so_far(self) -> WhyNot:
        notes = list(dict.fromkeys([*self._answer.notes, *self._sentences()]))
        return WhyNot(self._ports.authored, summed_up(self._answer.searches, self._ports), notes)

    def _sentences(self) -> Iterable[str]:
        """Sentences about ports that were not searched, or not to the end; slots count as one."""
        for (sentence, _), ports in self._unsearched.items():
            yield sentence.format(self._ports.authored.told(ports[0], len(ports)))

    def _say_unsearched(self, port: Port, sentence: str) -> None:
        self._unsearched.setdefault((sentence, self._ports.authored.told(port, slots=2)), []).append(port)

    def _known(self, ask: _Ask) -> _Searched:
        if ask.is_behind and not ask.ways:
            return _Searched(_State.FOUND)
        found = self._searched(ask)
        self._watch.grows(self._so_far)
        return found

    def _searched(self, ask: _Ask) -> _Searched:
        if self._spent.is_over() and self._answer.searches:  # asked in each case: the caller may have stopped waiting
            self._say_unsearched(ask.port, "{} was not searched: the limits of this search are reached")
            return _Searched(_State.UNKNOWN)
        try:
            (one,) = events_holding(self._store, self._run, ask.port, ask.values, self._load, self._spent)
        except NotKept as error:
            self._answer.notes.append(str(error))
            self._note(ask, Holding(ask.port, ask.port, {}, 0, self._sent(ask.port)))
            return _Searched(_State.NONE)
        except LogUnavailable:
            raise
        except LogioError as error:  # it has not such columns, or its records cannot be read
            if not self._answer.searches:
                raise
            self._answer.notes.append(str(error))
            return _Searched(_State.UNKNOWN)
        search = self._note(ask, one)
        if one.records:
            return _Searched(_State.FOUND)
        if left_out := _left_out(one):
            self._say_unsearched(ask.port, "of {} " + left_out + " may have such a record")
            return _Searched(_State.UNKNOWN)
        return _Searched(_State.NONE, search.is_whole, one.newest)

    def _note(self, ask: _Ask, held: Holding) -> PortSearch:
        with self._store.lineage(self._run) as log:
            named = authored_events(log, self._ports, ask.port, held.records) if held.records else {}
        search = PortSearch(
            ask.port,
            ask.values,
            held.records,
            held.searched,
            held.sent,
            ask.not_followed,
            named=named,
            is_cut=held.before > 1,
            is_partly=bool(held.partly),
        )
        self._answer.searches.append(search)
        if held.records:
            self._watch.grows(self._so_far)  # what was found is told before it is asked what has become of it
            met, is_met_cut = self._became(ask, held)
            search = replace(search, met=tuple(met), is_met_cut=is_met_cut)
            self._answer.searches[-1] = search
        return search

    def _became(self, ask: _Ask, held: Holding) -> tuple[Sequence[Met], bool]:
        try:
            return self._fates.of(ask.port, ask.values, held.records, ask.ways)
        except LogUnavailable:
            raise
        except LogioError as error:  # records cannot be read
            self._answer.notes.append(f"what has become of them is not known: {error}")
            return (), False

    def _sent(self, port: Port) -> int:
        with self._store.lineage(self._run) as log:
            return log.sent(port)

    # --- what it would have been made from ------------------------------------------------------------------------------

    def _ask_before(self, operator: str, outputs: Sequence[Port], searched: Sequence[tuple[_Ask, _Searched]]) -> None:
        shape = self._shape(operator)
        is_none = any(one.state is _State.NONE for _, one in searched)
        if is_none and not shape.inputs:
            is_known = all(one.is_whole for _, one in searched)
            which = "none of its events so far has" if is_known else "none of its events in the log has"
            self._answer.notes.append(f"{operator} is a source, and {which} such a record")
        for name in shape.inputs:
            if name in shape.lineage_in:
                sender = self._ports.checked(shape.inputs[name])
                for before in self._translations(name, sender, searched):
                    self._add(sender, Port(operator, name), outputs, before)
            elif is_none:
                self._answer.notes.append(f"no lineage is captured on {base_operator(operator)}.{name}")

    def _translations(self, name: str, sender: Port, searched: Sequence[tuple[_Ask, _Searched]]) -> Iterable[_Before]:
        found: dict[tuple[tuple[str, str], ...], _Before] = {}
        for ask, one in searched:
            operator = base_operator(ask.port.operator)
            if one.state is _State.UNKNOWN:
                continue  # nothing is sought before it for this output, and `Way.is_known` says that it is missing
            try:
                values, lost = self._translated(ask, name, sender)
            except LineageUnknown:
                if one.state is _State.NONE:
                    raise
                continue
            if values:
                before = found.setdefault(_key(values), _Before(values))
                if one.state is _State.NONE:
                    before.not_followed |= {**ask.not_followed, **dict.fromkeys(lost, operator)}
                other = before.outputs.get(ask.port)
                before.outputs[ask.port] = one if other is None else one.and_(other)
            elif lost and one.state is _State.NONE:
                self._answer.notes.append(f"{operator} does not say what {' and '.join(lost)} depends on (depends=...)")
        return found.values()

    def _add(self, sender: Port, receiver: Port, outputs: Sequence[Port], before: _Before) -> None:
        """Seek the records before an operator that has none of them behind it; where it has some, it has not left them
        out, and the way on from there tells the rest."""
        ask = self._asks.setdefault(sender, {}).setdefault(_key(before.values), _Ask(sender, before.values))
        if before.is_found:
            ask.is_behind = True
            return
        newest = {output: one.newest for output, one in before.outputs.items()}
        is_known = before.is_known and newest.keys() == set(outputs)
        ask.not_followed |= before.not_followed
        ask.ways.append(Way(receiver, newest, outputs, is_known))

    def _translated(self, ask: _Ask, name: str, sender: Port) -> tuple[Sought, list[str]]:
        """The values that records of the sender would have, and the columns that nothing is known about."""
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
        if sender not in self._columns:
            try:
                self._columns[sender] = self._newest_columns(sender)
            except LogUnavailable:
                raise
            except LogioError:  # its records cannot be read, which the search of it will say
                self._columns[sender] = ()
        return self._columns[sender]

    def _newest_columns(self, sender: Port) -> Sequence[str]:
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
    """The events that limits have left out of a search, in words."""
    if one.before > 1:
        return "only the newest events were searched: earlier ones"
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


def _key(values: Sought) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in values.items()))


def summed_up(searches: Iterable[PortSearch], ports: CapturedPorts) -> list[PortSearch]:
    """Ports of slots where nothing was found are told of as one: there may be a thousand."""
    found: dict[object, PortSearch] = {}
    for number, one in enumerate(searches):
        is_slot = is_dispatcher(one.port.operator) or slot_of(one.port.operator) is not None
        key: object = number
        if is_slot and not one.found:
            key = ports.authored.told(one.port, slots=2), _key(one.values), tuple(one.not_followed.items())
        found[key] = one if key not in found else _together(found[key], one)
    return list(found.values())


def _together(first: PortSearch, other: PortSearch) -> PortSearch:
    return replace(
        first,
        searched=first.searched + other.searched,
        sent=first.sent + other.sent,
        is_cut=first.is_cut or other.is_cut,
        is_partly=first.is_partly or other.is_partly,
        slots=first.slots + other.slots,
    )

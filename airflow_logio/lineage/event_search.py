"""From a record to its events: which events of a port hold records with given values, by the bodies that are retained.

Bodies are read from the newest on, some at a time. A search of a page has limits: it says how far it has come, and the next
one continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_logio.errors import LineageUnknown, LogInconsistent
from airflow_logio.lineage.lineage_records import Elsewhere, not_kept
from airflow_logio.lineage.record_values import Sought, column_names, looked_at
from airflow_logio.lineage.search_limits import NO_LIMITS, SearchedSoFar, SearchLimits, Spent
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import decode_header

ALWAYS_LOOKED_AT = 2
"""Parts of an event: the first one of a dataset has no records."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The events of one port of the log that hold the records, and what could not be searched."""

    port: Port
    """As its author named it."""
    place: Port
    """As the log names it: a lineage query takes it. Inside of a replicated group each slot has a port of its own."""
    records: Mapping[int, int]
    """Event id → how many of its records have the values; without events that have none. In the order of ids."""
    searched: int
    """Events whose records were looked at."""
    sent: int
    """Events that the port has sent; after a search without limits, what is missing in `searched` has been removed by
    retention."""
    before: int = 1
    """The events below this number were not searched."""
    partly: Sequence[int] = ()
    """Events so large that one search has not got through them: only their first records were looked at."""
    newest: int = 0
    """The largest number of the port when the search began, of an event or of an end."""
    damaged: Sequence[str] = ()
    """Events whose records are missing or damaged in the payload store, each as a sentence: they were passed over."""

    @property
    def gone(self) -> int:
        """Events that may have held such records, and that retention has removed, records and lineage together."""
        return self.sent - self.searched

    @property
    def slot(self) -> int | None:
        """The slot that numbered the events, if no Merger did."""
        return slot_of(self.place.operator)


@dataclass(frozen=True, slots=True)
class Searched:
    """How far a search with limits has come."""

    holding: Sequence[Holding]
    """One for each port of the log, in the order of `CapturedPorts.places`."""
    lacking: str
    """What a reader should know if no event of this search had the columns; else empty."""
    seconds: float

    @property
    def before(self) -> list[int] | None:
        """Where the next search continues: for each port, the number below which nothing was searched. None if all was."""
        before = [one.before for one in self.holding]
        return before if max(before, default=1) > 1 else None


def events_holding(
    store: LogStore,
    run: Run,
    port: Port | str,
    values: Sought,
    load: Elsewhere | None = None,
    spent: Spent | None = None,
) -> Sequence[Holding]:
    """All events of an output port that hold a record with all these values: column → the value as text.

    With `spent`, only as many, the newest ones, as its limits leave; its watch is told.
    A value is read as the type of its column. `port` is as for a lineage query, and also one inside of a replicated group,
    whose slots count their events on their own: the answer has one `Holding` for each port of the log. Raises
    `LineageUnknown` for a port in no scope, for a column that no searched event has and for a value that its type cannot
    have; `LogInconsistent` for damaged records, and `ConfigurationError` for records in the payload store without `load`.
    """
    ports = CapturedPorts(run)
    places = ports.places(port)
    with store.lineage(run) as log:
        sent, newest = log.sent_by(places), log.newest_by(places)
    bodies = _Bodies(store, run)
    searches = [_PlaceSearch(bodies, ports, place, values, load, sent[place], newest[place] + 1) for place in places]
    for one in searches:
        _search([one], spent or Spent(NO_LIMITS))
        if lacking := one.lacking():
            raise LineageUnknown(lacking if one.before == 1 else f"as far as was searched, {lacking}")
    return [one.holding() for one in searches]


def search_newest(
    store: LogStore,
    run: Run,
    port: Port | str,
    values: Mapping[str, str],
    load: Elsewhere | None,
    limits: SearchLimits,
    before: Sequence[int] | None = None,
) -> Searched:
    """As `events_holding`, within limits, the newest events first; `before` is that of the search that this one continues.

    Several ports take turns: the one that has the largest part of its events before it is next, so that all get equally
    far back. If no event has a column, that is an error only where all events were searched at once: earlier ones may
    have it. Events whose records are missing in the payload store, or damaged, are passed over (`Holding.damaged`). Raises as
    `events_holding`, and `LineageUnknown` for a `before` of other ports.
    """
    ports = CapturedPorts(run)
    places = ports.places(port)
    begun = time.monotonic()
    if before is not None and len(before) != len(places):
        raise LineageUnknown(f"the search to continue was one of other ports than those of {port}: start it again")
    with store.lineage(run) as log:
        # Not from `sent` on: ends of the stream that a retry took back have numbers, too.
        sent, newest = log.sent_by(places), log.newest_by(places)
    starts = before or [newest[place] + 1 for place in places]
    bodies = _Bodies(store, run)
    searches = [
        _PlaceSearch(bodies, ports, place, values, load, sent[place], start, passes_damaged=True)
        for place, start in zip(places, starts, strict=True)
    ]
    _search(searches, Spent(limits))
    has_columns = any(one.has_columns for one in searches)
    lacking = "" if has_columns else next(filter(None, (one.lacking() for one in searches)), "")
    found = Searched([one.holding() for one in searches], lacking, time.monotonic() - begun)
    if lacking and before is None and found.before is None:
        raise LineageUnknown(lacking)
    return found


def _search(searches: Iterable[_PlaceSearch], spent: Spent) -> None:
    """Looks at the events of ports in turns, until all is searched or the limits are reached."""
    while left := [one for one in searches if one.before > 1]:
        max(left, key=_PlaceSearch.part_left).look_at_some(spent)
        if spent.is_over():
            return


class _Bodies:
    """Some bodies at a time, each time from the log as it is then: a search may take long, and no transaction should."""

    def __init__(self, store: LogStore, run: Run) -> None:
        self._store = store
        self._run = run

    def before(self, place: Port, before: int, limit: int) -> Sequence[tuple[int, StoredBody]]:
        with self._store.lineage(self._run) as log:
            return list(log.bodies_before(place.operator, place.name, before, limit))


class _PlaceSearch:
    """The search of one port of the log. `start`: only events with numbers below it."""

    def __init__(
        self,
        bodies: _Bodies,
        ports: CapturedPorts,
        place: Port,
        values: Sought,
        load: Elsewhere | None,
        sent: int,
        start: int,
        *,
        passes_damaged: bool = False,
    ) -> None:
        self._bodies, self._place, self._values, self._load, self._sent = bodies, place, values, load, sent
        self._port = ports.authored.seen(place)
        slot = slot_of(place.operator)
        self._slot = slot
        self._told = str(self._port) if slot is None else f"{self._port} in slot {slot}"
        self.before = self._start = start
        self._passes_damaged = passes_damaged
        self._damaged: list[str] = []
        self.has_columns = False
        self._records: dict[int, int] = {}
        self._partly: list[int] = []
        self._searched = 0
        self._without: tuple[str, StoredBody] | None = None

    def part_left(self) -> float:
        return self.before / max(self._start, self._sent + 1)

    def look_at_some(self, spent: Spent) -> None:
        many = spent.at_once()
        spent.tell(self._so_far())
        some = self._bodies.before(self._place, self.before, many)
        for event_id, stored in some:
            spent.fetched(stored.body)
            if not self._look_at(event_id, stored, spent):
                return
            self.before = event_id
            spent.tell(self._so_far())
            if spent.is_over():
                return
        if len(some) < many:
            self.before = 1

    def _so_far(self) -> SearchedSoFar:
        return SearchedSoFar(self._port, self._slot, self._searched, self._sent, len(self._records))

    def _look_at(self, event_id: int, stored: StoredBody, spent: Spent) -> bool:
        """Whether that is done with this event: another search begins with it if this one had no time for all of it."""
        where = f"event {event_id} of {self._told}"
        try:
            header = decode_header(where, stored.header, stored.body, stored.ref)
            if header.kind is not Kind.DATA:
                return True
            if header.made_of is not None:
                raise not_kept(where)
            count, is_whole = self._matching(where, stored, spent)
        except LogInconsistent as error:
            if not self._passes_damaged:
                raise
            self._damaged.append(str(error))
            return True
        if not is_whole and spent.events:
            return False
        self._note(event_id, count, is_whole)
        spent.looked(is_found=count > 0)
        if not self.has_columns:
            self._without = where, stored
        return True

    def _matching(self, where: str, stored: StoredBody, spent: Spent) -> tuple[int, bool]:
        """How many records of an event match; and whether there was time for all of them."""
        count = 0
        for number, part in enumerate(looked_at(where, stored, self._values, self._load)):
            if number >= ALWAYS_LOOKED_AT and spent.is_over():
                return count, False
            spent.read(part.size)
            count += part.matching
            self.has_columns = self.has_columns or part.has_columns
        return count, True

    def _note(self, event_id: int, count: int, is_whole: bool) -> None:
        self._searched += 1
        if count:
            self._records[event_id] = count
        if not is_whole:
            self._partly.append(event_id)

    def lacking(self) -> str:
        """The sentence for a column that none of the events has; empty if some have all."""
        if self.has_columns or self._without is None:
            return ""
        columns = column_names(*self._without, self._load)
        missing = next((name for name in self._values if name not in columns), None)
        if missing is None:
            return ""
        return f"the events of {self._told} have no column {missing!r}; they have {', '.join(columns)}"

    def holding(self) -> Holding:
        records = dict(sorted(self._records.items()))
        return Holding(
            self._port,
            self._place,
            records,
            self._searched,
            self._sent,
            self.before,
            tuple(self._partly),
            self._start - 1,
            tuple(self._damaged),
        )

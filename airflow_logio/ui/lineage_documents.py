"""Lineage between events, as the page shows it: one step, the events that a reader looks for, why a record is missing.

Every answer is bounded, and says how much there is in all.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from typing import Any

import pyarrow as pa

from airflow_logio.commands import with_log
from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage.event_search import search_newest
from airflow_logio.lineage.lineage_records import Elsewhere, first_records
from airflow_logio.lineage.record_fates import Met
from airflow_logio.lineage.search_limits import SearchLimits
from airflow_logio.lineage.unmade import Unmade, unmade_of
from airflow_logio.lineage.why_not import PortSearch, WhyNot
from airflow_logio.protocol.replicas import base_operator, is_dispatcher, is_merger, slot_of
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.run_report.why_not_text import found_events, met_said, named, search_said
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import step
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, Lineage, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LineageLog
from airflow_logio.store.records.run_records import Run
from airflow_logio.ui.access import error_text

MOST_PORTS = 200
"""In a list of ports, and in what a step has found."""
MOST_ROWS = 2_000
"""Rows of the log that one step takes, of each kind."""
MOST_EVENTS = 100
"""Events of a port that are named, and from which the next step begins; all that a step has found are counted."""
MOST_NAMED = 500
"""Events that one step names: each slot of a group may be a port of its own."""
MOST_INPUT_SETS = 50
MOST_UNMADE = 5
"""Input Sets with which an operator has done the same: quarantined, say."""
MOST_READS = 50
MOST_RECORDS = 50
MOST_COLUMNS = 100
MOST_OPENED_BYTES = 32 * 2**20
"""Largest event or read action whose first records are shown: unless it is a dataset, it is read as a whole."""
LONGEST_VALUE = 200
"""Characters of a value, of a record or of what a source says about an event."""


# --- ports, and one step ----------------------------------------------------------------------------------------------


def ports_document(store: LogStore, run: Run) -> dict[str, Any]:
    """The ports in lineage scopes, with how many events each has sent."""
    named = CapturedPorts(run).named()
    with store.lineage(run) as log:
        sent = log.sent_by([place for _, place in named[:MOST_PORTS]])
    ports = [{"port": name, "sent": sent[place]} for name, place in named[:MOST_PORTS]]
    return {"ports": ports, "in_all": len(named)}


def step_document(
    store: LogStore, run: Run, direction: Direction, port: str, events: Sequence[int], *, with_data: bool
) -> dict[str, Any]:
    """What the next operator has used, or made, of these events; and what became of them where nothing was made.

    `with_data`: also what sources say about events, what was read, and the ids of Input Sets, which an author may make of
    values. Raises `LineageUnknown`, `LogUnavailable`.
    """
    refuse_parts(port)
    result, is_cut = step(store, run, direction, port, events, most_rows=MOST_ROWS)
    insets, ports = result.input_sets(), _by_port(result)
    return {
        "roots": [_event(one, with_data) for one in result.roots],
        "ports": _boxes(ports, with_data),
        "ports_in_all": len(ports),
        "reads": [_read(one, with_data) for one in result.reads()[:MOST_READS]],
        "reads_in_all": len(result.reads()),
        "input_sets": _input_sets(insets[:MOST_INPUT_SETS], with_data),
        "input_sets_in_all": len(insets),
        "cut": is_cut,
        **_unmade(store, run, direction, port, events, with_data),
    }


def _input_sets(some: Iterable[InputSetNode], with_data: bool) -> list[dict[str, Any]]:
    return [{"operator": one.operator_in_log, "id": one.inset_id} for one in some] if with_data else []


def _unmade(
    store: LogStore, run: Run, direction: Direction, port: str, events: Sequence[int], with_data: bool
) -> dict[str, Any]:
    """What has become of events from which nothing was made: lineage itself leaves that out."""
    if direction is Direction.BACKWARD:
        return {"unmade": [], "unmade_cut": False}
    found, is_cut = unmade_of(store, run, port, events, most_rows=MOST_ROWS)
    return {"unmade": [_alike(one, with_data) for one in found[:MOST_PORTS]], "unmade_cut": is_cut}


def _alike(one: Unmade, with_data: bool) -> dict[str, Any]:
    first = sorted(one.input_sets, key=lambda inset: (inset.operator_in_log, inset.inset_id))[:MOST_UNMADE]
    return {
        "operator": one.operator,
        "use": one.use.value,
        "events": len(one.events),
        "input_sets": _input_sets(first, with_data),
        "input_sets_in_all": len(one.input_sets),
    }


def _by_port(result: Lineage) -> dict[str, list[EventNode]]:
    """The events that the step has found."""
    found: dict[str, list[EventNode]] = {}
    roots = set(result.roots)
    for one in result.events():
        if one not in roots:
            found.setdefault(page_port(one), []).append(one)
    return found


def _boxes(ports: Mapping[str, Sequence[EventNode]], with_data: bool) -> list[dict[str, Any]]:
    """The graph has one box for the events of a port."""
    shown = list(ports.items())[:MOST_PORTS]
    shares = fair_shares([min(len(events), MOST_EVENTS) for _, events in shown], MOST_NAMED)
    return [
        {
            "id": _box_id(name, [one.event_id for one in events]),
            "port": name,
            "events": len(events),
            "records": sum(one.records or 0 for one in events),
            "first": [_event(one, with_data) for one in events[:share]],
        }
        for (name, events), share in zip(shown, shares, strict=True)
    ]


def _box_id(port: str, members: Sequence[int]) -> str:
    """Equal for equal sets of events, whichever question found them, and different for others.

    Of one event it has the number, not a digest: the page makes it for the event with which a graph begins.
    """
    if len(members) == 1:
        return f"{port} 1 {members[0]}"
    digest = blake2b(",".join(map(str, sorted(members))).encode(), digest_size=16).hexdigest()
    return f"{port} {len(members)} {digest}"


def _event(one: EventNode, with_data: bool) -> dict[str, Any]:
    return {
        "port": page_port(one),
        "event": one.event_id,
        "records": one.records,
        "code": one.code,
        "about": _texts(one.about) if with_data else None,
    }


def _read(one: ReadNode, with_data: bool) -> dict[str, Any]:
    return {
        "operator": one.operator_in_log,
        "connection": one.connection,
        "action": one.action_id,
        "is_source": one.is_source,
        "records": one.records,
        "about": _texts(one.description) if with_data else None,
    }


def fair_shares(wanted: Sequence[int], most: int) -> list[int]:
    """How many of at most `most` each one gets: never more than it wants, and equal shares where there is too little."""
    shares = [0] * len(wanted)
    for served, place in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[place] = min(wanted[place], most // (len(wanted) - served))
        most -= shares[place]
    return shares


# --- names ------------------------------------------------------------------------------------------------------------


def page_port(one: EventNode) -> str:
    """The port of an event as the page names it: in a slot, if no Merger numbers its events."""
    return str(one).rpartition(" ")[0]


def refuse_parts(port: str) -> None:
    """Raises `LineageUnknown` for a port of a Dispatcher: the page shows its parts of events as these events."""
    if is_dispatcher(port):
        raise LineageUnknown(
            f"{port} has parts of events, with numbers of their own: ask for the port before the Dispatcher"
        )


def event_node(run: Run, port: str, event: int) -> EventNode:
    """The event of a port as the page names it. Raises `LineageUnknown`."""
    refuse_parts(port)
    ports = CapturedPorts(run)
    place = ports.checked(port)
    return EventNode(ports.authored.seen(place), event, slot=slot_of(place.operator))


def read_node(operator: str, connection: str, action: int) -> ReadNode:
    """The read action of an operator as the page names it."""
    base, slot = base_operator(operator), operator.partition("[")[2].removesuffix("]")
    if slot.isascii() and slot.isdigit():
        return ReadNode(base, connection, action, slot=int(slot))
    return ReadNode(operator, connection, action)


# --- records ----------------------------------------------------------------------------------------------------------


def records_document(store: LogStore, run: Run, node: EventNode | ReadNode, load: Elsewhere | None) -> dict[str, Any]:
    """The first records of an event, or of what a read action has read, as texts. Raises as `lineage_records.records`."""
    table, in_all = first_records(store, run, node, MOST_RECORDS, load, MOST_OPENED_BYTES)
    shown = table.select(table.column_names[:MOST_COLUMNS])
    return {
        "columns": shown.column_names,
        "rows": [[shown_text(value) for value in row] for row in zip(*_values(shown), strict=True)],
        "rows_in_all": max(in_all, table.num_rows),
        "columns_in_all": table.num_columns,
    }


def _values(table: pa.Table) -> list[list[Any]]:
    return [column.to_pylist() for column in table.columns]


def _texts(about: Mapping[str, Any]) -> dict[str, str | None]:
    return {str(name)[:LONGEST_VALUE]: shown_text(value) for name, value in list(about.items())[:MOST_COLUMNS]}


def shown_text(value: Any) -> str | None:
    """A value as it is shown; None where there is none."""
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


# --- events that a reader looks for -----------------------------------------------------------------------------------

MOST_FOUND = 100
"""Events in one answer."""
MOST_SINCE = 20
"""Events of one port of the log that are named of those that were logged from a time on."""
STEP_SECONDS = 0.2
MOST_SECONDS = 5.0
SEARCH = SearchLimits(seconds=STEP_SECONDS, alone_seconds=MOST_SECONDS, size=256 * 2**20, found=MOST_FOUND)
"""Limits of one step of a search by values: the page asks for the next step, and shows how far the search has come."""


@dataclass(frozen=True, slots=True)
class Sought:
    """One of the three: the number of an event, an Input Set that it was made from, a time from which on it was logged."""

    event: int | None = None
    input_set: str | None = None
    at: float | None = None

    @property
    def most(self) -> int:
        """Events of one port of the log."""
        return MOST_FOUND if self.at is None else MOST_SINCE

    def origins(self, run: Run, place: Port) -> list[Port]:
        """The ports of the log that say which events of `place` it is: Input Sets are those of slots, also where a Merger
        numbers the events."""
        if self.input_set is None or not is_merger(place.operator):
            return [place]
        inputs = run.spec.operators[place.operator].inputs
        return [place, *(Port(*sender.split(".", 1)) for sender in inputs.values())]

    def of(self, log: LineageLog, place: Port, origin: Port) -> Iterable[int]:
        """The events of a port, the first ones: one more than are named, if there are so many."""
        if self.input_set is not None:
            made = _outputs(log, origin, [self.input_set], self.most + 1)
            return made if origin == place else _merged(log, place, origin, made)
        if self.at is not None:
            return log.logged_since(place, self.at, self.most + 1)
        return [] if self.event is None else [self.event]


def found_document(store: LogStore, run: Run, port: str, sought: Sought) -> dict[str, Any]:
    """The first events that are sought. If the log is slow, not all of its ports are looked at: the slots of a group have
    their own. Raises `LineageUnknown`."""
    places = CapturedPorts(run).places(port)
    names = dict(zip(places, port_names(run, places), strict=True))
    looks = [(place, origin) for place in places for origin in sought.origins(run, place)]
    end = time.monotonic() + MOST_SECONDS
    found: list[list[dict[str, Any]]] = []
    met: set[tuple[Port, int]] = set()  # a Merger and a slot may have Input Sets of the same name
    with store.lineage(run) as log:
        for place, origin in looks:
            if found and time.monotonic() >= end:
                break
            ids = sorted(number for number in sought.of(log, place, origin) if (place, number) not in met)
            met.update((place, number) for number in ids)
            found.append(_described(log, place, names[place], ids))
    shares = fair_shares([min(len(some), sought.most) for some in found], MOST_FOUND)
    return {
        "events": [one for some, share in zip(found, shares, strict=True) for one in some[:share]],
        "more": any(len(some) > share for some, share in zip(found, shares, strict=True)),
        "ports": len(looks),
        "ports_looked_at": len(found),
    }


def _outputs(log: LineageLog, port: Port, insets: Collection[str], most: int) -> list[int]:
    """The first events of a port that were made from these Input Sets."""
    log.most_rows = most
    made = [number for _, _, number in islice(log.outputs_of(port.operator, insets, [port.name]), most)]
    log.most_rows = None
    return made


def _merged(log: LineageLog, place: Port, origin: Port, made: Collection[int]) -> list[int]:
    """The numbers that a Merger has given events of a slot."""
    insets = {inset for _, receiver, inset in log.uses_of(origin, made) if receiver.operator == place.operator}
    return _outputs(log, place, insets, len(made))


def _described(log: LineageLog, place: Port, name: str, ids: Sequence[int]) -> list[dict[str, Any]]:
    headers = log.headers(place.operator, place.name, ids)
    return [
        {"port": name, "event": number, "records": header.records}
        for number, header in headers
        if header.kind is Kind.DATA
    ]


def held_document(
    store: LogStore,
    run: Run,
    port: str,
    where: Mapping[str, str],
    before: Sequence[int] | None,
    load: Elsewhere | None,
    most: int = MOST_FOUND,
) -> dict[str, Any]:
    """The events of a port that hold a record with these values, at most so many, the newest first, as far as one step comes.

    ``before`` of the answer is where the next one continues; None if all are searched. Raises as `search_newest`.
    """
    found = search_newest(store, run, port, where, load, replace(SEARCH, found=min(SEARCH.found, most)), before)
    names = port_names(run, [one.place for one in found.holding])
    return {
        "events": [
            {"port": name, "event": number, "records": many}
            for name, one in zip(names, found.holding, strict=True)
            for number, many in reversed(list(one.records.items()))
        ],
        "searched": sum(one.searched for one in found.holding),
        "sent": sum(one.sent for one in found.holding),
        "seconds": round(found.seconds, 3),
        "partly": sum(len(one.partly) for one in found.holding),
        "lacking": found.lacking,
        "damaged": sum(len(one.damaged) for one in found.holding),
        "damaged_first": next((said for one in found.holding for said in one.damaged), ""),
        "before": found.before,
    }


def port_names(run: Run, places: Iterable[Port]) -> list[str]:
    """As the page names ports of the log."""
    names = {found: name for name, found in CapturedPorts(run).named()}
    return [names.get(place, str(place)) for place in places]


# --- why a record is missing ------------------------------------------------------------------------------------------

LIMITS = SearchLimits(seconds=30.0, size=1536 * 2**20, found=MOST_FOUND)
"""Limits of all searches for one answer, which is not continued.

A person watches it grow for so long, and most proxies wait at least twice as long for an answer. The bytes are read, not
held: in each second as many as steps of searches by values may read.
"""
MOST_MET = 20
"""Events of one port whose fate is told, as in the terminal."""
MOST_SEARCHES = 50
MOST_LINKED = 100
"""Events of one port, and events that were made of one."""


def why_not_document(answer: WhyNot, seconds: float, log: str | None, *, errors_shown: bool) -> dict[str, Any]:
    """The answer, or what is known of it after so many seconds. `log` is the connection id of the log, for commands in
    sentences."""
    ports = answer.ports
    return {
        "is_there": answer.is_there,
        "searches": [_search(one, ports, log, errors_shown) for one in answer.searches[:MOST_SEARCHES]],
        "searches_in_all": len(answer.searches),
        "notes": [with_log(note, log) for note in answer.notes[:MOST_SEARCHES]],
        "notes_in_all": len(answer.notes),
        "seconds": round(seconds, 3),
    }


def _search(one: PortSearch, ports: AuthoredPorts, log: str | None, errors_shown: bool) -> dict[str, Any]:
    found = found_events(one)
    return {
        "said": with_log(search_said(one, ports), log),
        "events": _links(found),
        "events_in_all": len(found),
        "met": [_met(met, one, ports, log, errors_shown) for met in one.met[:MOST_MET]],
        "met_in_all": len(one.met),
        "is_met_cut": one.is_met_cut,
    }


def _met(met: Met, search: PortSearch, ports: AuthoredPorts, log: str | None, errors_shown: bool) -> dict[str, Any]:
    shown = replace(met, error=error_text(met.error, shown=errors_shown) or "", made=met.made[:MOST_LINKED])
    return {
        **_links([named(met, search)])[0],
        "said": with_log(met_said(shown, search, ports), log),
        "made": _links(met.made),
    }


def _links(events: Iterable[EventNode]) -> list[dict[str, Any]]:
    """Events as the page names and opens them."""
    return [{"port": page_port(one), "event": one.event_id} for one in islice(events, MOST_LINKED)]

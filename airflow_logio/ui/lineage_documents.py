"""What the page shows of lineage: ports, events that are looked for, one step from some of them, and records. All bounded.

Events are named as lineage queries take them: a port, in a slot if no Merger numbers its events, and a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_logio.protocol.replicas import base_operator, slot_of
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.runtime.figures.event_search import events_holding
from airflow_logio.runtime.figures.lineage_records import Elsewhere, first_records
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import step
from airflow_logio.store.lineage.result import Direction, EventNode, Lineage, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run

MOST_PORTS = 200
MOST_ROWS = 2_000
"""Rows of the log that one step takes, of each kind."""
MOST_EVENTS = 100
"""Events of a port that are named; all that a step has found are counted."""
MOST_SINCE = 20
"""Events that are named of those that were logged from a time on."""
MOST_INPUT_SETS = 50
MOST_READS = 50
MOST_SEARCHED = 500
"""Events whose records are looked at for one question."""
MOST_RECORDS = 50
MOST_COLUMNS = 100
LONGEST_VALUE = 200
"""Characters of a value, of a record or of what a source says about an event."""


def ports_document(store: LogStore, run: Run) -> dict[str, Any]:
    """The ports in lineage scopes, with how many events each has sent."""
    named = CapturedPorts(run).named()
    with store.lineage(run) as log:
        sent = [{"port": name, "sent": log.sent(place)} for name, place in named[:MOST_PORTS]]
    return {"ports": sent, "in_all": len(named)}


def step_document(
    store: LogStore, run: Run, direction: Direction, port: str, events: Sequence[int], *, with_data: bool
) -> dict[str, Any]:
    """What the next operator has used, or made, of these events. `with_data`: also what sources say about events, and what
    was read. Raises `LineageUnknown`, `LogUnavailable`."""
    result, is_cut = step(store, run, direction, port, events, most_rows=MOST_ROWS)
    insets = result.input_sets()
    return {
        "roots": [_event(one, with_data) for one in result.roots],
        "ports": _by_port(result, with_data),
        "reads": [_read(one, with_data) for one in result.reads()[:MOST_READS]],
        "reads_in_all": len(result.reads()),
        "input_sets": [{"operator": one.operator_in_log, "id": one.inset_id} for one in insets[:MOST_INPUT_SETS]],
        "input_sets_in_all": len(insets),
        "cut": is_cut,
    }


def _by_port(result: Lineage, with_data: bool) -> list[dict[str, Any]]:
    found: dict[str, list[EventNode]] = {}
    roots = set(result.roots)
    for one in result.events():
        if one not in roots:
            found.setdefault(_place(one), []).append(one)
    return [
        {
            "port": name,
            "events": len(events),
            "records": sum(one.records or 0 for one in events),
            "first": [_event(one, with_data) for one in events[:MOST_EVENTS]],
        }
        for name, events in found.items()
    ]


def _place(one: EventNode) -> str:
    return str(one).rpartition(" ")[0]


def _event(one: EventNode, with_data: bool) -> dict[str, Any]:
    return {
        "port": _place(one),
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


def found_document(
    store: LogStore, run: Run, port: str, *, event: int | None, input_set: str | None, at: float | None
) -> dict[str, Any]:
    """The events of a port with this number, made from this Input Set, or the first ones that were logged from a time on.

    Raises `LineageUnknown`.
    """
    found: list[dict[str, Any]] = []
    with store.lineage(run) as log:
        log.most_rows = MOST_EVENTS
        for place in CapturedPorts(run).places(port):
            ids: Iterable[int] = [] if event is None else [event]
            if input_set is not None:
                made = log.outputs_of(place.operator, [input_set])
                ids = [number for _, sender, number in made if sender == place]
            if at is not None:
                ids = log.logged_since(place, at, MOST_SINCE)
            headers = dict(log.headers(place.operator, place.name, sorted(ids)))
            found += [
                {"port": _named(run, place), "event": number, "records": header.records}
                for number, header in headers.items()
                if header.kind is Kind.DATA
            ]
    return {"events": found[:MOST_EVENTS], "searched": None, "before": None}


def held_document(
    store: LogStore, run: Run, port: str, where: Mapping[str, str], before: int | None, load: Elsewhere | None
) -> dict[str, Any]:
    """The events of a port that hold a record with these values, of the latest `MOST_SEARCHED` with numbers below `before`.

    ``before`` of the answer is where the next question goes on; None if all are searched. Raises as `events_holding`.
    """
    with store.lineage(run) as log:
        sent = max((log.sent(place) for place in CapturedPorts(run).places(port)), default=0)
    stop = sent + 1 if before is None else min(before, sent + 1)
    among = range(max(1, stop - MOST_SEARCHED), stop)
    found = events_holding(store, run, port, where, load, among=among)
    events = [
        {"port": _named(run, one.place), "event": number, "records": many}
        for one in found
        for number, many in one.records.items()
    ]
    return {
        "events": events[:MOST_EVENTS],
        "searched": sum(one.searched for one in found),
        "before": among.start if among.start > 1 else None,
    }


def _named(run: Run, place: Port) -> str:
    names = {found: name for name, found in CapturedPorts(run).named()}
    return names.get(place, str(place))


def records_document(store: LogStore, run: Run, node: EventNode | ReadNode, load: Elsewhere | None) -> dict[str, Any]:
    """The first records of an event, or of what a read action has read, as texts. Raises as `lineage_records.records`."""
    table = first_records(store, run, node, MOST_RECORDS + 1, load)
    shown = table.select(table.column_names[:MOST_COLUMNS]).slice(0, MOST_RECORDS)
    return {
        "columns": shown.column_names,
        "rows": [[_text(value) for value in row] for row in zip(*_values(shown), strict=True)],
        "more": table.num_rows > MOST_RECORDS or table.num_columns > MOST_COLUMNS,
    }


def event_node(run: Run, port: str, event: int) -> EventNode:
    """The event of a port as the page names it. Raises `LineageUnknown`."""
    ports = CapturedPorts(run)
    place = ports.checked(port)
    return EventNode(ports.authored.seen(place), event, slot=slot_of(place.operator))


def read_node(operator: str, connection: str, action: int) -> ReadNode:
    """The read action of an operator as the page names it."""
    base, slot = base_operator(operator), operator.partition("[")[2].removesuffix("]")
    if slot.isascii() and slot.isdigit():
        return ReadNode(base, connection, action, slot=int(slot))
    return ReadNode(operator, connection, action)


def _values(table: pa.Table) -> list[list[Any]]:
    return [column.to_pylist() for column in table.columns]


def _texts(about: Mapping[str, Any]) -> dict[str, str | None]:
    return {str(name)[:LONGEST_VALUE]: _text(value) for name, value in list(about.items())[:MOST_COLUMNS]}


def _text(value: Any) -> str | None:
    """A value as it is shown; None where there is none."""
    if value is None:
        return None
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."

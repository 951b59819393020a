"""What the page shows of lineage: ports, one step from some events, and records. All bounded: what is cut says of how many.

Events are named as lineage queries take them: a port, in a slot if no Merger numbers its events, and a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from airflow_logio.errors import LineageUnknown
from airflow_logio.lineage.lineage_records import Elsewhere, first_records
from airflow_logio.lineage.unmade import Unmade, unmade_of
from airflow_logio.protocol.replicas import base_operator, is_dispatcher, slot_of
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage.queries import step
from airflow_logio.store.lineage.result import Direction, EventNode, InputSetNode, Lineage, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.ui.fair_shares import fair_shares

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
"""Of an event or a read action whose first records are shown: unless it is a dataset, it is read as a whole."""
LONGEST_VALUE = 200
"""Characters of a value, of a record or of what a source says about an event."""


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


def page_port(one: EventNode) -> str:
    """The port of an event as the page names it: in a slot, if no Merger numbers its events."""
    return str(one).rpartition(" ")[0]


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

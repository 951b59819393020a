"""Records that `logio lineage --records` has found, for the terminal and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from airflow_logio.commands import counted
from airflow_logio.errors import LineageUnknown, NotKept
from airflow_logio.lineage.lineage_records import Elsewhere, distinct_names, effect, records, rows_at, together
from airflow_logio.lineage.record_lineage import TracedEvent, TracedRecords
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run


def traced_tables(
    store: LogStore, run: Run, answer: TracedRecords, load: Elsewhere | None, many: int
) -> Iterator[tuple[str, pa.Table]]:
    """(title, the first `many` records): of what was asked for, of each port before it, and of each read action."""
    asked = "it was" if sum(0 if one.places is None else len(one.places) for one in answer.roots) == 1 else "they were"
    for port, group in _by_port((*answer.roots, *answer.origins)).items():
        is_asked = group[0] in answer.roots
        yield _title(port, group, None if is_asked else asked), _first(store, run, group, load, many)
    for read in answer.reads:
        rows, by_key = read.rows(effect(store, run, read.read, load=load))
        named = f"{read.read.operator}.{read.read.connection}"
        told = "with the keys of these records" if by_key else "perhaps not all of them were used"
        yield f"read {named}: {counted(rows.num_rows, 'row')}, {told}", rows.slice(0, many)


def traced_json(answer: TracedRecords) -> dict[str, Any]:
    """Places count from 0; null where the records of an event are not in the log."""
    return {
        "exact": answer.is_exact,
        "asked": [_event_json(one) for one in answer.roots],
        "made_from": [_event_json(one) for one in answer.origins],
    }


def _by_port(traced: Sequence[TracedEvent]) -> Mapping[str, list[TracedEvent]]:
    found = defaultdict(list)
    for one in traced:
        found[str(one.event.port)].append(one)
    for group in found.values():
        group.sort(key=lambda one: (one.event.slot or 0, one.event.event_id))
    return found


def _title(port: str, group: Sequence[TracedEvent], asked: str | None) -> str:
    """`asked`: ``it was`` of one record that was asked for, ``they were`` of several; None for these themselves."""
    many = sum(len(one.places) for one in group if one.places is not None)
    title = f"{port}: {counted(many, 'record')} of {counted(len(group), 'event')}"
    if asked is None:
        return title
    if gone := sum(one.places is None for one in group):
        title += f", and {counted(gone, 'event')} whose records are not in the log"
    doubts = list(dict.fromkeys(doubt for one in group for doubt in one.doubts))
    if not doubts:
        return f"{title}, exactly those that {asked} made from"
    return f"{title}, perhaps more than {asked} made from: {'; '.join(doubts)}"


def _first(store: LogStore, run: Run, group: Sequence[TracedEvent], load: Elsewhere | None, many: int) -> pa.Table:
    found: list[pa.Table] = []
    for one in group:
        left = many - sum(table.num_rows for table in found)
        if one.places is not None and len(one.places) and left > 0:
            places = one.places[:left].tolist()
            with suppress(NotKept, LineageUnknown):  # a writer hands on what a replay operator made
                table = distinct_names(rows_at(records(store, run, one.event, load), places))
                found.append(_numbered(table, one, places))
    return together(found)


def _numbered(table: pa.Table, one: TracedEvent, places: Sequence[int]) -> pa.Table:
    """With the event, and the row of what a source has read, or else the place in the event."""
    rows = [one.source_row(place) for place in places]
    is_known = None not in rows
    table = table.add_column(0, "(row)" if is_known else "(record)", pa.array(rows if is_known else places, pa.int64()))
    return table.add_column(0, "(event)", pa.repeat(pa.scalar(one.event.event_id, pa.int64()), len(places)))


def _event_json(one: TracedEvent) -> dict[str, Any]:
    return {
        "port": str(one.event.port),
        "event_id": one.event.event_id,
        "slot": one.event.slot,
        "records": one.in_all,
        "places": None if one.places is None else one.places.tolist(),
        "exact": one.is_exact,
        "doubts": list(one.doubts),
    }

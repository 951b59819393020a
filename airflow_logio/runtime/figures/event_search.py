"""From a record to its events: which events of a port hold records with given values, by the bodies that are retained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.errors import ConfigurationError, LineageUnknown
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.values import Kind, Port
from airflow_logio.runtime.figures.lineage_records import Elsewhere, not_kept
from airflow_logio.runtime.systems.arrow import decode
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.lineage_port import LineageLog, StoredBody
from airflow_logio.store.port import LogStore
from airflow_logio.store.records import Run
from airflow_logio.store.rules.header import decode_header

EVENTS_AT_ONCE = 256
"""Bodies of one question to the log: they are in memory together."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The events of one port of the log that hold the records, and what could not be searched."""

    port: Port
    """As its author named it."""
    place: Port
    """As the log names it: a lineage query takes it. Inside of a replicated group each slot has a port of its own."""
    records: Mapping[int, int]
    """Event id → how many of its records have the values; without events that have none."""
    searched: int
    """Events whose records were looked at."""
    sent: int
    """Events that the port has sent; what is missing in `searched` has been removed by retention."""

    @property
    def gone(self) -> int:
        """Events that may have held such records, and that retention has removed, records and lineage together."""
        return self.sent - self.searched

    @property
    def slot(self) -> int | None:
        """The slot that numbered the events, if no Merger did."""
        return slot_of(self.place.operator)


def events_holding(
    store: LogStore,
    run: Run,
    port: Port | str,
    values: Mapping[str, str],
    load: Elsewhere | None = None,
    *,
    among: range | None = None,
) -> Sequence[Holding]:
    """The events of an output port that hold a record with all these values: column → the value as text.

    A value is read as the type of its column. `port` is as for a lineage query, and also one inside of a replicated group,
    whose slots count their events on their own: the answer has one `Holding` for each port of the log. With `among`, only
    events with these numbers are looked at. Raises
    `LineageUnknown` for a port in no scope, for a column that no searched event has and for a value that its type cannot
    have; `LogInconsistent` for damaged records, and `ConfigurationError` for records in the payload store without `load`.
    """
    ports = CapturedPorts(run)
    places = ports.places(port)
    with store.lineage(run) as log:
        found = [_search(log, place, ports.authored.seen(place), values, load, among) for place in places]
    return found


def _search(
    log: LineageLog,
    place: Port,
    port: Port,
    values: Mapping[str, str],
    load: Elsewhere | None,
    among: range | None = None,
) -> Holding:
    slot = slot_of(place.operator)
    told = str(port) if slot is None else f"{port} in slot {slot}"
    matching: dict[int, int] = {}
    searched, has_columns = 0, False
    columns: list[str] = []
    for event_id, stored in _bodies(log, place, among):
        where = f"event {event_id} of {told}"
        header = decode_header(where, stored.header, stored.body, stored.ref)
        if header.kind is not Kind.DATA:
            continue
        if header.made_of is not None:
            raise not_kept(where)
        table = _table(where, stored, load)
        searched += 1
        if set(values) <= set(table.column_names):
            if count := _matches(table, values):
                matching[event_id] = count
            has_columns = True
        columns = columns or table.column_names
    if columns and not has_columns:
        missing = next(name for name in values if name not in columns)
        raise LineageUnknown(f"the events of {told} have no column {missing!r}; they have {', '.join(columns)}")
    return Holding(port, place, matching, searched, log.sent(place))


def _bodies(log: LineageLog, port: Port, among: range | None) -> Iterator[tuple[int, StoredBody]]:
    after = 0 if among is None else among.start - 1
    while some := list(log.bodies(port.operator, port.name, after, EVENTS_AT_ONCE)):
        for event_id, stored in some:
            if among is not None and event_id >= among.stop:
                return
            yield event_id, stored
        after = some[-1][0]


def _table(where: str, stored: StoredBody, load: Elsewhere | None) -> pa.Table:
    if stored.ref is None or stored.body:
        return decode(where, stored.body)
    if load is None:
        raise ConfigurationError(
            f"the records of {where} are in the payload store; name it where the log is configured"
        )
    return load.table(where, stored.ref)


def _matches(table: pa.Table, values: Mapping[str, str]) -> int:
    """How many records have all the values."""
    wanted = None
    for name, text in values.items():
        column = table.column(name)
        equal = pc.fill_null(pc.equal(column, _as(text, column.type, name)), False)
        wanted = equal if wanted is None else pc.and_(wanted, equal)
    return int(pc.sum(wanted).as_py() or 0)


def _as(text: str, kind: pa.DataType, name: str) -> pa.Scalar:
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowException as error:
        raise LineageUnknown(f"column {name!r} has type {kind}, and {text!r} is no value of it") from error

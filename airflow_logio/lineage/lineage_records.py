"""The records behind a lineage result, while they are retained: of events, and of the effects of read actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.errors import ConfigurationError, LineageUnknown, NotKept
from airflow_logio.protocol.replicas import slot_operator
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.authored import AuthoredPorts
from airflow_logio.store.lineage.result import EventNode, InputSetNode, ReadNode
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LineageLog, StoredBody
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import decode_header, read_channel
from airflow_logio.systems.arrow import decode


def not_kept(where: str) -> NotKept:
    """The error for records of a replay operator."""
    return NotKept(
        f"the records of {where} are not in the log: they were made by a replay operator (replay=True), and are made again "
        "from the events before it where they are needed. Look at those, or at what was made of it"
    )


class Elsewhere(Protocol):
    """Where bodies are that are not in the log: `Payloads`. `where` says what it is the body of, `ref` refers to it."""

    def table(self, where: str, ref: str) -> pa.Table:
        """All records."""
        ...

    def pieces(self, where: str, ref: str, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Some at a time; at least one table."""
        ...


def records(
    store: LogStore, run: Run, node: EventNode | ReadNode | InputSetNode, load: Elsewhere | None = None
) -> pa.Table:
    """The records of an event of a lineage result, or the whole effect of a read action (see `effect`).

    Raises `LineageUnknown` if retention has removed them, and for a node that has no records of its own: an Input Set, or a
    read action of a source; `LogInconsistent` if they are damaged, `ConfigurationError` if they are in the payload store
    and `load` is not given.
    """
    match node:
        case ReadNode():
            return effect(store, run, node, load=load)
        case InputSetNode():
            raise LineageUnknown(
                f"{node} has no records of its own: ask for those of its events and read actions, the nodes that "
                "Lineage.after(...) gives for it, or before it if the query went forward"
            )
        case EventNode():
            port = port_in_log(run, node)
            with store.lineage(run) as log:
                return _table(log, port.operator, port.name, node.event_id, str(node), load)


class Extent(NamedTuple):
    """How much the records of an event, or the effect of a read action, are."""

    records: int
    size: int
    """Bytes, as `LineageLog.size` counts them."""


class FirstRecords(NamedTuple):
    """Some records, and how many there are."""

    table: pa.Table
    in_all: int


def first_records(
    store: LogStore, run: Run, node: EventNode | ReadNode, many: int, load: Elsewhere | None, most_bytes: int
) -> FirstRecords:
    """The first records of `records`, at most so many: of a dataset, no more is read than is needed.

    Raises as `records`, and `LineageUnknown` where their body, unless it is a dataset, has more than `most_bytes`: it would
    be read as a whole.
    """
    if isinstance(node, ReadNode):
        if node.is_source:
            effect(store, run, node, load=load)  # says why there are none
        operator, channel, number = node.operator_in_log, read_channel(node.connection), node.action_id
    else:
        port = port_in_log(run, node)
        operator, channel, number = port.operator, port.name, node.event_id
    found: list[pa.Table] = []
    with store.lineage(run) as log:
        extent = _extent(log, operator, channel, number)
        if extent.size > most_bytes:
            raise LineageUnknown(
                f"{node} has {extent.records:,} records of {extent.size:,} bytes, too many to be opened at once: ask "
                "`logio lineage ... --records`"
            )
        for piece in _pieces(log, operator, channel, number, str(node), load):
            found.append(piece.slice(0, many - sum(one.num_rows for one in found)))
            if sum(one.num_rows for one in found) >= many:
                break
    return FirstRecords(pa.concat_tables(found, promote_options="default"), extent.records)


def port_in_log(run: Run, event: EventNode) -> Port:
    """The port as the log names it, of an event as a lineage result names it."""
    if event.slot is not None:
        return Port(slot_operator(event.port.operator, event.slot), event.port.name)
    return AuthoredPorts(run.spec.operators).in_log(event.port)


def effect(
    store: LogStore, run: Run, read: ReadNode, input_set: InputSetNode | None = None, load: Elsewhere | None = None
) -> pa.Table:
    """The stored effect of a side-effect read action; with `input_set`, the rows of it that are for this one.

    A read action of a Spark job serves many Input Sets: those rows are for one of them whose key occurs in its events. That
    is lineage at the granularity of events: an event in two Input Sets counts with all its records for both. A read action
    without a key is for all of them as a whole.
    Raises as `records`; `LineageUnknown` also for the read action of a source, whose effect is the source's events.
    """
    if read.is_source:
        raise LineageUnknown(
            f"{read} has no stored effect of its own: its records are those of the events of {read.operator}"
        )
    with store.lineage(run) as log:
        stored = (log, read.operator_in_log, read_channel(read.connection), read.action_id, str(read), load)
        served = list(log.input_sets_of_read(read.operator_in_log, read.connection, read.action_id))
        key = read.description.get("key")
        if input_set is None or served == [input_set.inset_id] or not isinstance(key, str):
            return _table(*stored)
        pieces = _pieces(*stored)
        first = next(pieces)
        wanted = _keys(log, key, first.schema, input_set, load)
        if wanted is None:
            return _table(*stored)
        return pa.concat_tables(piece.filter(pc.is_in(piece.column(key), wanted)) for piece in chain([first], pieces))


def effect_extent(store: LogStore, run: Run, read: ReadNode) -> Extent:
    """How much the stored effect of a side-effect read action is; nothing if retention has removed it."""
    with store.lineage(run) as log:
        return _extent(log, read.operator_in_log, read_channel(read.connection), read.action_id)


def _extent(log: LineageLog, operator: str, channel: str, number: int) -> Extent:
    records = sum(header.records for _, header in log.headers(operator, channel, [number]))
    return Extent(records, log.size(operator, channel, [number]))


def columns_of(stored: StoredBody, where: str, load: Elsewhere | None, columns: Sequence[str] | None) -> pa.Table:
    """The records of an event, with those of `columns` that they have, or all for None. `where` names it in errors.

    Raises as `records`, and `NotKept` for one that a replay operator has made. A table without columns does not say how many
    records there are.
    """
    pieces = list(_opened(stored, where, load, columns or ()))
    if columns is not None:
        kept = [place for place, name in enumerate(pieces[0].column_names) if name in columns]
        pieces = [piece.select(kept) for piece in pieces]
    return pa.concat_tables(pieces)


def why_left_out(log: LineageLog, port: Port, event_id: int, where: str) -> LineageUnknown | NotKept:
    """The error for an event that has no table."""
    try:
        _stored(log, port.operator, port.name, event_id, where)
    except LineageUnknown as removed:
        return removed
    return not_kept(where)


def _keys(
    log: LineageLog, key: str, schema: pa.Schema, input_set: InputSetNode, load: Elsewhere | None
) -> pa.Array | None:
    """The keys in the events that are still there; None if one of them, or the effect (`schema`), has no such column, or
    if records of a replay operator are among them, which are not in the log."""
    if key not in schema.names:
        return None
    kind, wanted = schema.field(key).type, []
    for port, event_id in dict.fromkeys(
        (p, n) for _, _, p, n in log.events_in(input_set.operator_in_log, [input_set.inset_id])
    ):
        where = f"event {event_id} of {port}"
        try:
            for piece in _pieces(log, port.operator, port.name, event_id, where, load, (key,)):
                if key not in piece.column_names:
                    return None
                wanted.append(pc.unique(piece.column(key)).cast(kind))
        except NotKept:
            return None
    return pc.unique(pa.chunked_array(wanted, kind))


def _pieces(
    log: LineageLog,
    operator: str,
    channel: str,
    event_id: int,
    where: str,
    load: Elsewhere | None,
    columns: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """As `_table`, some records at a time; only `columns`, if some are named. A table without any has no records."""
    yield from _opened(_stored(log, operator, channel, event_id, where), where, load, columns)


def _opened(stored: StoredBody, where: str, load: Elsewhere | None, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The records, some at a time."""
    found = _found(stored, where, load, columns)
    if isinstance(found, pa.Table):
        yield found
    else:
        store, ref = found
        yield from store.pieces(where, ref, columns)


def _table(log: LineageLog, operator: str, channel: str, event_id: int, where: str, load: Elsewhere | None) -> pa.Table:
    found = _found(_stored(log, operator, channel, event_id, where), where, load)
    if isinstance(found, pa.Table):
        return found
    store, ref = found
    return store.table(where, ref)


def _stored(log: LineageLog, operator: str, channel: str, event_id: int, where: str) -> StoredBody:
    for _, stored in log.bodies(operator, channel, [event_id]):
        return stored
    raise LineageUnknown(
        f"the records of {where} in run {log.run.spec.key} are not in the log: retention has removed them"
    )


def _found(
    stored: StoredBody, where: str, load: Elsewhere | None, columns: Sequence[str] = ()
) -> pa.Table | tuple[Elsewhere, str]:
    """The records, or where they are."""
    if decode_header(where, stored.header, stored.body, stored.ref).made_of is not None:
        raise not_kept(where)
    if stored.ref is None or stored.body:
        return decode(where, stored.body, columns)
    if load is None:
        raise ConfigurationError(
            f"the records of {where} are in the payload store; name it where the log is configured"
        )
    return load, stored.ref


# --- as tables that people look at ------------------------------------------------------------------------------------


def rows_at(table: pa.Table, places: Sequence[int]) -> pa.Table:
    """A few records by their places; one by one, since Arrow takes them at once of some types only."""
    return pa.concat_tables([table.slice(place, 1) for place in places]) if places else table.slice(0, 0)


def distinct_names(table: pa.Table) -> pa.Table:
    """The table with a number behind a name that there is already, so that no column hides another one."""
    names: list[str] = []
    for name in table.column_names:
        number, unique = 2, name
        while unique in names:
            number, unique = number + 1, f"{name} ({number})"
        names.append(unique)
    return table.rename_columns(names)


def together(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of one port under each other: columns whose types have nothing in common become text."""
    if not tables:
        return pa.table({})
    named = [distinct_names(table) for table in tables]
    try:
        return pa.concat_tables(named, promote_options="permissive")
    except pa.ArrowException:
        return pa.concat_tables([_mixed_as_text(table, named) for table in named], promote_options="permissive")


def _mixed_as_text(table: pa.Table, others: Sequence[pa.Table]) -> pa.Table:
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        kinds = {one.schema.field(name).type for one in others if name in one.column_names}
        texts = [None if value is None else str(value) for value in column.to_pylist()] if len(kinds) > 1 else None
        columns[name] = column if texts is None else pa.array(texts, pa.string())
    return pa.table(columns)

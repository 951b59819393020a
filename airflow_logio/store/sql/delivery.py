"""Delivery: what waits in the log for input ports, for all ports of a group at once (design D5).

It takes two statements, however many ports there are: first what waits, with sizes, and then the events that fit. For a
single port PostgreSQL does both in one. Each port is looked up in the index by itself, beyond its cursor and bounded, so
that no statement depends on how much of the log is done, or lies far beyond the cursor. In PostgreSQL, LATERAL and LIMIT
ensure that, whatever its statistics say. SQLite has no LATERAL; there an outer join ensures it, since an inner one would
begin with all rows of the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.values import Event, Port, Status
from airflow_logio.store.port.session_port import Fetched
from airflow_logio.store.rules.delivery_rules import fitting, is_all, share
from airflow_logio.store.rules.row_forms import decode_header
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import among, rows_of

_NAMES = ("op", "port", "after", "last")
"""The parameters of each port: its two names, its cursor and, for the events themselves, the id of the last one."""
_LAST_ID = 2**63 - 1


def waiting_events(
    connection: Connection, run_id: int, cursors: Mapping[Port, int], *, max_events: int, max_bytes: int
) -> Fetched:
    """`GroupSession.fetch_all`, within one snapshot."""
    bounds = {"run": run_id, "many": max_events}
    if is_one_statement(connection.dialect.name, cursors):
        return _of_one_port(connection, bounds | {"bytes": max_bytes}, cursors)
    sizes = _sizes(connection, bounds, cursors)
    last = share(sizes, max_bytes)
    if not last:
        return Fetched({})
    statements = _STATEMENTS[connection.dialect.name]()
    asked = statements.asked([(*port, cursors[port], event_id) for port, event_id in last.items()])
    found: dict[Port, list[LoggedEvent]] = {port: [] for port in last}
    for row in rows_of(connection, statements.events, bounds | asked):
        receiver = Port(row.op, row.port)
        event = event_of(Port(row.send_op, row.send_port), row.event_id, row)
        found[receiver].append(LoggedEvent(receiver, event, None))
    for of_port in found.values():  # sorted here: the database would copy every body to sort
        of_port.sort(key=lambda one: one.event.event_id)
    return Fetched(found, is_all(sizes, last, max_events))


def is_one_statement(dialect: str, cursors: Mapping[Port, int]) -> bool:
    """Whether a look is one statement, which is a snapshot by itself."""
    return dialect == "postgresql" and len(cursors) == 1


def _of_one_port(connection: Connection, bounds: dict[str, Any], cursors: Mapping[Port, int]) -> Fetched:
    ((receiver, after),) = cursors.items()
    rows = rows_of(connection, _events_of_one(), bounds | dict(zip(_NAMES, (*receiver, after), strict=False)))
    if not rows:
        return Fetched({})
    events = [event_of(Port(row.send_op, row.send_port), row.event_id, row) for row in rows]
    events.sort(key=lambda event: event.event_id)
    is_last = len(rows) == rows[0].waiting < bounds["many"]
    return Fetched({receiver: [LoggedEvent(receiver, event, None) for event in events]}, is_last)


def _sizes(
    connection: Connection, bounds: dict[str, Any], cursors: Mapping[Port, int]
) -> Mapping[Port, Sequence[tuple[int, int]]]:
    """Receiver port → (event id, size) of the first events that wait, in order. A single port has a simpler
    statement."""
    if len(cursors) == 1:
        ((port, after),) = cursors.items()
        asked = dict(zip(_NAMES, (*port, after), strict=False))
        return {port: [(event_id, size) for event_id, size in connection.execute(_sizes_of_one(), bounds | asked)]}
    statements = _STATEMENTS[connection.dialect.name]()
    asked = statements.asked([(*port, after) for port, after in cursors.items()])
    found: dict[Port, list[tuple[int, int]]] = {port: [] for port in cursors}
    for operator, name, event_id, size in connection.execute(statements.sizes, bounds | asked):
        if event_id is not None:
            found[Port(operator, name)].append((event_id, size))
    return {port: sorted(of_port) for port, of_port in found.items()}


def event_of(sender: Port, event_id: int, stored: Any) -> Event:
    """The event in a row of EVENT_DATA. Raises `LogInconsistent` if there is none (`stored` is None), or it is
    damaged."""
    header_bytes, body, ref = (stored.header, stored.body, stored.ref) if stored is not None else (None, None, None)
    body = bytes(body or b"")
    header = decode_header(f"event {event_id} of {sender}", bytes(header_bytes or b""), body, ref)
    return Event(sender, event_id, header.kind, header.records, None, body, header.about, ref, header.made_of)


def used_in(
    connection: Connection, run_id: int, operator: str, inset_ids: Sequence[str], max_bytes: int
) -> Mapping[str, Sequence[LoggedEvent]]:
    """`GroupSession.input_sets`, within one snapshot. Raises `LogInconsistent` also if a body is missing or damaged."""
    table, data = schema.event_log, schema.event_data
    with_bodies = table.outerjoin(data, sa.and_(*body_of(table)))

    def of(*inset_ids: str) -> tuple[sa.ColumnElement[bool], ...]:
        used = (table.c.run_id == run_id, table.c.rec_op == operator, among(connection, table.c.inset_id, inset_ids))
        return (*used, table.c.send_port.is_not(None), table.c.rec_port.is_not(None))

    size = sa.func.coalesce(sa.func.sum(sa.func.length(data.c.body)), 0)
    sizes = sa.select(table.c.inset_id, size).select_from(with_bodies).where(*of(*inset_ids)).group_by(table.c.inset_id)
    found = {inset_id: int(count) for inset_id, count in connection.execute(sizes)}
    chosen = fitting(operator, inset_ids, found, max_bytes)
    query = (
        sa.select(table.c.send_op, table.c.send_port, table.c.rec_port, table.c.event_id, table.c.inset_id)
        .add_columns(data.c.header, data.c.body, data.c.ref)
        .select_from(with_bodies)
        .where(*of(*chosen))
        .order_by(table.c.rec_port, table.c.event_id)
    )
    sets: dict[str, list[LoggedEvent]] = {inset_id: [] for inset_id in chosen}
    for row in rows_of(connection, query):
        event = event_of(Port(row.send_op, row.send_port), row.event_id, row)
        sets[row.inset_id].append(LoggedEvent(Port(operator, row.rec_port), event, row.inset_id))
    return sets


# --- the statements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Statements:
    """Built once. `asked` turns rows, one per port, into parameters."""

    sizes: sa.Select[Any]
    events: sa.Select[Any]
    asked: Callable[[Sequence[Sequence[str | int]]], dict[str, Any]]


@cache
def _sizes_of_one() -> sa.Select[Any]:
    table = schema.event_log
    waiting = _waits(table, *(sa.bindparam(name) for name in _NAMES[:3]))
    first = sa.select(table.c.event_id, table.c.size).where(*waiting).order_by(table.c.event_id)
    return first.limit(sa.bindparam("many"))


@cache
def _events_of_one() -> sa.Select[Any]:
    """As `share` chooses them; `waiting` is how many it chooses from. `bytes` bounds them together."""
    table, data = schema.event_log, schema.event_data
    columns = (table.c.run_id, table.c.send_op, table.c.send_port, table.c.channel, table.c.event_id)
    waiting = sa.select(*columns, table.c.size).where(*_waits(table, *(sa.bindparam(name) for name in _NAMES[:3])))
    first = waiting.order_by(table.c.event_id).limit(sa.bindparam("many")).subquery("first")
    sized = sa.select(
        *(first.c[column.name] for column in columns),
        sa.func.row_number().over(order_by=first.c.event_id).label("place"),
        sa.func.sum(first.c.size).over(order_by=first.c.event_id).label("together"),
        sa.cast(sa.func.count().over(), sa.BigInteger).label("waiting"),
    ).subquery("sized")
    fits = sa.or_(sized.c.place == 1, sized.c.together <= sa.bindparam("bytes"))
    body = sa.select(data.c.header, data.c.body, data.c.ref).where(*body_of(sized)).limit(1).lateral("stored")
    told = (sized.c.send_op, sized.c.send_port, sized.c.event_id, sized.c.waiting)
    return sa.select(*told, body).select_from(sized.outerjoin(body, sa.true())).where(fits)


@cache
def _postgresql() -> _Statements:
    table, data = schema.event_log, schema.event_data
    ports = _arrays(_NAMES[:3])
    waiting = sa.select(table.c.event_id, table.c.size).where(*_waits(table, *ports.c[:3]))
    first = waiting.order_by(table.c.event_id).limit(sa.bindparam("many")).lateral("waiting")
    sizes = sa.select(ports.c.op, ports.c.port, first).join_from(ports, first, sa.true())

    ports = _arrays(_NAMES)
    chosen = sa.select(table.c.run_id, table.c.send_op, table.c.send_port, table.c.channel, table.c.event_id)
    chosen = chosen.where(*_waits(table, *ports.c[:3]), table.c.event_id <= ports.c.last).order_by(table.c.event_id)
    row = chosen.limit(sa.bindparam("many")).lateral("chosen")
    body = sa.select(data.c.header, data.c.body, data.c.ref).where(*body_of(row)).limit(1).lateral("stored")
    columns = (ports.c.op, ports.c.port, row.c.send_op, row.c.send_port, row.c.event_id)
    events = sa.select(*columns, body).select_from(ports.join(row, sa.true()).outerjoin(body, sa.true()))
    return _Statements(sizes, events, lambda rows: dict(zip(_NAMES, map(list, zip(*rows, strict=True)), strict=False)))


def _arrays(names: Sequence[str]) -> Any:
    types = {"op": sa.Text, "port": sa.Text}
    columns = [sa.column(name, types.get(name, sa.BigInteger)) for name in names]
    arrays = [sa.bindparam(column.name, type_=postgresql.ARRAY(column.type)) for column in columns]
    return sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="asked")


@cache
def _sqlite() -> _Statements:
    table, data = schema.event_log, schema.event_data
    ports, other = _json(_NAMES[:3]), table.alias("other")
    within = sa.select(other.c.event_id).where(*_waits(other, *ports.c[:3])).order_by(other.c.event_id)
    greatest = within.limit(1).offset(sa.bindparam("many") - 1).scalar_subquery()
    first = (*_waits(table, *ports.c[:3]), table.c.event_id <= sa.func.coalesce(greatest, _LAST_ID))
    sizes = sa.select(ports.c.op, ports.c.port, table.c.event_id, table.c.size).select_from(
        ports.outerjoin(table, sa.and_(*first))
    )

    ports = _json(_NAMES)
    chosen = (*_waits(table, *ports.c[:3]), table.c.event_id <= ports.c.last)
    columns = (ports.c.op, ports.c.port, table.c.send_op, table.c.send_port, table.c.event_id)
    events = sa.select(*columns, data.c.header, data.c.body, data.c.ref).select_from(
        ports.outerjoin(table, sa.and_(*chosen)).outerjoin(data, sa.and_(*body_of(table)))
    )
    return _Statements(sizes, events, lambda rows: {"asked": json.dumps(rows)})


def _json(names: Sequence[str]) -> Any:
    each = sa.func.json_each(sa.bindparam("asked")).table_valued("value", name="each")
    columns = [sa.func.json_extract(each.c.value, f"$[{place}]").label(name) for place, name in enumerate(names)]
    return sa.select(*columns).subquery("asked")


_STATEMENTS = {"postgresql": _postgresql, "sqlite": _sqlite}


def _waits(table: Any, operator: Any, port: Any, after: Any) -> Sequence[sa.ColumnElement[bool]]:
    """The row is undone, in no Input Set, and no write action.

    The condition that it is in no Input Set is worded so that the index of Input Sets is of no use. That index has
    everything that waits for an operator, in no order, and seems cheaper to PostgreSQL while its statistics are older
    than what waits.
    """
    return (
        table.c.run_id == sa.bindparam("run"),
        table.c.rec_op == operator,
        table.c.rec_port == port,
        table.c.event_id > after,
        table.c.status == Status.UNDONE.value,
        (table.c.inset_id + "").is_(None),
        table.c.send_port.is_not(None),
    )


def body_of(row: Any) -> Sequence[sa.ColumnElement[bool]]:
    """Where the body of a row of EVENT_LOG is in EVENT_DATA. Use it in an outer join: the body may be missing."""
    data = schema.event_data
    return (
        data.c.run_id == row.c.run_id,
        data.c.send_op == row.c.send_op,
        data.c.channel == row.c.channel,
        data.c.event_id == row.c.event_id,
    )

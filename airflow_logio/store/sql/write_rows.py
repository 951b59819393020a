"""Pending write actions, read back from the log (Algorithm 8 Step 1): with their bodies, or held ones a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.values import FIRST_EVENT_ID, Status
from airflow_logio.protocol.writes import HeldGroup, PendingWrite, WriterKey, divided
from airflow_logio.store.rules.row_forms import decode_header, read_header, write_channel
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import rows_of

SCANNED_AT_ONCE = 4_096
"""Rows without bodies, of some 100 bytes each."""


def body_of(row: Any) -> Sequence[sa.ColumnElement[bool]]:
    """Where the body of a row of EVENT_LOG is in EVENT_DATA. Use it in an outer join: the body may be missing."""
    data = schema.event_data
    return (
        data.c.run_id == row.c.run_id,
        data.c.send_op == row.c.send_op,
        data.c.channel == row.c.channel,
        data.c.event_id == row.c.event_id,
    )


def pending_writes(connection: Connection, *which: sa.ColumnElement[bool]) -> Sequence[PendingWrite]:
    """Null sender port, status undone, in order. A body that is missing is noticed, not skipped."""
    table, data = schema.event_log, schema.event_data
    query = (
        sa.select(table.c.send_op, table.c.rec_port, table.c.event_id, data.c.header, data.c.body, data.c.ref)
        .select_from(table.outerjoin(data, sa.and_(*body_of(table))))
        .where(*which, *_pending())
        .order_by(table.c.send_op, table.c.rec_port, table.c.event_id)
    )
    writes = []
    for row in rows_of(connection, query):
        body = bytes(row.body or b"")
        where = f"write action {row.event_id} of {row.send_op} on {row.rec_port}"
        header = decode_header(where, bytes(row.header or b""), body, row.ref)
        writes.append(
            PendingWrite(row.send_op, row.rec_port, row.event_id, header.about, header.records, body, row.ref)
        )
    return writes


def _pending() -> Sequence[sa.ColumnElement[bool]]:
    table = schema.event_log
    return (table.c.send_port.is_(None), table.c.status == Status.UNDONE.value)


class HeldRows:
    """Pending write actions of writers that hold them, in one snapshot of the log."""

    def __init__(self, connection: Connection, run_id: int) -> None:
        self._connection = connection
        self._run_id = run_id

    def divided(self, writer: WriterKey) -> tuple[Sequence[PendingWrite], HeldGroup | None]:
        """As `protocol.writes.divided`. Those that are held are looked at without their bodies."""
        around, group = divided(self._without_bodies(writer))
        return [whole for one in around for whole in self._between(writer, one.number, one.number)], group

    def _without_bodies(self, writer: WriterKey) -> Iterator[PendingWrite]:
        after = FIRST_EVENT_ID - 1
        while rows := self._headers(writer, after):
            for row in rows:
                where = f"write action {row.event_id} of {writer[0]} on {writer[1]}"
                header = read_header(where, bytes(row.header or b""))
                yield PendingWrite(*writer, row.event_id, header.about, header.records, b"", row.ref)
            after = rows[-1].event_id

    def page(self, writer: WriterKey, after: int, last: int, max_bytes: int) -> Sequence[PendingWrite]:
        """As `GroupSession.held_writes`."""
        table = schema.event_log
        sizes = (
            sa.select(table.c.event_id, table.c.size)
            .where(*self._of(writer), table.c.event_id > after, table.c.event_id <= last)
            .order_by(table.c.event_id)
            .limit(SCANNED_AT_ONCE)
        )
        chosen, total = after, 0
        for row in self._connection.execute(sizes):
            total += row.size
            if row.event_id != chosen + 1 or (chosen > after and total > max_bytes):
                break
            chosen = row.event_id
        if chosen == after:
            raise LogInconsistent(
                f"write action {after + 1} of {writer[0]!r} on {writer[1]!r} is not in the log any more"
            )
        return self._between(writer, after + 1, chosen)

    def _between(self, writer: WriterKey, first: int, last: int) -> Sequence[PendingWrite]:
        return pending_writes(self._connection, *self._of(writer), schema.event_log.c.event_id.between(first, last))

    def _headers(self, writer: WriterKey, after: int) -> Sequence[Any]:
        table, data = schema.event_log, schema.event_data
        query = (
            sa.select(table.c.event_id, data.c.header, data.c.ref)
            .select_from(table.outerjoin(data, sa.and_(*body_of(table))))
            .where(*self._of(writer), table.c.event_id > after)
            .order_by(table.c.event_id)
            .limit(SCANNED_AT_ONCE)
        )
        return rows_of(self._connection, query)

    def _of(self, writer: WriterKey) -> Sequence[sa.ColumnElement[bool]]:
        table, (operator, connection) = schema.event_log, writer
        return (
            table.c.run_id == self._run_id,
            table.c.send_op == operator,
            table.c.channel == write_channel(connection),
            *_pending(),
        )

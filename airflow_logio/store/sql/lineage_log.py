"""`LineageLog` over SQL: a statement answers for thousands of keys, along the indexes of the tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.port.lineage_port import Delivered, LineageLog, StoredBody
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import Header, read_channel, read_header, size_of_payload, unseal_json
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import bytes_of, rows_of, text_of

KEYS_PER_STATEMENT = 5_000
PORTS_PER_STATEMENT = 50

READS = read_channel("")


class SqlLineageLog(LineageLog):
    """Reads in the transaction of `connection`."""

    def __init__(self, connection: Connection, run: Run) -> None:
        self.run = run
        self._connection = connection

    def input_sets_of(self, sender: Port, event_ids: Collection[int]) -> Iterator[tuple[int, str]]:
        table = schema.event_lineage
        query = sa.select(table.c.event_id, table.c.inset_id).where(
            table.c.run_id == self.run.run_id, table.c.send_op == sender.operator, table.c.send_port == sender.name
        )
        for row in self._rows(query, table.c.event_id, event_ids):
            yield row.event_id, row.inset_id

    def outputs_of(
        self, operator: str, inset_ids: Collection[str], ports: Collection[str] | None = None
    ) -> Iterator[tuple[str, Port, int]]:
        table = schema.event_lineage
        query = sa.select(table.c.inset_id, table.c.send_port, table.c.event_id).where(
            table.c.run_id == self.run.run_id, table.c.send_op == operator
        )
        then: tuple[sa.ColumnElement[Any], ...] = ()  # a walk takes them as they come: sorting a million costs a second
        if ports is not None:
            query = query.where(table.c.send_port.in_(sorted(ports)))
            then = table.c.send_port, table.c.event_id
        for row in self._rows(query, table.c.inset_id, inset_ids, *then):
            yield row.inset_id, Port(operator, row.send_port), row.event_id

    def events_in(
        self, operator: str, inset_ids: Collection[str], ports: Collection[str] | None = None
    ) -> Iterator[tuple[str, str, Port, int]]:
        columns = schema.event_log.c
        query = self._received(operator).where(columns.rec_port.is_not(None), columns.send_port.is_not(None))
        if ports is not None:
            query = query.where(columns.rec_port.in_(sorted(ports)))
        for row in self._rows(query, columns.inset_id, inset_ids):
            yield row.inset_id, row.rec_port, Port(row.send_op, row.send_port), row.event_id

    def reads_in(self, operator: str, inset_ids: Collection[str]) -> Iterator[tuple[str, str, int]]:
        columns = schema.event_log.c
        query = self._received(operator).where(columns.rec_port.is_(None), columns.send_port.is_not(None))
        for row in self._rows(query, columns.inset_id, inset_ids):
            yield row.inset_id, row.channel.removeprefix(READS), row.event_id

    def _received(self, operator: str) -> sa.Select[Any]:
        table = schema.event_log
        return sa.select(
            table.c.inset_id, table.c.rec_port, table.c.send_op, table.c.send_port, table.c.channel, table.c.event_id
        ).where(table.c.run_id == self.run.run_id, table.c.rec_op == operator)

    def uses_of(self, sender: Port, event_ids: Collection[int]) -> Iterator[tuple[int, Port, str]]:
        table = schema.event_log
        query = self._logged(sender.operator, sender.name).where(table.c.inset_id.is_not(None))
        for row in self._rows(query, table.c.event_id, event_ids):
            yield row.event_id, Port(row.rec_op, row.rec_port), row.inset_id

    def deliveries_of(self, sender: Port, event_ids: Collection[int]) -> Iterator[Delivered]:
        table = schema.event_log
        query = self._logged(sender.operator, sender.name).where(table.c.rec_port.is_not(None))
        for row in self._rows(query.add_columns(table.c.status), table.c.event_id, event_ids):
            yield Delivered(row.event_id, Port(row.rec_op, row.rec_port), row.inset_id, Status(row.status))

    def input_sets_of_read(self, operator: str, connection: str, action_id: int) -> list[str]:
        columns = schema.event_log.c
        query = self._logged(operator, read_channel(connection))
        query = query.where(columns.event_id == action_id, columns.inset_id.is_not(None))
        return [row.inset_id for row in self._connection.execute(query)]

    def _logged(self, operator: str, channel: str) -> sa.Select[Any]:
        table = schema.event_log
        return sa.select(table.c.event_id, table.c.rec_op, table.c.rec_port, table.c.inset_id).where(
            table.c.run_id == self.run.run_id, table.c.send_op == operator, table.c.channel == channel
        )

    def headers(self, operator: str, channel: str, event_ids: Collection[int]) -> Iterator[tuple[int, Header]]:
        table = schema.event_data
        query = sa.select(table.c.event_id, table.c.header).where(*self._data(operator, channel))
        for row in self._rows(query, table.c.event_id, event_ids):
            yield row.event_id, read_header(f"event {row.event_id} of {operator}.{channel}", bytes(row.header))

    def bodies(self, operator: str, channel: str, event_ids: Collection[int]) -> Iterator[tuple[int, StoredBody]]:
        for row in self._rows(
            self._bodies(operator, channel), schema.event_data.c.event_id, event_ids, with_bodies=True
        ):
            yield row.event_id, _stored(row)

    def size(self, operator: str, channel: str, event_ids: Collection[int]) -> int:
        columns = schema.event_data.c
        of_port = self._data(operator, channel)
        bodies = sa.select(sa.func.sum(sa.func.length(columns.body)), sa.func.count(columns.ref)).where(*of_port)
        elsewhere = sa.select(columns.ref).where(*of_port, columns.ref.is_not(None))
        waiting, found = iter(event_ids), 0
        while some := list(islice(waiting, KEYS_PER_STATEMENT)):
            among = self._among(columns.event_id, some)
            size, refs = self._connection.execute(bodies.where(among)).one()
            found += int(size or 0)
            if refs:
                found += sum(map(size_of_payload, self._connection.scalars(elsewhere.where(among))))
        return found

    def bodies_before(self, operator: str, channel: str, before: int, limit: int) -> Iterator[tuple[int, StoredBody]]:
        number = schema.event_data.c.event_id
        query = self._bodies(operator, channel).where(number < before).order_by(number.desc())
        for row in rows_of(self._connection, query.limit(limit)):
            yield row.event_id, _stored(row)

    def _bodies(self, operator: str, channel: str) -> sa.Select[Any]:
        columns = schema.event_data.c
        query = sa.select(columns.event_id, columns.header, columns.body, columns.ref)
        return query.where(*self._data(operator, channel))

    def _data(self, operator: str, channel: str) -> Sequence[sa.ColumnElement[bool]]:
        columns = schema.event_data.c
        return columns.run_id == self.run.run_id, columns.send_op == operator, columns.channel == channel

    def read_actions(
        self, operator: str, connection: str, action_ids: Collection[int]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        table = schema.read_action
        query = sa.select(table.c.action_id, bytes_of(self._connection, table.c.action_desc).label("described")).where(
            table.c.run_id == self.run.run_id, table.c.op == operator, table.c.conn_id == connection
        )
        for row in self._rows(query, table.c.action_id, action_ids):
            try:
                text = unseal_json(text_of(self._connection, row.described), operator, connection, row.action_id)
                yield row.action_id, dict(json.loads(text))
            except (ValueError, TypeError) as error:
                raise LogInconsistent(
                    f"the description of read action {row.action_id} of {operator!r} on {connection!r} (run "
                    f"{self.run.uid}, table {table.name}) cannot be read: {error}; restore the log from a backup. Only what "
                    "that action has read is not known"
                ) from error

    def logged_since(self, sender: Port, at: float, limit: int) -> Sequence[int]:
        columns = schema.event_data.c
        kept: tuple[Any, ...] = (*self._data(sender.operator, sender.name), sa.text(schema.KEPT))
        query = sa.select(columns.event_id, columns.logged_at).where(*kept).order_by(columns.event_id)
        # Halved again and again: an index by time would cost every event, and one along it could be read through.
        first, behind = 1, int(self._connection.scalar(sa.select(sa.func.max(columns.event_id)).where(*kept)) or 0) + 1
        while first < behind:
            middle = (first + behind) // 2
            row = self._connection.execute(query.where(columns.event_id >= middle).limit(1)).one()
            if (row.logged_at or 0.0) >= at:
                behind = middle
            else:
                first = row.event_id + 1
        found = self._connection.execute(query.where(columns.event_id >= first).limit(limit))
        return [row.event_id for row in found]

    def newest_by(self, senders: Collection[Port]) -> dict[Port, int]:
        found: dict[Port, int] = {}
        waiting = iter(dict.fromkeys(senders))
        number = schema.event_data.c.event_id
        while some := list(islice(waiting, PORTS_PER_STATEMENT)):
            # Each is a look at the end of an index, whatever the port has sent.
            of_port = [sa.select(sa.func.max(number)).where(*self._data(one.operator, one.name)) for one in some]
            row = self._connection.execute(sa.select(*(query.scalar_subquery() for query in of_port))).one()
            found |= dict(zip(some, (int(newest or 0) for newest in row), strict=True))
        return found

    def sent_by(self, senders: Collection[Port]) -> dict[Port, int]:
        found = dict.fromkeys(senders, 0)
        if not found:
            return found
        columns = schema.port_counter.c
        # Other ports of the same operators are read, too: a handful, and a list of pairs is no parameter of every database.
        query = sa.select(columns.op, columns.port, columns.events).where(
            columns.run_id == self.run.run_id,
            columns.direction == "out",
            self._among(columns.op, sorted({sender.operator for sender in senders})),
        )
        for row in self._connection.execute(query):
            if (sender := Port(row.op, row.port)) in found:
                found[sender] = row.events
        return found

    def _rows(
        self,
        query: sa.Select[Any],
        column: sa.ColumnElement[Any],
        keys: Iterable[int] | Iterable[str],
        *then: sa.ColumnElement[Any],
        with_bodies: bool = False,
    ) -> Iterator[Any]:
        """Rows in the order of `column`, and of `then` where that is the same, for any number of keys."""
        ordered = iter(sorted(keys))
        while chunk := list(islice(ordered, KEYS_PER_STATEMENT)):
            asked = query.where(self._among(column, chunk)).order_by(column, *then).limit(self.most_rows)
            yield from rows_of(self._connection, asked) if with_bodies else self._connection.execute(asked).all()

    def _among(self, column: sa.ColumnElement[Any], keys: list[Any]) -> sa.ColumnElement[bool]:
        """`keys` as one parameter: a single statement takes thousands of them, always with the same text."""
        if self._connection.dialect.name == "postgresql":
            kind: Any = sa.Text if isinstance(keys[0], str) else sa.BigInteger
            array = sa.cast(sa.literal(keys, postgresql.ARRAY(kind)), postgresql.ARRAY(kind))
            return column == sa.any_(array)
        wanted = sa.func.json_each(json.dumps(keys)).table_valued("value")
        return column.in_(sa.select(wanted.c.value))


def _stored(row: Any) -> StoredBody:
    return StoredBody(bytes(row.header), bytes(row.body or b""), row.ref)

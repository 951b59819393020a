"""Effects of garbage collection and what they have left in the log, in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.values import Event, Kind, Port, Status
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import DONE, IN, OUT

OTHER = Port("other", "in")
EVERYBODY = ("sender", "receiver", "other", "source", "reader")


def event(
    event_id: int,
    *receivers: Port,
    sender: Port = OUT,
    kept: bool = False,
    held: bool = False,
    ref: str | None = None,
    about: dict[str, Any] | None = None,
) -> fx.LogEvent:
    """An event for receivers in other groups; `kept` as if sender and receivers were on a lineage path."""
    deliveries = tuple(fx.Delivery(receiver, kept=kept) for receiver in receivers or (IN,))
    body = b"" if ref else b"body"
    logged = Event(sender, event_id, Kind.DATA, 3, None, body, about or {}, ref)
    return fx.LogEvent(logged, deliveries, kept=kept, held=held)


def used(
    event_id: int, *insets: str, status: Status = DONE, receiver: Port = IN, sender: Port = OUT, kept: bool = False
) -> fx.Acknowledge:
    return fx.Acknowledge(sender, receiver, event_id, tuple((inset, status) for inset in insets), kept=kept)


def collect(session: GroupSession, *operators: str, limit: int = 1000) -> Collected:
    (collected,) = session.commit([fx.Collect(operators or EVERYBODY, limit)])
    return collected


def make_older(store: LogStore, seconds: float) -> None:
    """All events that are kept for lineage, as if they had been logged so much earlier."""
    if isinstance(store, MemoryLogStore):
        bodies = store.tables.bodies
        bodies.update({key: row._replace(logged_at=row.logged_at - seconds) for key, row in bodies.items()})
    else:
        assert isinstance(store, SqlLogStore)
        with store.engine.begin() as connection:
            connection.execute(sa.update(schema.event_data).values(logged_at=schema.event_data.c.logged_at - seconds))


@dataclass(frozen=True)
class Left:
    """What is left in the tables that garbage collection deletes from, without runs and current states."""

    rows: Sequence[tuple[str, int, str | None, str]]
    """(receiver, event_id, Input Set, status)"""
    bodies: Sequence[tuple[str, int]]
    """(channel, event_id)"""
    states: Sequence[int]
    reads: Sequence[tuple[str, int]]
    """(connection, action_id)"""
    lineage: Sequence[tuple[int, str]]


def left(store: LogStore) -> Left:
    if isinstance(store, MemoryLogStore):
        tables = store.tables
        rows = [(r.receiver, r.body.event_id, r.inset_id, r.status.value) for r in tables.events.rows.values()]
        bodies = [(key.channel, key.event_id) for key in tables.bodies]
        states = [state_id for _, _, state_id in tables.states if state_id]
        reads = [(connection, action_id) for _, _, connection, action_id in tables.reads]
        lineage = [(event_id, inset_id) for _, _, event_id, inset_id in tables.lineage]
    else:
        assert isinstance(store, SqlLogStore)
        log, data, state, read, made = (
            schema.event_log.c,
            schema.event_data.c,
            schema.state.c,
            schema.read_action.c,
            schema.event_lineage.c,
        )

        def all_of(*columns: Any) -> list[Any]:
            with store.engine.connect().execution_options(logio_writes=False) as connection:
                return [tuple(row) for row in connection.execute(sa.select(*columns))]

        rows = all_of(log.rec_op, log.event_id, log.inset_id, log.status)
        bodies = all_of(data.channel, data.event_id)
        states = [state_id for (state_id,) in all_of(state.state_id) if state_id]
        reads = all_of(read.conn_id, read.action_id)
        lineage = all_of(made.event_id, made.inset_id)
    return Left(
        sorted(rows, key=lambda row: (*row[:2], row[2] or "", row[3])),
        sorted(bodies),
        sorted(states),
        sorted(reads),
        sorted(lineage),
    )


NOTHING = Left([], [], [], [], [])


def expiry(port: Port, seconds: float = -1.0, *, after: int = 0, limit: int = 1000) -> fx.ExpireLineage:
    """-1: whatever has been logged until now is older than that."""
    return fx.ExpireLineage(port.operator, Kept.EVENTS, seconds, after, limit, port.name)

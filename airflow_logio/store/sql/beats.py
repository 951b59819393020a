"""Heartbeats as rows, in the database of heartbeats: on SQLite a file of their own, so that they wait for no writer."""

from __future__ import annotations

import os

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import Fenced
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.load_records import Load
from airflow_logio.store.records import GroupRef
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.runs import known, upserting


def wish(connection: Connection, ref: GroupRef) -> GroupState:
    """The desired state of the group, from the log. Raises `Fenced` if the incarnation was replaced."""
    fence, group = schema.fence, schema.group
    same = (fence.c[name] == group.c[name] for name in ("run_id", "group_name"))
    row = connection.execute(
        sa.select(fence.c.incarnation, group.c.desired)
        .join(group, sa.and_(*same))
        .where(fence.c.run_id == ref.run_id, fence.c.group_name == ref.group)
    ).one_or_none()
    if row is None or row.incarnation != ref.incarnation:
        raise Fenced(f"group {ref.group!r}: incarnation {ref.incarnation} was replaced")
    return known(GroupState, row.desired, f"the desired state of group {ref.group!r}")


def write(connection: Connection, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None) -> None:
    """Write one row per incarnation, and one with the load that it reports."""
    values = {"beat": beat, "at": now(connection.dialect.name), "ready": ready, "rss_bytes": rss_bytes}
    keys = {"run_id": ref.run_id, "group_name": ref.group, "incarnation": ref.incarnation}
    beats = upserting(connection, schema.heartbeat).values(**keys, **values)
    connection.execute(beats.on_conflict_do_update(index_elements=list(keys), set_=values))
    if load is not None:
        figures = {"figures": msgspec.json.encode(load).decode()}
        loads = upserting(connection, schema.load).values(**keys, **figures)
        connection.execute(loads.on_conflict_do_update(index_elements=list(keys), set_=figures))


def check(connection: Connection) -> None:
    """Write a row of no run and delete it: the pages that heartbeats are in have to be written."""
    of_no_run = {"run_id": 0, "group_name": "", "incarnation": os.getpid()}
    values = {"beat": 0, "at": now(connection.dialect.name), "ready": False, "rss_bytes": 0}
    connection.execute(sa.insert(schema.heartbeat).values(**of_no_run, **values))
    connection.execute(sa.delete(schema.heartbeat).where(*(schema.heartbeat.c[k] == v for k, v in of_no_run.items())))

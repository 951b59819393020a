"""Heartbeats as rows, on SQLite in a file of their own so that they wait for no writer; and whether they can be written."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import Fenced, LogUnavailable
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import GroupRef, Load
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.beat_file import held
from airflow_logio.store.sql.engines import inserting, now, writing
from airflow_logio.store.sql.runs import known

CHECK_SECONDS = 1.0
"""For so long heartbeats that were found to be written count as written: shorter than any lease."""


def wish(connection: Connection, ref: GroupRef) -> GroupState:
    """The desired state of the group, from the log. Raises `Fenced` if the incarnation was replaced."""
    row = connection.execute(_wished(), {"b_run": ref.run_id, "b_group": ref.group}).one_or_none()
    if row is None or row.incarnation != ref.incarnation:
        raise Fenced(f"group {ref.group!r}: incarnation {ref.incarnation} was replaced")
    return known(GroupState, row.desired, f"the desired state of group {ref.group!r}")


def write_beat(
    connection: Connection, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None
) -> None:
    """Write one row per incarnation, and one with the load that it reports."""
    keys = {"run_id": ref.run_id, "group_name": ref.group, "incarnation": ref.incarnation}
    values = {"beat": beat, "ready": ready, "rss_bytes": rss_bytes}
    connection.execute(_row_of(schema.heartbeat, connection.dialect.name, "at"), keys | values)
    if load is not None:
        figures = {"figures": msgspec.json.encode(load).decode()}
        connection.execute(_row_of(schema.load, connection.dialect.name), keys | figures)


@cache
def _wished() -> sa.Select[Any]:
    fence, group = schema.fence, schema.group
    same = (fence.c[name] == group.c[name] for name in ("run_id", "group_name"))
    of_group = (fence.c.run_id == sa.bindparam("b_run"), fence.c.group_name == sa.bindparam("b_group"))
    return sa.select(fence.c.incarnation, group.c.desired).join(group, sa.and_(*same)).where(*of_group)


@cache
def _row_of(table: sa.Table, dialect: str, clock: str = "") -> Any:
    """Insert or replace the row of an incarnation. `clock` is a column that gets the database's time."""
    given: dict[str, Any] = {column.name: sa.bindparam(column.name) for column in table.columns if column.name != clock}
    insert = inserting(dialect, table).values(**given, **({clock: now(dialect)} if clock else {}))
    new = {column.name: insert.excluded[column.name] for column in table.columns if not column.primary_key}
    return insert.on_conflict_do_update(index_elements=list(table.primary_key.columns), set_=new)


def check_writable(connection: Connection) -> None:
    """Write a row of no run and delete it: the pages that heartbeats are in have to be written."""
    of_no_run = {"run_id": 0, "group_name": "", "incarnation": os.getpid()}
    values = {"beat": 0, "at": now(connection.dialect.name), "ready": False, "rss_bytes": 0}
    connection.execute(sa.insert(schema.heartbeat).values(**of_no_run, **values))
    connection.execute(sa.delete(schema.heartbeat).where(*(schema.heartbeat.c[k] == v for k, v in of_no_run.items())))


class BeatCheck:
    """`is_alone`: heartbeats are in a file of their own."""

    def __init__(self, engine: Engine, *, is_alone: bool) -> None:
        self._engine = engine
        self._is_alone = is_alone
        self._asked_at = float("-inf")
        self._refused: LogUnavailable | None = None

    def check(self) -> None:
        """Raises `LogUnavailable`."""
        if time.monotonic() - self._asked_at >= CHECK_SECONDS:
            self._refused = self._refusal()
            self._asked_at = time.monotonic()
        if self._refused is not None:
            raise self._refused.with_traceback(None)  # it is raised again and again

    def _refusal(self) -> LogUnavailable | None:
        try:
            with writing(self._engine, durable=False) as connection:
                check_writable(connection)
        except LogUnavailable as error:
            return (held(Path(str(self._engine.url.database)), error) or error) if self._is_alone else error
        return None

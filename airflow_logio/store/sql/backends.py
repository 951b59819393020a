"""The database sessions of drivers on PostgreSQL: what they are called, and how those of a stopped driver are ended."""

from __future__ import annotations

import hashlib
import logging

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.store.sql import schema

log = logging.getLogger(__name__)

MAX_APPLICATION_NAME = 63


def log_identity(connection: Connection) -> str:
    """What tells a log apart from others in the same database, which may have runs of the same number."""
    if connection.dialect.name != "postgresql":
        return ""
    return str(connection.execute(sa.text(f"SELECT '{schema.fence.name}'::regclass::oid")).scalar_one())


def driver_application(log_id: str, run_id: int, group: str, incarnation: int) -> str:
    """The application name of a driver's sessions, by which a stopped driver's backends are found and ended.

    `log_id` is what `log_identity` says.
    """
    name = f"logio driver {log_id}/{run_id}/{incarnation} {group}"
    if len(name) <= MAX_APPLICATION_NAME:
        return name
    return name[: MAX_APPLICATION_NAME - 9] + "~" + hashlib.blake2s(group.encode(), digest_size=4).hexdigest()


def end_sessions(connection: Connection, run_id: int, group: str, incarnation: int) -> int:
    """End a driver's sessions and return how many there were (needs the same role or pg_signal_backend)."""
    query = sa.text(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :name "
        "AND datname = current_database()"
    )
    name = driver_application(log_identity(connection), run_id, group, incarnation)
    ended = connection.execute(query, {"name": name}).scalar_one()
    log.warning("ended %d database session(s) of group %s, incarnation %d", ended, group, incarnation)
    return int(ended)

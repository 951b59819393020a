"""Which run had left the days of a table as they are: what a run notes that is about to read them (design, "Days").

The owner of the table and the scopes of the days say so, in one snapshot; no row of the table is looked at. It is asked
before the run begins, and so before anything is read: what replaces a day in between is younger than what is noted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.external_rules import Owner
from airflow_logio.protocol.scope_rules import DayAsRead, ScopeRow, table_place
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.systems import warehouse_rows
from airflow_logio.systems.databases.table_names import TableName, table_name
from airflow_logio.systems.warehouse import CONDITIONAL, Warehouse


def days_as_left(warehouse: Warehouse, table: str, scopes: Sequence[str], connection_id: str) -> tuple[DayAsRead, ...]:
    """The days of a table, each as ``day=2026-03-01``, and which run had left them so.

    `connection_id` names the warehouse in what is noted. Raises `ConfigurationError` for a table that is not there, for a
    view, and where the table has no such days; `ExternalUnavailable`.
    """
    if warehouse.engine.dialect.name not in CONDITIONAL:
        raise ConfigurationError(
            f"days of table {table!r}: runs own days in PostgreSQL and SQLite only, and connection {warehouse.name!r} is a "
            f"{warehouse.engine.dialect.name}. Leave days=... out"
        )
    with warehouse.snapshot() as connection:
        name = _name_of(connection, table)
        if _is_by(connection, table, name, scopes):
            found = warehouse_rows.read_scopes_of(connection, name, scopes)
        else:
            found = {}
    place = table_place(str(name), connection_id)
    return tuple(_as_left(place, scope, found.get(scope)) for scope in scopes)


def days_not_known(table: str, scopes: Sequence[str], connection_id: str) -> tuple[DayAsRead, ...]:
    """The same where the database does not answer: of no run that is known."""
    place = table_place(".".join(part for part in schema_and_table(table) if part), connection_id)
    return tuple(_as_left(place, scope, None) for scope in scopes)


def _as_left(place: str, scope: str, row: ScopeRow | None) -> DayAsRead:
    if row is None:
        return DayAsRead(place, scope, "", is_whole=False)
    if row.live_run is None:
        return DayAsRead(place, scope, row.claimed_by, is_whole=False)
    return DayAsRead(place, scope, row.live_run, is_whole=row.live_write != FIRST_EVENT_ID)


def _name_of(connection: Connection, table: str) -> TableName:
    name, seen = table_name(connection, table), sa.inspect(connection)
    if not seen.has_table(name.table, schema=name.schema):
        raise ConfigurationError(
            f"days of table {table!r}: there is no table {str(name)!r}. If its name is right, let the pipeline that writes "
            "it run first"
        )
    views = set(seen.get_view_names(schema=name.schema))
    if connection.dialect.name == "postgresql":
        views |= set(seen.get_materialized_view_names(schema=name.schema))
    if name.table in views:
        raise ConfigurationError(
            f"days of table {table!r}: it is a view. Name the tables that it reads: their days are owned"
        )
    return name


def _is_by(connection: Connection, table: str, name: TableName, scopes: Sequence[str]) -> bool:
    """Whether runs own days of the table by now. Raises `ConfigurationError` if they own something else there."""
    if not sa.inspect(connection).has_table("logio_owner", schema=name.schema):
        return False
    owner = warehouse_rows.read_owner(connection, name)
    if owner is None or not owner.is_shared:
        return False
    for wrong in _of_other_names(owner, scopes):
        raise ConfigurationError(
            f"days of table {table!r}: {wrong!r} is none of it, because runs own it by {owner.of_days!r}: write "
            f"days={{{table!r}: '{owner.of_days}={{...}}'}}"
            if owner.of_days
            else f"days of table {table!r}: runs own rows of it, whatever days these have (on_new_run='supersede'), so no "
            "run has a day of it. Leave days=... out"
        )
    return True


def _of_other_names(owner: Owner, scopes: Sequence[str]) -> Iterator[str]:
    return (scope for scope in scopes if scope.partition("=")[0] != owner.of_days)

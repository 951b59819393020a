"""The rows that a warehouse keeps for its writers: markers, owners of tables, and who owns a day of a table.

Markers are in the default schema of the connection. The owner of a table is in the schema of the table, so that all
connections find it, whatever their default schema is. So are two other rows of logio_owner, under names that no table has:
the youngest run that appends to a table (``appends:TABLE``), and for a run that was given up, the fresh one that has begun in
its place (``given up:UID``). Earlier versions pass over these. So are the scopes of a table whose days are owned by value,
in logio_scope.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Dialect

from airflow_logio.dataflow.writers.action_writers import Marker
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner, check_advanced, check_not_removed
from airflow_logio.protocol.scope_rules import DayRun, ScopeRow
from airflow_logio.systems.databases.table_names import TableName, always_quoted, in_double_quotes, in_text

marker_table = sa.Table(
    "logio_marker",
    sa.MetaData(),
    sa.Column("run_uid", sa.String(32), primary_key=True),
    sa.Column("operator", sa.String(250), primary_key=True),
    sa.Column("connection", sa.String(250), primary_key=True),
    sa.Column("slot", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("last_write", sa.BigInteger, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
)


HIGHEST_TOKEN = 2**63 - 1


@cache  # one object per schema, so that SQLAlchemy compiles each statement once and not for every write
def owner_table(schema: str | None) -> sa.Table:
    """The owners of the tables of a schema."""
    return sa.Table(
        "logio_owner",
        sa.MetaData(),
        sa.Column("table_name", sa.String(250), primary_key=True),
        sa.Column("run_uid", sa.String(32), nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        schema=None if schema is None else always_quoted(schema),
    )


@cache
def scope_table(schema: str | None) -> sa.Table:
    """What runs own in the tables of a schema: one row for each table and scope.

    Where they own rows by value, `id` is null, and tables of earlier versions may lack it: it is named nowhere then.
    """
    return sa.Table(
        "logio_scope",
        sa.MetaData(),
        sa.Column("table_name", sa.String(250), primary_key=True),
        sa.Column("scope", sa.String(100), primary_key=True),
        sa.Column("pipeline", sa.String(250), nullable=False),
        sa.Column("log_uid", sa.String(32), nullable=False),
        sa.Column("claimed_ordinal", sa.BigInteger, nullable=False),
        sa.Column("claimed_by", sa.String(32), nullable=False),
        sa.Column("live_ordinal", sa.BigInteger),
        sa.Column("live_run", sa.String(32)),
        sa.Column("live_write", sa.BigInteger),
        sa.Column("id", sa.BigInteger),
        schema=None if schema is None else always_quoted(schema),
    )


def make_tables(
    connection: Connection, schema: str | None, *, for_scopes: bool = False, for_runs: bool = False
) -> None:
    """Make the tables that are missing; that of scopes only where parts of tables are owned. Those of runs have numbers."""
    lock_making(connection)
    for table in (marker_table, owner_table(schema), *((scope_table(schema),) if for_scopes else ())):
        table.create(connection, checkfirst=True)
    if for_runs and "id" not in {one["name"] for one in sa.inspect(connection).get_columns("logio_scope", schema)}:
        named = ".".join(in_double_quotes(part) for part in (schema, "logio_scope") if part is not None)
        connection.exec_driver_sql(f"ALTER TABLE {named} ADD COLUMN id BIGINT".replace("%", "%%"))


def rehearse(connection: Connection, name: TableName, contender: Contender) -> None:
    """Every statement that a writer executes for its marker and for the owner of a table, without touching the row of any
    run: `contender` is a run that is not. Its rows are there until the transaction is rolled back."""
    marker = Marker(contender.mine.run_uid, contender.operator, contender.connection, 0, 1, contender.mine.started_at)
    advance_marker(connection, marker, lock_marker(connection, marker), 1)
    nowhere = TableName(name.schema, f"no table of {contender.mine.run_uid}")
    for how in ({"for_update": True}, {"for_share": True}):
        read_owner(connection, nowhere, **how)
    store_owner(connection, nowhere, contender)
    store_given_up(connection, nowhere, contender.mine.run_uid, contender.mine)
    if contender.by or contender.run_column:
        run = DayRun("rehearsal", "", 0, contender.mine.run_uid)
        make_scope(connection, nowhere, "rehearsal=", run)
        claim_scope(connection, nowhere, "rehearsal=", run)
        lock_scope(connection, nowhere, "rehearsal=")
        close_scope(connection, nowhere, "rehearsal=", run, 1)
        if contender.run_column:
            number_scope(connection, nowhere, "rehearsal=", greatest_scope_id(connection, nowhere) + 1)
        remove_scopes(connection, nowhere)


def lock_making(connection: Connection) -> None:
    """One client at a time makes tables that all of them need."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('logio warehouse'))"))


# --- markers ----------------------------------------------------------------------------------------------------------


def lock_marker(connection: Connection, marker: Marker) -> MarkerRow:
    """Read a marker with its row locked: any other writer waits here, then finds this one's token."""
    query = sa.select(marker_table.c.last_write, marker_table.c.token).where(*_is(marker)).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        _insert_marker(connection, marker)
        row = connection.execute(query).one()
        if marker.line is not None:  # behind the row, with which it may just have been removed
            check_not_removed(marker, read_removed(connection, *marker.line[:2]))
    return MarkerRow(int(row.last_write), int(row.token))


def advance_marker(connection: Connection, marker: Marker, before: MarkerRow, number: int) -> None:
    """Compare-and-set: from what was read. Raises `ExternalUnavailable` if the row holds something else by now."""
    columns = marker_table.c
    was_read = (columns.last_write == before.number, columns.token == before.token)
    change = sa.update(marker_table).where(*_is(marker), *was_read).values(last_write=number, token=marker.token)
    check_advanced(marker.operator, marker.connection, connection.execute(change).rowcount)


def has_begun_elsewhere(connection: Connection, marker: Marker) -> bool:
    """Whether another slot of the writer has applied a write action."""
    columns = marker_table.c
    others = (columns.slot != marker.slot, columns.last_write > 0)
    same = (columns.run_uid == marker.run_uid, columns.operator == marker.operator)
    query = sa.select(sa.literal(1)).where(*same, columns.connection == marker.connection, *others).limit(1)
    return connection.execute(query).first() is not None


def _insert_marker(connection: Connection, marker: Marker) -> None:
    """Two drivers may come here at once (the older one is about to be refused): the first one makes the row."""
    insert = _insert_of(connection)
    values = {
        "run_uid": marker.run_uid,
        "operator": marker.operator,
        "connection": marker.connection,
        "slot": marker.slot,
        "last_write": 0,
        "token": marker.token,
    }
    connection.execute(insert(marker_table).on_conflict_do_nothing().values(**values))


# --- markers of runs that were removed from their log -----------------------------------------------------------------


def read_removed(connection: Connection, log_uid: str, pipeline: str) -> int:
    """The ordinal up to which the markers of a pipeline's runs were removed, because their log has removed these; 0 at
    first."""
    query = sa.select(marker_table.c.last_write).where(*_is(_horizon(log_uid, pipeline)))
    return int(connection.execute(query).scalar_one_or_none() or 0)


def remove_markers(connection: Connection, log_uid: str, pipeline: str, up_to: int, run_uids: Sequence[str]) -> int:
    """Remove the markers of runs that their log has removed, all up to that ordinal; returns how many.

    In the same transaction, that ordinal takes their place: a driver of such a run that comes back finds no marker, and is
    refused by it (`check_not_removed`).
    """
    horizon, columns = _horizon(log_uid, pipeline), marker_table.c
    _insert_marker(connection, horizon)
    raised = sa.update(marker_table).where(*_is(horizon), columns.last_write < up_to)
    connection.execute(raised.values(last_write=up_to))
    return connection.execute(sa.delete(marker_table).where(columns.run_uid.in_(run_uids))).rowcount


def _horizon(log_uid: str, pipeline: str) -> Marker:
    """A row of its own: no run has the uid of a log."""
    return Marker(log_uid, pipeline, "removed runs", 0, HIGHEST_TOKEN, 0.0)


def _insert_of(connection: Connection) -> Any:
    """INSERT that may have ON CONFLICT."""
    return postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert


def _is(marker: Marker) -> tuple[sa.ColumnElement[bool], ...]:
    columns = marker_table.c
    return (
        columns.run_uid == marker.run_uid,
        columns.operator == marker.operator,
        columns.connection == marker.connection,
        columns.slot == marker.slot,
    )


# --- owners -----------------------------------------------------------------------------------------------------------


def read_owner(
    connection: Connection, name: TableName, *, for_update: bool = False, for_share: bool = False
) -> Owner | None:
    """The owner of a table; with its row locked, if asked for.

    SQLite may have several rows, of a version that took ``Sales`` and ``sales`` for two tables: the newest one counts.
    """
    table = owner_table(name.schema)
    query = sa.select(table).where(_owns(table, name))
    if for_update or for_share:
        query = query.with_for_update(read=for_share)
    return _youngest(connection, query)


def lock_takeover(connection: Connection, name: TableName) -> None:
    """Two runs, or two writers of one table, begin one after the other: before there is a row to lock, too."""
    if connection.dialect.name == "postgresql":
        key = sa.text("SELECT pg_advisory_xact_lock(hashtext('logio table'), hashtext(:name))")
        connection.execute(key, {"name": str(name)})


def store_owner(connection: Connection, name: TableName, contender: Contender) -> None:
    """Make the contender's claim the owner; its row is locked."""
    table, values = owner_table(name.schema), contender.claimed._asdict()
    if not connection.execute(sa.update(table).where(_owns(table, name)).values(**values)).rowcount:
        connection.execute(sa.insert(table).values(table_name=name.key, **values))


def release_of(dialect: Dialect, name: TableName) -> str:
    """What a person writes between UPDATE and AND to take the claim of a table's owner back (`Contender.owner_row`)."""
    owners = ".".join(in_text(dialect, part) for part in (name.schema, "logio_owner") if part is not None)
    column = "lower(table_name)" if name.schema is None else "table_name"
    key = name.key.replace("'", "''")
    return f"{owners} SET run_uid = '', started_at = 0 WHERE {column} = '{key}'"


# --- runs that append, and runs that were given up --------------------------------------------------------------------


def read_appending(connection: Connection, name: TableName) -> Owner | None:
    """The youngest run that has begun to append to a table, whose owner is locked."""
    table = owner_table(name.schema)
    return _youngest(connection, sa.select(table).where(table.c.table_name == _appending(name)))


def store_appending(connection: Connection, name: TableName, run: Owner) -> None:
    """Make a run the youngest that appends to a table, whose owner is locked."""
    table, key = owner_table(name.schema), _appending(name)
    change = sa.update(table).where(table.c.table_name == key).values(**run._asdict())
    if not connection.execute(change).rowcount:
        connection.execute(sa.insert(table).values(table_name=key, **run._asdict()))


def read_given_up(connection: Connection, name: TableName, run_uid: str) -> Owner | None:
    """The fresh run that has begun in the place of a run, in any table of this schema.

    To be asked when the owner is locked: a fresh run says it while it holds that lock.
    """
    table = owner_table(name.schema)
    return _youngest(connection, sa.select(table).where(table.c.table_name == _given_up(run_uid)))


def remove_appending(connection: Connection, name: TableName) -> None:
    """Pipelines own the table by value from now on: what runs appended is owned by its value, too."""
    table = owner_table(name.schema)
    connection.execute(sa.delete(table).where(table.c.table_name == _appending(name)))


def store_given_up(connection: Connection, name: TableName, run_uid: str, fresh: Owner) -> None:
    """Say that a run was given up for a fresh one. Several writers of that may do so at once."""
    table, insert = owner_table(name.schema), _insert_of(connection)
    values = {"table_name": _given_up(run_uid), **fresh._asdict()}
    connection.execute(insert(table).on_conflict_do_nothing().values(**values))


def fence_markers(connection: Connection, run_uid: str) -> None:
    """Refuse all drivers of a run that was given up where they have written before: those of earlier versions, too, which
    do not know that it was."""
    columns = marker_table.c
    change = sa.update(marker_table).where(columns.run_uid == run_uid, columns.token < HIGHEST_TOKEN)
    connection.execute(change.values(token=HIGHEST_TOKEN))


def _appending(name: TableName) -> str:
    return f"appends:{name.key}"


def _given_up(run_uid: str) -> str:
    return f"given up:{run_uid}"


def _youngest(connection: Connection, query: sa.Select[Any]) -> Owner | None:
    owners = [Owner(row.run_uid, row.started_at) for row in connection.execute(query)]
    return max(owners, key=lambda owner: (owner.started_at, owner.run_uid), default=None)


def _owns(table: sa.Table, name: TableName) -> sa.ColumnElement[bool]:
    column = table.c.table_name
    return (sa.func.lower(column) if name.schema is None else column) == name.key


# --- what runs own: to be asked when the owner is locked -----------------------------------------------------


def lock_scope(connection: Connection, name: TableName, scope: str, *, for_share: bool = False) -> ScopeRow | None:
    """The row of a scope, locked."""
    return _scope_row(connection.execute(_select_scope(name, scope).with_for_update(read=for_share)))


def read_scope(connection: Connection, name: TableName, scope: str) -> ScopeRow | None:
    """The row of a scope as it is now."""
    return _scope_row(connection.execute(_select_scope(name, scope)))


def read_scopes_of(connection: Connection, name: TableName, scopes: Sequence[str]) -> dict[str, ScopeRow]:
    """Scope → its row as it is now, for those that have one; the table has an owner whose parts have scopes."""
    table = scope_table(name.schema)
    query = sa.select(table.c.scope, *(table.c[column] for column in ScopeRow._fields)).where(
        table.c.table_name == name.key, table.c.scope.in_(scopes)
    )
    return {row[0]: ScopeRow(*row[1:]) for row in connection.execute(query)}


def make_scope(connection: Connection, name: TableName, scope: str, run: DayRun) -> None:
    """Make the row of a scope, claimed by a run, unless there is one: of two that make it, one waits for the other."""
    table, insert = scope_table(name.schema), _insert_of(connection)
    values = {"table_name": name.key, "scope": scope, **_claim(run)}
    connection.execute(insert(table).on_conflict_do_nothing().values(**values))


def claim_scope(connection: Connection, name: TableName, scope: str, run: DayRun) -> None:
    """Make a run the one that has claimed a scope, whose row is locked."""
    change = sa.update(scope_table(name.schema)).where(*_of_scope(name, scope)).values(**_claim(run))
    connection.execute(change)


def close_scope(connection: Connection, name: TableName, scope: str, run: DayRun, number: int) -> None:
    """Say that the rows of a scope, whose row is locked, are those of a run; `number` is its write action that has deleted
    what was there."""
    values = {"live_ordinal": run.ordinal, "live_run": run.run_uid, "live_write": number}
    connection.execute(sa.update(scope_table(name.schema)).where(*_of_scope(name, scope)).values(**values))


def remove_scopes(connection: Connection, name: TableName, *, of_days: bool = False) -> None:
    """Forget what runs own in a table, whose owner is locked: what they call live is gone. If only `of_days`, not the parts
    that are owned by runs."""
    if sa.inspect(connection).has_table("logio_scope", schema=name.schema):
        table = scope_table(name.schema)
        which = (table.c.table_name == name.key, *((table.c.id.is_(None),) if of_days else ()))
        connection.execute(sa.delete(table).where(*which))


def lock_scope_ids(connection: Connection, name: TableName) -> None:
    """One run at a time gives numbers to scopes of a table."""
    if connection.dialect.name == "postgresql":
        key = sa.text("SELECT pg_advisory_xact_lock(hashtext('logio scope'), hashtext(:name))")
        connection.execute(key, {"name": str(name)})


def read_scope_id(connection: Connection, name: TableName, scope: str) -> int | None:
    """The number of a scope, which its rows have."""
    found = connection.execute(sa.select(scope_table(name.schema).c.id).where(*_of_scope(name, scope))).scalar()
    return None if found is None else int(found)


def greatest_scope_id(connection: Connection, name: TableName) -> int:
    """The greatest number of a scope of a table, 0 if none has one. No other run gives one meanwhile (`lock_scope_ids`)."""
    table = scope_table(name.schema)
    query = sa.select(sa.func.max(table.c.id)).where(table.c.table_name == name.key)
    return int(connection.execute(query).scalar() or 0)


def number_scope(connection: Connection, name: TableName, scope: str, number: int) -> None:
    """Give a scope its number."""
    change = sa.update(scope_table(name.schema)).where(*_of_scope(name, scope)).values(id=number)
    connection.execute(change)


def pipelines_in_scopes(connection: Connection, name: TableName) -> tuple[str, ...]:
    """The pipelines that own parts of a table."""
    if not sa.inspect(connection).has_table("logio_scope", schema=name.schema):
        return ()
    table = scope_table(name.schema)
    query = sa.select(table.c.pipeline).where(table.c.table_name == name.key).distinct().order_by(table.c.pipeline)
    return tuple(connection.execute(query).scalars())


def _select_scope(name: TableName, scope: str) -> sa.Select[Any]:
    table = scope_table(name.schema)
    return sa.select(*(table.c[column] for column in ScopeRow._fields)).where(*_of_scope(name, scope))


def _scope_row(found: sa.CursorResult[Any]) -> ScopeRow | None:
    row = found.mappings().one_or_none()
    return None if row is None else ScopeRow(**row)


def _claim(run: DayRun) -> dict[str, Any]:
    return {
        "pipeline": run.pipeline,
        "log_uid": run.log_uid,
        "claimed_ordinal": run.ordinal,
        "claimed_by": run.run_uid,
    }


def _of_scope(name: TableName, scope: str) -> tuple[sa.ColumnElement[bool], ...]:
    columns = scope_table(name.schema).c
    return columns.table_name == name.key, columns.scope == scope

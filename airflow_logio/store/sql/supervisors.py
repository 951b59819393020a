"""What supervisors write and read: which ones look for failed groups, in which runs, and how a group is launched."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.status_records import SupervisorNote, SupervisorRecord
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import inserting, now

FORGOTTEN_SECONDS = 7 * 86_400.0


def note_launch(connection: Connection, run_id: int, group: str, recipe: LaunchRecipe) -> None:
    table = schema.group
    connection.execute(
        sa.update(table)
        .where(table.c.run_id == run_id, table.c.group_name == group)
        .values(launch=msgspec.json.encode(recipe).decode())
    )


def launch_recipe(connection: Connection, run_id: int, group: str) -> LaunchRecipe | None:
    """Raises `LogInconsistent` for a recipe that cannot be read."""
    table = schema.group
    text = connection.execute(
        sa.select(table.c.launch).where(table.c.run_id == run_id, table.c.group_name == group)
    ).scalar_one_or_none()
    try:
        return None if text is None else msgspec.json.decode(text, type=LaunchRecipe)
    except msgspec.MsgspecError as error:
        raise LogInconsistent(
            f"the launch recipe of group {group!r} of run {run_id} cannot be read: {error}"
        ) from error


def note(connection: Connection, notes: Sequence[SupervisorNote]) -> None:
    table, clock = schema.supervisor, now(connection.dialect.name)
    last = {one.name: one for one in notes}
    rows = [{"name": one.name, "pipeline": one.pipeline, "run_uid": one.run_uid, "at": clock} for one in last.values()]
    insert = inserting(connection.dialect.name, table).values(rows)
    values = {name: insert.excluded[name] for name in ("pipeline", "run_uid", "at")}
    connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values))
    connection.execute(sa.delete(table).where(table.c.at < clock - FORGOTTEN_SECONDS))


def forget(connection: Connection, name: str) -> None:
    connection.execute(sa.delete(schema.supervisor).where(schema.supervisor.c.name == name))


def supervisors(connection: Connection) -> Sequence[SupervisorRecord]:
    table, clock = schema.supervisor, now(connection.dialect.name)
    query = sa.select(table, (clock - table.c.at).label("age")).order_by(table.c.at.desc(), table.c.name)
    return [SupervisorRecord(row.name, row.pipeline, row.run_uid, row.age) for row in connection.execute(query)]

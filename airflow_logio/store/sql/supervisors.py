"""What supervisors write and read: which ones look for failed groups, in which runs, and how a group is launched."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records import GroupStatus, LaunchRecipe, Run, SupervisorRecord
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.runs import statuses, to_run, upserting

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


def note_supervisor(connection: Connection, name: str, pipeline: str | None, run_uid: str | None) -> None:
    table, clock = schema.supervisor, now(connection.dialect.name)
    values = {"pipeline": pipeline, "run_uid": run_uid, "at": clock}
    insert = upserting(connection, table).values(name=name, **values)
    connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values))
    connection.execute(sa.delete(table).where(table.c.at < clock - FORGOTTEN_SECONDS))


def supervisors(connection: Connection) -> Sequence[SupervisorRecord]:
    table, clock = schema.supervisor, now(connection.dialect.name)
    query = sa.select(table, (clock - table.c.at).label("age")).order_by(table.c.at.desc(), table.c.name)
    return [SupervisorRecord(row.name, row.pipeline, row.run_uid, row.age) for row in connection.execute(query)]


def unfinished(
    connection: Connection, beats: Engine, pipeline: str | None, run_uid: str | None
) -> Sequence[tuple[Run, Sequence[GroupStatus]]]:
    table = schema.run
    query = sa.select(table).where(table.c.state == RunState.RUNNING.value).order_by(table.c.run_id)
    if pipeline is not None:
        query = query.where(table.c.pipeline == pipeline)
    if run_uid is not None:
        query = query.where(table.c.uid == run_uid)
    found = [to_run(row) for row in connection.execute(query)]
    groups = statuses(connection, beats, [run.run_id for run in found])
    return [(run, groups[run.run_id]) for run in found]

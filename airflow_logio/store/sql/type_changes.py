"""The description of a run with other types of columns, as a row (`LogStore.change_types`)."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import UnknownRun
from airflow_logio.store.records import Run
from airflow_logio.store.rules.stored_spec import encode_spec
from airflow_logio.store.rules.type_rules import TypeChange, described_anew
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.groups import lock_group
from airflow_logio.store.sql.runs import to_run


def change(connection: Connection, run_id: int, wanted: TypeChange) -> Run:
    """Locks fences and groups, by which a claim comes before or its driver sees the change; then the run, as everywhere."""
    groups = {group: lock_group(connection, run_id, group) for group in sorted(wanted.incarnations)}
    table = schema.run
    row = connection.execute(sa.select(table).where(table.c.run_id == run_id).with_for_update()).one_or_none()
    if row is None:
        raise UnknownRun(f"no run {run_id} is in the log")
    spec = described_anew(to_run(row), wanted, groups)
    changed = sa.update(table).where(table.c.run_id == run_id).values(spec=encode_spec(spec))
    return to_run(connection.execute(changed.returning(*table.c)).one())

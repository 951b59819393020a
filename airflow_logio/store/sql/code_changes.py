"""Code that a person takes for a group of a run, as rows (`LogStore.take_code`)."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import storable
from airflow_logio.store.records.driver_records import CodeChange, KeptCode
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.code_rules import LONGEST, digest_of, members, number_for
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.runs import known


def take(
    connection: Connection, run: Run, group: str, digest: str, fingerprint: str, by: str, archive: bytes | None
) -> int:
    """Locks the groups, by which a claim comes before or sees the new number, then the run, by which numbers are unique."""
    table, runs, names = schema.group, schema.run, members(run, group)
    ours = (table.c.run_id == run.run_id, table.c.group_name.in_(names))
    locked = sa.select(table.c.code).where(*ours).order_by(table.c.group_name).with_for_update()
    codes = connection.execute(locked).scalars().all()
    state = connection.execute(
        sa.select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update()
    ).scalar_one_or_none()
    if state is None or not codes:
        raise UnknownRun(f"run {run.spec.key} is no longer in the log")
    found = changes(connection, run.run_id)
    number = number_for(run, known(RunState, state, f"the state of run {run.uid}"), found, max(codes), digest)
    if number == max(codes):
        return number
    connection.execute(
        sa.insert(schema.code_change).values(
            run_id=run.run_id,
            number=number,
            group_name=replicated_group(group),
            digest=digest,
            fingerprint=fingerprint,
            taken_by=storable(by[:LONGEST]),
            taken_at=now(connection.dialect.name),
        )
    )
    keep(connection, run.run_id, digest, archive)
    connection.execute(sa.update(table).where(*ours).values(code=number))
    return number


def keep(connection: Connection, run_id: int, digest: str | None, archive: bytes | None) -> None:
    """Store the code of that digest with the run, once. The run's row is locked, or not yet seen by others."""
    table = schema.code
    here = sa.select(table.c.digest).where(table.c.run_id == run_id, table.c.digest == digest)
    if digest is None or archive is None or connection.execute(here).one_or_none() is not None:
        return
    connection.execute(sa.insert(table).values(run_id=run_id, digest=digest, archive=archive))


def kept(connection: Connection, run: Run, number: int) -> KeptCode:
    table, digest = schema.code, digest_of(run, changes(connection, run.run_id), number)
    query = sa.select(table.c.archive).where(table.c.run_id == run.run_id, table.c.digest == digest)
    archive = None if digest is None else connection.execute(query).scalar_one_or_none()
    return KeptCode(number, digest, None if archive is None else bytes(archive))


def changes(connection: Connection, run_id: int) -> Sequence[CodeChange]:
    table = schema.code_change
    rows = connection.execute(sa.select(table).where(table.c.run_id == run_id).order_by(table.c.number))
    return [
        CodeChange(row.number, row.group_name, row.digest, row.fingerprint, row.taken_by, row.taken_at) for row in rows
    ]

"""Runs have a partition and an ordinal, pipelines the last ordinal, the log a name; what each start of a run has decided.

Fences first, as everywhere: a driver that still runs is waited for where it cannot wait for what is locked here. Earlier
runs get their `run_id` as ordinal, by which they were in order. An earlier version that has the log open begins no run
any more: it gives no ordinal.
"""

from __future__ import annotations

import json
import uuid

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE logio_fence, logio_group, logio_run IN ACCESS EXCLUSIVE MODE")
    op.add_column("logio_group", sa.Column("drained_at", sa.Double()))
    _add_to_runs()
    _make_tables()
    op.execute(
        "INSERT INTO logio_pipeline (name, ordinal) SELECT pipeline, max(run_id) FROM logio_run GROUP BY pipeline"
    )
    op.execute(sa.text("INSERT INTO logio_log (uid) VALUES (:uid)").bindparams(uid=uuid.uuid4().hex))


def _add_to_runs() -> None:
    for column in (
        sa.Column("partition", sa.String(250)),
        sa.Column("ordinal", sa.BigInteger()),
        sa.Column("superseded_by", sa.String(32)),
        sa.Column("because", sa.Text()),
    ):
        op.add_column("logio_run", column)
    op.execute("UPDATE logio_run SET ordinal = run_id")
    _fill_partitions()
    with op.batch_alter_table("logio_run") as batch:
        batch.alter_column("ordinal", existing_type=sa.BigInteger(), nullable=False)
    op.create_index("ix_logio_run_partition", "logio_run", ["pipeline", "partition", "ordinal"])


def _fill_partitions() -> None:
    """Descriptions have had the partition before the table had the column."""
    runs = sa.table("logio_run", sa.column("run_id"), sa.column("spec"), sa.column("partition"))
    query = sa.select(runs.c.run_id, runs.c.spec).where(runs.c.spec.contains('"partition":"'))
    for run_id, spec in op.get_bind().execute(query).all():
        key = json.loads(spec).get("partition")
        op.execute(sa.update(runs).where(runs.c.run_id == run_id).values(partition=key))


def _make_tables() -> None:
    op.create_table(
        "logio_pipeline",
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_logio_pipeline"),
        comment="the order of the runs of a pipeline: who begins one holds this row",
    )
    op.create_table(
        "logio_log",
        sa.Column("uid", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_logio_log"),
        comment="one row: what tells this log from others; a copy of a log has the uid of its original",
    )
    op.create_table(
        "logio_start",
        sa.Column("pipeline", sa.String(250), nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("dag_run_id", sa.String(250), nullable=False),
        sa.Column("try_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("clear_number", sa.Integer(), nullable=False),
        sa.Column("start_date", sa.Double()),
        sa.Column("run_uid", sa.String(32)),
        sa.Column("decision", sa.String(32)),
        sa.Column("note", sa.Text()),
        sa.PrimaryKeyConstraint("pipeline", "dag_id", "dag_run_id", "try_number", name="pk_logio_start"),
        comment="what each attempt of a task that starts runs has decided",
    )
    op.create_index("ix_logio_start_run_uid", "logio_start", ["run_uid"])

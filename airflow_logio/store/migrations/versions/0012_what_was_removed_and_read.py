"""Removed runs leave a row; runs say which days they have read; pipelines, how long their runs stay and when days are due.

The lock of starts first, then fences, as everywhere: who begins a run and a driver that still runs are waited for where they
cannot wait for what is locked here. An earlier version that has the log open removes runs without a row, and begins runs
that leave what the pipeline says as it was.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE logio_pipeline, logio_fence, logio_run IN ACCESS EXCLUSIVE MODE")
    for column in (
        sa.Column("keep_seconds", sa.Double()),
        sa.Column("swept_at", sa.Double()),
        sa.Column("due", sa.Text()),
    ):
        op.add_column("logio_pipeline", column)
    op.create_index("ix_logio_run_ended_at", "logio_run", ["pipeline", "ended_at"])
    op.create_index("ix_logio_run_ordinal", "logio_run", ["pipeline", "ordinal"])
    op.create_index("ix_logio_run_state", "logio_run", ["state", "run_id"])
    op.create_index("ix_logio_run_dag_run_id", "logio_run", ["dag_run_id"])
    op.create_index("ix_logio_run_dag_id", "logio_run", ["dag_id", "run_id"])
    _make_tables()


def _make_tables() -> None:
    op.create_table(
        "logio_removed_run",
        sa.Column("uid", sa.String(32), nullable=False),
        sa.Column("pipeline", sa.String(250), nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.Column("dag_run_id", sa.String(250), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("partition", sa.String(250)),
        sa.Column("ordinal", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("removed_at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("uid", name="pk_logio_removed_run"),
        comment="runs that are no longer in the log, or are being removed: which, when and why",
    )
    op.create_index("ix_logio_removed_run_partition", "logio_removed_run", ["pipeline", "partition", "ordinal"])
    op.create_index("ix_logio_removed_run_ordinal", "logio_removed_run", ["pipeline", "ordinal"])
    op.create_index("ix_logio_removed_run_dag_run_id", "logio_removed_run", ["dag_run_id"])
    op.create_table(
        "logio_day_read",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("op", sa.String(250), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("scope", sa.String(250), nullable=False),
        sa.Column("live_run", sa.String(32), nullable=False),
        sa.Column("is_whole", sa.Boolean(), nullable=False, server_default=sa.true()),
        sa.Column("read_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "op", "place", "scope", "live_run", name="pk_logio_day_read"),
        comment="which days, of tables and folders that runs own by value, a run has read, and as which run had left them",
    )
    op.create_index("ix_logio_day_read_live_run", "logio_day_read", ["live_run"])

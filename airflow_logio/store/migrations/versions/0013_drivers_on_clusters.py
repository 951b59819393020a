"""The row of a driver has what a cluster manager knows of it: as what it was submitted, what it says of itself, how it ended.
The row of a run has what Airflow's tasks have told of it.

Fences first, as everywhere: a driver that still runs is waited for where it cannot wait for what is locked here. An earlier
version that has the log open submits to no manager, spends the budget of a recovery after a driver that was
taken, and notes nothing of what its tasks have told.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE logio_fence, logio_run, logio_driver IN ACCESS EXCLUSIVE MODE")
    for column in (
        sa.Column("submission", sa.Text()),
        sa.Column("reported", sa.Text()),
        sa.Column("manager_said", sa.Text()),
        sa.Column("said_at", sa.Double()),
        sa.Column("was_taken", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("gone_at", sa.Double()),
    ):
        op.add_column("logio_driver", column)
    op.add_column("logio_run", sa.Column("told", sa.Text()))
    is_left = sa.text("submission IS NOT NULL AND gone_at IS NULL")
    op.create_index("ix_logio_driver_left", "logio_driver", ["run_id"], postgresql_where=is_left, sqlite_where=is_left)

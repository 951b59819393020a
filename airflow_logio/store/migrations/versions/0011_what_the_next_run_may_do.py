"""The row of a run has what a person allows the next run of its partition.

Fences first, as everywhere: a driver that still runs is waited for where it cannot wait for what is locked here. An earlier
version that has the log open begins runs that are allowed nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE logio_fence, logio_run IN ACCESS EXCLUSIVE MODE")
    op.add_column("logio_run", sa.Column("next_allowed", sa.Text()))

"""The code of a run, which code a group is launched with, which code a driver had, and when a person took other code.

Fences first, as everywhere: a driver that still runs is waited for where it cannot wait for what is locked here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE logio_fence, logio_group, logio_driver IN ACCESS EXCLUSIVE MODE")
    op.create_table(
        "logio_code_change",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("group_name", sa.String(250), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("taken_by", sa.String(250), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "number", name="pk_logio_code_change"),
        comment="code that a person took for a group of a run that had begun with another one",
    )
    op.create_table(
        "logio_code",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("archive", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "digest", name="pk_logio_code"),
        comment="what drivers of a run import, by its digest",
    )
    for table in ("logio_group", "logio_driver"):
        op.add_column(table, sa.Column("code", sa.Integer(), nullable=False, server_default=sa.text("0")))

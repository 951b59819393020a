"""Slots of replicated groups, and requests to scale them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_Id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "logio_slot",
        sa.Column("run_id", _Id, nullable=False, autoincrement=False),
        sa.Column("group_name", sa.String(250), nullable=False),
        sa.Column("slot", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("owner", sa.String(250)),
        sa.Column("moves", sa.Integer, nullable=False),
        sa.Column("done", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "group_name", "slot", name="pk_logio_slot"),
        comment="which replica works on which slot of a replicated group",
    )
    op.create_table(
        "logio_scaling",
        sa.Column("request_id", _Id, nullable=False, autoincrement=True),
        sa.Column("run_id", _Id, nullable=False),
        sa.Column("group_name", sa.String(250), nullable=False),
        sa.Column("replicas", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("asked_by", sa.String(250), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("request_key", sa.String(250)),
        sa.Column("requested_at", sa.Double, nullable=False),
        sa.Column("accepted_at", sa.Double),
        sa.Column("ended_at", sa.Double),
        sa.PrimaryKeyConstraint("request_id", name="pk_logio_scaling"),
        sa.UniqueConstraint(
            "run_id", "group_name", "request_key", name="uq_logio_scaling_run_id_group_name_request_key"
        ),
        sqlite_autoincrement=True,
        comment="requests to scale a replicated group, and what has become of them",
    )

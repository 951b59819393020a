"""Garbage collection, payload references, points of failure, quarantine, launch recipes.

Rows of earlier runs count as kept: it is no longer known which of them a lineage scope needs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_PARTIAL_INDEXES = (
    ("ix_logio_event_log_garbage", "logio_event_log", ["run_id", "rec_op"], "status = 'done' AND NOT kept"),
    ("ix_logio_read_action_garbage", "logio_read_action", ["run_id", "op"], "status = 'complete' AND NOT kept"),
    (
        "ix_logio_event_data_kept",
        "logio_event_data",
        ["run_id", "send_op", "channel", "event_id", "logged_at", "kept"],
        "kept",
    ),
)


def upgrade() -> None:
    for table in ("logio_event_log", "logio_event_data", "logio_read_action"):
        op.add_column(table, sa.Column("kept", sa.Boolean, nullable=False, server_default=sa.false()))
        op.execute(sa.update(sa.table(table, sa.column("kept", sa.Boolean))).values(kept=sa.true()))
    op.add_column("logio_event_data", sa.Column("ref", sa.Text))
    op.add_column("logio_event_data", sa.Column("logged_at", sa.Double))
    op.add_column("logio_driver", sa.Column("failed_at", sa.Text))
    op.add_column("logio_group", sa.Column("launch", sa.Text))
    for name, table, columns, where in _PARTIAL_INDEXES:
        op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
    op.create_table(
        "logio_quarantine",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=False),
        sa.Column("op", sa.String(250), nullable=False),
        sa.Column("inset_id", sa.String(250), nullable=False),
        sa.Column("group_name", sa.String(250), nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("since", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("run_id", "op", "inset_id", name="pk_logio_quarantine"),
        comment="Input Sets whose generation raised and that are set aside until a person retries them",
    )

"""The tables of the log"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "logio_driver",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("group_name", sa.String(length=250), nullable=False),
        sa.Column("replica", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("incarnation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("nonce", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("spends_budget", sa.Boolean(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=False),
        sa.Column("submitted_at", sa.Double(), nullable=True),
        sa.Column("registered_at", sa.Double(), nullable=True),
        sa.Column("first_commit_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("log_path", sa.Text(), nullable=True),
        sa.Column("host", sa.String(length=250), nullable=True),
        sa.Column("boot_id", sa.String(length=64), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("start_time", sa.Double(), nullable=True),
        sa.Column("parent_pid", sa.Integer(), nullable=True),
        sa.Column("parent_start_time", sa.Double(), nullable=True),
        sa.Column("backend_pid", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "group_name", "replica", "incarnation", name=op.f("pk_logio_driver")),
    )
    op.create_table(
        "logio_event_data",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("send_op", sa.String(length=250), nullable=False),
        sa.Column("channel", sa.String(length=250), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("send_port", sa.String(length=250), nullable=True),
        sa.Column("header", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "send_op", "channel", "event_id", name=op.f("pk_logio_event_data")),
    )
    op.create_table(
        "logio_event_lineage",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("send_op", sa.String(length=250), nullable=False),
        sa.Column("send_port", sa.String(length=250), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("inset_id", sa.String(length=250), nullable=False),
        sa.PrimaryKeyConstraint(
            "run_id", "send_op", "send_port", "event_id", "inset_id", name=op.f("pk_logio_event_lineage")
        ),
    )
    with op.batch_alter_table("logio_event_lineage", schema=None) as batch_op:
        batch_op.create_index("ix_logio_event_lineage_inset", ["run_id", "send_op", "inset_id"], unique=False)

    op.create_table(
        "logio_event_log",
        sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=8), nullable=False),
        sa.Column("send_op", sa.String(length=250), nullable=False),
        sa.Column("send_port", sa.String(length=250), nullable=True),
        sa.Column("channel", sa.String(length=250), nullable=False),
        sa.Column("rec_op", sa.String(length=250), nullable=False),
        sa.Column("rec_port", sa.String(length=250), nullable=True),
        sa.Column("inset_id", sa.String(length=250), nullable=True),
        sa.Column("size", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("row_id", name=op.f("pk_logio_event_log")),
    )
    with op.batch_alter_table("logio_event_log", schema=None) as batch_op:
        batch_op.create_index("ix_logio_event_log_delivery", ["run_id", "rec_op", "rec_port", "event_id"], unique=False)
        batch_op.create_index("ix_logio_event_log_inset", ["run_id", "rec_op", "inset_id"], unique=False)

    op.create_table(
        "logio_fence",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("group_name", sa.String(length=250), nullable=False),
        sa.Column("replica", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("incarnation", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("commit_no", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "group_name", "replica", name=op.f("pk_logio_fence")),
    )
    op.create_table(
        "logio_group",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("group_name", sa.String(length=250), nullable=False),
        sa.Column("replica", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("desired", sa.String(length=16), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "group_name", "replica", name=op.f("pk_logio_group")),
    )
    op.create_table(
        "logio_port_counter",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("op", sa.String(length=250), nullable=False),
        sa.Column("port", sa.String(length=250), nullable=False),
        sa.Column("direction", sa.String(length=8), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("records", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.Double(), nullable=False),
        sa.Column("last_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "op", "port", "direction", name=op.f("pk_logio_port_counter")),
    )
    op.create_table(
        "logio_read_action",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("op", sa.String(length=250), nullable=False),
        sa.Column("conn_id", sa.String(length=250), nullable=False),
        sa.Column("action_id", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=10), nullable=False),
        sa.Column("action_desc", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "op", "conn_id", "action_id", name=op.f("pk_logio_read_action")),
    )
    op.create_table(
        "logio_run",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("uid", sa.String(length=32), nullable=False),
        sa.Column("pipeline", sa.String(length=250), nullable=False),
        sa.Column("dag_id", sa.String(length=250), nullable=False),
        sa.Column("dag_run_id", sa.String(length=250), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_logio_run")),
        sa.UniqueConstraint(
            "pipeline",
            "dag_id",
            "dag_run_id",
            "generation",
            name=op.f("uq_logio_run_pipeline_dag_id_dag_run_id_generation"),
        ),
        sa.UniqueConstraint("uid", name=op.f("uq_logio_run_uid")),
    )
    op.create_table(
        "logio_state",
        sa.Column("run_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("op", sa.String(length=250), nullable=False),
        sa.Column("slot", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("state_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "op", "slot", "state_id", name=op.f("pk_logio_state")),
        comment="state_id 0 is the current state of the operator; others are states as they were at a trigger",
    )
    op.create_index(
        "uq_logio_event_log_row",
        "logio_event_log",
        [
            "run_id",
            "send_op",
            "channel",
            "event_id",
            "rec_op",
            sa.text("coalesce(rec_port, '')"),
            sa.text("coalesce(inset_id, '')"),
        ],
        unique=True,
    )


def downgrade() -> None:
    op.drop_table("logio_state")
    op.drop_table("logio_run")
    op.drop_table("logio_read_action")
    op.drop_table("logio_port_counter")
    op.drop_table("logio_group")
    op.drop_table("logio_fence")
    with op.batch_alter_table("logio_event_log", schema=None) as batch_op:
        batch_op.drop_index("ix_logio_event_log_inset")
        batch_op.drop_index("ix_logio_event_log_delivery")

    op.drop_table("logio_event_log")
    with op.batch_alter_table("logio_event_lineage", schema=None) as batch_op:
        batch_op.drop_index("ix_logio_event_lineage_inset")

    op.drop_table("logio_event_lineage")
    op.drop_table("logio_event_data")
    op.drop_table("logio_driver")

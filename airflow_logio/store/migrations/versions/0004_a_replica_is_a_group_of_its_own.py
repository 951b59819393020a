"""A replica is a group of its own (`hourly.2`), and a slot has operators of its own: drops columns that are 0 in every
row.

They were part of primary keys. SQLite copies these tables, which hold a few rows per group or operator; PostgreSQL
drops the key with the column. Fences come first, as everywhere: if the migration has to wait for a driver that still
runs, that driver cannot be waiting for what is locked here. Revisions do not cover the tables of heartbeats
(`sql/migrate.py`).
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"

_GONE = {
    "logio_fence": ("replica", ["run_id", "group_name"]),
    "logio_group": ("replica", ["run_id", "group_name"]),
    "logio_driver": ("replica", ["run_id", "group_name", "incarnation"]),
    "logio_state": ("slot", ["run_id", "op", "state_id"]),
}
"""Table → column to drop, primary key that remains."""


def upgrade() -> None:
    for table, (column, key) in _GONE.items():
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)
            batch.create_primary_key(f"pk_{table}", key)

"""A replica is a group of its own (`hourly.2`): the column `replica`, 0 in every row, goes.

It was part of primary keys. SQLite copies these tables, which hold a few rows per group; PostgreSQL drops the key with the
column. Fences first, as everywhere: a driver that still runs is waited for where it cannot wait for what is locked here.
The tables of heartbeats are no business of revisions (`sql/migrate.py`).
"""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"

_KEYS = {
    "logio_fence": ["run_id", "group_name"],
    "logio_group": ["run_id", "group_name"],
    "logio_driver": ["run_id", "group_name", "incarnation"],
}


def upgrade() -> None:
    for table, key in _KEYS.items():
        with op.batch_alter_table(table) as batch:
            batch.drop_column("replica")
            batch.create_primary_key(f"pk_{table}", key)

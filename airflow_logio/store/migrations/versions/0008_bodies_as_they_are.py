"""PostgreSQL stores bodies as they are: they are compressed already. Quarantined Input Sets are counted from an index.

Fences first, as everywhere: a driver that still runs is waited for where it cannot wait for what is locked here. Bodies
that are in the log stay as they are stored.
"""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("LOCK TABLE logio_fence, logio_event_data, logio_code, logio_quarantine IN ACCESS EXCLUSIVE MODE")
        op.execute("ALTER TABLE logio_event_data ALTER COLUMN body SET STORAGE EXTERNAL")
        op.execute("ALTER TABLE logio_code ALTER COLUMN archive SET STORAGE EXTERNAL")
    op.create_index("ix_logio_quarantine_count", "logio_quarantine", ["run_id", "group_name", "since"])

"""States have a checksum in front of them. The column gets another name, so that a driver of the code before this one
cannot store a state without it.

Fences first, as everywhere: a driver that still runs is waited for where it cannot wait for what is locked here.
"""

from __future__ import annotations

import zlib
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        op.execute("LOCK TABLE logio_fence, logio_state IN ACCESS EXCLUSIVE MODE")
    with op.batch_alter_table("logio_state") as batch:
        batch.alter_column("state", new_column_name="sealed", existing_type=sa.LargeBinary(), existing_nullable=False)
    key: list[sa.ColumnClause[Any]] = [
        sa.column("run_id", sa.BigInteger),
        sa.column("op", sa.String),
        sa.column("state_id", sa.BigInteger),
    ]
    states = sa.table("logio_state", *key, sa.column("sealed", sa.LargeBinary))
    keys = connection.execute(sa.select(*(states.c[column.name] for column in key))).all()
    for found in keys:  # one by one: a state may be large
        row = [states.c[column.name] == value for column, value in zip(key, found, strict=True)]
        state = bytes(connection.execute(sa.select(states.c.sealed).where(*row)).scalar_one())
        sealed = zlib.crc32(state).to_bytes(4, "big") + state
        connection.execute(sa.update(states).where(*row).values(sealed=sealed))

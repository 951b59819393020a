"""A table for what drivers print. It stands beside the heartbeats, whose tables have no revision of their own.

`migrate.upgrade` makes it.
"""

from __future__ import annotations

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """The log itself stays as it is."""

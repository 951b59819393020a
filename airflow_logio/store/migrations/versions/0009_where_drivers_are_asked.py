"""A table for where drivers hand over bodies directly. It stands beside the heartbeats, whose tables have no revision.

`migrate.upgrade` makes it.
"""

from __future__ import annotations

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """The log itself stays as it is."""

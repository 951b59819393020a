"""The sender side of a row of EVENT_LOG as one name that is never null (see `store/sql/schema.py`).

Events have the name of their port. Actions and state events, whose sender port is null in the paper, have the names
below.
"""

from __future__ import annotations

STATE_CHANNEL = "state:"
WRITES = "write:"
READS = "read:"


def write_channel(connection: str) -> str:
    return f"{WRITES}{connection}"


def read_channel(connection: str) -> str:
    return f"{READS}{connection}"

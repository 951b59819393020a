"""The sender side of a row of EVENT_LOG as one name that is never null (see `store/sql/schema.py`).

A port's own name for its events; for actions and state events, whose sender port is null in the paper, these.
"""

from __future__ import annotations

STATE_CHANNEL = "state:"
WRITES = "write:"
READS = "read:"


def write_channel(connection: str) -> str:
    return f"{WRITES}{connection}"


def read_channel(connection: str) -> str:
    return f"{READS}{connection}"

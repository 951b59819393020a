"""A driver process that waits for locks of SQLite for a second or so, not twenty: a short lock is an outage to it.

`LOGIO_BUSY_SECONDS=<seconds>`, in the environment of a driver that is forked (`fork_server`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from airflow_logio import databases

VARIABLE = "LOGIO_BUSY_SECONDS"


def variables(seconds: float) -> Mapping[str, str]:
    """What the environment of such a driver has."""
    return {VARIABLE: str(seconds)}


def install() -> None:
    """In the driver's process."""
    if seconds := os.environ.get(VARIABLE):
        databases.BUSY_TIMEOUT_SECONDS = float(seconds)  # type: ignore[assignment]

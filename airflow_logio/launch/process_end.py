"""Waiting for the end of a process that is not a child of this one."""

from __future__ import annotations

import os
import select
import time

from airflow_logio.launch.processes import is_gone
from airflow_logio.store.records.driver_records import DriverIdentity

GLANCE_SECONDS = 0.1
"""Between two looks where the system does not tell of the end."""


def wait_for_end(identity: DriverIdentity, seconds: float) -> None:
    """Return when the driver's process on this machine has ended, at the latest after so many seconds.

    On Linux at once, also while its parent has not collected it, which a wait for a process that is no child does not see.
    """
    deadline = time.monotonic() + seconds
    handle = _handle(identity.pid or identity.parent_pid)
    if handle is None:
        while not is_gone(identity) and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(GLANCE_SECONDS, left))
        return
    try:
        if not is_gone(identity):  # the handle is of this process, not of a later one with its number
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(handle)


def _handle(pid: int) -> int | None:
    """What becomes readable when the process ends; None if it has ended, or the system has no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # macOS; no process; forbidden in a container
        return None

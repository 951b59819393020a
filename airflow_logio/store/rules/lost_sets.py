"""What must be in the log of an Input Set that an event is to be made of again (Section 5)."""

from __future__ import annotations

from airflow_logio.errors import LogInconsistent


def gone(operator: str, inset_id: str) -> LogInconsistent:
    """The error where it is not."""
    return LogInconsistent(
        f"what Input Set {inset_id!r} of replay operator {operator!r} is made of is not in the log, and an event that was "
        "made of it is not done"
    )

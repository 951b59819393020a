"""What Spark says of a job that has failed, as short as it can be understood."""

from __future__ import annotations

MOST_LINES = 12


def shortened(error: BaseException) -> str:
    """The beginning, and the end, where a Python worker says what was raised; without the frames of the JVM."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    return "\n".join(lines if len(lines) <= MOST_LINES else [*lines[:3], "...", *lines[3 - MOST_LINES :]])

"""What a driver has printed, in a file of the machine that launched it."""

from __future__ import annotations

from pathlib import Path

TAIL_LINES = 20
TAIL_BYTES = 64 * 1024


def tail(log_path: str | None, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a driver's log, if it is on this machine."""
    if log_path is None:
        return []
    try:
        with Path(log_path).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []

"""What a driver has printed: a file of the machine that launched it, and beside it what was there before a rotation."""

from __future__ import annotations

from pathlib import Path

LOG_NAME = "driver.log"
TAIL_LINES = 20
TAIL_BYTES = 64 * 1024


def older(log_path: Path) -> Path:
    """Where the part of a log is that was rotated last; there is none before the first rotation."""
    return log_path.with_name(f"{log_path.name}.1")


def tail(log_path: str | None, lines: int = TAIL_LINES) -> list[str]:
    """The last lines of a driver's log, if it is on this machine."""
    if log_path is None:
        return []
    try:
        return end_of(Path(log_path), lines)
    except OSError:
        return []


def end_of(log_path: Path, lines: int) -> list[str]:
    """The last lines of a log, at most `TAIL_BYTES`, also across a rotation. Raises OSError."""
    found = _end(log_path)
    if len(found) < TAIL_BYTES and older(log_path).is_file():
        found = (_end(older(log_path)) + found)[-TAIL_BYTES:]
    return found.decode(errors="replace").splitlines()[-lines:]


def _end(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - TAIL_BYTES))
        return file.read()


class LogReader:
    """Reads a log that grows and is rotated. `read` returns what has been added; raises OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._has_begun = False

    def read(self) -> bytes:
        """First all there is, then what is new."""
        before = b"" if self._has_begun or not older(self._path).is_file() else older(self._path).read_bytes()
        with self._path.open("rb") as file:
            if file.seek(0, 2) < self._read:  # rotated: what was not read yet is in the older part
                before = _from(older(self._path), self._read)
                self._read = 0
            file.seek(self._read)
            added = file.read()
        self._has_begun = True
        self._read += len(added)
        return before + added


def _from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()

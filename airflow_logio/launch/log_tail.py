"""Reads the end of a log that grows and is rotated, in little memory, and recognizes where it was read to."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

from airflow_logio.launch.driver_log import older

_BYTES = 256


def mark_of(before: bytes) -> str:
    """What tells whether a file has these bytes before a position, without saying what they are."""
    end = before[-_BYTES:]
    return f"{len(end)}:{hashlib.sha256(end).hexdigest()[:32]}"


class LogTail:
    """Reads behind a `position` of the file, if the bytes before it have this `mark`; else all of it: it was rotated.

    `read` returns how many new bytes were skipped, because they are more than `most`, and the others. Raises `OSError`.
    """

    def __init__(self, path: Path, most: int, position: int = 0, mark: str | None = None) -> None:
        self._path = path
        self._most = most
        self.position = position
        self._mark = mark_of(b"") if mark is None else mark
        self._before = b""

    def read(self) -> tuple[int, bytes]:
        with self._path.open("rb") as file:
            left = b""
            skipped = 0
            if not self._is_there(file):
                skipped, left = self._rest_of_older()
                self.position, self._before, self._mark = 0, b"", mark_of(b"")
            missed, added = self._behind(file)
        if missed:
            skipped, left = skipped + len(left), b""
        return skipped + missed, left + added

    def _behind(self, file: BinaryIO) -> tuple[int, bytes]:
        size = file.seek(0, 2)
        begins = max(self.position, size - self._most)
        missed = begins - self.position
        file.seek(begins)
        added = file.read(size - begins)
        self.position = begins + len(added)
        self._before = (added if missed else self._before + added)[-_BYTES:]
        if added:
            self._mark = mark_of(self._before)
        return missed, added

    def _is_there(self, file: BinaryIO) -> bool:
        length = int(self._mark.partition(":")[0])
        if file.seek(0, 2) < self.position or length > self.position:
            return False
        file.seek(self.position - length)
        return mark_of(file.read(length)) == self._mark

    def _rest_of_older(self) -> tuple[int, bytes]:
        """What was not read before the rotation, if the older part is that of the last one."""
        try:
            with older(self._path).open("rb") as file:
                return self._behind(file) if self._is_there(file) else (0, b"")
        except FileNotFoundError:
            return 0, b""

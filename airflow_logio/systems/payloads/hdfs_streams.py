"""Files on HDFS as binary files of Python, written once and read anywhere in them."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.systems.payloads.data_files import DamagedFile
from airflow_logio.systems.payloads.hdfs_client import MOVED_SECONDS, Hdfs

_WRITTEN_AT_ONCE = 2**20
"""Bytes, as `bytes`: the client holds the lock of the interpreter while it takes them, of other buffers one by one."""
_READ_AT_ONCE = 4 * 2**20
_LOOK_SECONDS = 30.0
"""How long damage is looked for: reads that fail at once, or are answered, take milliseconds."""


class Writing:
    """A new file. It is seen, and too short, until it is complete.

    Raises as `Hdfs.begun`; its methods as those of `Hdfs`.
    """

    def __init__(self, hdfs: Hdfs, path: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._writer = hdfs.begun(path)
        self._size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._writer is not None:
            for first in range(0, view.nbytes, _WRITTEN_AT_ONCE):
                self._write(bytes(view[first : first + _WRITTEN_AT_ONCE]))
        self._size += view.nbytes
        return view.nbytes

    def _write(self, piece: bytes) -> None:
        writer = self._writer
        self._hdfs.asked(lambda: writer.write(piece), MOVED_SECONDS)

    def complete(self) -> int:
        """Its bytes: the last block is on the disks of its DataNodes, and the NameNode knows the file as closed."""
        self._hdfs.asked(self._writer.hsync, MOVED_SECONDS)
        self._hdfs.asked(self._writer.close, MOVED_SECONDS)
        self._writer = None
        return self._size

    def abandon(self) -> None:
        """Remove it; what cannot be removed is swept. The writer completes it when it is dropped: too late."""
        with suppress(OSError, LogioError):
            self._hdfs.remove(self._path)
        self._writer = None

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """The file is durable once it is complete."""

    def close(self) -> None:
        """Only `complete` makes it a file."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class Reading:
    """A file that is complete. Raises FileNotFoundError, as the methods of `Hdfs`, and `DamagedFile`."""

    def __init__(self, hdfs: Hdfs, path: str) -> None:
        self._hdfs = hdfs
        self._path = path
        self._reader = hdfs.asked(lambda: hdfs.client.read(hdfs.key(path)))
        self._length = len(self._reader)
        self._place = 0
        self.closed = False

    def read(self, size: int | None = -1) -> bytes:
        left = max(self._length - self._place, 0)
        end = self._place + (left if size is None or size < 0 else min(size, left))
        pieces = list[bytes]()
        while self._place < end:
            piece = self._piece(self._place, min(end, self._place + _READ_AT_ONCE))
            if not piece:
                break
            pieces.append(piece)
            self._place += len(piece)
        return b"".join(pieces)

    def _piece(self, first: int, end: int) -> bytes:
        reader = self._reader
        try:
            return bytes(self._hdfs.asked(lambda: reader.read_range(first, end - first), MOVED_SECONDS))
        except LogUnavailable as error:
            if not self._is_damaged(first, end):
                raise
            raise DamagedFile(
                errno.EIO,
                f"{self._hdfs.url(self._path)} is damaged: its DataNodes send other bytes of it, and not those ({error})",
            ) from error

    # --- damage -------------------------------------------------------------------------------------------------------

    def _is_damaged(self, first: int, end: int) -> bool:
        """Whether some bytes cannot be read, and others of the same block can: before and after, so that their DataNodes are
        there. The client says no more of wrong checksums than that all DataNodes have failed."""
        until = time.monotonic() + _LOOK_SECONDS
        with suppress(OSError, LogioError):
            block = int(self._hdfs.status(self._path).blocksize or self._length)
            for start in range(first - first % block, end, block):
                inside = start, min(start + block, self._length)
                low, high = max(first, start), min(end, inside[1])
                if self._can_read(low, high):
                    continue
                good = next(filter(lambda part: self._can_read(*part), _probes(*inside, low, high)), None)
                if good is None or time.monotonic() > until:
                    return False
                return not self._can_read(low, high) and self._can_read(*good)
        return False

    def _can_read(self, first: int, end: int) -> bool:
        try:
            self._hdfs.asked(lambda: self._hdfs.client.read(self._hdfs.key(self._path)).read_range(first, end - first))
        except LogUnavailable:
            return False
        return True

    # --- as Arrow, and others, read it --------------------------------------------------------------------------------

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._place = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._length}[whence] + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def size(self) -> int:
        return self._length

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _probes(start: int, end: int, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Single checksums of a block, from its ends to the bytes in question, and within these."""
    for place in (start, end - 1, low, high - 1, (low + high) // 2, (start + end) // 2):
        yield place, place + 1

"""The bodies that a driver has made last, for those who ask for them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict

import pyarrow as pa

from airflow_logio.runtime.systems.arrow import encode

MOST_BYTES = 64 * 2**20


class KeptBodies:
    """Tables by the digest of their contents (`digest_of`). Those that were put first go when there are too many bytes.

    A body is encoded when it is asked for, and then kept so: others may ask as well, and one that was restarted asks again.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, pa.Table | bytes] = OrderedDict()
        self._unasked: dict[bytes, int] = {}
        """Digest → how often it should still be asked for."""
        self._asked_at = time.monotonic()
        self._lock = threading.Lock()

    def put(self, digest: bytes, table: pa.Table, receivers: int = 1) -> None:
        with self._lock:
            self._drop(digest)
            self._unasked[digest] = receivers
            self._add(digest, table)
            while self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def body(self, digest: bytes) -> bytes | None:
        """An Arrow stream, as it would be in the log; None if it is not here, or no longer."""
        with self._lock:
            found = self._kept.get(digest)
            self._note_asked(digest)
        if found is None or isinstance(found, bytes):
            return found
        body, size = encode(found), int(found.nbytes)
        with self._lock:
            if self._kept.get(digest) is found:  # else it has gone meanwhile, or another thread has been here
                self._bytes += len(body) - size
                self._kept[digest] = body
        return body

    def are_wanted(self, patience: float) -> bool:
        """Whether some have not come to all receivers, of whom one has asked within so many seconds."""
        with self._lock:
            return bool(self._unasked) and time.monotonic() - self._asked_at < patience

    def _note_asked(self, digest: bytes) -> None:
        self._asked_at = time.monotonic()
        if (left := self._unasked.pop(digest, 1) - 1) > 0:
            self._unasked[digest] = left

    def _add(self, digest: bytes, table: pa.Table) -> None:
        self._kept[digest] = table
        self._bytes += table.nbytes

    def _drop(self, digest: bytes) -> None:
        found = self._kept.pop(digest, None)
        self._unasked.pop(digest, None)
        if found is not None:
            self._bytes -= len(found) if isinstance(found, bytes) else found.nbytes

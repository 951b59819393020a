"""The bodies that a driver has made last, for those who ask for them."""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa

from airflow_logio.systems.arrow import BYTES_OF_A_TABLE, bytes_held, encode

MOST_BYTES = 64 * 2**20
MOST_WASTE = 2
"""A slice keeps alive what it was cut from. Where that is so many times as large, the slice is encoded at once."""
SMALL_BYTES = 64 * 2**10
"""Below this a table is encoded at once, too: what it was made of in NumPy or pandas is alive with it, and may be large."""


class KeptBodies:
    """Tables by the digest of their contents (`digest_of`). Those that were put first go when there are too many bytes.

    A body is encoded when it is asked for, and then kept so: others may ask as well, and one that was restarted asks again.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[pa.Table | bytes, int]] = OrderedDict()
        """Digest → a table or its body, with the bytes that it takes."""
        self._unasked: dict[bytes, int] = {}
        """Digest → how often it should still be asked for."""
        self._lock = threading.Lock()
        self._all_asked = threading.Condition(self._lock)

    def put(self, digest: bytes, table: pa.Table, receivers: int = 1) -> None:
        """Keep it, unless it alone is too large. `receivers` will ask for it."""
        held = bytes_held(table)
        wastes = held > MOST_WASTE * max(table.nbytes, BYTES_OF_A_TABLE)
        kept: pa.Table | bytes = encode(table) if wastes or held < SMALL_BYTES else table
        size = BYTES_OF_A_TABLE + len(kept) if isinstance(kept, bytes) else held
        with self._lock:
            self._drop(digest)
            if size <= self._most_bytes:
                self._unasked[digest] = receivers
                self._keep(digest, kept, size)

    def body(self, digest: bytes) -> bytes | None:
        """An Arrow stream, as it would be in the log; None if it is not here, or no longer."""
        with self._lock:
            found = self._kept.get(digest)
            self._note_asked(digest)
        if found is None or isinstance(found[0], bytes):
            return None if found is None else found[0]
        body = encode(found[0])
        with self._lock:
            if self._kept.get(digest) is found:  # else it has gone meanwhile, or another thread has been here
                self._bytes -= found[1]
                self._keep(digest, body, BYTES_OF_A_TABLE + len(body))
        return body

    def are_wanted(self) -> bool:
        """Whether some have not come to all receivers."""
        with self._lock:
            return bool(self._unasked)

    def wait_until_asked(self, seconds: float) -> None:
        """Until all have come to all receivers, or so long."""
        with self._all_asked:
            self._all_asked.wait_for(lambda: not self._unasked, seconds)

    def _note_asked(self, digest: bytes) -> None:
        if (left := self._unasked.pop(digest, 1) - 1) > 0:
            self._unasked[digest] = left
        if not self._unasked:
            self._all_asked.notify_all()

    def _keep(self, digest: bytes, kept: pa.Table | bytes, size: int) -> None:
        self._kept[digest] = kept, size
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, digest: bytes) -> None:
        _, size = self._kept.pop(digest, (b"", 0))
        self._unasked.pop(digest, None)
        self._bytes -= size

"""What makes a file the same file: a hash of its content, so that a replay is known to read what was read before."""

from __future__ import annotations

import hashlib
from typing import Any

MIB = 1 << 20
WHOLE_UP_TO = 256 * MIB
SAMPLES = 64


def parquet_fingerprint(handle: Any, size: int) -> str:
    """Fingerprint of an open Parquet file (a `pyarrow.NativeFile`) of `size` bytes.

    ``blake2b:...`` is the hash of the whole content, up to 256 MiB. ``blake2b-sampled:...`` is, for larger files, the
    hash of the size, of the whole footer (row counts, offsets and statistics of every row group) and of 64 evenly
    spaced MiB. It sees a file that was rewritten, extended, cut or replaced; it may miss bytes patched in place.
    """
    content = hashlib.blake2b(digest_size=16)
    if size <= WHOLE_UP_TO:
        handle.seek(0)
        while block := handle.read(MIB):
            content.update(block)
        return f"blake2b:{content.hexdigest()}"
    content.update(str(size).encode())
    content.update(_footer(handle, size))
    for sample in range(SAMPLES):
        handle.seek((size - MIB) * sample // (SAMPLES - 1))
        content.update(handle.read(MIB))
    return f"blake2b-sampled:{content.hexdigest()}"


def _footer(handle: Any, size: int) -> bytes:
    # A Parquet file ends with the footer, its length (4 bytes, little endian) and the magic bytes PAR1.
    handle.seek(size - 8)
    length = min(size, int.from_bytes(handle.read(4), "little") + 8)
    handle.seek(size - length)
    footer: bytes = handle.read(length)
    return footer

"""States are stored with a checksum in front, so that a damaged one is noticed and not decoded to another meaning."""

from __future__ import annotations

import zlib

from airflow_logio.errors import LogInconsistent

_BYTES = 4


def seal(state: bytes) -> bytes:
    """The CRC-32 of a state, big-endian, and the state."""
    return zlib.crc32(state).to_bytes(_BYTES, "big") + state


def unseal(operator: str, sealed: bytes) -> bytes:
    """The state of an operator. Raises `LogInconsistent`, naming the operator, if it is not what was stored."""
    checksum, state = sealed[:_BYTES], sealed[_BYTES:]
    if zlib.crc32(state).to_bytes(_BYTES, "big") != checksum:
        raise LogInconsistent(
            f"the state of operator {operator!r} is damaged: its checksum does not match ({len(sealed):,} bytes); "
            "restore the log from a backup, or start a new run"
        )
    return state

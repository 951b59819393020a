"""The small, typed header beside every body in EVENT_DATA (design D6)."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.values import Kind, MadeOf


class Header(msgspec.Struct, omit_defaults=True):
    """What is known of a body without opening it; `checksum` is the CRC-32 of the body."""

    kind: Kind = Kind.DATA
    records: int = 0
    checksum: int = 0
    about: dict[str, Any] = msgspec.field(default_factory=dict)
    """For actions: their description."""
    code: int = 0
    """For events: number of the code that made it, as in `GroupRef`."""
    made_of: MadeOf | None = None
    """For events of replay operators: how the body, which is nowhere, is made again."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode_header(
    kind: Kind,
    records: int,
    body: bytes,
    about: dict[str, Any] | None = None,
    *,
    code: int = 0,
    made_of: MadeOf | None = None,
) -> bytes:
    """Raises `LogInconsistent` for an `about` that holds more than text, numbers, lists and maps."""
    try:
        return _encoder.encode(Header(kind, records, zlib.crc32(body), about or {}, code, made_of))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LogInconsistent(f"a description cannot be stored: {error}; it is {repr(about)[:200]}") from error


def read_header(where: str, header: bytes) -> Header:
    """A header without its body. Raises `LogInconsistent`, naming the event, if it is not one."""
    try:
        return _decoder.decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # also invalid UTF-8, and too deep nesting
        raise LogInconsistent(f"the header of {where} cannot be read: {error}") from error


def decode_header(where: str, header: bytes, body: bytes, ref: str | None = None) -> Header:
    """Raises `LogInconsistent`, naming the event, if the header is invalid or describes another body.

    A body at `ref`, in the payload store, is checked when it is loaded.
    """
    decoded = read_header(where, header)
    if ref is None and zlib.crc32(body) != decoded.checksum:
        raise LogInconsistent(f"the body of {where} is damaged: its checksum does not match ({len(body):,} bytes)")
    return decoded


def decode_about(where: str, header: bytes) -> dict[str, Any]:
    """What a header says about its event, without the body. Raises `LogInconsistent` if it is not a header."""
    return read_header(where, header).about

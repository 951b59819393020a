"""The small, typed header beside every body in EVENT_DATA (DESIGN decision 6)."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.values import Kind


class Header(msgspec.Struct, omit_defaults=True):
    """What is known of a body without opening it; `checksum` is the CRC-32 of the body."""

    kind: Kind = Kind.DATA
    records: int = 0
    checksum: int = 0
    about: dict[str, Any] = msgspec.field(default_factory=dict)
    """For actions: their description."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Header)


def encode_header(kind: Kind, records: int, body: bytes, about: dict[str, Any] | None = None) -> bytes:
    return _encoder.encode(Header(kind, records, zlib.crc32(body), about or {}))


def decode_header(where: str, header: bytes, body: bytes) -> Header:
    """Raises `LogInconsistent`, naming the event, if the header is not one or the body is not the one it describes."""
    try:
        decoded = _decoder.decode(header)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise LogInconsistent(f"the header of {where} cannot be read: {error}") from error
    if zlib.crc32(body) != decoded.checksum:
        raise LogInconsistent(f"the body of {where} is damaged: its checksum does not match ({len(body):,} bytes)")
    return decoded

"""Payloads as bytes. The runtime uses Arrow for this; scenarios in plain Python use msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

REMEMBERED = 4_096
"""Most tables, and most bodies, that are cached."""


class Codec(Protocol):
    """How a scenario's payloads become bodies in the log."""

    def encode(self, payload: Any) -> bytes: ...

    def decode(self, body: bytes) -> Any: ...

    def digest(self, payload: Any) -> bytes:
        """Equal for payloads with the same contents, and for no others."""
        ...

    def comparable(self, body: bytes) -> Any:
        """A value that is equal for two bodies with the same meaning. Needed only for bodies whose bytes differ."""
        ...

    def records(self, body: bytes) -> Sequence[str]:
        """The records of a body, each as text that distinguishes it from others."""
        ...


class PlainCodec:
    """Lists, numbers, strings and dicts as msgpack: equal payloads are equal bytes."""

    def __init__(self) -> None:
        self.encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self.decode = msgspec.msgpack.Decoder().decode

    def digest(self, payload: Any) -> bytes:
        return blake2b(self.encode(payload), digest_size=16).digest()

    def comparable(self, body: bytes) -> Any:
        return body

    def records(self, body: bytes) -> Sequence[str]:
        return list(map(repr, self.decode(body)))


class ArrowCodec:
    """Arrow tables as IPC streams, as in the runtime. The order of records within one event has no meaning.

    Tables and bodies are immutable, and schedules see the same ones repeatedly, so both directions are cached.
    """

    def __init__(self) -> None:
        self._bodies: dict[int, tuple[Any, bytes]] = {}
        self._tables: dict[bytes, Any] = {}
        self._comparable: dict[bytes, Any] = {}

    def encode(self, payload: Any) -> bytes:
        from airflow_logio.systems.arrow import encode

        if payload is None:
            return b""
        known = self._bodies.get(id(payload))
        if known is None:
            if len(self._bodies) >= REMEMBERED:
                self._bodies.clear()
            # The table itself is kept, so that no other object gets its id.
            known = self._bodies[id(payload)] = (payload, encode(payload))
        return known[1]

    def decode(self, body: bytes) -> Any:
        from airflow_logio.systems.arrow import decode

        if not body:
            return None
        if body not in self._tables:
            if len(self._tables) >= REMEMBERED:
                self._tables.clear()
            self._tables[body] = decode("an event", body)
        return self._tables[body]

    def digest(self, payload: Any) -> bytes:
        from airflow_logio.systems.arrow import digest_of

        return digest_of(payload)

    def comparable(self, body: bytes) -> Any:
        if not body:
            return body
        if body not in self._comparable:
            if len(self._comparable) >= REMEMBERED:
                self._comparable.clear()
            table = self.decode(body)
            self._comparable[body] = table.column_names, sorted(map(repr, table.to_pylist()))
        return self._comparable[body]

    def records(self, body: bytes) -> Sequence[str]:
        found: Sequence[str] = self.comparable(body)[1]
        return found

"""Payloads as bytes: what the runtime does with Arrow, scenarios of plain Python do with msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

REMEMBERED = 4_096
"""Tables, and bodies, at most."""


class Codec(Protocol):
    """How a scenario's payloads become bodies in the log."""

    def encode(self, payload: Any) -> bytes: ...

    def decode(self, body: bytes) -> Any: ...

    def comparable(self, body: bytes) -> Any:
        """A value by which two bodies that mean the same are equal; asked only for bodies whose bytes differ."""
        ...

    def records(self, body: bytes) -> Sequence[str]:
        """The records of a body, each as a text by which it can be told from others."""
        ...


class PlainCodec:
    """Lists, numbers, strings and dicts as msgpack: equal payloads are equal bytes."""

    def __init__(self) -> None:
        self.encode = msgspec.msgpack.Encoder(order="deterministic").encode
        self.decode = msgspec.msgpack.Decoder().decode

    def comparable(self, body: bytes) -> Any:
        return body

    def records(self, body: bytes) -> Sequence[str]:
        return list(map(repr, self.decode(body)))


class ArrowCodec:
    """Arrow tables as IPC streams, as in the runtime. The order of records within one event means nothing.

    Tables and bodies are immutable, and schedules see the same ones again and again: both ways are remembered.
    """

    def __init__(self) -> None:
        self._bodies: dict[int, tuple[Any, bytes]] = {}
        self._tables: dict[bytes, Any] = {}
        self._comparable: dict[bytes, Any] = {}

    def encode(self, payload: Any) -> bytes:
        from airflow_logio.runtime.systems.arrow import encode

        if payload is None:
            return b""
        known = self._bodies.get(id(payload))
        if known is None:
            if len(self._bodies) >= REMEMBERED:
                self._bodies.clear()
            # The table itself is kept, so that its id is nobody else's.
            known = self._bodies[id(payload)] = (payload, encode(payload))
        return known[1]

    def decode(self, body: bytes) -> Any:
        from airflow_logio.runtime.systems.arrow import decode

        if not body:
            return None
        if body not in self._tables:
            if len(self._tables) >= REMEMBERED:
                self._tables.clear()
            self._tables[body] = decode("an event", body)
        return self._tables[body]

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

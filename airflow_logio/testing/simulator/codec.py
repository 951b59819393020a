"""Payloads as bytes. The runtime uses Arrow for this; scenarios in plain Python use msgpack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import Event, Kind

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


def serialized(effects: fx.Effects, codec: Codec, offer: Callable[[Event, bytes], None]) -> fx.Effects:
    """Replaces payloads by bodies before the transaction, as `driver/committer.py` does with Arrow.

    `offer` gets events of replay operators, with the bodies that do not go into the log.
    """
    done: fx.Effects = []
    for effect in effects:
        kind = type(effect)
        if kind is fx.LogEvent:
            assert isinstance(effect, fx.LogEvent)
            event = effect.event
            if event.kind is Kind.DATA and (event.body is None or event.made_of is not None):
                body = codec.encode(event.payload)
                if event.made_of is None:
                    sent = Event(event.sender, event.event_id, event.kind, event.records, None, body, event.about)
                else:
                    made_of = replace(event.made_of, digest=codec.digest(event.payload), size=len(body))
                    sent = replace(event, payload=None, body=None, made_of=made_of)
                    offer(sent, body)
                effect = fx.LogEvent(sent, effect.deliveries, effect.kept, effect.held)  # noqa: PLW2901
        elif kind is fx.LogWrite:
            assert isinstance(effect, fx.LogWrite)
            if effect.body is None:
                body = codec.encode(effect.payload)
                effect = fx.LogWrite(  # noqa: PLW2901
                    effect.operator, effect.connection, effect.number, effect.header, effect.records, None, body
                )
        elif kind is fx.LogRead:
            effect = _read(effect, codec)  # noqa: PLW2901
        done.append(effect)
    return done


def _read(effect: Any, codec: Codec) -> fx.LogRead:
    return fx.LogRead(
        effect.operator,
        effect.connection,
        effect.action_id,
        effect.description,
        effect.inset_ids,
        effect.records,
        None,
        codec.encode(effect.payload),
    )

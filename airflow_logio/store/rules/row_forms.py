"""How rows hold what is logged: channels, headers beside bodies, sealed states, references to payloads (design D6)."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_logio.errors import LogInconsistent, ProtocolViolation
from airflow_logio.protocol.values import Kind, MadeOf

log = logging.getLogger(__name__)

STATE_CHANNEL = "state:"
"""The sender side of a row of EVENT_LOG is one name that is never null. Events have the name of their port. Actions and state
events, whose sender port is null in the paper, have these names."""
WRITES = "write:"
READS = "read:"


def write_channel(connection: str) -> str:
    return f"{WRITES}{connection}"


def read_channel(connection: str) -> str:
    return f"{READS}{connection}"


class Header(msgspec.Struct, omit_defaults=True):
    """What is known of a body without opening it; `checksum` is the CRC-32 of the body, `seal` that of the header."""

    kind: Kind = Kind.DATA
    records: int = 0
    checksum: int = 0
    about: dict[str, Any] = msgspec.field(default_factory=dict)
    """For actions: their description."""
    code: int = 0
    """For events: number of the code that made it, as in `GroupRef`."""
    made_of: MadeOf | None = None
    """For events of replay operators: how the body, which is nowhere, is made again."""
    mended: str | None = None
    """What a person has made of values that their type cannot have (`logio mend`), with name and time."""
    seal: int | None = None
    """CRC-32 of the bytes of the header before it, which come first. None in one of before there were seals."""


_BYTES = 4
"""Of a CRC-32."""
_WAY_OUT = "restore the log from a backup, or start a fresh run"
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
    mended: str | None = None,
) -> bytes:
    """Raises `LogInconsistent` for an `about` that holds more than text, numbers, lists and maps."""
    try:
        return _sealed(_encoder.encode(Header(kind, records, zlib.crc32(body), about or {}, code, made_of, mended)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise LogInconsistent(f"a description cannot be stored: {error}; it is {repr(about)[:200]}") from error


_SEAL = b"\xa4seal\xce"
"""MessagePack of the last key of a header, and the mark of the number of four bytes that follows it."""


def _sealed(header: bytes) -> bytes:
    """The same map with one more key. Its CRC-32 covers every other byte, so that a flipped bit is no other event."""
    begun = (
        bytes([header[0] + 1]) + header[1:] + _SEAL
    )  # a map of fewer than 15 keys has their number in its first byte
    return begun + zlib.crc32(begun).to_bytes(_BYTES, "big")


def read_header(where: str, header: bytes) -> Header:
    """A header without its body. Raises `LogInconsistent`, naming the event, if it is not what was stored."""
    try:
        decoded = _decoder.decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # also invalid UTF-8, and too deep nesting
        raise LogInconsistent(f"the header of {where} cannot be read: {error}; {_WAY_OUT}") from error
    if decoded.seal is not None and decoded.seal != zlib.crc32(header[:-_BYTES]):
        raise LogInconsistent(
            f"the header of {where} is damaged: its checksum does not match ({len(header):,} bytes); {_WAY_OUT}"
        )
    return decoded


def decode_header(where: str, header: bytes, body: bytes, ref: str | None = None) -> Header:
    """Raises `LogInconsistent`, naming the event, if the header is invalid or describes another body.

    A body at `ref`, in the payload store, is checked when it is loaded.
    """
    decoded = read_header(where, header)
    if ref is None and zlib.crc32(body) != decoded.checksum:
        raise LogInconsistent(
            f"the body of {where} is damaged: its checksum does not match ({len(body):,} bytes); {_WAY_OUT}"
        )
    return decoded


def check_unchanged(where: str, found: tuple[bytes, bytes, str | None] | None, before: tuple[Any, ...]) -> None:
    """Raises `ProtocolViolation` if a row (header, body, reference) is not what a person has seen `before`."""
    if found is None or tuple(found) != tuple(before):
        how = "is not in the log any more" if found is None else "is not what it was when you looked"
        raise ProtocolViolation(f"{where} {how}; nothing was changed")


def decode_about(where: str, header: bytes) -> dict[str, Any]:
    """What a header says about its event, without the body. Raises `LogInconsistent` if it is not a header."""
    return read_header(where, header).about


def seal(state: bytes) -> bytes:
    """The CRC-32 of a state, big-endian, and the state: a damaged one is noticed, and not decoded to another meaning."""
    return zlib.crc32(state).to_bytes(_BYTES, "big") + state


def unseal(operator: str, sealed: bytes) -> bytes:
    """The state of an operator. Raises `LogInconsistent`, naming the operator, if it is not what was stored."""
    checksum, state = sealed[:_BYTES], sealed[_BYTES:]
    if zlib.crc32(state).to_bytes(_BYTES, "big") != checksum:
        raise LogInconsistent(
            f"the state of operator {operator!r} is damaged: its checksum does not match ({len(sealed):,} bytes); "
            f"{_WAY_OUT}"
        )
    return state


_LAST_KEY = re.compile(r'"crc":"([0-9a-f]{8})"\}')
_LAST_KEY_LENGTH = len('"crc":"00000000"}')


def seal_json(text: str, *of: object) -> str:
    """A JSON object with the CRC-32 of its text, and of what it belongs to, in one more key, the last.

    Versions that do not know the key pass over it.
    """
    return f'{text[:-1]}{"" if text == "{}" else ","}"crc":"{_checksum(text, of)}"}}'


def unseal_json(text: str, *of: object) -> str:
    """The object as it was given to `seal_json`; one without the key is of an earlier version, and comes back as it is.

    Raises `ValueError` if it is another one, belongs to something else, or has bytes that were no text when it was read with
    ``errors="surrogateescape"``.
    """
    text.encode()
    found = _LAST_KEY.fullmatch(text, max(len(text) - _LAST_KEY_LENGTH, 0))
    if found is None:
        return text
    text = text[: found.start()].removesuffix(",") + "}"
    if found[1] != _checksum(text, of):
        raise ValueError(f"its checksum does not match ({len(text):,} characters)")
    return text


def _checksum(text: str, of: Sequence[object]) -> str:
    return f"{zlib.crc32(' '.join([*map(str, of), text]).encode()):08x}"


def told_of(stored: str | None, task: str) -> Any | None:
    """What `with_told` has stored for the task; None if nothing, or if it cannot be read: then it is told again."""
    found = _all_told(stored).get(task)
    return None if found is None else _told(found, Any)


def with_told(stored: str | None, task: str, value: Any) -> str:
    """What is stored, with this value for the task. Raises `TypeError` or `ValueError` for what is no plain data."""
    told = {**_all_told(stored), task: msgspec.Raw(msgspec.json.encode(value))}
    return msgspec.json.encode(told).decode()


def _all_told(stored: str | None) -> Mapping[str, msgspec.Raw]:
    if stored is None:
        return {}
    found: Mapping[str, msgspec.Raw] | None = _told(stored, dict[str, msgspec.Raw])
    return found or {}


def _told(text: str | msgspec.Raw, form: Any) -> Any | None:
    try:
        return msgspec.json.decode(text.encode() if isinstance(text, str) else text, type=form)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # also bytes that were no text
        log.warning("What tasks have told of a run cannot be read, and is told again: %s", error)
        return None


_FORM = re.compile(r"(?P<path>[^#]+)#(?P<checksum>[0-9a-f]{8})-(?P<size>[0-9]+)")


@dataclass(frozen=True, slots=True)
class Reference:
    """A file of the payload store: its path below the root, the CRC-32 and the number of its bytes.

    Written ``path#checksum-size``. It does not say where the root is: the root may hold credentials, and may move.
    """

    path: str
    checksum: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}#{self.checksum:08x}-{self.size}"

    @classmethod
    def parse(cls, where: str, text: str) -> Reference:
        """Raises `LogInconsistent`, naming `where` it was found."""
        own = cls.own(text)
        if own is None:
            raise LogInconsistent(f"the reference {text!r} of {where} does not point into a payload store")
        return own

    @classmethod
    def own(cls, text: str) -> Reference | None:
        """The reference that `text` is; None if it is not one of ours."""
        form = _FORM.fullmatch(text)
        if form is None or ".." in form["path"].split("/") or form["path"].startswith("/"):
            return None
        return cls(form["path"], int(form["checksum"], 16), int(form["size"]))


def size_of_payload(text: str) -> int:
    """The bytes of the file that a reference names; none if it is not one of ours."""
    reference = Reference.own(text)
    return 0 if reference is None else reference.size

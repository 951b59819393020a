"""The stored form of a hand-written operator's state: the author's state, and the API's own notes.

Both are in the STATE row of the operator with its LOG.io context, and so commit together. msgpack only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from airflow_logio.contrib.paper_api.infos import ReadProgress
from airflow_logio.errors import ApiMisuse, LogInconsistent
from airflow_logio.protocol.context import Context, decode_state, encode_state
from airflow_logio.protocol.plain_state import KEPT, fault, is_plain


class ReadRecord(msgspec.Struct, frozen=True):
    """A read action on record."""

    action_id: int
    connection: str
    description: dict[str, Any]
    replayable: bool
    progress: ReadProgress = ReadProgress.INCOMPLETE
    action_data: str | None = None


class Remembered(msgspec.Struct):
    """What the API remembers of a hand-written operator."""

    next_inset: int = 1
    open_insets: list[str] = msgspec.field(default_factory=list)
    """Input Sets that were created and are not done, in the order of their creation."""
    reads: list[ReadRecord] = msgspec.field(default_factory=list)
    """The last read action, and those before it whose stored effect is not discarded."""
    last_state_id: int = 0


_encoder = msgspec.msgpack.Encoder(order="deterministic")


def pack(operator: str, state: Mapping[str, Any]) -> bytes:
    """The author's state, serialized now (design D1). Raises `ApiMisuse` if reading it back would give another value."""
    kept, reason = dict(state), None
    if is_plain(kept):
        try:
            return _encoder.encode(kept)
        except (TypeError, ValueError, OverflowError) as error:
            reason = error
    raise ApiMisuse(
        f"the state of operator {operator!r} cannot be stored: {fault(kept) or reason}. {KEPT}; a table goes through "
        "pyarrow's IPC format into bytes"
    ) from reason


def unpack(packed: bytes) -> dict[str, Any]:
    """A state of the author's own to change: equal to what was packed, and of equal types."""
    return cast("dict[str, Any]", msgspec.msgpack.decode(packed))


def encode(context: Context, remembered: Remembered, packed: bytes | None) -> bytes:
    """The STATE row."""
    state = {"remembered": remembered, "author": None if packed is None else msgspec.Raw(packed)}
    return encode_state(context, state)


def decode(operator: str, data: bytes) -> tuple[Context, Remembered, bytes | None]:
    """Context, memory of the API, packed state of the author; raises `LogInconsistent`."""
    stored = decode_state(operator, data)
    try:
        remembered = msgspec.convert(stored.state["remembered"], Remembered)
        author = stored.state["author"]
    except (KeyError, msgspec.ValidationError) as error:
        raise LogInconsistent(f"the stored state of operator {operator!r} was not written by hand: {error}") from error
    return stored.context, remembered, None if author is None else pack(operator, author)

"""Stored effects of read actions that Spark has executed: the events' files in order, and where events end (ADR-85).

JSON in the payload store, read with a checksum, never evaluated.
"""

from __future__ import annotations

import msgspec

from airflow_logio.errors import LogInconsistent
from airflow_logio.systems.payloads.manifests import DataFile, check_paths

SUFFIX = ".effect"
"""What its path ends with: references tell it from bodies and manifests by it."""


class FramePart(msgspec.Struct, frozen=True):
    """The files of one event, in order."""

    files: tuple[DataFile, ...]
    manifest: str = ""
    """Reference of the manifest that names them, and owns them once an event has it; without one they are the effect's."""

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)


class StoredFrame(msgspec.Struct, frozen=True):
    """The whole effect of one read action."""

    schema: str
    """As of a `Manifest`."""
    arrow: str
    parts: tuple[FramePart, ...]

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)

    def files(self) -> list[DataFile]:
        """All of them."""
        return [file for part in self.parts for file in part.files]

    def own_files(self) -> list[DataFile]:
        """Those that no manifest names: they go with the effect."""
        return [file for part in self.parts if not part.manifest for file in part.files]

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


def is_stored_frame(path: str) -> bool:
    """Whether a path in the payload store is that of such an effect."""
    return path.endswith(SUFFIX)


def stored_frame_of(where: str, data: bytes) -> StoredFrame:
    """Raises `LogInconsistent`, naming `where`, if the bytes are none."""
    try:
        stored = msgspec.json.decode(data, type=StoredFrame)
    except msgspec.DecodeError as error:
        raise LogInconsistent(f"{where} is no stored effect: {error}") from error
    check_paths(where, stored.files())
    return stored

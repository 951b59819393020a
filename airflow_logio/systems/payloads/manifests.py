"""What a dataset (ADR-80) and a stored effect of Spark consist of: JSON, read with a checksum, never evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa

from airflow_logio.dataflow.arrow_tables import schema_of
from airflow_logio.errors import LogInconsistent

SUFFIX = ".manifest"
"""What the path of a manifest ends with: references tell datasets from bodies by it."""


class DataFile(msgspec.Struct, frozen=True):
    """One file of a dataset, written by one attempt of one task."""

    path: str
    """Below the root of the payload store, with ``/``."""
    size: int
    """Bytes."""
    records: int
    footer: int
    """CRC-32 of the Parquet footer, which has the place and the statistics of every page."""
    partition: tuple[str, ...] = ()
    """Folders of the partition, ``column=value``."""


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of a dataset, and the schema of its records. Their order is that of their paths, or that of the records."""

    schema: str
    """As Spark has it, in JSON."""
    arrow: str
    """The same as Arrow has it, as `schema_text`."""
    files: tuple[DataFile, ...]
    places: str = ""
    """The schema of the columns that are in the names of folders, as Spark has it, in JSON; earlier versions kept none."""

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    def arrow_schema(self) -> pa.Schema:
        return schema_of(self.arrow)

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


def is_manifest(path: str) -> bool:
    """Whether a path in the payload store is that of a manifest."""
    return path.endswith(SUFFIX)


def manifest_of(where: str, data: bytes) -> Manifest:
    """Raises `LogInconsistent`, naming `where`, if the bytes are no manifest."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise LogInconsistent(f"the manifest of {where} cannot be read: {error}") from error
    check_paths(f"the manifest of {where}", manifest.files)
    return manifest


def check_paths(what: str, files: Iterable[DataFile]) -> None:
    """Raises `LogInconsistent` if `what` names a file outside the payload store."""
    for file in files:
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise LogInconsistent(f"{what} names {file.path!r}, which is not in the payload store")


def in_order(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Files in the order of a manifest whose records have no order: by path."""
    return tuple(sorted(files, key=lambda file: file.path))


# --- stored effects of read actions that Spark has executed (ADR-85) --------------------------------------------------

EFFECT_SUFFIX = ".effect"
"""What the path of a stored effect ends with: references tell it from bodies and manifests by it."""


class FramePart(msgspec.Struct, frozen=True):
    """The files of one event of a stored effect, in order."""

    files: tuple[DataFile, ...]
    manifest: str = ""
    """Reference of the manifest that names them, and owns them once an event has it; without one they are the effect's."""

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files)


class StoredFrame(msgspec.Struct, frozen=True):
    """The whole effect of one read action: the files of its events in order, and where events end."""

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
        """The files that no manifest names: they go with the effect."""
        return [file for part in self.parts if not part.manifest for file in part.files]

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


def is_stored_frame(path: str) -> bool:
    """Whether a path in the payload store is that of a stored effect."""
    return path.endswith(EFFECT_SUFFIX)


def stored_frame_of(where: str, data: bytes) -> StoredFrame:
    """Raises `LogInconsistent`, naming `where`, if the bytes are no stored effect."""
    try:
        stored = msgspec.json.decode(data, type=StoredFrame)
    except msgspec.DecodeError as error:
        raise LogInconsistent(f"{where} is no stored effect: {error}") from error
    check_paths(where, stored.files())
    return stored

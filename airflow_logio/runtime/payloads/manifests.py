"""Manifests: what a dataset consists of (ADR-80). JSON in the payload store, read with a checksum, never evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa

from airflow_logio.dataflow.schema_text import schema_of
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


class Manifest(msgspec.Struct, frozen=True):
    """The files of a dataset in the order of their paths, and the schema of its records."""

    schema: str
    """Of Spark, as JSON."""
    arrow: str
    """The same as Arrow has it, as `schema_text`."""
    files: tuple[DataFile, ...]

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
    for file in manifest.files:
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise LogInconsistent(f"the manifest of {where} names {file.path!r}, which is not in the payload store")
    return manifest


def in_order(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """As a manifest has them."""
    return tuple(sorted(files, key=lambda file: file.path))

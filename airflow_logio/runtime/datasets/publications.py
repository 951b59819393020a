"""What the publication of a write action makes in a folder: names and receipt, whoever executes the action (ADR-83). Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from airflow_logio.runtime.payloads.manifests import Manifest

RECEIPTS = "_logio"
"""The folder of receipts. Readers of Parquet folders pass over names that begin so."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One write action of a `DatasetWriter`, as a driver with this token executes it. Paths are relative to the folder."""

    run_uid: str
    operator: str
    number: int
    token: int
    manifest: Manifest

    @property
    def stem(self) -> str:
        """What the names of its files and of its receipt begin with."""
        return f"{self.run_uid}.{self.operator}.{self.number:012d}"

    def names(self) -> Sequence[str]:
        """The path of each file, in the order of the manifest."""
        return [
            "/".join((*file.partition, f"{self.stem}.{index:05d}.parquet"))
            for index, file in enumerate(self.manifest.files)
        ]

    def receipt(self) -> bytes:
        """What is put into `RECEIPTS` when all files are there."""
        return msgspec.json.encode(
            {
                "run": self.run_uid,
                "operator": self.operator,
                "number": self.number,
                "schema": msgspec.json.decode(self.manifest.schema),
                "files": [
                    {"path": name, "bytes": file.size, "records": file.records}
                    for name, file in zip(self.names(), self.manifest.files, strict=True)
                ],
            }
        )

    def hidden(self, name: str) -> str:
        """What the names begin with under which this driver writes a file."""
        return f".{name}.{self.token:x}."

    def is_left_over(self, name: str) -> bool:
        """Whether a name in the folder is a file that a driver with a lower token has left half-written.

        What a driver with a higher token is writing stays: this one is the replaced one then.
        """
        return name.startswith(f".{self.run_uid}.{self.operator}.") and _token(name) < self.token


def _token(hidden: str) -> int:
    """That of the driver whose file it is; -1 if the name does not tell."""
    with contextlib.suppress(ValueError, IndexError):
        return int(hidden.rsplit(".", 2)[-2], 16)
    return -1

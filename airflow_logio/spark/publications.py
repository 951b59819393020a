"""What a write action makes in a published folder: names and receipt, whoever executes the action (ADR-83). Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from airflow_logio.systems.payloads.manifests import Manifest


@dataclass(frozen=True, slots=True)
class ActionNames:
    """One write action of a `DatasetWriter`, as a driver with this token executes it. Paths are relative to the folder."""

    run_uid: str
    operator: str
    number: int
    token: int

    @property
    def stem(self) -> str:
        """What the names of its files and of its receipt begin with."""
        return f"{self.run_uid}.{self.operator}.{self.number:012d}"

    @property
    def receipt_name(self) -> str:
        """In the folder of receipts."""
        return f"{self.stem}.json"

    def receipt_of(self, says: Mapping[str, Any]) -> bytes:
        """What is put into the folder of receipts when all files are there."""
        return msgspec.json.encode({"run": self.run_uid, "operator": self.operator, "number": self.number, **says})

    def hidden(self, name: str) -> str:
        """What the names begin with under which this driver writes a file."""
        return f".{name}.{self.token:x}."

    def is_left_over(self, name: str) -> bool:
        """Whether a name in the folder is a file that a driver with a lower token has left half-written.

        What a driver with a higher token is writing stays: this one is the replaced one then.
        """
        return name.startswith(f".{self.run_uid}.{self.operator}.") and _token(name) < self.token

    def is_half(self, name: str) -> bool:
        """Whether a name in the folder is a file that this driver is writing, or has left half-written."""
        return name.startswith(f".{self.run_uid}.{self.operator}.") and _token(name) == self.token


@dataclass(frozen=True, slots=True)
class Publication(ActionNames):
    """One that publishes a dataset."""

    manifest: Manifest

    def names(self) -> Sequence[str]:
        """The path of each file, in the order of the manifest."""
        return [
            "/".join((*file.partition, f"{self.stem}.{index:05d}.parquet"))
            for index, file in enumerate(self.manifest.files)
        ]

    def partitions(self) -> Mapping[str, str]:
        """The path of each file → the folder that it is in."""
        return {name: name.rpartition("/")[0] for name in self.names()}

    def receipt(self) -> bytes:
        """It names all files."""
        named = [
            {"path": name, "bytes": file.size, "records": file.records}
            for name, file in zip(self.names(), self.manifest.files, strict=True)
        ]
        return self.receipt_of({"schema": msgspec.json.decode(self.manifest.schema), "files": named})


def _token(hidden: str) -> int:
    """That of the driver whose file it is; -1 if the name does not tell."""
    with contextlib.suppress(ValueError, IndexError):
        return int(hidden.rsplit(".", 2)[-2], 16)
    return -1

"""The files of datasets in a folder that driver and executors have mounted under one path."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, suppress
from typing import Any

import pyarrow as pa

from airflow_logio.systems.payloads.data_files import DataFiles, NewFile, footer_checksum, new_name


class LocalDataFiles(DataFiles):
    """A folder that driver and executors have mounted under one path: a file is on the disk before its line is told."""

    def __init__(self, root: str) -> None:
        self.root = root

    def create(self, folder: str, mode: int) -> tuple[str, NewFile]:
        target = os.path.join(self.root, folder)
        os.makedirs(target, mode=0o700, exist_ok=True)
        name = new_name()
        return name, _LocalNewFile(os.path.join(target, name), mode)

    def settle(self, folder: str) -> None:
        sync(os.path.join(self.root, folder))

    def open(self, path: str) -> AbstractContextManager[Any]:
        file: AbstractContextManager[Any] = pa.OSFile(self.location(path), "rb")
        return file

    def size(self, path: str) -> int:
        return os.path.getsize(self.location(path))

    def footer(self, path: str, size: int) -> int | None:
        found = self.location(path)
        return footer_checksum(found, size) if os.path.getsize(found) == size else None

    def location(self, path: str) -> str:
        return os.path.join(self.root, path)

    def spark_path(self, path: str, scheme: str | None = None) -> str:
        return f"file://{self.location(path)}"  # whatever file system Spark takes names for that have none


class _LocalNewFile(NewFile):
    def __init__(self, path: str, mode: int) -> None:
        self._path = path
        self.stream = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb")

    def finished(self) -> tuple[int, int]:
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()
        size = os.path.getsize(self._path)
        return size, footer_checksum(self._path, size)

    def discard(self) -> None:
        """What cannot be removed is named by no manifest, so that the sweep finds it."""
        with suppress(OSError):
            os.unlink(self._path)


def sync(folder: str) -> None:
    """New names in a folder are on the disk when this returns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

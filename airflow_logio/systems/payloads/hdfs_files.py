"""The files of datasets on HDFS: by `hdfs_native` in tasks and drivers, by Hadoop's client in Spark's reader and writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from airflow_logio.systems.hdfs_roots import SCHEME
from airflow_logio.systems.payloads.data_files import DataFiles, NewFile, footer_of, new_name
from airflow_logio.systems.payloads.hdfs_client import Hdfs
from airflow_logio.systems.payloads.hdfs_streams import Reading, Writing

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AT_ONCE = 16
"""Questions under way."""


class HdfsFiles(DataFiles):
    """Raises `ConfigurationError` for a root that it cannot be."""

    keeps_secrets = False  # without Kerberos, everyone on the network is the user that they say they are

    def __init__(self, root: str) -> None:
        self._hdfs = Hdfs(root)
        self.root = self._hdfs.root

    def create(self, folder: str, mode: int) -> tuple[str, NewFile]:
        """Of its owner only, whatever `mode`: what is published from here is copied."""
        name = new_name()
        path = f"{folder}/{name}"
        return name, _NewHdfsFile(self, path, Writing(self._hdfs, path))

    def settle(self, folder: str) -> None:
        """The NameNode has names in its journal before it answers."""

    def open(self, path: str) -> AbstractContextManager[Any]:
        return Reading(self._hdfs, path)

    def size(self, path: str) -> int:
        return int(self._hdfs.status(path).length)

    def footer(self, path: str, size: int) -> int | None:
        with Reading(self._hdfs, path) as file:
            return footer_of(file, size) if file.size() == size else None

    def location(self, path: str) -> str:
        return self._hdfs.url(path)

    def spark_path(self, path: str, scheme: str | None = None) -> str:
        return self._hdfs.url(path)

    def each(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        pool = ThreadPoolExecutor(AT_ONCE, "logio-hdfs")
        try:
            yield from pool.map(ask, items)
        finally:
            pool.shutdown(cancel_futures=True)


class _NewHdfsFile(NewFile):
    def __init__(self, files: HdfsFiles, path: str, writing: Writing) -> None:
        self._files = files
        self._path = path
        self._writing = writing
        self.stream = writing

    def finished(self) -> tuple[int, int]:
        """It is read again, as others will: one that has another length then was not written as it should be."""
        size = self._writing.complete()
        footer = self._files.footer(self._path, size)
        if footer is None:
            raise OSError(
                f"{self._files.location(self._path)} has been closed, and has not the {size:,} bytes written to it"
            )
        return size, footer

    def discard(self) -> None:
        self._writing.abandon()


def parted(location: str) -> tuple[str, str]:
    """The file system of an `HdfsFiles.location`, as a root, and the path in it."""
    authority, _, path = location.removeprefix(SCHEME).partition("/")
    return f"{SCHEME}{authority}", path

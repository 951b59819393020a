"""Payloads on HDFS, as drivers reach them: written under their final names, which nothing else has, or removed."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from airflow_logio.systems.payloads.hdfs_client import Hdfs
from airflow_logio.systems.payloads.hdfs_files import AT_ONCE
from airflow_logio.systems.payloads.hdfs_streams import Reading, Writing
from airflow_logio.systems.payloads.storage import HIDDEN, Storage

_BLOCK = 4 * 2**20


class HdfsStorage(Storage):
    """Raises `ConfigurationError` for a root that it cannot be, or if `hdfs_native` is not installed."""

    def __init__(self, root: str) -> None:
        self._hdfs = Hdfs(root)
        _ = self._hdfs.client  # whether there is one

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        file = Writing(self._hdfs, path)
        try:
            yield file
            file.complete()
        except BaseException:
            file.abandon()
            raise

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        with Reading(self._hdfs, path) as file:
            yield file

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._hdfs.remove(path)

    def find(self, folder: str) -> list[str]:
        return [path for path, is_folder in self._hdfs.listed(folder, is_deep=True) if not is_folder]

    def runs(self) -> list[str]:
        """The first names of all paths: uids of runs."""
        return [path for path, is_folder in self._hdfs.listed("", is_deep=False) if is_folder]

    def prune(self, folder: str) -> None:
        """One that has got a file meanwhile stays; one in which a file is about to be made is made again with it."""
        folders = [path for path, is_folder in self._hdfs.listed(folder, is_deep=True) if is_folder]
        for path in sorted([folder, *folders], key=lambda path: -path.count("/")):
            self._hdfs.remove(path)

    def make_folder(self, path: str) -> None:
        self._hdfs.make_folder(path)

    def settle_folder(self, path: str) -> None:
        """The NameNode has names in its journal before it answers."""

    def drop_folders(self, paths: Iterable[str]) -> None:
        self.remove(paths)

    def link(self, paths: Iterable[str], folder: str) -> None:
        """Copies, by this process: HDFS has no second names."""
        self._copied((path, f"{folder}/{PurePosixPath(path).name}") for path in paths)

    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        self._copied((source, target) for source, target, _ in copies)

    def _copied(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Raises what the first one of them raises."""
        pool = ThreadPoolExecutor(AT_ONCE, "logio-hdfs")
        try:
            for _ in pool.map(self._copy, pairs):
                pass
        finally:
            pool.shutdown(cancel_futures=True)

    def _copy(self, pair: tuple[str, str]) -> None:
        """Under a name of its own first: an earlier attempt may have left `target`, and a removal may be carried out late."""
        source, target = pair
        hidden = str(PurePosixPath(target).with_name(f"{HIDDEN}{uuid.uuid4().hex}"))
        with Reading(self._hdfs, source) as reader, self.create(hidden) as writer:
            shutil.copyfileobj(reader, writer, _BLOCK)
        self._hdfs.move(hidden, target)

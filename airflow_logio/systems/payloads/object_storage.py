"""Payloads in any other file system that fsspec reaches: bodies and effects, and no datasets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.payload_roots import redacted, shown
from airflow_logio.systems.payloads.storage import Storage


class ObjectStorage(Storage):
    """Objects of any file system that fsspec reaches: an object is durable when it is closed.

    Raises `ConfigurationError` if there is no such file system, or the library that reaches it is not installed.
    """

    def __init__(self, root: str) -> None:
        try:
            self._files, base = fsspec.core.url_to_fs(root)
        except (ImportError, ValueError) as error:
            # Not chained: the cause may repeat the URL, credentials included.
            raise ConfigurationError(
                f"the payload store {shown(root)} cannot be opened: {redacted(str(error), root)}"
            ) from None
        self._base = str(base).rstrip("/")

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        target = f"{self._base}/{path}"
        self._files.invalidate_cache()
        if self._files.exists(target):
            raise FileExistsError(path)
        self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
        handle = self._files.open(target, "wb")
        try:
            yield handle
            handle.close()
        except BaseException:
            with contextlib.suppress(Exception):
                handle.close()
            with contextlib.suppress(Exception):
                self._files.rm_file(target)
            raise

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        with self._files.open(f"{self._base}/{path}", "rb") as handle:
            yield handle

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(f"{self._base}/{path}")

    def find(self, folder: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.find(f"{self._base}/{folder}")
        except FileNotFoundError:
            return []
        return [str(path)[len(self._base) + 1 :] for path in found]

    def runs(self) -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._base, detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def prune(self, folder: str) -> None:
        """An object store has no folders; other file systems keep theirs, empty."""

    def link(self, paths: Iterable[str], folder: str) -> None:
        self.copy((path, f"{folder}/{path.rpartition('/')[2]}", 0) for path in paths)

    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        for source, target, _ in copies:
            self._files.cp_file(f"{self._base}/{source}", f"{self._base}/{target}")

"""Payloads in a bucket, as drivers reach them: by fsspec, with what only a store's own protocol says.

Nothing is asked for that costs a request and proves nothing: names are those of one attempt of one epoch, so that nothing
else has them, and what a log that was restored gives out again no row names.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from airflow_logio.systems.payloads.bucket_client import BucketClient, abandoned
from airflow_logio.systems.payloads.storage import Storage

AT_ONCE = 16
"""Copies and removals under way."""


class BucketStorage(BucketClient, Storage):
    """Objects below a root: each is there as a whole, and durable, when it is closed, or not at all.

    Raises as `BucketClient`.
    """

    @abstractmethod
    def _listed(self, beginning: str, *, is_deep: bool) -> Iterator[str]:
        """Names below the root that begin so, page by page: of all objects, or the first parts of what is deeper."""

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        """It is not asked whether there is such an object: see above."""
        with self.telling(path, is_write=True):
            handle = self.client.open(self.key(path), "wb")
        try:
            told = _Told(handle, self, path)
            yield told
            with self.telling(path, is_write=True):
                handle.close()
                self._check(path, told.size)
        except BaseException:
            abandoned(handle)
            raise

    def _check(self, path: str, size: int) -> None:
        """Whether an object that was just put has as many bytes, where the store's protocol does not see to it."""

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        with self.telling(path), self.client.open(self.key(path), "rb") as handle:
            yield handle

    def read(self, path: str) -> bytes:
        with self.telling(path):  # parts of a large one come side by side
            return bytes(self.client.cat_file(self.key(path)))

    def remove(self, paths: Iterable[str]) -> None:
        def removed(path: str) -> None:
            with self.telling(path), contextlib.suppress(FileNotFoundError):
                self.client.rm_file(self.key(path))

        self._each(removed, paths)

    def find(self, folder: str) -> list[str]:
        """Also the empty objects that other programs take for folders: they are removed with what lies there."""
        with self.telling(folder, is_write=True):
            return list(self._listed(f"{folder}/", is_deep=True))

    def runs(self) -> list[str]:
        with self.telling("", is_write=True):
            return [name.rstrip("/") for name in self._listed("", is_deep=False)]

    def prune(self, folder: str) -> None:
        """There are no folders."""

    def link(self, paths: Iterable[str], folder: str) -> None:
        """Copies that the store makes: a second name is not to be had."""
        self._copy((path, f"{folder}/{path.rpartition('/')[2]}") for path in paths)

    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        self._copy((source, target) for source, target, _ in copies)

    def _copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._each(lambda pair: self._copied(*pair), pairs)

    def _copied(self, source: str, target: str) -> None:
        """In S3 in parts above 5 GB, in Google's store by as many requests as it wants."""
        with self.telling(source):
            self.client.cp_file(self.key(source), self.key(target))

    def _each(self, do: Callable[[Any], None], items: Iterable[Any]) -> None:
        """Raises what the first one of them raises."""
        pool = ThreadPoolExecutor(AT_ONCE, "logio-objects")
        try:
            for _ in pool.map(do, items):
                pass
        finally:
            pool.shutdown(cancel_futures=True)

    def _prefix(self, beginning: str) -> str:
        """What names of objects begin with that begin so below the root."""
        return self._at.below(f"{beginning}x").removesuffix("x")

    def _below_root(self, names: Iterable[str]) -> Iterator[str]:
        skipped = len(self._prefix(""))
        return (name[skipped:] for name in names)


class _Told:
    """A handle that is written to, of which errors are told as those of its storage."""

    def __init__(self, handle: Any, storage: BucketStorage, path: str) -> None:
        self._handle = handle
        self._storage = storage
        self._path = path
        self.size = 0

    def write(self, data: Any) -> None:
        with self._storage.telling(self._path, is_write=True):
            self._handle.write(data)
        self.size += memoryview(data).nbytes

"""The files of datasets in a bucket of Google Cloud Storage, by gcsfs: in tasks and drivers.

Not by Arrow's client: to ask whether one of its files is closed opens a way to the store, and holds the lock of the
interpreter while it does. A driver whose store is slow would stop with all its threads, that which keeps its lease included.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from airflow_logio.errors import LogUnavailable
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payloads.bucket_client import abandoned
from airflow_logio.systems.payloads.data_files import DataFiles, NewFile, footer_of, new_name
from airflow_logio.systems.payloads.google_client import GoogleClient, ObjectReading

Item = TypeVar("Item")
Answer = TypeVar("Answer")

AT_ONCE = 16
"""Round trips, of tens of milliseconds each."""
_READ_BYTES = 2**16
"""What is read of the end of a file at first: most footers are shorter."""


class GoogleFiles(DataFiles):
    """Raises as `GoogleClient`."""

    by_spark = False  # its committer renames, which is to copy and remove here
    keeps_secrets = False  # there are no modes, and a bucket with versions keeps what was removed

    def __init__(self, root: str) -> None:
        self.root = root
        self._at = BucketRoot.of(root)
        self._client = GoogleClient(root)

    def create(self, folder: str, mode: int) -> tuple[str, NewFile]:
        name = new_name()
        return name, _NewObject(self, self._client, f"{folder}/{name}")

    def settle(self, folder: str) -> None:
        """An object is durable when it is finished, and so is its name."""

    def open(self, path: str) -> AbstractContextManager[Any]:
        return ObjectReading(self._client, path)

    def size(self, path: str) -> int:
        return self._client.size(path)

    def footer(self, path: str, size: int) -> int | None:
        with ObjectReading(self._client, path) as file:
            if file.size() != size:
                return None
            start = file.seek(max(size - _READ_BYTES, 0))
            end = file.read()
            is_whole = start == 0 or int.from_bytes(end[-8:-4], "little") + 8 <= len(end)
            return footer_of(io.BytesIO(end), len(end)) if is_whole else footer_of(file, size)

    def location(self, path: str) -> str:
        return self._at.url(self._at.below(path))

    def spark_path(self, path: str, scheme: str | None = None) -> str:
        return self._at.hadoop_url(path, scheme)

    def spark_options(self) -> dict[str, str]:
        return self._at.hadoop_options()

    def each(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        pool = ThreadPoolExecutor(AT_ONCE, "logio-objects")
        try:
            yield from pool.map(ask, items)
        finally:
            pool.shutdown(cancel_futures=True)


class _NewObject(NewFile):
    """And the stream into it, as Arrow writes one. Errors are `GoogleClient`'s."""

    def __init__(self, files: GoogleFiles, client: GoogleClient, path: str) -> None:
        self._files = files
        self._client = client
        self._path = path
        with client.telling(path, is_write=True):
            self._handle: Any = client.client.open(client.key(path), "wb")
        self._size = 0
        self.closed = False
        self.stream = self

    def finished(self) -> tuple[int, int]:
        """It is looked at again, as others will: one that has another length then was not written as it should be."""
        with self._client.telling(self._path, is_write=True):
            self._handle.close()
        self._handle = None
        footer = self._files.footer(self._path, self._size)
        if footer is None:
            raise LogUnavailable(f"{self._files.location(self._path)} has not the {self._size:,} bytes written to it")
        return self._size, footer

    def discard(self) -> None:
        """A whole object is named by no manifest, and is swept; an upload that nothing completes ends within a week."""
        if self._handle is not None:
            abandoned(self._handle)
            self._handle = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._handle is not None:
            with self._client.telling(self._path, is_write=True):
                self._handle.write(view)
        self._size += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """The object is durable once it is complete."""

    def close(self) -> None:
        """Only `finished` makes it an object."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

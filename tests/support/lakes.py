"""Where drivers publish, a folder or a bucket, as tests look into it and change it."""

from __future__ import annotations

import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_logio import published_files
from tests.support import publishers
from tests.support.object_store import ObjectStore
from tests.support.publishers import Row


class Lake(ABC):
    """Drivers publish into ``orders``. Names are below the lake, with ``/``."""

    url: str
    """Of the connection."""
    root: str
    files: fs.FileSystem

    @abstractmethod
    def counted(self) -> list[Row]:
        """The rows of the files that count."""

    @abstractmethod
    def listed(self) -> list[Row]:
        """The rows that a reader finds who lists."""

    def names(self) -> list[str]:
        """Of all files."""
        found = self.files.get_file_info(fs.FileSelector(self.root, allow_not_found=True, recursive=True))
        return sorted(info.path.removeprefix(f"{self.root}/") for info in found if info.is_file)

    def contents(self) -> Mapping[str, bytes]:
        return {name: self.get(name) for name in self.names()}

    def get(self, name: str) -> bytes:
        with self.files.open_input_stream(f"{self.root}/{name}") as stream:
            return bytes(stream.read())

    def put(self, name: str, data: bytes = b"") -> None:
        path = f"{self.root}/{name}"
        if isinstance(self.files, fs.LocalFileSystem):
            self.files.create_dir(path.rpartition("/")[0])
        with self.files.open_output_stream(path) as stream:
            stream.write(data)

    def remove(self, *names: str) -> None:
        for name in names:
            self.files.delete_file(f"{self.root}/{name}")


class FolderLake(Lake):
    """In a folder of its own below `root`."""

    def __init__(self, root: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=root))
        self.url = self.root = str(self.folder)
        self.files = fs.LocalFileSystem()

    def counted(self) -> list[Row]:
        return publishers.counted(self.folder)

    def listed(self) -> list[Row]:
        return publishers.listed(self.folder)


class BucketLake(Lake):
    """Readers are Arrow's, in this process."""

    def __init__(self, objects: ObjectStore, bucket: str) -> None:
        self.root = f"{bucket}/{uuid.uuid4().hex}"
        self.url = f"s3://{self.root}"
        self.files = objects.files()

    def counted(self) -> list[Row]:
        try:
            found = published_files(f"s3://{self.root}/orders")
        except FileNotFoundError:
            return []
        return sorted(row for file in found for row in self._rows(file.path.removeprefix(f"s3://{self.root}/")))

    def listed(self) -> list[Row]:
        return sorted(row for name in self.names() if name.endswith(".parquet") for row in self._rows(name))

    def _rows(self, name: str) -> Iterator[Row]:
        store = int(PurePosixPath(name).parent.name.removeprefix("store="))
        table = pq.ParquetFile(pa.BufferReader(self.get(name))).read()
        return ((one, store) for one in table.column("id").to_pylist())


@contextmanager
def reached(objects: ObjectStore) -> Iterator[None]:
    """This process has the variables by which clients find the store."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in objects.variables.items():
            patch.setenv(name, value)
        yield

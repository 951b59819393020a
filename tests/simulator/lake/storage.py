"""A simulated payload store: files with a content, durable or not yet. Names and decisions are those of the runtime."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import msgspec

from airflow_logio.systems.calls import CallWatch
from airflow_logio.systems.payloads import EpochPayloads, Payloads
from airflow_logio.systems.payloads.manifests import DataFile
from airflow_logio.systems.payloads.storage import Storage
from airflow_logio.testing.simulator.stepwise import Questions
from airflow_logio.testing.simulator.violation import Violation

ROOT = "/simulated"
Record = list[Any]
"""A record of a simulated DataFrame, which is a list of them."""


@dataclass(slots=True)
class StoredFile:
    content: bytes
    durable: bool = True
    """It is whole, and on the disk."""


class SimulatedStorage(Storage):
    """`removing` is called with each path that is about to be removed."""

    def __init__(self) -> None:
        self.files: dict[str, StoredFile] = {}
        self.removing: Callable[[str], None] = lambda _: None
        self._named = 0

    def new_name(self) -> str:
        """A name of a file that no task attempt has, and that says nothing about when it was given."""
        self._named += 1
        return f"{self._named * 7919 % 99991:05d}-{self._named}.parquet"

    def begin(self, path: str, content: bytes) -> None:
        """A task attempt has written some of a file. It is not durable."""
        self._check_new(path)
        self.files[path] = StoredFile(content, durable=False)

    def sync(self, path: str, content: bytes) -> None:
        """The file is whole and durable. Nothing happens if it was removed meanwhile: the task writes where nothing looks."""
        if path in self.files:
            self.files[path] = StoredFile(content)

    # --- `Storage` ----------------------------------------------------------------------------------------------------

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        self._check_new(path)
        file = io.BytesIO()
        yield file
        self.files[path] = StoredFile(file.getvalue())

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        yield io.BytesIO(self._found(path).content)

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self.files:
                self.removing(path)
                del self.files[path]

    def find(self, folder: str) -> list[str]:
        return [path for path in self.files if path.startswith(f"{folder}/")]

    def runs(self) -> list[str]:
        return sorted({path.partition("/")[0] for path in self.files})

    def prune(self, folder: str) -> None:
        """Folders are no things of their own here."""

    def link(self, paths: Iterable[str], folder: str) -> None:
        for path in paths:
            target = f"{folder}/{PurePosixPath(path).name}"
            self._check_new(target)
            self.files[target] = self._found(path)

    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        raise NotImplementedError("no simulated driver copies")

    def _found(self, path: str) -> StoredFile:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def _check_new(self, path: str) -> None:
        if path in self.files:
            raise FileExistsError(path)


class SimulatedPayloads(Payloads):
    """The runtime's payloads over a simulated storage."""

    _storage: Any

    def __init__(self, storage: Storage) -> None:
        self._root = ROOT
        self._storage = storage

    def epoch(
        self, run_uid: str, group: str, incarnation: int, epoch: int, calls: CallWatch | None = None
    ) -> EpochPayloads:
        made = super().epoch(run_uid, group, incarnation, epoch, calls)
        made._patiently = lambda _what, action: action()  # type: ignore[method-assign,assignment]  # a simulated store always answers
        return made

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What an invariant says is no answer of a storage."""
        violation: Violation | None = None
        with super()._translated():
            try:
                yield
            except Violation as found:
                violation = found
        if violation is not None:
            raise violation


def encoded(records: Iterable[Record]) -> bytes:
    """The content of a file."""
    return msgspec.msgpack.encode(list(records))


def decoded(content: bytes) -> list[Record]:
    found: list[Record] = msgspec.msgpack.decode(content)
    return found


def data_file(path: str, content: bytes, records: int, partition: tuple[str, ...] = ()) -> DataFile:
    """The line of a manifest for a file; its checksum is that of the whole content."""
    return DataFile(path, len(content), records, zlib.crc32(content), partition)


def damage(file: StoredFile | None, named: DataFile) -> str:
    """What is wrong with a file that a manifest names; empty if nothing is."""
    if file is None:
        return f"{named.path} is missing"
    if not file.durable:
        return f"{named.path} is not durable"
    if (len(file.content), zlib.crc32(file.content)) != (named.size, named.footer):
        return f"{named.path} is not the file that its manifest names"
    return ""


class AskedStorage(Storage):
    """A storage as a process looks through it: each question is one step. Nothing is written through it."""

    def __init__(self, questions: Questions, storage: SimulatedStorage) -> None:
        self._questions = questions
        self._storage = storage

    def create(self, path: str) -> Any:
        raise NotImplementedError(f"{path}: what removes files writes none")

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        def content() -> bytes:
            with self._storage.open(path) as file:
                return bytes(file.read())

        yield io.BytesIO(self._questions.ask(content))

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._questions.ask(lambda path=path: self._storage.remove([path]))  # type: ignore[misc]

    def find(self, folder: str) -> list[str]:
        return self._questions.ask(lambda: self._storage.find(folder))

    def runs(self) -> list[str]:
        return self._questions.ask(self._storage.runs)

    def prune(self, folder: str) -> None:
        """As of the storage: nothing."""

    def link(self, paths: Iterable[str], folder: str) -> None:
        raise NotImplementedError(f"{folder}: what removes files names none")

    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        raise NotImplementedError("what removes files copies none")

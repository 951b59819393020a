"""Where payloads lie: a folder, or an object store of fsspec. Files are written once, and durable when closed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import fsspec

from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.payload_roots import redacted, shown


class Storage(ABC):
    """Files by path below a root; paths are relative, with ``/``.

    Methods raise OSError, or what the library of the file system raises.
    """

    @abstractmethod
    def create(self, path: str) -> AbstractContextManager[Any]:
        """A new file to write, durable when the block ends, removed if it ends with an error.

        Raises FileExistsError: nothing is ever overwritten.
        """

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[Any]:
        """The file to read. Raises FileNotFoundError."""

    @abstractmethod
    def remove(self, paths: Iterable[str]) -> None:
        """Remove the files that exist."""

    @abstractmethod
    def find(self, folder: str) -> list[str]:
        """Every file below a folder; none if there is no such folder."""

    @abstractmethod
    def prune(self, folder: str) -> None:
        """Remove a folder and those below it that hold no file, where folders are things of their own."""


# --- a folder ---------------------------------------------------------------------------------------------------------

NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
"""What a file system answers that has no hard links, or none more of a file."""


class LocalStorage(Storage):
    """Files readable by their owner only: file and folder are on the disk before the log refers to them.

    `root` is made when the first one is written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def create(self, path: str) -> Iterator[Any]:
        target = self._root / path
        descriptor = _create(target)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _sync(target.parent)
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    @contextmanager
    def open(self, path: str) -> Iterator[Any]:
        with (self._root / path).open("rb") as file:
            yield file

    def remove(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    def find(self, folder: str) -> list[str]:
        found = []
        for where, _, files in os.walk(self._root / folder):
            found += [str((Path(where) / file).relative_to(self._root)) for file in files]
        return found

    def prune(self, folder: str) -> None:
        for where, _, _ in os.walk(self._root / folder, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or removed by another process
                os.rmdir(where)


def _create(target: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    make_durable(target.parent)
    try:
        return os.open(target, flags, 0o600)
    except FileNotFoundError:  # another process has pruned the folder, which was still empty
        make_durable(target.parent)
        return os.open(target, flags, 0o600)


def make_durable(folder: Path, mode: int = 0o700) -> None:
    """Make a folder that survives a crash: the entry of each new one is on the disk. `mode` as of `os.mkdir`."""
    if folder.is_dir():
        return
    make_durable(folder.parent, mode)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=mode)
    _sync(folder.parent)


def linked(sources: Iterable[Path], folder: Path) -> None:
    """Give durable files that never change a second name in a folder, where they have the same last part; durable.

    By a hard link; by a copy where there are none. Raises OSError.
    """
    for source in sources:
        target = folder / source.name
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            _copy(source, target)
    _sync(folder)


def _copy(source: Path, target: Path) -> None:
    with (
        source.open("rb") as reader,
        os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
    ):
        shutil.copyfileobj(reader, file)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- an object store --------------------------------------------------------------------------------------------------


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

    def prune(self, folder: str) -> None:
        """An object store has no folders; other file systems keep theirs, empty."""

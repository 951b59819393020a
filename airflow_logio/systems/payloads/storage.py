"""Port: where payloads lie, as drivers reach them, and a folder behind it. Files are written once, durable when closed."""

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

from airflow_logio.systems.payloads.task_files import copied_file

HIDDEN = ".copy-"
"""What the name of a copy begins with until it is whole."""


class Storage(ABC):
    """Files by path below a root; paths are relative, with ``/``.

    Methods raise OSError, or what the library of the file system raises.
    """

    @abstractmethod
    def create(self, path: str) -> AbstractContextManager[Any]:
        """A new file to write, durable when the block ends, removed if it ends with an error.

        Raises FileExistsError where it costs nothing to know: nothing is ever overwritten that a row names.
        """

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[Any]:
        """The file to read. Raises FileNotFoundError."""

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        with self.open(path) as file:
            return bytes(file.read())

    @abstractmethod
    def remove(self, paths: Iterable[str]) -> None:
        """Remove the files that exist."""

    @abstractmethod
    def find(self, folder: str) -> list[str]:
        """Every file below a folder; none if there is no such folder."""

    @abstractmethod
    def runs(self) -> list[str]:
        """The first names of all paths: uids of runs."""

    @abstractmethod
    def prune(self, folder: str) -> None:
        """Remove a folder and those below it that hold no file, where folders are things of their own."""

    # --- datasets -----------------------------------------------------------------------------------------------------

    def make_folder(self, path: str) -> None:  # noqa: B027
        """A folder for files that tasks write; durable. Nothing where folders are no things of their own."""

    def settle_folder(self, path: str) -> None:  # noqa: B027
        """The names in a folder are durable when this returns. As `make_folder`."""

    def drop_folders(self, paths: Iterable[str]) -> None:  # noqa: B027
        """Remove those of the folders that are empty. As `make_folder`."""

    @abstractmethod
    def link(self, paths: Iterable[str], folder: str) -> None:
        """Give durable files that never change a second name each, in a folder that was made, where they have the same last
        part; durable. It costs no bytes where that can be. Raises FileNotFoundError."""

    @abstractmethod
    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        """Copy files of known sizes (path, another path, bytes), durable, whole or not at all. Raises FileNotFoundError."""


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

    def runs(self) -> list[str]:
        return [entry.name for entry in os.scandir(self._root) if entry.is_dir()] if self._root.is_dir() else []

    def prune(self, folder: str) -> None:
        for where, _, _ in os.walk(self._root / folder, topdown=False):
            with contextlib.suppress(OSError):  # not empty, or removed by another process
                os.rmdir(where)

    def make_folder(self, path: str) -> None:
        make_durable(self._root / path)

    def settle_folder(self, path: str) -> None:
        _sync(self._root / path)

    def drop_folders(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                (self._root / path).rmdir()

    def link(self, paths: Iterable[str], folder: str) -> None:
        linked([self._root / path for path in paths], self._root / folder)

    def copy(self, copies: Iterable[tuple[str, str, int]]) -> None:
        """They look as files of a published folder."""
        for source, target, size in copies:
            copied_file(os.path.join(self._root, source), os.path.join(self._root, target), size, HIDDEN)


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

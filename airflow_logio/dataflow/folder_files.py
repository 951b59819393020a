"""Port: what is asked of a published folder, wherever it is (ADR-124); and one of a file system."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

Answer = TypeVar("Answer")


class FolderFiles(ABC):
    """Paths are below the folder, with ``/``. `where` names it in messages. Methods raise OSError."""

    where: str

    @abstractmethod
    def name(self, path: str) -> str:
        """What readers open a file by."""

    @abstractmethod
    def check(self) -> None:
        """Raises FileNotFoundError if there is no such folder."""

    @abstractmethod
    def is_there(self, path: str) -> bool:
        """Whether anything has this path."""

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Names of the files and folders in a folder; none if it is not there."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""

    def each(self, ask: Callable[[str], Answer], paths: Iterable[str]) -> Iterator[Answer]:
        """What `ask` returns for each path, in their order; several are asked for at once where each is a round trip."""
        return map(ask, paths)

    def read_each(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Those that are there, in their order."""

        def found(path: str) -> tuple[str, bytes] | None:
            with suppress(FileNotFoundError):
                return path, self.read(path)
            return None

        return filter(None, self.each(found, paths))

    @abstractmethod
    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """Each folder from `below` on, with the names of the folders and of the files in it; as `os.walk`, from the top.

        Folders that the caller takes out of the list are passed over. Raises FileNotFoundError if the first is not there.
        """

    @abstractmethod
    def links(self, folder: str, names: list[str]) -> list[str]:
        """Those of the folders in a folder that stand for another one."""


class LocalFiles(FolderFiles):
    """Of a file system that this machine has mounted."""

    def __init__(self, folder: str) -> None:
        self.where = folder

    def name(self, path: str) -> str:
        return os.path.join(self.where, path)

    def check(self) -> None:
        os.stat(self.where)

    def is_there(self, path: str) -> bool:
        return os.path.lexists(self.name(path))

    def names(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError):
            return os.listdir(self.name(folder))
        return []

    def read(self, path: str) -> bytes:
        with open(self.name(path), "rb") as file:
            return file.read()

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        top = self.name(below) if below else self.where

        def failed(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError) or error.filename == top:
                raise error  # else another process has removed a folder within it meanwhile

        for found, folders, names in os.walk(top, onerror=failed):
            folder = os.path.relpath(found, self.where)
            yield "" if folder == "." else folder, folders, names

    def links(self, folder: str, names: list[str]) -> list[str]:
        return [name for name in names if os.path.islink(self.name(os.path.join(folder, name)))]

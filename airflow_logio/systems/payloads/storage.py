"""Port: files by path below a root, written once and durable when they are closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any


class Storage(ABC):
    """Paths are relative, with ``/``. Methods raise OSError, or what the library of the file system raises."""

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

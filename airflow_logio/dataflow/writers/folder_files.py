"""Port: what is asked of a published folder (ADR-124), with adapters for a file system and an object store."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from airflow_logio.dataflow.writers.arrow_files import look, opened
from airflow_logio.dataflow.writers.bucket_urls import DELAYED_OPEN, SCHEME, check_url, for_clients, quoted
from airflow_logio.errors import ConfigurationError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class FolderFiles(ABC):
    """Paths are below the folder, with ``/``. `where` names it in messages. Methods raise OSError."""

    where: str

    @abstractmethod
    def name(self, path: str) -> str:
        """What readers open a file by."""

    @abstractmethod
    def above(self) -> FolderFiles:
        """Those of the folder that this one is in."""

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

    def each(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What `ask` returns for each item, in their order; several are asked for at once where each is a round trip."""
        return map(ask, items)

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
    """Files of a file system that this machine has mounted."""

    def __init__(self, folder: str) -> None:
        self.where = folder

    def name(self, path: str) -> str:
        return os.path.join(self.where, path)

    def above(self) -> LocalFiles:
        return LocalFiles(os.path.dirname(self.where) or os.curdir)

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


AT_ONCE = 16
"""Round trips, of tens of milliseconds each."""


class ObjectFiles(FolderFiles):
    """Its listings must show what was put before they were asked for, as those of S3 do. `system` is Arrow's."""

    def __init__(self, system: Any, root: str) -> None:
        self.system = system
        self.root = root
        self.where = f"{SCHEME}{root}"

    @classmethod
    def of(cls, named: str, url: str, folder: str = "", *, is_quoted: bool = True) -> ObjectFiles:
        """Those of a folder below a URL. Arguments and errors are those of `open_bucket`."""
        system, path = open_bucket(named, url, is_quoted=is_quoted)
        root = "/".join(filter(None, (path.strip("/"), folder)))
        if {"?", "#"} & set(root):
            raise ConfigurationError(
                f"{named}, folder {folder!r}: no reader could ask for a name with ? or #, choose another"
            )
        return cls(system, root)

    def name(self, path: str) -> str:
        return f"{self.where}/{path}"

    def key(self, path: str) -> str:
        """As Arrow's file system has it."""
        return f"{self.root}/{path}" if path else self.root

    def above(self) -> ObjectFiles:
        return ObjectFiles(self.system, self.root.rpartition("/")[0])

    def check(self) -> None:
        self._infos("", recursive=False)

    def is_there(self, path: str) -> bool:
        from pyarrow import fs

        return bool(look(self.system, self.key(path)).type != fs.FileType.NotFound)

    def names(self, folder: str) -> list[str]:
        with suppress(FileNotFoundError):
            return [info.base_name for info in self._infos(folder, recursive=False)]
        return []

    def read(self, path: str) -> bytes:
        try:
            with self.system.open_input_stream(self.key(path)) as stream:
                return bytes(stream.read())
        except OSError as error:
            if isinstance(error, FileNotFoundError) or self.is_there(path):
                raise
            # It was removed between the two requests of a read, and the second one has no error of its own for that.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name(path)) from error

    def each(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        pool = ThreadPoolExecutor(AT_ONCE, "logio-objects")
        try:
            yield from pool.map(ask, items)
        finally:
            pool.shutdown(cancel_futures=True)  # the caller may have seen enough, or one has failed

    def walk(self, below: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        folders, names = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for info in self._infos(below, recursive=True):
            above, _, name = info.path.removeprefix(f"{self.root}/").rpartition("/")
            (names if info.is_file else folders)[above].append(name)
        left = [below]
        while left:
            folder = left.pop()
            yield folder, folders[folder], names[folder]
            left += [f"{folder}/{name}".lstrip("/") for name in folders[folder]]

    def links(self, folder: str, names: list[str]) -> list[str]:
        return []

    def _infos(self, folder: str, *, recursive: bool) -> list[Any]:
        """Raises FileNotFoundError where nothing is below the folder, and OSError if there is no bucket."""
        from pyarrow import fs

        return list(self.system.get_file_info(fs.FileSelector(self.key(folder), recursive=recursive)))


def open_bucket(named: str, url: str, *, is_quoted: bool = True) -> tuple[Any, str]:
    """Arrow's file system of a URL, and the path in it; `named` says what has the URL.

    `is_quoted`: ``%XX`` in its path stands for another character, as in any URL. Raises `ConfigurationError`,
    `ExternalUnavailable`.
    """
    check_url(named, url)
    base, _, query = for_clients(url).partition("?")
    base = quoted(base, is_quoted=is_quoted)
    if _takes_delayed_open() and DELAYED_OPEN not in dict(parse_qsl(query, keep_blank_values=True)):
        # A small object is one request then, not three.
        query = "&".join(filter(None, (query, f"{DELAYED_OPEN}=true")))
    return opened(named, f"{base}?{query}" if query else base)


@cache
def _takes_delayed_open() -> bool:
    """Arrow 18 does not. The question needs no network: it names a region and credentials."""
    from pyarrow import fs

    try:
        fs.FileSystem.from_uri(f"{SCHEME}none:none@none?region=none&{DELAYED_OPEN}=true")
    except (ValueError, NotImplementedError, OSError):
        return False
    return True

"""Port: the files of datasets in a payload store, as drivers and tasks of Spark write and read them (ADR-80).

Tasks import this module, so it imports nothing that an executor may not have.
"""

from __future__ import annotations

import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from airflow_logio.errors import LogInconsistent, LogioError, LogUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class DamagedFile(OSError):
    """A store has a file, and not the bytes that were written: waiting does not mend it."""


class NewFile(ABC):
    """A file that one thread writes, under a name that nothing else has."""

    stream: Any
    """A binary file, as Arrow writes one."""

    @abstractmethod
    def finished(self) -> tuple[int, int]:
        """Its bytes, and the CRC-32 of its Parquet footer; it is durable once its folder is settled."""

    @abstractmethod
    def discard(self) -> None:
        """It is not wanted: whatever is written to `stream` from now on is lost. Raises nothing.

        Called before `stream` is closed, and also for a file that is finished.
        """


class DataFiles(ABC):
    """The files of datasets below one root. Paths are below it, with ``/``. Made by `file_roots.data_files`.

    What an implementation promises is all that datasets need, since every file has a name of its own, and a manifest says of
    each how large it is and which footer it has:

    - *Durable when finished.* What `NewFile.finished` has returned of, and `settle` of its folder, outlives this process, the
      machine, and any one node of the store.
    - *Readable by name.* From then on, every driver and every executor that opens the path finds it, whole. Neither listings
      nor renames are needed, and a file may be seen while it is written.
    - *Discarded is gone, or garbage.* A file that was begun and not finished, by an error or by the end of its process, is
      not there, or it is found by the sweep of its folder, or the store removes it. It is never taken for a whole one.
    - *Errors.* FileNotFoundError for what is not there, `DamagedFile` for what a store itself finds damaged; any other
      OSError, of which `told` makes what waiting mends (`LogUnavailable`), or what only a person does
      (`ConfigurationError`); an implementation may raise these at once.

    Thread-safe. Nothing in the root is secret: executors get it as part of their jobs.
    """

    root: str
    keeps_secrets = True
    """Whether a file can be for its owner only, and is gone when it is removed."""
    by_spark = True
    """Whether Spark's own writer may write here, with its committer, which renames (ADR-95)."""

    @abstractmethod
    def create(self, folder: str, mode: int) -> tuple[str, NewFile]:
        """A new file in a folder, and its name there; `mode` less the umask, where files have modes."""

    @abstractmethod
    def settle(self, folder: str) -> None:
        """The names of finished files in a folder are durable when this returns."""

    @abstractmethod
    def open(self, path: str) -> AbstractContextManager[Any]:
        """The file to read, anywhere in it, as Arrow reads one."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes."""

    @abstractmethod
    def footer(self, path: str, size: int) -> int | None:
        """CRC-32 of the Parquet footer of a file of `size` bytes; None if it has more or less."""

    @abstractmethod
    def location(self, path: str) -> str:
        """What names the file without the root, for `file_roots.located`: a local path, or a URL."""

    @abstractmethod
    def spark_path(self, path: str, scheme: str | None = None) -> str:
        """What Spark's reader opens it by; `scheme` is what the cluster's settings say, if it has names of its own."""

    def spark_options(self) -> dict[str, str]:
        """What Spark's reader needs to be told for that: nothing secret."""
        return {}

    def shown(self, path: str = "") -> str:
        """The file, or the root, for messages."""
        return self.location(path) if path else self.root

    def each(self, ask: Callable[[Item], Answer], items: Iterable[Item]) -> Iterator[Answer]:
        """What `ask` returns for each item, in their order; several are asked at once where each is a round trip."""
        return map(ask, items)

    def told(self, error: OSError) -> LogioError:
        """What an error of this store means, other than that something is not there."""
        if isinstance(error, DamagedFile):
            return LogInconsistent(f"the payload store {self.root}: {error}. Put the file back, or start a fresh run")
        return LogUnavailable(f"the payload store {self.root}: {type(error).__name__}: {error}")

    def is_of_content(self, error: Exception) -> bool:
        """Whether an error while a file was read says that its content is damaged, and nothing of the way to it."""
        return True


def new_name() -> str:
    """A name that no other file has."""
    return f"{uuid.uuid4().hex}.parquet"


# --- footers ----------------------------------------------------------------------------------------------------------


def footer_checksum(path: str, size: int) -> int:
    """CRC-32 of the footer of a Parquet file: the last 8 bytes are its length and the magic."""
    with open(path, "rb") as file:
        return footer_of(file, size)


def footer_of(file: Any, size: int) -> int:
    """As `footer_checksum`, of an open file of `size` bytes."""
    file.seek(max(size - 8, 0))
    length = min(int.from_bytes(file.read(4), "little") + 8, size)
    file.seek(size - length)
    return zlib.crc32(file.read(length))

"""HDFS without a JVM, by `hdfs_native`: what a root says, how a file is made, and what errors mean. For tasks and drivers."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable
from airflow_logio.systems.hdfs_roots import SCHEME, STORE, parsed

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_SETTINGS = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
}
"""The client itself would ask a NameNode for three minutes before it says that there is none: what asks here waits by itself,
says so, and stops when it is told to."""
_REFUSED = re.compile(r"AccessControlException|AuthorizationException|InvalidToken|SaslException|SASL|GSSAPI")
_OTHER_NAMENODE = re.compile(r"No NameNode hosts found")
_NEVER = re.compile(r"^(?:Unsupported|InvalidPath|InvalidArgument|UrlParseError|XmlParseError|ErasureCoding)")
_DAMAGED = re.compile(r"^ChecksumError")
_FULL_OF = re.compile(r"PathIsNotEmptyDirectoryException")


class Hdfs:
    """A root ``hdfs://host:port/path``, or ``hdfs://nameservice/path``, and `what` is there, for messages. Raises
    `ConfigurationError`.

    Methods raise FileNotFoundError, FileExistsError, `LogUnavailable`, `ConfigurationError`; OSError for damaged blocks.
    """

    def __init__(self, root: str, what: str = STORE) -> None:
        self.authority, self.path = parsed(root, what)
        self._what = what
        self.root = f"{SCHEME}{self.authority}{self.path}"
        self._client: tuple[int, Any] | None = None

    @property
    def client(self) -> Any:
        """Of this process: its threads do not survive a fork."""
        if self._client is None or self._client[0] != os.getpid():
            self._client = os.getpid(), self._made()
        return self._client[1]

    def url(self, path: str) -> str:
        """As Hadoop names a path below the root."""
        return f"{self.root}/{path}".rstrip("/")

    def key(self, path: str) -> str:
        """As the client names it."""
        return f"{self.path}/{path}".rstrip("/") or "/"

    def status(self, path: str) -> Any:
        """Of a file. Raises FileNotFoundError for a folder, too."""
        with self.translated():
            found = self.client.get_file_info(self.key(path))
        if found.isdir:
            raise FileNotFoundError(f"{self.url(path)} is a folder")
        return found

    def opened(self, path: str) -> Any:
        """A file to read, anywhere in it."""
        with self.translated():
            return _Reader(self, self.client.read(self.key(path)))

    def begun(self, path: str) -> Writing:
        """A new file to write; its folder is made if it is not there. Raises FileExistsError."""
        client = self.client
        from hdfs_native import WriteOptions

        options = WriteOptions(permission=FILE_MODE, overwrite=False, create_parent=False)  # it overwrites by default
        with self.translated():
            try:
                made = client.create(self.key(path), options)
            except FileNotFoundError:
                self.make_folder(path.rpartition("/")[0])
                made = client.create(self.key(path), options)
        return Writing(self, path, made)

    def make_folder(self, path: str) -> None:
        """With those above it. The NameNode has it in its journal when this returns."""
        with self.translated():
            self.client.mkdirs(self.key(path), FOLDER_MODE, True)

    def remove(self, path: str) -> None:
        """A file, or a folder without anything in it; nothing if it is not there, or not empty."""
        try:
            with self.translated():
                self.client.delete(self.key(path), False)
        except FileNotFoundError:
            pass
        except LogUnavailable as error:
            if not _FULL_OF.search(str(error)):
                raise

    def listed(self, path: str, *, is_deep: bool) -> Iterator[tuple[str, bool]]:
        """Path below the root, and whether it is a folder, of all that is in one; nothing, if there is no such folder."""
        skipped = len(self.path) + 1
        with suppress(FileNotFoundError), self.translated():
            for found in self.client.list_status(self.key(path), is_deep):
                yield found.path[skipped:], found.isdir

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Of the client's errors: RuntimeError is what a NameNode has said, or what the client cannot do."""
        try:
            yield
        except (FileNotFoundError, FileExistsError) as error:
            raise type(error)(f"{self.root}: {_short(error)}") from None
        except (OSError, RuntimeError, ValueError) as error:
            raise self._meaning(error) from error

    def _meaning(self, error: Exception) -> LogioError | OSError:
        said = str(error)
        text = f"{self._what} {self.root}: {_short(error)}"
        if _OTHER_NAMENODE.search(said):
            return ConfigurationError(
                f"{text}: {self.authority!r} is no host with a port, so that drivers and executors need HADOOP_CONF_DIR, "
                "with an hdfs-site.xml that says which NameNodes it stands for (dfs.ha.namenodes...)"
            )
        if _REFUSED.search(said):
            return ConfigurationError(
                f"{text}. Drivers and executors work there as the user of their process, or of HADOOP_USER_NAME: make that "
                "user the owner (hdfs dfs -chown)"
            )
        if _NEVER.search(said):
            return ConfigurationError(text)
        if _DAMAGED.search(said):
            return OSError(text)
        return LogUnavailable(text)

    def _made(self) -> Any:
        try:
            from hdfs_native import Client
        except ImportError:
            raise ConfigurationError(
                f"{self._what} {self.root} is reached by the package hdfs-native, which is not installed here: install "
                "airflow-logio[hdfs] where drivers run, and hdfs-native on executors"
            ) from None
        with self.translated():
            return Client(f"{SCHEME}{self.authority}", dict(_SETTINGS))


class Writing:
    """A binary file as Arrow writes it. It is seen, and too short, until it is complete."""

    def __init__(self, hdfs: Hdfs, path: str, writer: Any) -> None:
        self._hdfs = hdfs
        self._path = path
        self._writer = writer
        self._size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._writer is not None:
            with self._hdfs.translated():
                self._writer.write(view)
        self._size += view.nbytes
        return view.nbytes

    def complete(self) -> int:
        """Its bytes: the last block is on the disks of its DataNodes, and the NameNode knows the file as closed."""
        with self._hdfs.translated():
            self._writer.hsync()
            self._writer.close()
        self._writer = None
        return self._size

    def abandon(self) -> None:
        """Remove it; what cannot be removed is swept. The writer completes it when it is dropped: too late."""
        with suppress(OSError, LogioError):
            self._hdfs.remove(self._path)
        self._writer = None

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """The file is durable once it is complete."""

    def close(self) -> None:
        """Only `complete` makes it a file."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


class _Reader:
    """A binary file as Arrow, and others, read it."""

    def __init__(self, hdfs: Hdfs, reader: Any) -> None:
        self._hdfs = hdfs
        self._reader = reader
        self._length = len(reader)
        self.closed = False

    def read(self, size: int | None = -1) -> bytes:
        with self._hdfs.translated():
            left = max(self._length - self._reader.tell(), 0)
            wanted = left if size is None or size < 0 else min(size, left)
            return bytes(self._reader.read(wanted)) if wanted else b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._length}[whence]
        self._reader.seek(start + offset)
        return start + offset

    def tell(self) -> int:
        return int(self._reader.tell())

    def size(self) -> int:
        return self._length

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return True

    def flush(self) -> None:
        """Nothing is written."""

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _short(error: Exception) -> str:
    """Without the NameNode's stack."""
    said = re.split(r"\\n\\tat |\n\s+at ", str(error), maxsplit=1)[0]
    return said if isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}"

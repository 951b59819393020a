"""HDFS without a JVM, by `hdfs_native`: what a NameNode is asked, and what errors mean. For tasks and drivers.

The client has no deadlines of its own, so each call is made in a thread that is waited for (ADR-214, ADR-221).
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable
from airflow_logio.systems.hdfs_roots import SCHEME, STORE, parsed

Answer = TypeVar("Answer")

FOLDER_MODE, FILE_MODE = 0o700, 0o600
ASKED_SECONDS = 60.0
"""How long an answer of the NameNode is waited for."""
MOVED_SECONDS = 300.0
"""How long it may take to read or write a piece of a file: the client itself tries another DataNode after 60 s."""
_LISTED_AT_ONCE = 1000
_SETTINGS = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "1000",
}
"""The client itself would ask a NameNode for three minutes before it says that there is none: what asks here waits by itself,
says so, and stops when it is told to."""
_ANY_FIRST = "dfs.client.failover.random.order"
"""After a NameNode that has not answered, the next client may begin with the other one."""
_CLIENTS: dict[tuple[object, ...], Any] = {}
"""Of this process, and of those that it was forked from: a client that is dropped here waits for ever for threads that are
there, and holds the lock of the interpreter."""
_ENVIRONMENT = ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_PROXY_USER", "KRB5CCNAME")
"""What a client is told by, beside its settings."""
_KIND = re.compile(r'^(?:RPCError|FatalRPCError)\("([\w.$]+)"|^(\w+)')
"""The name of an error, in what the client says: the NameNode's, or its own. What follows may have any path in it."""
_REFUSED = re.compile(r"AccessControlException|AuthorizationException|InvalidToken|SaslException|SASL|GSSAPI")
_NO_FOLDER = re.compile(r"ParentNotDirectoryException|PathIsNotDirectoryException")
_UNDER_A_FILE = "(is not a directory)"
_OTHER_NAMENODE = re.compile(r"No NameNode hosts found")
_NEVER = re.compile(
    r"^(?:Unsupported|InvalidPath|InvalidArgument|UrlParseError|XmlParseError|ErasureCoding)"
    r"|InvalidPathException|FSLimitException|IllegalArgumentException"
)
_FULL_OF = re.compile(r"PathIsNotEmptyDirectoryException")
_NO_DATANODE = re.compile(r"All DataNodes failed")
_IN_FULL = re.compile(r"(?:DatanodeInfoProto|DatanodeIdProto) \{")


class Hdfs:
    """A root ``hdfs://host:port/path``, or ``hdfs://nameservice/path``, and `what` is there, for messages. Raises
    `ConfigurationError`.

    Methods raise FileNotFoundError, FileExistsError, `LogUnavailable`, `ConfigurationError`.
    """

    def __init__(self, root: str, what: str = STORE) -> None:
        self.authority, self.path = parsed(root, what)
        self._what = what
        self.root = f"{SCHEME}{self.authority}{self.path}"
        self._settings = _SETTINGS

    @property
    def client(self) -> Any:
        """Of this process, for all that ask one HDFS as one user."""
        key = os.getpid(), self.authority, *(os.environ.get(name) for name in _ENVIRONMENT)
        if (client := _CLIENTS.get(key)) is None:
            client = _CLIENTS.setdefault(key, self._made())
        return client

    def url(self, path: str) -> str:
        """As Hadoop names a path below the root."""
        return f"{self.root}/{path}".rstrip("/")

    def key(self, path: str) -> str:
        """As the client names it."""
        return f"{self.path}/{path}".rstrip("/") or "/"

    def status(self, path: str) -> Any:
        """Of a file. Raises FileNotFoundError for a folder, too."""
        found = self.asked(lambda: self.client.get_file_info(self.key(path)))
        if found.isdir:
            raise FileNotFoundError(f"{self.url(path)} is a folder")
        return found

    def begun(self, path: str) -> Any:
        """The client's writer of a new file, whose folder is made if it is not there. Raises FileExistsError."""
        client = self.client
        from hdfs_native import WriteOptions

        options = WriteOptions(permission=FILE_MODE, overwrite=False, create_parent=False)  # it overwrites by default
        try:
            return self.asked(lambda: client.create(self.key(path), options))
        except FileNotFoundError:
            self.make_folder(path.rpartition("/")[0])
            return self.asked(lambda: client.create(self.key(path), options))

    def make_folder(self, path: str) -> None:
        """With those above it. The NameNode has it in its journal when this returns."""
        self.asked(lambda: self.client.mkdirs(self.key(path), FOLDER_MODE, True))

    def remove(self, path: str) -> None:
        """A file, or a folder without anything in it; nothing if it is not there, or not empty.

        A name that was removed is not to be used again: a removal whose answer was lost may be carried out later.
        """
        try:
            self.asked(lambda: self.client.delete(self.key(path), False))
        except FileNotFoundError:
            pass
        except LogUnavailable as error:
            if not _FULL_OF.search(str(error)):
                raise

    def move(self, path: str, target: str) -> None:
        """Give a file another name, at once, in place of the file that may have it."""
        self.asked(lambda: self.client.rename(self.key(path), self.key(target), True))

    def listed(self, path: str, *, is_deep: bool) -> Iterator[tuple[str, bool]]:
        """Path below the root, and whether it is a folder, of all that is in one; nothing, if there is no such folder.

        What is removed meanwhile may be missing, and nothing else.
        """
        skipped, folders = len(self.path) + 1, [path]
        while folders:
            with suppress(FileNotFoundError):
                for found in self._in(folders.pop()):
                    yield found.path[skipped:], found.isdir
                    if found.isdir and is_deep:
                        folders.append(found.path[skipped:])

    def _in(self, path: str) -> Iterator[Any]:
        found = self.client.list_status(self.key(path), False)
        while some := self.asked(lambda: list(islice(found, _LISTED_AT_ONCE))):
            yield from some

    def asked(self, ask: Callable[[], Answer], seconds: float = 0.0) -> Answer:
        """What the client answers within `seconds`, or `ASKED_SECONDS`: it has no deadline of its own for a NameNode that is
        there and says nothing. A call that is late is left to itself, with its client."""
        answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

        def called() -> None:
            try:
                answers.put((ask(), None))
            except BaseException as error:
                answers.put((None, error))

        seconds = seconds or ASKED_SECONDS
        with self.translated():
            asked = self.client
            threading.Thread(target=called, name="logio-hdfs-call", daemon=True).start()
            try:
                answer, error = answers.get(timeout=seconds)
            except Empty:
                self._settings = {**_SETTINGS, f"{_ANY_FIRST}.{self.authority}": "true"}
                self._forget(asked)
                raise TimeoutError(f"no answer within {seconds:.0f} s") from None
            if error is not None:
                raise error
            return answer  # type: ignore[no-any-return]

    def _forget(self, client: Any) -> None:
        for key in [key for key, one in list(_CLIENTS.items()) if one is client]:
            _CLIENTS.pop(key, None)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Of the client's errors: RuntimeError is what a NameNode has said, or what the client cannot do."""
        try:
            yield
        except (FileNotFoundError, FileExistsError) as error:
            number = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EEXIST
            raise type(error)(number, f"{self.root}: {_short(error)}") from None
        except (OSError, RuntimeError, ValueError) as error:
            raise self._meaning(error) from error

    def _meaning(self, error: Exception) -> LogioError:
        said = str(error)
        kind = _kind(error)
        text = f"{self._what} {self.root}: {_short(error)}"
        if _OTHER_NAMENODE.search(said):
            return ConfigurationError(
                f"{text}: {self.authority!r} is no host with a port, so that drivers and executors need HADOOP_CONF_DIR, "
                "with an hdfs-site.xml that says which NameNodes it stands for (dfs.ha.namenodes...)"
            )
        if _NO_FOLDER.search(kind) or (_UNDER_A_FILE in text and _REFUSED.search(kind)):
            return ConfigurationError(f"{text}. A file has a name that its path has for a folder")
        if _REFUSED.search(kind):
            return ConfigurationError(
                f"{text}. Drivers and executors work there as the user of their process, or of HADOOP_USER_NAME: make that "
                "user the owner (hdfs dfs -chown)"
            )
        if _NEVER.search(kind):
            return ConfigurationError(text)
        if _NO_DATANODE.search(said):
            return LogUnavailable(
                f"{text}: none of the DataNodes that have a block has sent what was asked for. They do not answer, or what "
                "they have is damaged (hdfs fsck)"
            )
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
            return Client(f"{SCHEME}{self.authority}", dict(self._settings))


def _kind(error: Exception) -> str:
    found = _KIND.search(str(error)) if isinstance(error, RuntimeError) else None
    return "" if found is None else found[1] or found[2]


def _short(error: Exception) -> str:
    """Without the NameNode's stack, and without all that the client knows of DataNodes."""
    said = re.split(r"\\n\\tat |\n\s+at ", str(error), maxsplit=1)[0]
    if (place := _IN_FULL.search(said)) is not None:
        said = said[: place.start()].rstrip(" [:")
    return said if isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}"

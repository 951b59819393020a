"""Where a Delta table lies: a folder, or a bucket (ADR-124); how its data files are put there, and how delta-rs opens it."""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step, whole_object
from airflow_logio.dataflow.writers.bucket_clients import delta_rs_options
from airflow_logio.dataflow.writers.bucket_urls import SCHEME, check_url
from airflow_logio.dataflow.writers.folder_files import AT_ONCE, open_bucket
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, WriteRefused
from airflow_logio.systems.payload_roots import is_local, local_path
from airflow_logio.systems.payloads.storage import make_durable

LOG = "_delta_log"
_REFUSED = {
    "s3a": "write s3://bucket/path, which Spark, Arrow and delta-rs all know",
    "s3n": "write s3://bucket/path",
    "wasb": "it cannot put a file only if there is none: move the table to S3",
    "wasbs": "it cannot put a file only if there is none: move the table to S3",
    "swift": "it shows late what was put, and cannot put a file only if there is none",
}
_WEAKER = ("AWS_S3_ALLOW_UNSAFE_RENAME", "AWS_S3_LOCKING_PROVIDER", "AWS_COPY_IF_NOT_EXISTS", "AWS_CONDITIONAL_PUT")
"""Variables by which delta-rs commits in another way than by a conditional put."""
_NOT_AS_IT_IS = re.compile(r"[%\\?#\[\]^\x00-\x1f\x7f]")
"""Characters of a table's path that delta-rs takes for others (it reads ``a%20b`` where it has written ``a b``), or
at which parts of it panic, so that other programs could not write the table."""
_PATIENCE = {"max_retries": "3", "retry_timeout": "20s"}
"""Of delta-rs itself: a driver that waits for a store says so, and for how long it may."""
_PROVEN: set[Hashable] = set()
_PROBED, _AT_ONCE = 2, 8
"""So often so many commit at once: a store of several nodes may answer once as it should."""


class TablePlace(ABC):
    """The folder of a table. Paths are relative to it. Methods raise `ExternalUnavailable`, `ConfigurationError`."""

    uri: str
    """As delta-rs takes it."""
    options: Mapping[str, str]

    def __init__(self, named: str) -> None:
        self.named = named

    @abstractmethod
    def check(self) -> None:
        """Raises `ConfigurationError` if what the connection names is not there, or cannot refuse a second put."""

    def put(self, path: str, data: Any) -> None:
        """A new file, whole and durable. Nothing is ever overwritten: each name is used once."""
        self.put_blocks(path, (data,))

    @abstractmethod
    def put_blocks(self, path: str, blocks: Iterable[Any]) -> None:
        """As `put`, bit by bit. If reading them raises, what is there is garbage."""

    @abstractmethod
    def size(self, path: str) -> int | None:
        """Bytes of a file; None if it is not there."""

    def sizes(self, paths: Sequence[str]) -> Iterator[int | None]:
        """As `size`, of each, in their order; several are asked for at once where each is a round trip."""
        return map(self.size, paths)

    @abstractmethod
    def open(self, path: str) -> Any:
        """A file of Arrow, to read."""

    @abstractmethod
    def settle(self, version: int) -> None:
        """What is committed up to a version is durable when this returns."""

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Errors of file system or store as ours."""
        try:
            yield
        except OSError as error:
            if is_lasting(error):
                raise ConfigurationError(f"{self.named}: {error}{next_step(error)}") from error
            raise ExternalUnavailable(f"{self.named}: {error}") from error


class LocalTable(TablePlace):
    """In a folder. The folder of the connection must be there, that of the table is made."""

    options: Mapping[str, str] = {}

    def __init__(self, named: str, url: str, table: str) -> None:
        super().__init__(named)
        self._base = local_path(url)
        if not self._base.is_absolute():
            raise ConfigurationError(f"{named} is no absolute path: give one, as /lake, or s3://bucket/path")
        self._folder = self._base / table if table else self._base
        _check_path(named, str(self._folder))
        self.uri = str(self._folder)

    def check(self) -> None:
        if not self._base.is_dir():  # to make it would hide a disk that is not mounted
            raise ConfigurationError(f"{self.named}: there is no folder {self._base}; make or mount it")

    def put_blocks(self, path: str, blocks: Iterable[Any]) -> None:
        target = self._folder / path
        with self.asked():
            make_durable(target.parent, 0o777)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with os.fdopen(descriptor, "wb") as file:
                for block in blocks:
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            _sync(target.parent)

    def size(self, path: str) -> int | None:
        with self.asked():
            try:
                return os.stat(self._folder / path).st_size
            except FileNotFoundError:
                return None

    def open(self, path: str) -> Any:
        from pyarrow import fs

        return fs.LocalFileSystem().open_input_file(str(self._folder / path))

    def settle(self, version: int) -> None:
        """delta-rs does not wait until a commit is on the disk."""
        folder = self._folder / LOG
        with self.asked():
            for number in range(version, max(version - _SETTLED, -1), -1):
                with suppress(FileNotFoundError):  # collected
                    _sync(folder / f"{number:020}.json")
            _sync(folder)


_SETTLED = 8
"""So many versions back a commit of an earlier attempt is looked for that was perhaps not on the disk."""


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class BucketTable(TablePlace):
    """In a bucket: Arrow puts data files, delta-rs commits; both are asked before anything is written."""

    def __init__(self, named: str, url: str, table: str) -> None:
        super().__init__(named)
        check_url(named, url)
        self._system, path = open_bucket(named, url)
        self._root = "/".join(filter(None, (path.strip("/"), table)))
        _check_path(named, self._root)
        self.uri = f"{SCHEME}{self._root}"
        self.options = _options(url)

    def check(self) -> None:
        """Once in a process: a store does not change."""
        place = (self._root, *sorted(self.options.items()))
        if place not in _PROVEN:
            self._probe()
            _PROVEN.add(place)

    def put_blocks(self, path: str, blocks: Iterable[Any]) -> None:
        with self.asked(), whole_object(self._system, f"{self._root}/{path}") as stream:
            for block in blocks:
                stream.write(block)

    def copy(self, key: str, path: str) -> None:
        """A new file, as an object of the same store: the store copies it, and no byte comes by here."""
        with self.asked():
            self._system.copy_file(key, f"{self._root}/{path}")

    def size(self, path: str) -> int | None:
        with self.asked():
            info = self._system.get_file_info(f"{self._root}/{path}")
        return int(info.size) if info.is_file else None

    def sizes(self, paths: Sequence[str]) -> Iterator[int | None]:
        pool = ThreadPoolExecutor(AT_ONCE, "logio-objects")
        try:
            yield from pool.map(self.size, paths)
        finally:
            pool.shutdown(cancel_futures=True)

    def open(self, path: str) -> Any:
        return self._system.open_input_file(f"{self._root}/{path}")

    def settle(self, version: int) -> None:
        """An answer says so."""

    def _probe(self) -> None:
        """A table of its own, of which many commit the same version at once: one may succeed.

        delta-rs looks for the version before it puts it, so that only commits at once ask the store whether it refuses.
        """
        import deltalake
        import pyarrow as pa

        path = f"{self._root}/_logio_probe-{uuid4().hex}"
        uri, options = f"{SCHEME}{path}", dict(self.options)
        try:
            deltalake.DeltaTable.create(uri, pa.schema([("probed", pa.int64())]), storage_options=options)
            for _ in range(_PROBED):
                tables = [deltalake.DeltaTable(uri, storage_options=options) for _ in range(_AT_ONCE)]
                if (committed := _commit_at_once(tables)) > 1:
                    raise ConfigurationError(
                        f"{self.named}: the store puts a second file over one that is there, though it is asked not to "
                        f"(If-None-Match): of {_AT_ONCE} commits of one version at once, {committed} succeeded, and all but "
                        "one are lost. Use a store that refuses it, as S3 does"
                    )
            with self.asked():
                if not self._system.get_file_info(f"{path}/{LOG}/{0:020}.json").is_file:
                    raise ConfigurationError(
                        f"{self.named}: delta-rs has put a file where Arrow does not see it: both need the same store behind "
                        "the URL (region, endpoint_override) and the same credentials (AWS_ENDPOINT_URL, AWS_PROFILE)"
                    )
        except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
            raise ExternalUnavailable(f"{self.named}: delta-rs: {plain(error)}") from error
        finally:
            with suppress(OSError):
                self._system.delete_dir(path)


def _commit_at_once(tables: Sequence[Any]) -> int:
    """How many of them have committed the version that follows the one that all have read."""
    gate = threading.Barrier(len(tables))
    with ThreadPoolExecutor(len(tables), "logio-probe") as pool:
        return sum(pool.map(lambda table: _commits(table, gate), tables))


def _commits(table: Any, gate: threading.Barrier) -> bool:
    import deltalake

    schema, properties = table.schema(), deltalake.CommitProperties(max_commit_retries=0)
    gate.wait()
    try:
        table.create_write_transaction([], "append", schema, commit_properties=properties)
    except deltalake.exceptions.CommitFailedError:
        return False
    return True


def _check_path(named: str, path: str) -> None:
    if found := _NOT_AS_IT_IS.search(path):
        raise ConfigurationError(
            f"{named}: the path {path!r} of a Delta table has {found[0]!r}, which delta-rs does not take as it is. Give a "
            "path without % \\ ? # [ ] ^ and control characters"
        )


@contextmanager
def delta_rs(named: str) -> Iterator[None]:
    """Its errors as ours. A panic of its is no Exception, and would end the driver without a word of the table."""
    from deltalake import exceptions

    try:
        yield
    except (exceptions.DeltaProtocolError, exceptions.SchemaMismatchError) as error:
        raise WriteRefused(f"{named}: delta-rs does not write it: {plain(error)}") from error
    except exceptions.DeltaError as error:
        raise ExternalUnavailable(f"{named}: {plain(error)}") from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise WriteRefused(
            f"{named}: delta-rs broke off (a panic, a fault of its own): {plain(error)}. The table says what is committed; "
            "`logio retry` asks it"
        ) from error


def is_panic(error: BaseException) -> bool:
    """PyO3 does not say where its class is imported from."""
    return type(error).__name__ == "PanicException"


def plain(error: BaseException) -> str:
    """The text of an error of delta-rs without its arrows and colours, on one line."""
    text = "".join(one if one.isprintable() else " " for one in str(error)).replace("↳", " ")
    text = " ".join(part for part in text.split() if part not in ("[31m", "[0m", "[31m[0m"))
    return f"{type(error).__name__}: {text[:1000]}"


def _options(url: str) -> Mapping[str, str]:
    """What delta-rs is told beside what it finds in the environment."""
    return {"aws_conditional_put": "etag", **_PATIENCE, **delta_rs_options(url)}


def place_of(named: str, url: str, table: str) -> TablePlace:
    """The place of a table below what a connection names. Raises `ConfigurationError`, `ExternalUnavailable`."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            f"{named}: deltalake is not installed here: pip install 'airflow-logio[delta]', for every driver"
        ) from None
    weaker = [name for name in _WEAKER if os.environ.get(name, os.environ.get(name.lower()))]
    if weaker and url.startswith(SCHEME):
        raise ConfigurationError(
            f"{named}: {weaker[0]} is set in the driver's environment, by which delta-rs would commit in another way "
            "than by a put that the store refuses if the version is there: take it out"
        )
    return files_place(named, url, table)


def files_place(named: str, url: str, table: str) -> TablePlace:
    """As `place_of`, where no version is committed: tasks, which have no delta-rs, put data files there."""
    if is_local(url):
        return LocalTable(named, url, table)
    scheme = url.partition("://")[0]
    if url.startswith(SCHEME):
        return BucketTable(named, url, table)
    why = _REFUSED.get(scheme, "Delta tables are written in folders, and in buckets of S3 and what speaks its protocol")
    raise ConfigurationError(f"{named}: no Delta table is written to {scheme}://: {why}")


def missing(named: str) -> WriteRefused:
    """The table of a writer that declares no columns is not there."""
    return WriteRefused(
        f"{named} is not there, and its writer declares no columns, with which it would be made: make the table, or declare "
        "them (columns={'id': 'bigint'})"
    )

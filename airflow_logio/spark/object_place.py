"""Publishing into an object store: whole objects under final names (ADR-124)."""

from __future__ import annotations

import errno
import logging
import os
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from time import sleep as _sleep
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.arrow_files import (
    has_expired,
    is_busy,
    is_lasting,
    look,
    next_step,
    saying,
    whole_object,
)
from airflow_logio.dataflow.writers.bucket_urls import SCHEME, check_listings, endpoint_of
from airflow_logio.dataflow.writers.folder_days import RECEIPTS
from airflow_logio.dataflow.writers.folder_files import ObjectFiles, open_bucket
from airflow_logio.dataflow.writers.published_folder import RUNS
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError
from airflow_logio.spark.published_places import (
    ActionNames,
    Copies,
    Copy,
    CopyJob,
    CopyTask,
    Publication,
    PublishedPlace,
    raise_told,
)
from airflow_logio.systems.payload_roots import is_local
from airflow_logio.systems.payloads.bucket_settings import warnings_of
from airflow_logio.systems.payloads.data_files import footer_of
from airflow_logio.systems.payloads.file_roots import size_at
from airflow_logio.systems.payloads.task_files import blocks

log = logging.getLogger(__name__)

_MOST_BYTES_OF_A_KEY = 1024
_MOST_BYTES_OF_AN_OBJECT = 10_000 * 10 * 2**20
"""S3 takes so many parts, and Arrow makes each so large."""
MOST_BYTES_OF_A_COPY = 5 * 2**30
"""What S3 copies in one request."""


class ObjectPlace(PublishedPlace):
    """`folder` below what the connection names. Raises `ConfigurationError`, `ExternalUnavailable`."""

    def __init__(self, connection: str, url: str, folder: str) -> None:
        self._named = f"connection {connection!r}"
        self._connection = connection
        self._url = url
        self.files: ObjectFiles = ObjectFiles.of(self._named, url, folder)
        try:
            check_listings(self._named, url)
        except ConfigurationError as error:  # new runs are refused; this one has begun, perhaps when none was
            _warn_once(str(error))
        _warn_of_settings(self._named, url)

    def check(self) -> None:
        """The first question says whether the bucket is there, and may be listed."""

    def prepare(self, folders: Iterable[str], names: ActionNames) -> None:
        """There are no folders, and no files that are half-written."""

    def put_records(self, names: Iterable[str], folder: str = RUNS) -> None:
        for name in names:
            self._put(f"{folder}/{name}", b"")

    def put_receipt(self, names: ActionNames, receipt: bytes, folder: str = RECEIPTS) -> None:
        self._put(f"{folder}/{names.receipt_name}", receipt)

    def put_files(self, where: str, plan: Publication, sources: Sequence[str], job: CopyJob) -> None:
        """By the store itself where it has the payloads too, else by a job: what is there is left alone, and a name that is
        put twice has the same bytes."""
        copies = [
            Copy(source, self.files.key(path), file.size, file.footer)
            for source, path, file in zip(sources, plan.names(), plan.manifest.files, strict=True)
        ]
        if not copies:
            return
        self._check_keys(copies)
        by_store, by_tasks = list[Copy](), list[Copy]()
        for copy in copies:
            is_small = copy.size <= MOST_BYTES_OF_A_COPY
            (by_store if is_small and same_store(copy.source, self._url) else by_tasks).append(copy)
        for _ in self.files.each(self._copy, by_store):
            pass
        lines = job(where, by_tasks, self._task()) if by_tasks else ()
        raise_told(lines)
        crash_here(CrashPoint.IN_PLACING)
        self._check(copies)

    def may_remove(self, folder: str) -> bool:
        """Only a removal would tell."""
        return True

    def remove(self, paths: Iterable[str]) -> None:
        for _ in self.files.each(self._remove, paths):  # three requests
            pass

    def close(self) -> None:
        """There is nothing half-written."""

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):  # another driver has
            self.files.system.delete_file(self.files.key(path))

    def _task(self) -> CopyTask:
        """Of a job of its own: its tasks share one patience."""
        return CopyTask(partial(put, self._connection, self._url, job=uuid.uuid4().hex), PUT)

    def _copy(self, copy: Copy) -> None:
        """One request, and no byte of the file comes by here."""
        if not _is_there(self.files.system, copy.target, copy.size, copy.footer):
            self.files.system.copy_file(key_of(copy.source), copy.target)

    def _put(self, path: str, data: bytes) -> None:
        with whole_object(self.files.system, self.files.key(path)) as stream:
            stream.write(data)

    def _check_keys(self, copies: Copies) -> None:
        """S3 says it of each object, and Arrow not by a name that it knows. Raises `ConfigurationError`."""
        for copy in copies:
            if copy.size > _MOST_BYTES_OF_AN_OBJECT:
                raise ConfigurationError(
                    f"{self._named}: {copy.source} has {copy.size:,} bytes, and an object has at most "
                    f"{_MOST_BYTES_OF_AN_OBJECT:,}, 10,000 parts as Arrow puts them: let the function before the writer "
                    "repartition its DataFrame"
                )
            key = copy.target.partition("/")[2]
            size = len(key.encode())
            if size > _MOST_BYTES_OF_A_KEY:
                raise ConfigurationError(
                    f"{self._named}: an object would have a name of {size:,} bytes ({key[:80]}...), and S3 takes "
                    f"{_MOST_BYTES_OF_A_KEY:,}: choose a shorter path or folder, or partition by fewer columns"
                )

    def _check(self, copies: Copies) -> None:
        """Raises `ConfigurationError` for an object that an executor has put where the driver does not see it."""
        found = list(self.files.each(partial(look, self.files.system), [copy.target for copy in copies]))
        for copy, info in zip(copies, found, strict=True):
            if not info.is_file or info.size != copy.size:
                raise ConfigurationError(
                    f"{self._named}: an executor has put {copy.size:,} bytes under {copy.target}, and the driver does not "
                    "see them; driver and all executors need the same store behind the URL (region, endpoint)"
                )


@lru_cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


@lru_cache
def _warn_of_settings(named: str, url: str) -> None:
    """Once in a driver."""
    for said in warnings_of(url):
        log.warning("%s: %s", named, said)


def same_store(source: str, url: str) -> bool:
    """Whether a file of the payload store, by its location, is in the store that a URL is of, which copies it itself."""
    if not source.startswith(SCHEME):
        return False
    return _store_of(source) == _store_of(url)


def _store_of(url: str) -> tuple[str | None, str | None]:
    return endpoint_of(url), dict(parse_qsl(urlsplit(url).query)).get("region")


def key_of(source: str) -> str:
    """As Arrow has it: the bucket comes first."""
    parts = urlsplit(source)
    return f"{parts.netloc}{parts.path}"


# --- what tasks do, on executors: they need this package, and reach the store -----------------------------------------

PUT = "path string, error string, said string"
"""The schema of what a task returns."""
_ONE_PATH = "driver and executors need the payload store under one path, as one user"
_UNSENT_BYTES = 64 * 2**20
"""What a task has read of a file, and not sent yet, at most: Arrow itself would read on as fast as it can."""


def put(connection: str, url: str, batches: Iterable[pa.RecordBatch], *, job: str = "") -> Iterator[pa.RecordBatch]:
    """Put ``source`` under the name ``target`` for each row, unless it is there; a line for each.

    What is wrong with the connection, or its store, is in the line: Spark would try a task that raises again at once. A store
    that is busy is waited for, by all tasks of a `job` in a process together not longer than `BUSY_SECONDS`.
    """
    named = f"connection {connection!r}"
    for batch in batches:
        for row in batch.to_pylist():
            try:
                action = partial(_put_by, named, url, row)
                _patience(job).call(action) if job else action()
                yield _line(row["target"])
            except LogioError as error:
                yield _line(row["target"], type(error).__name__, str(error))
            except (OSError, pa.ArrowException) as error:
                said = f"{named}: an executor cannot put {row['source']} into the object store: {error}"
                yield _line(row["target"], _kind(error).__name__, f"{said}{next_step(error)}")


@lru_cache(maxsize=4)
def _system(named: str, url: str) -> Any:
    """A task has one file, and its process has many tasks: they share a client, and its connections."""
    return open_bucket(named, url)[0]


def _put_by(named: str, url: str, row: Mapping[str, Any]) -> None:
    """By a new client once, if the credentials that this process has used are not taken any more: it may get newer ones."""
    what = row["source"], row["target"], row["size"], row["footer"]
    try:
        _put(_system(named, url), *what)
    except OSError as error:
        if not has_expired(error):
            raise
        _system.cache_clear()
        _put(_system(named, url), *what)


BUSY_SECONDS = 60.0
"""Arrow asks a busy store 31 times within six seconds, for each file. A job may have thousands."""
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 16.0


class _Patience:
    """Of one job in this process. What is over does not come back: the driver executes the write action again, later."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._wait = _FIRST_WAIT

    def call(self, action: Callable[[], None]) -> None:
        """Raises what the action raises; OSError without a request, if the store has been busy for long."""
        if self._left <= 0:
            raise OSError(errno.EBUSY, f"AWS Error SLOW_DOWN: the store was busy for {BUSY_SECONDS:g} s of this job")
        while True:
            try:
                action()
            except OSError as error:
                if not is_busy(error) or self._left <= 0:
                    raise
            else:
                self._wait = _FIRST_WAIT
                return
            pause = min(self._wait, self._left)
            _sleep(random.uniform(pause / 2, pause))
            self._left -= pause
            self._wait = min(2 * self._wait, _LONGEST_WAIT)


@lru_cache(maxsize=4)
def _patience(job: str) -> _Patience:
    return _Patience(BUSY_SECONDS)


def _kind(error: Exception) -> type[LogioError]:
    """Arrow's errors that are none of the system: what it was told is wrong, or it has not got what it needs."""
    lasts = is_lasting(error) if isinstance(error, OSError) else isinstance(error, (ValueError, NotImplementedError))
    return ConfigurationError if lasts else ExternalUnavailable


def _put(system: Any, source: str, target: str, size: int, footer: int) -> None:
    """Raises OSError of the object store, `LogioError` of the payload store."""
    if _is_there(system, target, size, footer):
        return
    _check_size(source, size)  # a stream whose block raises is never given back
    with whole_object(system, target) as stream:
        unsent = 0
        for block in _content(source, size):
            stream.write(block)
            unsent += len(block)
            if unsent >= _UNSENT_BYTES:
                stream.flush()
                unsent = 0


def _check_size(source: str, size: int) -> None:
    """The driver has looked before the job: what an executor sees then is another file."""
    with _reading(source):
        found = os.stat(source).st_size if is_local(source) else size_at(source)
    if found != size:
        raise ConfigurationError(f"{source} has {found:,} bytes, its manifest says {size:,}: {_ONE_PATH}")


def _content(source: str, size: int) -> Iterator[bytes]:
    with _reading(source):
        yield from blocks(source, size)


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """An executor may see a file later than the driver, which has looked: that is waited for, as it is when it is copied."""
    try:
        yield
    except OSError as error:
        waits = error.errno == errno.ENOENT or not is_lasting(error)
        raise (ExternalUnavailable if waits else ConfigurationError)(
            f"an executor cannot read {source}: {_ONE_PATH} ({error})"
        ) from error


def _is_there(system: Any, target: str, size: int, footer: int) -> bool:
    """A whole object of the same size and footer: a reader would notice another one of the same bytes."""
    # `get_file_info` would list as well what is not there, which costs more than to put it.
    with suppress(FileNotFoundError), saying(system, target), system.open_input_file(target) as file:
        return file.size() == size and footer_of(file, size) == footer
    return False


def _line(path: str, error: str = "", said: str = "") -> pa.RecordBatch:
    line = {"path": path, "error": error, "said": said}
    return pa.record_batch({name: pa.array([text], pa.string()) for name, text in line.items()})

"""Publishing into an object store: whole objects under final names (ADR-124)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.writers.arrow_files import is_lasting, next_step, whole_object
from airflow_logio.dataflow.writers.folder_days import RECEIPTS
from airflow_logio.dataflow.writers.folder_files import ObjectFiles, open_bucket
from airflow_logio.dataflow.writers.published_folder import RUNS
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError
from airflow_logio.spark.database_tasks import told
from airflow_logio.spark.published_places import (
    ActionNames,
    Copies,
    Copy,
    CopyJob,
    CopyTask,
    Publication,
    PublishedPlace,
)
from airflow_logio.systems.payloads.data_files import footer_of
from airflow_logio.systems.payloads.task_files import blocks

_MOST_BYTES_OF_A_KEY = 1024
_MOST_BYTES_OF_AN_OBJECT = 10_000 * 10 * 2**20
"""S3 takes so many parts, and Arrow makes each so large."""


class ObjectPlace(PublishedPlace):
    """`folder` below what the connection names. Raises `ConfigurationError`, `ExternalUnavailable`."""

    def __init__(self, connection: str, url: str, folder: str) -> None:
        self._named = f"connection {connection!r}"
        self._task = CopyTask(partial(put, connection, url), PUT)
        self.files: ObjectFiles = ObjectFiles.of(self._named, url, folder)

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
        """By a job: what is there is left alone, and a name that is put twice has the same bytes."""
        copies = [
            Copy(source, self.files.key(path), file.size, file.footer)
            for source, path, file in zip(sources, plan.names(), plan.manifest.files, strict=True)
        ]
        if not copies:
            return
        self._check_keys(copies)
        failed = [line for line in job(where, copies, self._task) if line["error"]]
        if failed:  # what waiting does not mend comes first
            first = min(failed, key=lambda line: line["error"] == ExternalUnavailable.__name__)
            raise told(first["error"], first["said"])
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
        found = list(self.files.each(self.files.system.get_file_info, [copy.target for copy in copies]))
        for copy, info in zip(copies, found, strict=True):
            if not info.is_file or info.size != copy.size:
                raise ConfigurationError(
                    f"{self._named}: an executor has put {copy.size:,} bytes under {copy.target}, and the driver does not "
                    "see them; driver and all executors need the same store behind the URL (region, endpoint)"
                )


# --- what tasks do, on executors: they need this package, and reach the store -----------------------------------------

PUT = "path string, error string, said string"
"""The schema of what a task returns."""
_ONE_PATH = "driver and executors need the payload store under one path, as one user"
_UNSENT_BYTES = 64 * 2**20
"""What a task has read of a file, and not sent yet, at most: Arrow itself would read on as fast as it can."""


def put(connection: str, url: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put ``source`` under the name ``target`` for each row, unless it is there; a line for each.

    What is wrong with the connection, or its store, is in the line: Spark would try a task that raises again at once.
    """
    named = f"connection {connection!r}"
    for batch in batches:
        for row in batch.to_pylist():
            try:
                _put(_system(named, url), row["source"], row["target"], row["size"], row["footer"])
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
        found = os.stat(source).st_size
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
    found = system.get_file_info(target)
    if not found.is_file or found.size != size:
        return False
    with system.open_input_file(target) as file:
        return footer_of(file, size) == footer


def _line(path: str, error: str = "", said: str = "") -> pa.RecordBatch:
    line = {"path": path, "error": error, "said": said}
    return pa.record_batch({name: pa.array([text], pa.string()) for name, text in line.items()})

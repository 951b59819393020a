"""Files that tasks of Spark put into an object store, on executors (ADR-124). They need this package, and reach the store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pyarrow as pa

from airflow_logio.arrow_files import is_lasting, next_step, whole_object
from airflow_logio.dataflow.object_files import open_bucket
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError
from airflow_logio.systems.payloads.task_files import blocks, footer_of

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
    """A whole object of the same size and footer: who reads it now would notice another one of the same bytes."""
    found = system.get_file_info(target)
    if not found.is_file or found.size != size:
        return False
    with system.open_input_file(target) as file:
        return footer_of(file, size) == footer


def _line(path: str, error: str = "", said: str = "") -> pa.RecordBatch:
    line = {"path": path, "error": error, "said": said}
    return pa.record_batch({name: pa.array([text], pa.string()) for name, text in line.items()})

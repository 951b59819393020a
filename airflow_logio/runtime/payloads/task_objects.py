"""Files that tasks of Spark put into an object store, on executors (ADR-124). They need this package, and reach the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from airflow_logio.arrow_files import is_lasting, next_step, opened, whole_object
from airflow_logio.errors import ConfigurationError, ExternalUnavailable, LogioError
from airflow_logio.runtime.payloads.task_files import blocks, footer_of

PUT = "path string, error string, said string"
"""The schema of what a task returns."""
_UNSENT_BYTES = 64 * 2**20
"""What a task has read of a file, and not sent yet, at most: Arrow itself would read on as fast as it can."""


def put(connection: str, url: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put ``source`` under the name ``target`` for each row, unless it is there; a line for each.

    What is wrong with the connection, or its store, is in the line: Spark would try a task that raises again at once.
    """
    system: Any = None
    for batch in batches:
        for row in batch.to_pylist():
            try:
                system = system or opened(f"connection {connection!r}", url)[0]
                _put(system, row["source"], row["target"], row["size"], row["footer"])
                yield _line(row["target"])
            except LogioError as error:
                yield _line(row["target"], type(error).__name__, str(error))
            except OSError as error:
                kind = ConfigurationError if is_lasting(error) else ExternalUnavailable
                said = (
                    f"connection {connection!r}: an executor cannot put {row['source']} into the object store: {error}"
                )
                yield _line(row["target"], kind.__name__, f"{said}{next_step(error)}")


def _put(system: Any, source: str, target: str, size: int, footer: int) -> None:
    """Raises OSError."""
    if _is_there(system, target, size, footer):
        return
    with whole_object(system, target) as stream:
        unsent = 0
        for block in blocks(source, size):
            stream.write(block)
            unsent += len(block)
            if unsent >= _UNSENT_BYTES:
                stream.flush()
                unsent = 0


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

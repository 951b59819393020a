"""What tasks of Spark do with files that Spark's own writer has made (ADR-95). Imports what every executor has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from airflow_logio.runtime.payloads.task_files import footer_checksum, lines_of

UNWANTED = "other settings"
"""In place of a partition: a file that has times of an old form. Its settings were another thread's when Spark began it."""
_OLD_FORMS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""What Spark notes in footers of files whose dates or times are not to be read as they are."""


def sealed(root: str, mode: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A line of `task_files.RESULT` for each file, given its path below `root`: it is durable then, and stays as it is.

    Files get `mode`, less the umask. One that is not seen here has no line. May be done twice. Raises OSError.
    """
    mask = _umask()
    paths = [path for batch in batches for path in batch.column("path").to_pylist()]
    lines = [line for line in (_sealed(root, path, mode & ~mask) for path in paths) if line is not None]
    if lines:
        yield lines_of(lines)


def _sealed(root: str, path: str, mode: int) -> tuple[str, int, int, int, str] | None:
    import pyarrow.parquet as pq

    full = os.path.join(root, path)
    try:
        with open(full, "rb") as file:
            metadata = pq.read_metadata(file)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            footer = footer_checksum(full, size)
    except FileNotFoundError:  # this host has an older view of the folder
        return None
    return path, size, metadata.num_rows, footer, UNWANTED if _has_old_times(metadata) else ""


def _has_old_times(metadata: Any) -> bool:
    noted = metadata.metadata or {}
    columns = (metadata.schema.column(number) for number in range(metadata.num_columns))
    return any(name in noted for name in _OLD_FORMS) or any(column.physical_type == "INT96" for column in columns)


def _umask() -> int:
    """Nothing tells it without setting it; a task has its process to itself."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

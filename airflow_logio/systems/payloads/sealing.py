"""What tasks of Spark, or the driver, do with files that Spark's own writer has made (ADR-95).

Imports what every executor has.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from airflow_logio.systems.payloads.task_files import footer_checksum, lines_of

PROBE = ".mode-"
"""What the names of files begin with that are made to see what mode they get, and removed at once."""
_AT_ONCE = 8
"""Files that one process syncs side by side: what a disk of its own, or a server, works off together."""
UNWANTED = "other settings"
"""In place of a partition: a file that has times of an old form. Its settings were another thread's when Spark began it."""
_OLD_FORMS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""What Spark notes in footers of files whose dates or times are not to be read as they are."""


def sealed(root: str, mode: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A line of `task_files.RESULT` for each file, given its path below `root`: it is durable then, and stays as it is.

    Files get `mode`, less the umask. One that is not seen here has no line. May be done twice. Raises OSError.
    """
    lines = sealed_files(root, mode, [path for batch in batches for path in batch.column("path").to_pylist()])
    if lines:
        yield lines_of(lines)


def sealed_files(root: str, mode: int, paths: Sequence[str]) -> list[tuple[str, int, int, int, str]]:
    """As `sealed`, of files that are all in one folder, side by side: a line each."""
    if not paths:
        return []
    new = _mode_of_new(os.path.join(root, os.path.dirname(paths[0])), mode)
    with ThreadPoolExecutor(min(len(paths), _AT_ONCE), thread_name_prefix="logio-seal") as threads:
        lines = threads.map(lambda path: _sealed(root, path, new), paths)
        return [line for line in lines if line is not None]


def _sealed(root: str, path: str, mode: int) -> tuple[str, int, int, int, str] | None:
    full = os.path.join(root, path)
    try:
        with open(full, "rb") as file:
            metadata = _footer(file)
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            footer = footer_checksum(full, size)
    except FileNotFoundError:  # this host has an older view of the folder
        return None
    return path, size, metadata.num_rows, footer, UNWANTED if _has_old_times(metadata) else ""


def _footer(file: Any) -> Any:
    """As Arrow reads it. Raises `pa.ArrowException` for one that is damaged or encrypted, OSError for the file system."""
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(file)
    except OSError as error:
        if error.errno is None:  # not of the file system: Arrow's word for what it cannot decrypt
            raise pa.ArrowInvalid(str(error)) from error
        raise


def _has_old_times(metadata: Any) -> bool:
    noted = metadata.metadata or {}
    columns = (metadata.schema.column(number) for number in range(metadata.num_columns))
    return any(name in noted for name in _OLD_FORMS) or any(column.physical_type == "INT96" for column in columns)


def _mode_of_new(folder: str, mode: int) -> int:
    """The mode that a new file gets there, if it is made with `mode`: only making one tells it, in a process with threads."""
    probe = os.path.join(folder, f"{PROBE}{uuid.uuid4().hex}")
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        os.unlink(probe)

"""What tasks of Spark do with files that Spark's own writer has made (ADR-95). Imports what every executor has."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa

from airflow_logio.runtime.payloads.task_files import footer_checksum, lines_of


def sealed(root: str, mode: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A line of `task_files.RESULT` for each file, given its path below `root`: it is durable then, and stays as it is.

    Files get `mode`, less the umask. One without records is removed, and has no line. Raises OSError.
    """
    paths = [path for batch in batches for path in batch.column("path").to_pylist()]
    lines = [line for line in (_sealed(root, path, mode & ~_umask()) for path in paths) if line is not None]
    if lines:
        yield lines_of(lines)


def _sealed(root: str, path: str, mode: int) -> tuple[str, int, int, int, str] | None:
    import pyarrow.parquet as pq

    full = os.path.join(root, path)
    records = pq.read_metadata(full).num_rows
    if not records:
        os.unlink(full)
        return None
    with open(full, "rb") as file:
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
    return path, size, records, footer_checksum(full, size), ""


def _umask() -> int:
    """Nothing tells it without setting it; a task has its process to itself."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

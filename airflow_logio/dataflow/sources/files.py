"""Parquet files by path or URI: opened, counted, found by pattern."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from airflow_logio.errors import ConfigurationError

_WILD = frozenset("*?[")


@contextmanager
def opened(path: str) -> Iterator[tuple[Any, int]]:
    """A handle of the file, and its size in bytes. Raises OSError."""
    from pyarrow import fs

    system, inner = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    with system.open_input_file(inner) as handle:
        yield handle, handle.size()


def parquet(handle: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile`; raises ArrowException if it is none."""
    import pyarrow.parquet as pq

    # Without pre_buffer a row group is read page by page, so that a file of one huge row group stays small in memory.
    return pq.ParquetFile(handle, pre_buffer=False, buffer_size=1 << 20)


def row_count(path: str) -> int:
    """Rows of a file, from its footer alone. Raises OSError, ArrowException."""
    with opened(path) as (handle, _):
        return int(parquet(handle).metadata.num_rows)


def matching(path: str) -> list[str]:
    """The files that a path means, in the order of their names: itself, or what its pattern matches.

    Raises ConfigurationError if a pattern matches nothing.
    """
    folder, _, name = path.rpartition("/")
    if not _WILD & set(name) or ("://" not in path and os.path.isfile(path)):
        return [path]
    found = sorted(_listed(folder, name) if "://" in path else filter(os.path.isfile, glob.glob(path)))
    if not found:
        raise ConfigurationError(f"no file matches {path}")
    return found


def _listed(folder: str, pattern: str) -> list[str]:
    from pyarrow import fs

    try:
        system, inner = fs.FileSystem.from_uri(folder)
        infos = system.get_file_info(fs.FileSelector(inner))
    except OSError as error:
        raise ConfigurationError(f"cannot list {folder}: {error}") from error
    names = [info.base_name for info in infos if info.is_file]
    return [f"{folder}/{name}" for name in names if fnmatch.fnmatchcase(name, pattern)]

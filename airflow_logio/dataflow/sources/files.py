"""Parquet files by path or URI: found by pattern, opened, watched for changes, fingerprinted."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from airflow_logio.errors import ConfigurationError

WILD = frozenset("*?[")
"""What makes a pattern of a path."""

_KEPT = "~=+,@()!$&'*;:"
"""Signs that a URI may have in the name of a file; Arrow takes others for quoted, or for the end of the path."""
_CLOCK_STEP_SECONDS = 0.05
"""Local file systems take times from a clock with steps of up to 10 ms: two changes within one step look like one."""

MIB = 1 << 20
WHOLE_UP_TO = 256 * MIB
SAMPLES = 64


@dataclass(frozen=True, slots=True)
class OpenFile:
    """An open file. `handle` is a `pyarrow.NativeFile`, which copies what it reads: what is decoded does not change later."""

    handle: Any
    look: Callable[[], tuple[int | None, ...]]
    """Asks the file system: when the file was changed last (nanoseconds, local files only), and what else changes with it."""
    local: bool

    def size(self) -> int:
        """Bytes, now."""
        return int(self.handle.size())

    def stamp(self) -> tuple[Any, ...]:
        """Another one after each change: of size, time of last write, and for a local file, of the inode. Raises OSError.

        The times of an object store may have steps of a second; a change within one does not show here.
        """
        return self.look()

    def settled_stamp(self) -> tuple[Any, ...]:
        """As `stamp`; any later change of a local file gives another one. Waits some milliseconds if it was just changed."""
        while True:
            stamp = self.stamp()
            age = time.time() - stamp[0] / 1e9 if self.local and stamp else _CLOCK_STEP_SECONDS
            if not 0 <= age < _CLOCK_STEP_SECONDS:  # negative: the clock is another machine's
                return stamp
            time.sleep(_CLOCK_STEP_SECONDS - age)


@contextmanager
def opened(path: str) -> Iterator[OpenFile]:
    """The file, open. One that is replaced or removed meanwhile can be read to its end. Raises OSError."""
    import pyarrow as pa
    from pyarrow import fs

    system, inner = fs.FileSystem.from_uri(path) if "://" in path else (fs.LocalFileSystem(), path)
    if isinstance(system, fs.LocalFileSystem):
        with open(inner, "rb") as file, pa.PythonFile(file, mode="r") as handle:
            yield OpenFile(handle, lambda: _inode_stamp(file.fileno()), local=True)
        return
    with system.open_input_file(inner) as handle:
        yield OpenFile(handle, lambda: _listed_stamp(system.get_file_info(inner)), local=False)


def _inode_stamp(descriptor: int) -> tuple[int, ...]:
    # st_ctime cannot be set back, as st_mtime can. It also changes when the file is renamed or removed.
    found = os.fstat(descriptor)
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size


def _listed_stamp(info: Any) -> tuple[int | None, ...]:
    return info.mtime_ns, info.size


def parquet(handle: Any, int96_unit: str = "us") -> Any:
    """A `pyarrow.parquet.ParquetFile`; raises ArrowException if it is none.

    Nanoseconds, which Arrow makes of INT96 by itself, go from 1677 to 2262 only, and wrap around beyond."""
    import pyarrow.parquet as pq

    # Without pre_buffer a row group is read page by page, so that a file of one huge row group stays small in memory.
    return pq.ParquetFile(handle, pre_buffer=False, buffer_size=1 << 20, coerce_int96_timestamp_unit=int96_unit)


def footer(path: str) -> tuple[int, Any]:
    """Rows and Arrow schema of a file, from its footer alone. Raises OSError, ArrowException."""
    with opened(path) as file:
        content = parquet(file.handle)
        return int(content.metadata.num_rows), content.schema_arrow


def is_pattern(path: str) -> bool:
    """Whether a path stands for the files that it matches."""
    return bool(WILD & set(path.rpartition("/")[2])) and ("://" in path or not os.path.isfile(path))


def matching(path: str) -> list[str]:
    """The files that a path means, in the order of their names: itself, or what its pattern matches. As in a shell, a name
    that begins with a dot is matched by such a pattern only.

    Raises ConfigurationError if a pattern matches nothing.
    """
    if not is_pattern(path):
        return [path]
    folder, _, name = path.rpartition("/")
    found = _listed(folder, name) if "://" in path else sorted(filter(os.path.isfile, glob.glob(path)))
    if not found:
        raise ConfigurationError(f"no file matches {path}: put files there, or give another path")
    return found


def _listed(folder: str, pattern: str) -> list[str]:
    from pyarrow import fs

    try:
        system, inner = fs.FileSystem.from_uri(folder)
        infos = system.get_file_info(fs.FileSelector(inner))
    except OSError as error:
        raise ConfigurationError(f"cannot list {folder}: {error}") from error
    names = sorted(info.base_name for info in infos if info.is_file)
    shown = [name for name in names if pattern.startswith(".") or not name.startswith(".")]
    return [f"{folder}/{quote(name, safe=_KEPT)}" for name in shown if fnmatch.fnmatchcase(name, pattern)]


def parquet_fingerprint(handle: Any, size: int) -> str:
    """Fingerprint of an open Parquet file (a `pyarrow.NativeFile`) of `size` bytes.

    ``blake2b:...`` is the hash of the whole content, up to 256 MiB. ``blake2b-sampled:...`` is, for larger files, the
    hash of the size, of the whole footer (row counts, offsets and statistics of every row group) and of 64 evenly
    spaced MiB. It sees a file that was rewritten, extended, cut or replaced; it may miss bytes patched in place.
    """
    content = hashlib.blake2b(digest_size=16)
    if size <= WHOLE_UP_TO:
        handle.seek(0)
        while block := handle.read(MIB):
            content.update(block)
        return f"blake2b:{content.hexdigest()}"
    content.update(str(size).encode())
    content.update(_footer(handle, size))
    for sample in range(SAMPLES):
        handle.seek((size - MIB) * sample // (SAMPLES - 1))
        content.update(handle.read(MIB))
    return f"blake2b-sampled:{content.hexdigest()}"


def _footer(handle: Any, size: int) -> bytes:
    # A Parquet file ends with the footer, its length (4 bytes, little endian) and the magic bytes PAR1.
    handle.seek(size - 8)
    length = min(size, int.from_bytes(handle.read(4), "little") + 8)
    handle.seek(size - length)
    footer: bytes = handle.read(length)
    return footer

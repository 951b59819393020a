"""Files that tasks of Spark write, copy and seal, on executors (ADR-80, ADR-83, ADR-95).

Tasks import this module by name, so it imports nothing that an executor may not have.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_logio.errors import LogioError
from airflow_logio.systems.payload_roots import is_local
from airflow_logio.systems.payloads.data_files import DataFiles, footer_checksum, footer_of
from airflow_logio.systems.payloads.file_roots import data_files, located
from airflow_logio.systems.payloads.local_files import sync

MAX_PARTITIONS = 256
"""Partitions that one task may write to: it has a file open for each."""
OWNER_ONLY, AS_PUBLISHED = 0o600, 0o666
"""Modes of files of the payload store: of all, and of those that get a second name in a published folder (ADR-91)."""
PIECES_PER_FILE = 8
"""A file with a limit is written in at least so many pieces, each a row group, if its records do not fit one by one."""
RESULT = "path string, size long, records long, footer long, partition string, error string, said string"
"""The schema of what a writing task returns: a line for each file, or one with the name of an error, and what it says."""
FileLine = tuple[str, int, int, int, str]
"""Path, bytes, records, checksum of the footer and partition of a file."""
COPIED = "path string, error string, said string"
"""The schema of what a copying task returns: a line for each file, with the name of an error, if there was one, and what it
says."""
_COPIED = pa.schema([(name, pa.string()) for name in ("path", "error", "said")])
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f").union(map(chr, range(32)))
"""What Spark and Hive write as ``%XX`` in names of partitions; anything else, of whatever alphabet, stays as it is."""
MOST_BYTES_OF_A_NAME = 255
NULL = "__HIVE_DEFAULT_PARTITION__"
"""What the name of a folder has in place of a null."""
_SEPARATOR = "/"
_BLOCK = 4 * 2**20


class TooManyPartitions(ValueError):
    """One task would have to write to more partitions than `MAX_PARTITIONS`."""


class NoPartition(ValueError):
    """A value that is no name of a partition."""


class ForeignInputSet(ValueError):
    """A row that belongs to no Input Set of the job."""


class NotText(ValueError):
    """A text that is not UTF-8."""


def check_text(batch: pa.RecordBatch) -> None:
    """Raises `NotText` for a value that is none of its column's type. Of what Spark hands over, only text can be one: it
    makes it of bytes without looking at them. 10 µs per thousand records of two text columns."""
    try:
        batch.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise NotText(_said_of_text(batch, error)) from error


def _said_of_text(batch: pa.RecordBatch, error: Exception) -> str:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return (
                f"column {name!r} has a value that is not UTF-8. Decode the bytes with the encoding that they have, "
                f"decode({name}, 'ISO-8859-1') for example, or keep them as binary"
            )
    return str(error)


def passed_on(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same records: a task that has only to be there."""
    yield from batches


def written_sets(
    root: str, folder: str, column: str, count: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """As `written`, by a column whose values are 0 to `count` - 1. Raises `ForeignInputSet` for any other."""

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            _check_places(batch, column, count)
            yield batch

    yield from written(root, folder, (column,), checked())


def _check_places(batch: pa.RecordBatch, column: str, count: int) -> None:
    import pyarrow.compute as pc

    values = batch.column(column)
    low, high = pc.min_max(values).as_py().values()
    if values.null_count or (low is not None and (low < 0 or high >= count)):
        found = "null" if values.null_count else str(low if low < 0 else high)
        raise ForeignInputSet(
            f"column {column!r} of the Spark function's result is {found} somewhere, but the job has {count:,} Input Sets, "
            "counted from 0; it must be passed on unchanged"
        )


def written(
    root: str,
    folder: str,
    partition_by: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    most_bytes: int | None = None,
    mode: int = OWNER_ONLY,
) -> Iterator[pa.RecordBatch]:
    """Write the batches of one task attempt to new files of a folder, as `new_files`; yield a line for each, durable by then.

    What is wrong with a store that says so itself (`LogioError`) is in a line: Spark would try a task that raises again at
    once. Raises otherwise as `new_files`.
    """
    given = iter(batches)
    try:
        lines = new_files(data_files(root), folder, partition_by, given, most_bytes, mode)
    except LogioError as error:
        for _ in given:  # Spark waits for that
            pass
        yield failed_line(error)
    else:
        if lines:
            yield lines_of(lines)


def new_files(
    files: DataFiles,
    folder: str,
    partition_by: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    most_bytes: int | None = None,
    mode: int = OWNER_ONLY,
) -> list[FileLine]:
    """Write batches to new files of a folder; what there is to say of each, durable by then.

    A file that would become larger than `most_bytes` ends, and another one begins: one piece of records may be more. Files
    have `mode`, less the umask: those that will be published look as readers are to see them, in a folder for its owner only.
    Nothing is written if there are no records, and nothing is left if this raises: OSError, `LogioError` of a store that says
    what is wrong, `NotText`, `TooManyPartitions`.
    """
    begun: dict[tuple[str, ...], _OpenFile] = {}
    whole: list[_OpenFile] = []
    try:
        for batch in batches:
            check_text(batch)
            for piece in _pieces(batch, most_bytes):
                for partition, records in _parts(piece, partition_by):
                    file = begun.get(partition)
                    if file is not None and most_bytes is not None and not file.has_room(records, most_bytes):
                        whole.append(file.closed())
                        del begun[partition]
                        file = None
                    if file is None:
                        _check_partitions(begun, partition_by)
                        file = begun[partition] = _OpenFile(files, folder, records.schema, partition, mode)
                    file.write(records)
        whole += [file.closed() for file in begun.values()]
        if whole:
            files.settle(folder)
    except BaseException:
        for file in (*whole, *begun.values()):
            file.discard()
        raise
    lines = [file.line for file in whole]
    return [(f"{folder}/{name}", size, count, crc, part) for name, size, count, crc, part in lines]


def _pieces(batch: pa.RecordBatch, most_bytes: int | None) -> Iterator[pa.RecordBatch]:
    """The records of a batch in pieces that are small beside a file."""
    count = 1 if most_bytes is None else -(-batch.nbytes // max(1, most_bytes // PIECES_PER_FILE))
    rows = max(1, -(-batch.num_rows // max(1, count)))
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _check_partitions(files: dict[Any, Any], partition_by: Sequence[str]) -> None:
    if len(files) >= MAX_PARTITIONS:
        raise TooManyPartitions(
            f"one task has records for more than {MAX_PARTITIONS} values of {', '.join(partition_by)}: partition by fewer "
            f"values, or bring records together before the writer: .repartition({', '.join(map(repr, partition_by))})"
        )


class _OpenFile:
    def __init__(self, files: DataFiles, folder: str, schema: pa.Schema, partition: tuple[str, ...], mode: int) -> None:
        import pyarrow.parquet as pq

        self._partition = partition
        self._records = self._given = 0
        self._name, self._file = files.create(folder, mode)
        self._writer = pq.ParquetWriter(
            self._file.stream, schema, compression="zstd", compression_level=1, write_page_checksum=True
        )
        self.line: FileLine = ("", 0, 0, 0, "")
        """Name, bytes, records, footer and partition, once it is closed."""

    def has_room(self, records: pa.RecordBatch, most_bytes: int) -> bool:
        """Whether it stays within `most_bytes` with these, if they are compressed as well as those before."""
        size = self._file.stream.tell()
        return bool(size + records.nbytes * size / max(1, self._given) <= most_bytes)

    def write(self, records: pa.RecordBatch) -> None:
        self._writer.write_batch(records)
        self._records += records.num_rows
        self._given += records.nbytes

    def closed(self) -> _OpenFile:
        """Itself, durable."""
        self._writer.close()
        size, footer = self._file.finished()
        self.line = self._name, size, self._records, footer, _SEPARATOR.join(self._partition)
        return self

    def discard(self) -> None:
        self._file.discard()
        for handle in (self._writer, self._file.stream):
            with suppress(Exception):  # on a full disk, neither footer nor buffer can be written
                handle.close()


def lines_of(lines: Sequence[FileLine]) -> pa.RecordBatch:
    """The lines as `RESULT` has them."""
    paths, sizes, records, footers, partitions = zip(*lines, strict=True)
    return pa.record_batch(
        {
            "path": pa.array(paths, pa.string()),
            "size": pa.array(sizes, pa.int64()),
            "records": pa.array(records, pa.int64()),
            "footer": pa.array(footers, pa.int64()),
            "partition": pa.array(partitions, pa.string()),
            "error": pa.array([""] * len(lines), pa.string()),
            "said": pa.array([""] * len(lines), pa.string()),
        }
    )


def failed_line(error: LogioError) -> pa.RecordBatch:
    """The only line of a task that could not write."""
    nothing = lines_of([("", 0, 0, 0, "")])
    line = nothing.to_pylist()[0] | {"error": type(error).__name__, "said": f"a task cannot write: {error}"}
    return pa.RecordBatch.from_pylist([line], nothing.schema)


def _parts(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.RecordBatch]]:
    """The records of each partition, without its columns."""
    if not partition_by:
        yield (), batch
        return
    kept = [name for name in batch.schema.names if name not in partition_by]
    values = pa.Table.from_batches([batch]).select(list(partition_by))
    row = "_".join(("row", *partition_by))  # a name that none of them has
    table = values.append_column(row, pa.array(range(batch.num_rows), pa.int64()))
    groups = table.group_by(list(partition_by), use_threads=False).aggregate([(row, "list")])
    columns = [_values(name, groups[name]) for name in partition_by]
    for number, rows in enumerate(groups[f"{row}_list"]):
        folders = tuple(_folder(name, values[number]) for name, values in zip(partition_by, columns, strict=True))
        yield folders, batch.select(kept).take(rows.values)


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """Raises `NoPartition` for a date beyond the year 9999, or a text that is none."""
    try:
        found: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        raise NoPartition(
            f"partition column {name!r} has a value that no folder can be named by ({error}); filter or fill it before"
        ) from error
    return found


def _folder(name: str, value: Any) -> str:
    """As Spark and Hive write and read it. Raises `NoPartition` for a value that they would not read back."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if value is not None and text in ("", NULL):
        raise NoPartition(
            f"partition column {name!r} has the text {text!r}, which readers take for null; fill it before"
        )
    folder = f"{_escaped(name)}={NULL if value is None else _escaped(text)}"
    if len(folder.encode()) > MOST_BYTES_OF_A_NAME:
        raise NoPartition(
            f"partition column {name!r} has the value {text[:40]!r}..., and the name of its folder would be longer than "
            f"{MOST_BYTES_OF_A_NAME} bytes; partition by shorter values"
        )
    return folder


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)


# --- copying ----------------------------------------------------------------------------------------------------------


def copied(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Copy ``source`` to ``target`` for each row: under a hidden name of its own first, synced, then renamed.

    ``hidden`` is what that name begins with. Raises OSError of folders; what another store says is in the line.
    """
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_copied(row) for row in batch.to_pylist()], _COPIED)


def _copied(row: dict[str, Any]) -> dict[str, str]:
    line = {"path": row["target"], "error": "", "said": ""}
    try:
        copied_file(row["source"], row["target"], row["size"], row["hidden"])
    except LogioError as error:  # of a store that says what is wrong
        line |= {"error": type(error).__name__, "said": f"a task cannot read {row['source']}: {error}"}
    return line


def blocks(source: str, size: int) -> Iterator[bytes]:
    """What a file of `size` bytes has, given its location. Raises OSError, also if it turns out to have more or less."""
    read = 0
    with _opened(source) as file:
        while block := file.read(_BLOCK):
            yield block
            read += len(block)
    if read != size:
        raise OSError(f"{source} has {read:,} bytes, its manifest says {size:,}")


def _opened(source: str) -> AbstractContextManager[Any]:
    if is_local(source):
        return open(source, "rb")
    files, path = located(source)
    return files.open(path)


def copied_file(source: str, target: str, size: int, beginning: str) -> str:
    """Copy a file of `size` bytes under a hidden name, which begins so, and rename it: `target`, durable.

    It has the mode that new files of this process get. Raises OSError.
    """
    folder = os.path.dirname(target)
    hidden = os.path.join(folder, f"{beginning}{uuid.uuid4().hex}")
    try:
        with open(hidden, "xb") as writer:
            for block in blocks(source, size):
                writer.write(block)
            writer.flush()
            os.fsync(writer.fileno())
        os.replace(hidden, target)
    except BaseException:
        if os.path.exists(hidden):
            os.unlink(hidden)
        raise
    sync(folder)
    return target


# --- files that Spark's own writer has made (ADR-95) ------------------------------------------------------------------

PROBE = ".mode-"
"""What the names of files begin with that are made to see what mode they get, and removed at once."""
_AT_ONCE = 8
"""Files that one process syncs side by side: what a disk of its own, or a server, works off together."""
UNWANTED = "other settings"
"""In place of a partition: a file that has times of an old form. Its settings were another thread's when Spark began it."""
_OLD_FORMS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""What Spark notes in footers of files whose dates or times are not to be read as they are."""


def sealed(root: str, mode: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A line of `RESULT` for each file, given its path below `root`: it is durable then, and stays as it is.

    Files of a folder get `mode`, less the umask, and are synced; what HDFS has closed is complete. One that is not seen here
    has no line. May be done twice. Raises OSError.
    """
    lines = sealed_files(root, mode, [path for batch in batches for path in batch.column("path").to_pylist()])
    if lines:
        yield lines_of(lines)


def sealed_files(root: str, mode: int, paths: Sequence[str]) -> list[FileLine]:
    """As `sealed`, for files that are all in one folder, side by side: a line each. The driver calls it for few files."""
    if not paths:
        return []
    if not is_local(root):
        files = data_files(root)
        return [line for line in files.each(partial(_looked_at, files), paths) if line is not None]
    new = _mode_of_new(os.path.join(root, os.path.dirname(paths[0])), mode)
    with ThreadPoolExecutor(min(len(paths), _AT_ONCE), thread_name_prefix="logio-seal") as threads:
        lines = threads.map(lambda path: _sealed(root, path, new), paths)
        return [line for line in lines if line is not None]


def _sealed(root: str, path: str, mode: int) -> FileLine | None:
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


def _looked_at(files: DataFiles, path: str) -> FileLine | None:
    try:
        size = files.size(path)
        with files.open(path) as file:
            metadata = _footer(file)
            footer = footer_of(file, size)
    except FileNotFoundError:
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

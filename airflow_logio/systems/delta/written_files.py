"""Data files of a Delta table: written from Arrow, under names that are used once, with what the table's log says of each."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_logio.errors import ExternalUnavailable, WriteRefused
from airflow_logio.systems.delta.table_columns import RecordColumns
from airflow_logio.systems.delta.table_place import TablePlace

FILE_BYTES = 128 * 2**20
"""Bytes of Arrow, about, from which a file is written: what is smaller waits for more of its partition."""
HELD_BYTES = 256 * 2**20
"""The most that waits, of all partitions."""
STATISTICS = 32
"""The table's log has the least and the greatest value of so many columns."""
LONGEST_TEXT = 64
"""Characters of a text up to which it is a bound: longer ones say nothing."""
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,60}")

Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that lies in the table's folder; no commit names it yet."""

    path: str
    size: int
    partition: Mapping[str, str | None]
    stats: str
    records: int
    data: pa.Buffer | None = field(default=None, repr=False)
    """Its bytes, to be put again if it is removed before its commit is known. None if there are too many of them."""
    again: Callable[[], None] | None = field(default=None, repr=False, compare=False)
    """Puts it again, the same bytes, from where it was copied."""

    def action(self) -> Any:
        from deltalake.transaction import AddAction

        return AddAction(self.path, self.size, dict(self.partition), int(time.time() * 1000), True, self.stats)


class FileWriter:
    """Takes records, and puts files of them where the table lies. A file has records of one partition."""

    def __init__(
        self,
        place: TablePlace,
        columns: RecordColumns,
        prefix: str,
        *,
        file_bytes: int = FILE_BYTES,
        held_bytes: int = HELD_BYTES,
        kept_bytes: int = HELD_BYTES,
    ) -> None:
        """`file_bytes` and `held_bytes` in place of `FILE_BYTES` and `HELD_BYTES`; of so many bytes of files, the bytes are
        kept."""
        self._limits = file_bytes, held_bytes, kept_bytes
        self._place = place
        self._columns = columns
        self._prefix = prefix
        self._waiting: defaultdict[Partition, list[pa.Table]] = defaultdict(list)
        self._bytes: defaultdict[Partition, int] = defaultdict(int)
        self._kept = 0
        self.files: list[WrittenFile] = []

    def take(self, records: pa.Table, where: str) -> None:
        """Records of one write action. Raises `WriteRefused` for what the table does not hold."""
        for values, part in self._columns.parts(self._columns.fitted(records, where), where):
            key = tuple(values.items())
            self._waiting[key].append(part)
            self._bytes[key] += part.nbytes
            if self._bytes[key] >= self._limits[0]:
                self._put(key)
        while sum(self._bytes.values()) > self._limits[1]:
            self._put(max(self._bytes, key=lambda one: self._bytes[one]))

    def end(self) -> Sequence[WrittenFile]:
        """All files, when all of them are there."""
        for key in list(self._waiting):
            self._put(key)
        return self.files

    def _put(self, key: Partition) -> None:
        records = pa.concat_tables(self._waiting.pop(key))
        del self._bytes[key]
        file = put(self._place, self._prefix, len(self.files), dict(key), records)
        self._kept += file.size
        self.files.append(file if self._kept <= self._limits[2] else replace(file, data=None))


def put(
    place: TablePlace, prefix: str, number: int, partition: Mapping[str, str | None], records: pa.Table
) -> WrittenFile:
    """One file of records without the columns of its partition. Its name is used once: no other attempt, of whichever
    driver, writes or overwrites it."""
    sink = pa.BufferOutputStream()
    pq.write_table(records, sink, compression="snappy")
    data = sink.getvalue()
    path = new_path(prefix, number, partition)
    place.put(path, data)
    return WrittenFile(path, data.size, partition, statistics(records), records.num_rows, data)


def new_path(prefix: str, number: int, partition: Mapping[str, str | None]) -> str:
    """A path that nothing has, and nothing else gets."""
    return f"{folder_of(partition)}{prefix}.{number}.{uuid4().hex}.parquet"


def folder_of(partition: Mapping[str, str | None]) -> str:
    """``day=2026-03-01/``, as other writers have it; none where a name would need quoting. Readers go by the log."""
    parts = [f"{name}={value}" for name, value in partition.items() if value is not None]
    plain = len(parts) == len(partition) and all(
        _PLAIN.fullmatch(one) for pair in partition.items() for one in pair if one is not None
    )
    return "".join(f"{part}/" for part in parts) if plain else ""


def check_there(place: TablePlace, files: Sequence[WrittenFile], version: int | None = None) -> None:
    """Right before a commit, and after that of `version`: what a VACUUM without retention has removed meanwhile is put again,
    the same bytes under the same name.

    Raises `ExternalUnavailable` before the commit if the bytes are not kept (all is written anew then), and `WriteRefused`
    after it.
    """
    for file, size in zip(files, place.sizes([file.path for file in files]), strict=True):
        if size == file.size:
            continue
        if size is None and file.data is not None:
            place.put(file.path, file.data)
            continue
        if size is None and file.again is not None:
            file.again()
            continue
        what = (
            f"{place.named}: {file.path} had {file.size:,} bytes, and {'is gone' if size is None else f'has {size:,}'}"
        )
        if version is None:
            raise ExternalUnavailable(f"{what}: did a VACUUM without retention run? It is written again")
        raise WriteRefused(
            f"{what} since version {version} names it: a VACUUM without retention has run. RESTORE the table to version "
            f"{version - 1}, and give the run up (`logio fresh`)"
        )


# --- what the log of the table says of a file -------------------------------------------------------------------------


def statistics(records: pa.Table) -> str:
    """Count, nulls and bounds of a file, as JSON. Bounds only where all readers order values alike, and none is rounded."""
    columns = dict(zip(records.schema.names[:STATISTICS], records.columns[:STATISTICS], strict=True))
    plain = {name: column for name, column in columns.items() if not pa.types.is_nested(column.type)}
    return said_of(records.num_rows, {name: column.null_count for name, column in plain.items()}, plain)


def said_of(count: int, nulls: Mapping[str, int], columns: Mapping[str, pa.ChunkedArray]) -> str:
    """As `statistics`, of so many records; the bounds are those of `columns`, which need not have all values."""
    least, greatest = dict[str, Any](), dict[str, Any]()
    for name, column in columns.items():
        bounds = list(_bounds(column))
        if len(bounds) == 2:
            least[name], greatest[name] = bounds
    said = {"numRecords": count, "minValues": least, "maxValues": greatest, "nullCount": dict(nulls)}
    return json.dumps(said, ensure_ascii=False)


def _bounds(column: pa.ChunkedArray) -> Iterator[Any]:
    kind = column.type
    ordered = pa.types.is_integer(kind) or pa.types.is_date32(kind) or pa.types.is_timestamp(kind)
    if not (ordered or pa.types.is_string(kind)) or column.null_count == len(column):
        return
    found = pc.min_max(column)
    for bound, is_least in ((found["min"], True), (found["max"], False)):
        try:
            value = bound.as_py() if not pa.types.is_timestamp(kind) else _instant(bound, is_least=is_least)
        except (OverflowError, ValueError):  # not of the years 1 to 9999: readers write such years in different ways
            return
        if isinstance(value, str) and len(value) > LONGEST_TEXT:
            return
        yield value.isoformat() if isinstance(value, date) else value


def _instant(bound: pa.Scalar, *, is_least: bool) -> str:
    """By the millisecond, which all readers know: the greatest one is the next millisecond."""
    micros = bound.cast(pa.int64()).as_py()
    millis = micros // 1000 if is_least else -(-micros // 1000)
    found = datetime(1970, 1, 1, tzinfo=UTC).replace(tzinfo=None) + timedelta(milliseconds=millis)
    text = found.isoformat(timespec="milliseconds")
    return f"{text}Z" if bound.type.tz else text.replace("T", " ")

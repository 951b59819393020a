"""What all sides do: seeded records, sums of them per key and window of time, and what must come of them.

Records come in order of time, 100,000 of them in each minute. Those with no positive amount are left out; the others get a
tax. Sums and counts per minute and key are rows of `TABLE`. All amounts are whole cents, so that every side has the same.

LOG.io reads one Parquet file, and Structured Streaming the same records as many Parquet files, one for each micro-batch.
Flink reads them from a file of three big-endian 64-bit numbers each, because its Parquet format needs further jars. So it has
nothing to decompress, which is in its favour.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEED = 11
KEYS = 100
WINDOW_RECORDS = 100_000
"""In each minute."""
MICROSECONDS = 60_000_000 // WINDOW_RECORDS
"""From record to record."""
BEGIN = np.datetime64("2026-01-01", "us")
BATCHES = (10_000, 100_000)
"""Records of a micro-batch of Structured Streaming."""
CHUNK = 1_000_000
"""Records are made so many at a time."""
TABLE = "peer_sums"
COLUMNS = {"minute": "timestamp", "key": "bigint", "records": "bigint", "cents": "bigint"}
KEY = ("minute", "key")
EXPECTED = """
SELECT date_trunc('minute', "at") AS minute, key, count(*), sum(cents + cents * 19 // 100)
FROM read_parquet('{}') WHERE cents > 0 GROUP BY ALL ORDER BY ALL
"""

Row = tuple[dt.datetime, int, int, int]


@dataclass(frozen=True, slots=True)
class Work:
    """So many records, in the files of all sides, and the rows that must come of them."""

    records: int
    folder: Path
    rows: tuple[Row, ...]

    @property
    def parquet(self) -> Path:
        return self.folder / "records.parquet"

    @property
    def binary(self) -> Path:
        return self.folder / "records.bin"

    @property
    def warm(self) -> Path:
        """A folder of one small file: what a query processes before the clock begins."""
        return self.folder / "warm"

    def batches(self, size: int) -> Path:
        """A folder of files with `size` records each."""
        return self.folder / f"batches-{size}"


def prepared(folder: Path, records: int) -> Work:
    """Write the files into `folder`, and ask DuckDB for the rows."""
    empty = Work(records, folder, ())
    folder.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(empty.parquet, _chunk(0, 0).schema) as parquet, empty.binary.open("wb") as binary:
        for first in range(0, records, CHUNK):
            chunk = _chunk(first, min(CHUNK, records - first))
            parquet.write_table(chunk)
            numbers = np.column_stack([column.to_numpy().astype("int64") for column in chunk.columns])
            binary.write(numbers.astype(">i8").tobytes())
            for size in BATCHES:
                _write_batches(empty.batches(size), chunk, first, size)
    _write_batches(empty.warm, _chunk(0, min(records, BATCHES[0])), 0, BATCHES[0])
    with duckdb.connect() as database:
        rows = database.execute(EXPECTED.format(empty.parquet)).fetchall()
    return Work(records, folder, tuple((minute, key, count, int(cents)) for minute, key, count, cents in rows))


def _chunk(first: int, records: int) -> pa.Table:
    draw = np.random.default_rng([SEED, first])
    at = BEGIN + np.arange(first, first + records) * MICROSECONDS
    return pa.table(
        {
            "key": draw.integers(0, KEYS, records),
            "at": pa.array(at, pa.timestamp("us")),
            "cents": draw.integers(-100, 10_000, records),
        }
    )


def _write_batches(folder: Path, chunk: pa.Table, first: int, size: int) -> None:
    """Structured Streaming takes files in the order of their times of modification."""
    folder.mkdir(exist_ok=True)
    for number, batch in _parts(chunk, first, size):
        file = folder / f"{number:06d}.parquet"
        pq.write_table(batch, file)
        os.utime(file, (1_700_000_000 + number,) * 2)


def _parts(chunk: pa.Table, first: int, size: int) -> Iterator[tuple[int, pa.Table]]:
    """`CHUNK` is a multiple of `size`, so that no file has records of two chunks."""
    for begin in range(0, chunk.num_rows, size):
        yield (first + begin) // size, chunk.slice(begin, size)

"""Orders for benchmarks of DataFrames: seeded files of a given size, and what must come of them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demo.data import parquet_file

SEED = 7
BYTES_PER_RECORD = 34
"""Of a file, about: compressed, with a note that has 16 random bytes."""
STORES = 400
SECONDS_PER_FILE = 6 * 3_600

Fingerprint = tuple[int, int]
"""Number of records, and the sum of a 64-bit hash of each: the same bag of records has the same."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What must come of orders: a query of DuckDB, and the columns that are compared, in types that they are cast to."""

    query: str
    columns: tuple[str, ...]

    def of(self, orders: Path) -> Fingerprint:
        return self._fingerprint(self.query.format(orders=orders, products=parquet_file("products")))

    def found(self, files: Iterable[Path]) -> Fingerprint:
        """What is in some files."""
        listed = ", ".join(f"'{file}'" for file in files)
        return self._fingerprint(f"SELECT * FROM read_parquet([{listed}])") if listed else (0, 0)

    def _fingerprint(self, query: str) -> Fingerprint:
        hashed = f"hash({', '.join(self.columns)})::HUGEINT"
        with duckdb.connect() as database:
            database.execute("SET memory_limit = '2GB'")
            row = database.execute(f"SELECT count(*), coalesce(sum({hashed}), 0) FROM ({query})").fetchone()
        assert row is not None
        return int(row[0]), int(row[1])


NAMED = Expected(
    """
SELECT o.product_id, id, ordered_at::DATE AS day, ordered_at, store_id,
       CAST(round(price * 100) AS BIGINT) * quantity AS cents, note, coalesce(department, 'UNKNOWN') AS department
FROM read_parquet('{orders}/*.parquet') o LEFT JOIN '{products}' p ON p.product_id = o.product_id
WHERE quantity > 0
""",
    (
        "product_id::BIGINT",
        "id::BIGINT",
        "day",
        "ordered_at::TIMESTAMP",
        "store_id::BIGINT",
        "cents",
        "note",
        "department",
    ),
)

HOURS = Expected(
    f"""
SELECT date_trunc('hour', ordered_at) AS hour, store_id, department, count(*) AS orders, sum(cents) AS cents
FROM ({NAMED.query}) GROUP BY ALL
""",
    ("hour::TIMESTAMP", "store_id::BIGINT", "department", "orders::BIGINT", "cents::BIGINT"),
)
HOURS_PER_FILE = SECONDS_PER_FILE // 3_600


def write_orders(folder: Path, files: int, file_bytes: int) -> Path:
    """`files` files of about `file_bytes` each, one after the other in time."""
    folder.mkdir(parents=True)
    products = pq.read_table(parquet_file("products"), columns=["product_id"]).column(0).to_numpy()
    rows = max(1, file_bytes // BYTES_PER_RECORD)
    begin = np.datetime64("2026-01-01", "s")
    for number in range(files):
        draw = np.random.default_rng([SEED, number])
        at = begin + number * SECONDS_PER_FILE + np.sort(draw.integers(0, SECONDS_PER_FILE, rows))
        notes = np.frombuffer(draw.bytes(rows * 16).hex().encode(), dtype="S32")
        table = pa.table(
            {
                "id": np.arange(number * rows, (number + 1) * rows, dtype="int64"),
                "ordered_at": pa.array(at.astype("datetime64[us]"), pa.timestamp("us")),
                "store_id": draw.integers(1, STORES, rows, dtype="int32"),
                "product_id": draw.choice(products, rows),
                "quantity": pa.array(draw.integers(0, 9, rows, dtype="int32"), mask=draw.random(rows) < 0.01),
                "price": draw.integers(1, 10_000, rows) / 100.0,
                "note": pa.array(notes).cast(pa.string()),
            }
        )
        pq.write_table(table, folder / f"orders-{number:05d}.parquet", compression="zstd", compression_level=1)
    return folder


def with_a_late_record(orders: Path, folder: Path) -> Path:
    """The same files in another folder, by links; the last one has one more record, a year younger than all others."""
    folder.mkdir()
    *others, last = sorted(orders.glob("*.parquet"))
    for file in others:
        os.link(file, folder / file.name)
    table = pq.read_table(last)
    late = table.slice(0, 1).set_column(
        table.schema.get_field_index("ordered_at"),
        "ordered_at",
        pa.array([np.datetime64("2027-01-01", "us")], table.schema.field("ordered_at").type),
    )
    late = late.set_column(late.schema.get_field_index("quantity"), "quantity", pa.array([1], pa.int32()))
    pq.write_table(pa.concat_tables([table, late]), folder / last.name, compression="zstd", compression_level=1)
    return folder

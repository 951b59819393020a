"""A lake of seeded orders, and what the pipeline `bundle/lake_orders.py` must make of it, computed by DuckDB."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

STORES = 7
DAYS = 5
"""Of all orders, which come in the order of their times; events begin and end within days."""


def write_orders(folder: Path, files: int, rows: int, seed: int = 1) -> Path:
    """`files` files of `rows` orders each; some have no quantity, or none that counts."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    start, step = (
        1_709_942_400 * 10**6,
        DAYS * 86_400 * 10**6 // (files * rows),
    )  # days of UTC, one of them short in New York
    for number in range(files):
        quantity = pa.array(rng.integers(-1, 9, rows), mask=rng.random(rows) < 0.1)
        table = pa.table(
            {
                "id": np.arange(number * rows, (number + 1) * rows),
                "ts": pa.array(start + step * np.arange(number * rows, (number + 1) * rows), pa.timestamp("us", "UTC")),
                "store": pa.array(rng.integers(0, STORES, rows), pa.int32()),
                "quantity": quantity,
                "price": rng.integers(1, 10_000, rows),
            }
        )
        pq.write_table(table, folder / f"orders-{number:04d}.parquet")
    return folder


def expected_orders(orders: Path) -> list[tuple[int, int, int]]:
    """(id, store, cents), by id."""
    query = f"SELECT id, store, quantity * price FROM '{orders}/*.parquet' WHERE quantity > 0 ORDER BY id"
    return rows_of_query(query)


def expected_refused(orders: Path) -> list[tuple[int]]:
    """The ids of orders that are not good, in order."""
    query = f"SELECT id FROM '{orders}/*.parquet' WHERE quantity <= 0 OR quantity IS NULL ORDER BY id"
    return rows_of_query(query)


def expected_stores(orders: Path) -> dict[int, int]:
    """Store → cents of all events."""
    query = f"SELECT store, sum(quantity * price) FROM '{orders}/*.parquet' WHERE quantity > 0 GROUP BY store"
    return {store: int(cents) for store, cents in rows_of_query(query)}


def expected_days(orders: Path) -> list[tuple[Any, ...]]:
    """(day, store, cents, orders), in order."""
    query = f"""SELECT (ts AT TIME ZONE 'UTC')::DATE, store, sum(quantity * price)::BIGINT, count(*)
        FROM '{orders}/*.parquet' WHERE quantity > 0 GROUP BY ALL ORDER BY ALL"""
    return rows_of_query(query)


def published_days(lake: Path) -> list[tuple[Any, ...]]:
    """As `expected_days`."""
    query = f"""SELECT (day AT TIME ZONE 'UTC')::DATE, store, cents, orders FROM read_parquet('{lake}/days/*.parquet')
        ORDER BY ALL"""
    return rows_of_query(query)


def published_orders(lake: Path) -> list[tuple[int, int, int]]:
    """As `expected_orders`, of what readers of the folder see."""
    files = f"read_parquet('{lake}/orders/store=*/*.parquet', hive_partitioning=true)"
    query = f"SELECT id, store, cents FROM {files} ORDER BY id"
    return rows_of_query(query)


def drawn(lake: Path) -> list[str]:
    """The values that were drawn for the published orders."""
    query = f"SELECT drawn FROM read_parquet('{lake}/orders/store=*/*.parquet')"
    return [value for (value,) in rows_of_query(query)]


def published_stores(lake: Path) -> dict[int, int]:
    """As `expected_stores`."""
    query = f"SELECT store, sum(cents) FROM read_parquet('{lake}/stores/*.parquet') GROUP BY store"
    return {store: int(cents) for store, cents in rows_of_query(query)}


def rows_of_query(query: str) -> list[Any]:
    """The rows of a query of DuckDB."""
    with duckdb.connect() as database:
        return database.execute(query).fetchall()


def receipts(folder: Path) -> list[dict[str, Any]]:
    """The receipts of a published folder, in order."""
    return [json.loads(file.read_text()) for file in sorted((folder / "_logio").glob("*.json"))]


def files_left(payloads: Path) -> Counter[str]:
    """What is in a payload store, by the ends of the names."""
    return Counter(file.suffix or "body" for file in payloads.rglob("*") if file.is_file())

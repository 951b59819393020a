"""The independent check of the sales pipelines: DuckDB computes the same sums from the files, and compares.

It shares no code with the pipeline, the protocol or the writers: it has another engine, other SQL and its own reader.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

from demo.comparing import CheckResult, Table, compare, load

RECORDS_PER_EVENT = 1_000
EVENTS_PER_BATCH = 100

_TRANSACTIONS = """
CREATE TABLE transactions AS
SELECT file_row_number AS row_number, transaction_timestamp::TIMESTAMP AS sold_at, store_id, product_id, quantity,
       CAST(round(sales_value * 100) AS BIGINT) AS cents
FROM read_parquet(?, file_row_number = true)
"""
_PRODUCTS = "CREATE TABLE products AS SELECT product_id, department FROM read_parquet(?)"

_HOURLY = """
SELECT date_trunc('hour', sold_at) AS hour, store_id, coalesce(department, 'UNKNOWN') AS department,
       sum(quantity)::BIGINT AS quantity, sum(cents)::BIGINT AS sales_cents
FROM transactions LEFT JOIN products USING (product_id) GROUP BY ALL
"""
_TOTALS = f"""
SELECT 1 + row_number // {RECORDS_PER_EVENT * EVENTS_PER_BATCH} AS batch, product_id,
       sum(quantity)::BIGINT AS quantity, sum(cents)::BIGINT AS sales_cents
FROM transactions GROUP BY ALL
"""
_PER_PRODUCT = """
SELECT product_id, sum(quantity)::BIGINT AS quantity, sum(cents)::BIGINT AS sales_cents FROM transactions GROUP BY ALL
"""
_FOUND_PER_PRODUCT = """
SELECT product_id, sum(quantity)::BIGINT AS quantity, sum(sales_cents)::BIGINT AS sales_cents FROM found GROUP BY ALL
"""


HOURLY_SALES = Table(
    "hourly_sales",
    {"hour": "TIMESTAMP", "store_id": "BIGINT", "department": "VARCHAR", "quantity": "BIGINT", "sales_cents": "BIGINT"},
    3,
    _HOURLY,
)
ITEM_TOTALS = Table(
    "item_totals",
    {"batch": "BIGINT", "product_id": "BIGINT", "quantity": "BIGINT", "sales_cents": "BIGINT"},
    2,
    _TOTALS,
)


def check(warehouse_url: str, transactions: Path, products: Path) -> CheckResult:
    """Recompute both tables from the files and compare every row. Raises `ConfigurationError` if a table cannot be read."""
    with duckdb.connect(":memory:") as database:
        database.execute(_TRANSACTIONS, [str(transactions)])
        database.execute(_PRODUCTS, [str(products)])
        comparisons = []
        for table in (HOURLY_SALES, ITEM_TOTALS):
            database.execute(f"CREATE OR REPLACE TABLE expected AS {table.expected}")
            load(database, warehouse_url, table)
            comparisons.append(compare(database, table.name, list(table.columns), table.key))
        # All batches together, which does not depend on how events were cut and counted.
        database.execute(f"CREATE OR REPLACE TABLE expected AS {_PER_PRODUCT}")
        database.execute(f"CREATE TABLE summed AS {_FOUND_PER_PRODUCT}")
        database.execute("CREATE OR REPLACE TABLE found AS FROM summed")
        comparisons.append(
            compare(database, "item_totals summed per product", ["product_id", "quantity", "sales_cents"], 1)
        )
    return CheckResult(tuple(comparisons))

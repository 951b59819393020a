"""The paper's sales pipeline (Section 2.3, Examples 2 to 4) on real grocery transactions; money is integer cents.

ingest ──┬── totals ── save_totals         item totals of every 100 events      → item_totals
         └── hourly ── publish ── done     sales by hour, store and department  → hourly_sales
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_logio import (
    Count,
    EveryEvents,
    ParquetSource,
    Pipeline,
    Sums,
    TableRead,
    TableWriter,
    Tumbling,
    generate,
    window_start,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


# [START operators]
def cents(sales: pa.Table) -> pa.Table:
    """`sales_value` (floating point) as `sales_cents` (int64)."""
    # Imported where records are: Airflow imports this file for every segment of every task, and most handle none.
    import pyarrow as pa
    import pyarrow.compute as pc

    amounts = pc.round(pc.multiply(sales.column("sales_value"), 100.0)).cast(pa.int64())
    return sales.drop_columns(["sales_value"]).append_column("sales_cents", amounts)


@generate(
    mode="driver",
    accumulate=Sums(by=["product_id"], of=["quantity", "sales_cents"]),
    depends={"product_id": "product_id"},
)
def product_totals(sums: pa.Table, inset_id: str) -> pa.Table:
    """The sums per product of one Input Set, under its number."""
    import pyarrow as pa

    batch = pa.repeat(pa.scalar(int(inset_id), pa.int64()), sums.num_rows)
    return sums.add_column(0, "batch", batch)


@generate(
    mode="executors",
    many=True,
    reads={"products": TableRead("warehouse", "products", columns=("product_id", "department"), key="product_id")},
    columns=("store_id", "product_id", "quantity", "sales_cents"),
    depends={"hour": window_start, "store_id": "store_id"},
)
def hourly_sales(sales: DataFrame, products: DataFrame) -> DataFrame:
    """Many hours, each of few sales, in one plan of Spark: column inset_id says which hour a row belongs to, and is kept."""
    from pyspark.sql import functions as F

    department = F.coalesce("department", F.lit("UNKNOWN")).alias("department")
    return (
        sales.join(products, "product_id", "left")
        .groupBy("inset_id", F.col("window_start").alias("hour"), "store_id", department)
        .agg(F.sum("quantity").alias("quantity"), F.sum("sales_cents").alias("sales_cents"))
    )


# [END operators]

# [START pipeline]
sales = Pipeline("sales", params={"transactions": str}, connections=["warehouse"])

ingest = sales.source(
    "ingest",
    ParquetSource(
        "{transactions}",
        ordered_by="transaction_timestamp",
        records_per_event=1_000,
        columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
        transform=cents,
    ),
)
totals = sales.operator("totals", product_totals, ingest, window=EveryEvents(100))
save_totals = sales.writer(
    "save_totals",
    TableWriter(
        "warehouse",
        "item_totals",
        columns={"batch": "bigint", "product_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"},
        primary_key=("batch", "product_id"),
        on_new_run="replace",
    ),
    totals,
)
hourly = sales.operator("hourly", hourly_sales, ingest, window=Tumbling("1h", on="transaction_timestamp"))
publish = sales.writer(
    "publish",
    TableWriter(
        "warehouse",
        "hourly_sales",
        columns={
            "hour": "timestamp",
            "store_id": "bigint",
            "department": "text",
            "quantity": "bigint",
            "sales_cents": "bigint",
        },
        primary_key=("hour", "store_id", "department"),
        on_new_run="replace",
    ),
    hourly,
)
done = sales.sink("done", Count(), publish)

sales.group("ingest", ingest)
sales.group("totals", totals, save_totals)
sales.group("hourly", hourly)
sales.group("publish", publish, done)
sales.lineage("ingest.out", "hourly.out")
# [END pipeline]


def _transactions() -> str:
    from demo.data import parquet_file

    return str(parquet_file("transactions"))


def _load_products(urls: Mapping[str, str]) -> str | None:
    from demo.data import load_products

    loaded = load_products(urls["warehouse"])
    return f"loaded {loaded:,} products into the warehouse" if loaded else None


# So that `logio run dags/pipelines/sales.py:sales` needs no options.
# [START local]
sales.local_defaults(
    params={"transactions": _transactions},
    connections={"warehouse": ".logio/warehouse.db"},
    prepare=_load_products,
)
# [END local]

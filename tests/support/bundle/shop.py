"""Two queries of one database: one whose result is stored first, and one over a table that only grows."""

from __future__ import annotations

from airflow_logio.dataflow import Pipeline, QuerySource, TableWriter

COLUMNS = {"id": "bigint", "name": "text"}

shop = Pipeline("shop", params={"least": int}, connections=["shop", "warehouse"])
stock = shop.source(
    "stock",
    QuerySource("shop", "SELECT id, name FROM item WHERE id >= :least", columns=COLUMNS, records_per_event=100),
)
sales = shop.source(
    "sales",
    QuerySource(
        "shop",
        table="item",
        columns=COLUMNS,
        order_by="id",
        replayable=True,
        append_only=True,
        records_per_event=100,
    ),
)
shop.writer("save_stock", TableWriter("warehouse", "stock", columns=COLUMNS, primary_key=("id",)), stock)
shop.writer("save_sales", TableWriter("warehouse", "sales", columns=COLUMNS, primary_key=("id",)), sales)

shop.group("read", "stock", "sales")
shop.group("write", "save_stock", "save_sales")

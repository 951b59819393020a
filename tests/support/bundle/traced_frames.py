"""Records that executors hold and change, which carry the numbers of the rows that they were made of, as in `traced`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_logio import Count, EveryEvents, FolderSource, Pipeline, from_every, from_one, generate, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_FILE = 20


@stateless(mode="dataframe", depends=from_one({"shop": "store_id", "item": "item", "amount": "amount"}))
def paid(orders: DataFrame) -> DataFrame:
    return orders.filter("amount > 20").selectExpr("store_id AS shop", "item", "amount", "row")


@generate(mode="dataframe", depends=from_every({"shop": "shop"}))
def by_shop(orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").agg({"amount": "sum", "row": "collect_list"}).toDF("shop", "cents", "rows")


@generate(mode="executors", depends=from_every({"item": "item"}))
def by_item(orders: DataFrame) -> DataFrame:
    return orders.groupBy("item").agg({"amount": "sum", "row": "collect_list"}).toDF("item", "cents", "rows")


frames = Pipeline("frames", params={"orders": str})
raw = frames.source("raw", FolderSource("{orders}"))
kept = frames.operator("kept", paid, raw)
shops = frames.operator("shops", by_shop, kept, window=EveryEvents(2))
items = frames.operator("items", by_item, kept, window=EveryEvents(3))
frames.sink("end_shops", Count(), shops)
frames.sink("end_items", Count(), items)
frames.group("all", raw, kept, shops, items, "end_shops", "end_items")
for target in ("kept.out", "shops.out", "items.out"):
    frames.lineage("raw.out", target)

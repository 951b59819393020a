"""The paper's sales pipeline (Section 2.3, Examples 2 to 4) with Arrow in place of its Spark job, over a generated table."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    Pipeline,
    Sums,
    TableRead,
    TableWriter,
    Tumbling,
    generate,
)
from airflow_logio.testing.simulator.authored_pipeline import ScriptedSource, pipeline_scenario
from airflow_logio.testing.simulator.codec import Codec
from airflow_logio.testing.simulator.plan import Observed, Scenario

EVENTS, RECORDS_PER_EVENT = 106, 3
EVENTS_PER_BATCH = 8
PRODUCTS, STORES, DEPARTMENTS = 12, 3, 4
START = dt.datetime(2017, 1, 1, 11)  # noqa: DTZ001  # timestamps are UTC without zone (design D14)


@cache
def transactions() -> pa.Table:
    """Sales ordered by time, about four events per hour. Every value follows from the number of its row."""
    rows = range(EVENTS * RECORDS_PER_EVENT)
    return pa.table(
        {
            "store_id": pa.array([row * 7 % STORES for row in rows], pa.int64()),
            "product_id": pa.array([row * 5 % PRODUCTS for row in rows], pa.int64()),
            "quantity": pa.array([1 + row % 4 for row in rows], pa.int64()),
            "sales_cents": pa.array([99 + row * 13 % 500 for row in rows], pa.int64()),
            "transaction_timestamp": pa.array(
                [START + dt.timedelta(minutes=5 * row + row % 3) for row in rows], pa.timestamp("us")
            ),
        }
    )


@cache
def products() -> pa.Table:
    """Product and department; one product is unknown."""
    known = range(PRODUCTS - 1)
    return pa.table({"product_id": [*known], "department": [f"D{number % DEPARTMENTS}" for number in known]})


@generate(mode="driver", accumulate=Sums(by=["product_id"], of=["quantity", "sales_cents"]))
def product_totals(sums: pa.Table, inset_id: str) -> pa.Table:
    return sums.add_column(0, "batch", pa.repeat(pa.scalar(int(inset_id), pa.int64()), sums.num_rows))


@generate(
    mode="driver",
    reads={"products": TableRead("warehouse", "products", columns=("product_id", "department"), key="product_id")},
    columns=("store_id", "product_id", "quantity", "sales_cents"),
)
def hourly_sales(sales: pa.Table, products: pa.Table, window_start: dt.datetime) -> pa.Table:
    joined = sales.join(products, "product_id", join_type="left outer", use_threads=False)
    department = pc.fill_null(joined.column("department"), "UNKNOWN")
    joined = joined.set_column(joined.column_names.index("department"), "department", department)
    grouped = joined.group_by(["store_id", "department"], use_threads=False)
    sums = grouped.aggregate([("quantity", "sum"), ("sales_cents", "sum")])
    hour = pa.repeat(pa.scalar(window_start, pa.timestamp("us")), sums.num_rows)
    return sums.rename_columns(["store_id", "department", "quantity", "sales_cents"]).add_column(0, "hour", hour)


def pipeline() -> Pipeline:
    """The graph of `dags/pipelines/sales.py`."""
    sales = Pipeline("sales", connections=["warehouse"])
    ingest = sales.source("ingest", ScriptedSource(transactions(), RECORDS_PER_EVENT))
    totals = sales.operator("totals", product_totals, ingest, window=EveryEvents(EVENTS_PER_BATCH))
    columns = {"batch": "bigint", "product_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"}
    save = TableWriter("warehouse", "item_totals", columns, ("batch", "product_id"), on_new_run="replace")
    sales.writer("save_totals", save, totals)
    hourly = sales.operator("hourly", hourly_sales, ingest, window=Tumbling("1h", on="transaction_timestamp"))
    columns = {
        "hour": "timestamp",
        "store_id": "bigint",
        "department": "text",
        "quantity": "bigint",
        "sales_cents": "bigint",
    }
    keys = ("hour", "store_id", "department")
    write = TableWriter("warehouse", "hourly_sales", columns, keys, on_new_run="replace")
    publish = sales.writer("publish", write, hourly)
    sales.sink("done", Count(), publish)
    sales.group("ingest", ingest)
    sales.group("totals", totals, "save_totals")
    sales.group("hourly", hourly)
    sales.group("publish", publish, "done")
    sales.lineage("ingest.out", "hourly.out")
    return sales


def judge(seen: Observed, codec: Codec) -> list[str]:
    """Both tables and the lineage, computed in plain Python from the part of the input that was read."""
    rows = transactions().to_pylist()[: seen.read["ingest"].offset]
    department = {row["product_id"]: row["department"] for row in products().to_pylist()}
    hourly, totals = Counter[tuple[object, ...]](), Counter[tuple[object, ...]]()
    hours: dict[dt.datetime, set[int]] = {}
    for number, row in enumerate(rows):
        event = number // RECORDS_PER_EVENT
        hour = row["transaction_timestamp"].replace(minute=0, second=0, microsecond=0)
        hours.setdefault(hour, set()).add(event + 1)
        key = (hour, row["store_id"], department.get(row["product_id"], "UNKNOWN"))
        batch = (event // EVENTS_PER_BATCH + 1, row["product_id"])
        for counted, by in ((hourly, key), (totals, batch)):
            counted[*by, "quantity"] += row["quantity"]
            counted[*by, "sales_cents"] += row["sales_cents"]
    lineage = {
        ("hourly.in", event, "hourly.out", index)
        for index, hour in enumerate(sorted(hours), start=1)
        for event in hours[hour]
    }
    return [
        *([] if _written(seen, codec, "publish", 3) == hourly else ["hourly_sales is wrong"]),
        *([] if _written(seen, codec, "save_totals", 2) == totals else ["item_totals is wrong"]),
        *([] if seen.lineage == lineage else ["lineage is wrong"]),
    ]


def _written(seen: Observed, codec: Codec, writer: str, keys: int) -> Counter[tuple[object, ...]]:
    found = Counter[tuple[object, ...]]()
    for body in seen.writes[f"{writer}>warehouse"]:
        for row in codec.decode(body).to_pylist() if body else ():
            values = tuple(row.values())
            found[*values[:keys], "quantity"] += values[keys]
            found[*values[:keys], "sales_cents"] += values[keys + 1]
    return found


def sales() -> Scenario:
    """The scenario, made on demand because it needs Arrow's compute functions."""
    return pipeline_scenario(pipeline(), tables={"warehouse": {"products": products()}}, judge=judge, drains=True)

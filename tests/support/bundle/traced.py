"""Pipelines whose records carry the numbers of the source's rows that they were made of, in columns `row` and `rows`.

These columns are the brute force that lineage of records is compared with; it must not look at them (`CARRIED`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    ByKey,
    Count,
    EveryEvents,
    FunctionRead,
    ParquetSource,
    Pipeline,
    Sums,
    Synchronized,
    TableWriter,
    Tumbling,
    from_every,
    from_one,
    generate,
    stateless,
    window_start,
)

CARRIED = ("row", "rows", "bit")
RECORDS_PER_EVENT = 10
CITIES = ("Akron", "Boston", "Cleveland", "Dayton")


def grouped(records: pa.Table, *by: str) -> pa.Table:
    """Sums by columns, with the rows of each group."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in records.to_pylist():
        group = groups.setdefault(tuple(record[name] for name in by), {"amount": 0, "rows": []})
        group["amount"] += record["amount"]
        group["rows"] += record["rows"] if "rows" in record else [record["row"]]
    columns = {name: pa.array([key[n] for key in groups], records.schema.field(name).type) for n, name in enumerate(by)}
    amounts = pa.array([group["amount"] for group in groups.values()], pa.int64())
    rows = pa.array([group["rows"] for group in groups.values()], pa.list_(pa.int64()))
    return pa.table({**columns, "amount": amounts, "rows": rows})


def source(pipeline: Pipeline) -> Any:
    return pipeline.source(
        "orders", ParquetSource("{transactions}", ordered_by="date", records_per_event=RECORDS_PER_EVENT)
    )


# --- the orders of Section 7.3, summed up by hour, item and state ------------------------------------------------------


@generate(
    accumulate=Sums(by=["item_id", "state"], of=["amount", "bit"]),
    depends={"hour": window_start, "item_id": "item_id", "state": "state"},
)
def hourly_sums(sums: pa.Table, window_start: Any) -> pa.Table:
    """`bit` has one bit per row: their sum says which they were."""
    return sums.add_column(0, "hour", pa.repeat(pa.scalar(window_start, pa.timestamp("us")), sums.num_rows))


@generate(depends={"state": "state"})
def largest(sums: pa.Table) -> pa.Table:
    """Of each state one record, the largest."""
    rows = sums.sort_by([("amount", "descending"), ("hour", "ascending"), ("item_id", "ascending")]).to_pylist()
    return pa.Table.from_pylist(list({row["state"]: row for row in reversed(rows)}.values()), schema=sums.schema)


orders = Pipeline("orders", params={"transactions": str}, connections=["warehouse"])
op3 = orders.operator("op3", hourly_sums, source(orders), window=Tumbling("1h", on="date"))
best = orders.operator("best", largest, op3, window=EveryEvents(3))
BEST = {"hour": "timestamp", "item_id": "text", "state": "text", "amount": "bigint", "bit": "bigint"}
written = orders.writer("written", TableWriter("warehouse", "best", columns=BEST, on_new_run="replace"), best)
orders.sink("end", Count(), written)
orders.group("all", "orders", op3, best, written, "end")
orders.lineage("orders.out", "written.out")


# --- filters, a renaming, two output ports -----------------------------------------------------------------------------


@stateless(depends=from_one())
def paid(records: pa.Table) -> pa.Table:
    return records.filter(pc.greater(records["amount"], 20))


@stateless(
    outputs=("cheap", "dear"),
    depends={
        "cheap": from_one({"shop": "store_id", "item": "item_id"}),
        "dear": from_one({"shop": "store_id", "item": "item_id", "amount": "amount"}),
    },
)
def split(records: pa.Table) -> dict[str, pa.Table]:
    """Without the date, and of cheap ones without the amount: several records are alike."""
    names = {
        "shop": records["store_id"],
        "item": records["item_id"],
        "amount": records["amount"],
        "row": records["row"],
    }
    renamed, is_cheap = pa.table(names), pc.less(records["amount"], 60)
    return {"cheap": renamed.filter(is_cheap).drop_columns(["amount"]), "dear": renamed.filter(pc.invert(is_cheap))}


@generate(depends=from_every({"shop": "shop"}))
def by_shop(dear: pa.Table) -> pa.Table:
    return grouped(dear, "shop")


cleaned = Pipeline("cleaned", params={"transactions": str})
kept = cleaned.operator("kept", paid, source(cleaned))
parts = cleaned.operator("parts", split, kept)
shops = cleaned.operator("shops", by_shop, parts.port("dear"), window=EveryEvents(4))
cleaned.sink("end_cheap", Count(), parts.port("cheap"))
cleaned.sink("end_dear", Count(), shops)
cleaned.group("all", "orders", kept, parts, shops, "end_cheap", "end_dear")
cleaned.lineage("orders.out", "parts.cheap")
cleaned.lineage("orders.out", "shops.out")


# --- replicas: a Dispatcher and a Merger on the way ----------------------------------------------------------------------


@generate(depends=from_every({"item_id": "item_id"}))
def by_item(records: pa.Table) -> pa.Table:
    return grouped(records, "item_id")


@generate(depends=from_every({"item_id": "item_id"}))
def all_of_it(items: pa.Table) -> pa.Table:
    return grouped(items, "item_id")


replicated = Pipeline("replicated", params={"transactions": str})
items = replicated.operator("items", by_item, source(replicated), window=Tumbling("2h", on="date"))
every = replicated.operator("every", all_of_it, items, window=EveryEvents(5))
replicated.sink("end", Count(), every)
replicated.group("before", "orders")
replicated.group("items", items)
replicated.group("after", every, "end")
replicated.replicate("items", partition=ByKey("store_id", slots=3), max=2, initial=2)
replicated.lineage("orders.out", "every.out")


# --- several input ports, several functions, a read -----------------------------------------------------------------------


def taxes(url: str, keys: pa.Array) -> pa.Table:
    return pa.table({"state": keys, "percent": pa.array([len(str(key)) for key in keys], pa.int64())})


@stateless(depends=from_one())
def passed(records: pa.Table) -> pa.Table:
    return records


@generate(
    inputs=("one", "other"),
    reads={"tax": FunctionRead("taxes", taxes, key="state")},
    depends=from_every({"state": ["one.state", "other.state"]}),
)
def met(one: pa.Table, other: pa.Table, tax: pa.Table) -> pa.Table:
    return grouped(pa.concat_tables([one, other]), "state")


@generate
def told_by_nobody(records: pa.Table) -> pa.Table:
    return grouped(records, "state")


@generate(depends=from_every({"hour": window_start}))
def by_hour(records: pa.Table, window_start: Any) -> pa.Table:
    hour = pa.array([window_start], pa.timestamp("us"))
    amount = pa.array([pc.sum(records["amount"]).as_py()], pa.int64())
    return pa.table(
        {"hour": hour, "amount": amount, "rows": pa.array([records["row"].to_pylist()], pa.list_(pa.int64()))}
    )


joined = Pipeline("joined", params={"transactions": str}, connections=["taxes"])
one = joined.operator("one", passed, source(joined))
functions = joined.operator(
    "functions", {"untold": told_by_nobody, "hours": (by_hour, Tumbling("1h", on="date"))}, one, window=EveryEvents(2)
)
meeting = joined.operator("meeting", met, one=one, other="orders", window=Synchronized(one=2, other=1))
for port in ("untold", "hours"):
    joined.sink(f"end_{port}", Count(), functions.port(port))
joined.sink("end", Count(), meeting)
joined.group("all", "orders", one, functions, meeting, "end_untold", "end_hours", "end")
for target in ("functions.untold", "functions.hours", "meeting.out"):
    joined.lineage("orders.out", target)

"""The sales pipeline with replicas, in two ways. Slots compute sums by store, and the Dispatcher tells them which time the
stream has reached. Copies of the sales pass through two operators without state, as whole events in any slot, in order."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio.dataflow import ByKey, Count, LeastLoaded, Pipeline, TableWriter, Tumbling, stateless
from airflow_logio.testing.simulator.authored_pipeline import ScriptedSource, pipeline_scenario
from airflow_logio.testing.simulator.plan import Scenario
from tests.simulator.sales import RECORDS_PER_EVENT, hourly_sales, products, transactions

EVENTS = 34
SLOTS = 4
REPLICAS = 3


@stateless
def passed(records: pa.Table) -> pa.Table:
    return records


@stateless(columns=("store_id", "product_id", "quantity", "sales_cents"))
def copied(records: pa.Table) -> pa.Table:
    return records


def pipeline() -> Pipeline:
    made = Pipeline("scaled", connections=["warehouse"])
    part = transactions().slice(0, EVENTS * RECORDS_PER_EVENT)
    ingest = made.source("ingest", ScriptedSource(part, RECORDS_PER_EVENT))
    hourly = made.operator("hourly", hourly_sales, ingest, window=Tumbling("2h", on="transaction_timestamp"))
    columns = {"hour": "timestamp", "store_id": "bigint", "department": "text"}
    columns |= {"quantity": "bigint", "sales_cents": "bigint"}
    publish = made.writer("publish", TableWriter("warehouse", "hourly_sales", columns), hourly)
    made.sink("done", Count(), publish)
    before = made.operator("before", passed, ingest)
    copies = made.operator("copies", copied, before)
    columns = {name: "bigint" for name in ("store_id", "product_id", "quantity", "sales_cents")}
    made.writer("save", TableWriter("warehouse", "copies", columns, on_new_run="replace"), copies)
    made.group("hours", hourly)
    made.group("copying", before, copies)
    made.group("publishing", publish, "done", "save")
    made.replicate("hours", partition=ByKey("store_id", slots=SLOTS), max=REPLICAS)
    made.replicate("copying", partition=LeastLoaded(slots=SLOTS), max=REPLICAS, initial=2, ordered=True)
    made.lineage("ingest.out", "hourly.out")
    return made.freeze()


def scaled() -> Scenario:
    """The scenario, made on demand because it needs Arrow's compute functions."""
    return pipeline_scenario(pipeline(), tables={"warehouse": {"products": products()}})
